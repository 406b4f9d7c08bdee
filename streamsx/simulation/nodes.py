"""Process of the real broker behind several addresses, with crashes and restarts.

The nodes are addresses of one broker, not a cluster. Leadership and coordination move between
addresses while the old address goes on serving, and requests there are refused as Kafka refuses
them. On the way back answers are damaged, and some requests are refused that the broker would have
granted. All nodes share one process and one disk: a node that vanishes is an address that no client
reaches.

Not here: the meaning of a request (the broker's own files in `api/`).
"""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamsx.broker.api.served import answered
from streamsx.broker.groups.coordinator import refuse
from streamsx.broker.groups.coordinator_events import ClientRequest, Peer, ReplyBody
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.net.client_connection import ConnectionLimits, ServedRequest
from streamsx.broker.net.server import BrokerServer
from streamsx.broker.options import Options
from streamsx.broker.service import Service
from streamsx.broker.topics import TopicStore
from streamsx.errors import WorldError
from streamsx.model import Buffer, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import scan
from streamsx.protocol.schema import UUID_ZERO
from streamsx.protocol.wire import Api
from streamsx.simulation.power import PowerLoss
from streamsx.simulation.process import Process
from streamsx.simulation.scene import APP

if TYPE_CHECKING:
    from streamsx.simulation.world import World

BROKER = "broker"
PORT = 9092
HOSTS = ("127.0.0.1", "127.0.0.2")
BOOTSTRAP = ",".join(f"{host}:{PORT}" for host in HOSTS)
GROUP_APIS = frozenset(
    {
        Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH, Api.DESCRIBE_GROUPS, Api.CONSUMER_GROUP_HEARTBEAT, Api.END_TXN,
        Api.TXN_OFFSET_COMMIT, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN,
    }
)  # fmt: skip
LEADER_APIS: dict[Api, tuple[Any, ...]] = {
    Api.PRODUCE: (
        "topic_data", "name", "partition_data", "index",
        "responses", "partition_responses", "index", {"base_offset": -1},
    ),
    Api.FETCH: (
        "topics", "topic", "partitions", "partition",
        "responses", "partitions", "partition_index", {"high_watermark": -1, "records": b""},
    ),
    Api.LIST_OFFSETS: (
        "topics", "name", "partitions", "partition_index",
        "topics", "partitions", "partition_index", {"timestamp": -1, "offset": -1},
    ),
}  # fmt: skip
"""Names of the fields of an API that goes to leaders, and the other fields of a refusal.

The names are those of topics, name, partitions and number in a request, and of topics, partitions
and number in an answer.
"""
DAMAGED_AT = -3
"""Index of the damaged byte, inside of the last record of an answer."""
NOBODY = -1
MUCH = 1 << 30
SHORTEN_S = 2.0
GROW_AGAIN_S = 1.0
QUICK = GroupConfig(consumer_session_timeout_ms=6000, consumer_heartbeat_interval_ms=1000)
"""Timeouts of the consumer protocol, where the broker sets how long a member may be silent."""


def several(records: Buffer | None) -> bool:
    """Return whether any batch has more than one record."""
    batches = () if records is None else scan(records, check=False)
    return any(header.records > 1 for _, _, header in batches)


Respond = Callable[[ServedRequest, ReplyBody | None], None]


class Nodes:
    """Broker behind its addresses, with the faults that are set on them and end by themselves.

    `service` is None while there is no broker. `coordinator` and `leader` are node numbers.

    `leaderless`: time until which a topic has no leader; `stingy`: time until which a topic has too
    few replicas for a produce; `narrow`: time until which a topic refuses a batch with several
    records as too large; `refused`: per API, the number of requests that are still refused, and the
    error code.
    """

    def __init__(self, world: "World", folder: Path) -> None:
        self.scheduler = world.scheduler
        self.network = world.network
        self.world = world
        self.scene = world.scene
        self._folder = folder
        self._ids = self.scheduler.stream("broker ids")
        self.service: Service | None = None
        self.process: Process
        self.coordinator = self.leader = 0
        self.lost = False
        """Whether acknowledged data may be lost: power was cut from a broker without `sync`."""
        self.away_until = self.uncoordinated_until = 0.0
        self.leaderless: dict[str, float] = {}
        self.stingy: dict[str, float] = {}
        self.narrow: dict[str, float] = {}
        self.refused: dict[Api, tuple[int, ErrorCode]] = {}
        self._damaged: list[str | None] = []
        self.disk = PowerLoss(folder, self.scheduler.stream("broker disk"))
        self.network.alias((HOSTS[1], PORT), (HOSTS[0], PORT))
        self.start()
        if self.scene.segment_bytes:
            self._shorten()

    def start(self) -> None:
        process = self.process = Process(self.network, BROKER)

        async def serve() -> None:
            broker = BrokerServer(
                self._folder,
                host=HOSTS[0],
                port=PORT,
                topics=self.scene.sources,
                clock=process.clock,
                options=Options(
                    sync=self.scene.sync,
                    auto_create=True,
                    partitions=self.scene.words,
                    cleaner_interval_s=2.0,
                    compacted_bytes_min=0 if self.scene.compacts else MUCH,
                ),
                limits=ConnectionLimits(connections_max_idle_s=self.scene.idle_s),
                groups=QUICK,
                fresh_id=self._fresh_id,
                answer=self.answer,
            )
            try:
                await broker.start()
            except WorldError as error:  # restarted until its disk works again
                self.scheduler.say(BROKER, f"cannot start: {error}")
                self.scheduler.after(0.1, self.crash, 1.0)
                await asyncio.get_running_loop().create_future()
            self.service = broker.service
            process.on_kill.append(broker.abandon)
            await asyncio.get_running_loop().create_future()

        process.start(serve)
        self.scheduler.say(BROKER, "starts")

    def _fresh_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._ids.getrandbits(128))

    def crash(self, back_s: float, *, power: bool = False) -> None:
        """Kill the broker and start it again `back_s` seconds later.

        The contents of the memory are gone. With `power`, no connection is closed either.
        """
        if self.process.alive:
            self.scheduler.say(BROKER, f"crashes, back in {back_s} s, power={power}")
            self.service = None
            self.process.kill(power=power)
            if power and (self.scene.sync or self.scene.unsynced):
                self.disk.lose()
                self.lost = self.lost or not self.scene.sync
            self.scheduler.after(back_s, self.start)

    def freeze(self, seconds: float) -> None:
        if self.process.alive:
            self.scheduler.say(BROKER, f"frozen for {seconds} s")
            self.process.freeze(seconds)

    def move_coordinator(self, node: int | None = None) -> None:
        """Move the coordinator to a node, or to the other one; the old one lives on and refuses."""
        self.coordinator = 1 - self.coordinator if node is None else node
        self.scheduler.say(BROKER, f"coordinates on node {self.coordinator}")
        if self.process.alive and self.service is not None:
            self.process.main.call(self.service.groups.move)

    def move_leader(self, node: int | None = None) -> None:
        self.leader = 1 - self.leader if node is None else node
        self.scheduler.say(BROKER, f"leads on node {self.leader}")

    def vanish(self, node: int, seconds: float, *, over_s: float = 0.5) -> None:
        """Cut a node off without closing connections; `over_s` later the other node takes over."""
        self.scheduler.say(BROKER, f"node {node} vanishes for {seconds} s")
        self.network.lose(HOSTS[node], seconds)
        self.away_until = self.scheduler.now + seconds
        if self.coordinator == node:
            self.scheduler.after(over_s, self.move_coordinator, 1 - node)
        if self.leader == node:
            self.scheduler.after(over_s, self.move_leader, 1 - node)

    def delete(self, topic: str) -> None:
        if self.service is not None:
            self.service.topics.delete(self.service.topics.by_name[topic])
            self.scheduler.say(BROKER, f"{topic} is deleted")

    def _shorten(self) -> None:
        """Set short log segments for all topics, every `SHORTEN_S` for the sake of new ones."""
        if self.process.alive and self.service is not None:
            self.process.main.call(self._configure, self.service.topics)
        self.scheduler.after(SHORTEN_S, self._shorten)

    def _configure(self, topics: TopicStore) -> None:
        wanted = {"segment.bytes": str(self.scene.segment_bytes)}
        for topic in topics.by_name.values():
            if not topic.configs.items() >= wanted.items():
                topics.configure(topic, {**topic.configs, **wanted})

    def partitions(self, topic: str) -> int:
        """Return the number of partitions that the broker has, or will have."""
        found = None if self.service is None else self.service.topics.by_name.get(topic)
        return len(found.logs) if found else self.scene.sources.get(topic, 0)

    def grow(self, topic: str, partitions: int) -> None:
        found = None if self.service is None else self.service.topics.by_name.get(topic)
        if self.service is not None and found is not None and len(found.logs) < partitions:
            try:
                self.service.topics.grow([(found, partitions)])
            except OSError as error:  # the admin client is refused, and tries again
                self.scheduler.say(BROKER, f"{topic} does not grow: {error}")
                self.scheduler.after(GROW_AGAIN_S, self.grow, topic, partitions)
            else:
                self.scheduler.say(BROKER, f"{topic} grows to {partitions}")

    # -- requests and answers on their way

    def damage(self, topic: str | None = None) -> None:
        """Damage the next answer that has records of this topic, or of any topic."""
        self._damaged.append(topic)

    def leads(self, topic: str) -> int:
        """Return the node that leads a topic, or NOBODY."""
        gone = self.leaderless.get(topic, 0.0) > self.scheduler.now
        return NOBODY if gone else self.leader

    def answer(self, service: Service, call: ServedRequest) -> ReplyBody | None:
        """Answer a request in place of the broker: refuse it, or let the broker answer.

        Returns:
            The answer, or None if the answer comes later or never.
        """
        name_topics(service, call)
        self.world.hear("asked", call.connection.host, call)
        node = HOSTS.index(call.connection.address[0])
        refused = None
        if self._is_coordinated(call):
            code = ErrorCode.NOT_COORDINATOR if node != self.coordinator else self._spent(call)
            refused = self._of_group(service, call, code) if code else None
        elif call.api in LEADER_APIS:
            if call.api is Api.PRODUCE:
                self._narrow(call)
            refused = self._of_leader(call, node)
        if refused is not None:
            return refused
        call.respond = partial(self._respond, call.respond)
        return answered(service, call)

    def _is_coordinated(self, call: ServedRequest) -> bool:
        """Return whether only the coordinator of a group or a transaction takes a request."""
        begins = call.api is Api.INIT_PRODUCER_ID and call.body.transactional_id is not None
        return begins or call.api in GROUP_APIS

    def _spent(self, call: ServedRequest) -> ErrorCode:
        """Return the code to refuse this request with, although the broker would grant it."""
        left, code = self.refused.get(call.api, (0, ErrorCode.NONE))
        name = getattr(call.body, "transactional_id", None)
        others = name is not None and not name.startswith(APP)
        if not left or others:
            return ErrorCode.NONE
        self.refused[call.api] = left - 1, code
        told = f"refuses {call.api.name} of {call.connection.host}: {code.name}"
        self.scheduler.say(BROKER, told)
        return code

    def _code(self, api: Api, topic: str, node: int) -> ErrorCode:
        if self.leads(topic) != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        stingy = api is Api.PRODUCE and self.stingy.get(topic, 0.0) > self.scheduler.now
        return ErrorCode.NOT_ENOUGH_REPLICAS if stingy else ErrorCode.NONE

    def _of_leader(self, call: ServedRequest, node: int) -> ReplyBody | None:
        """Refuse some topics of a request as a broker does; the broker answers the rest.

        Returns:
            The answer if all topics are refused, otherwise None.
        """
        topics, name, partitions, number, told, parts, index, usual = LEADER_APIS[call.api]
        asked = getattr(call.body, topics)
        codes = {topic: self._code(call.api, topic, node) for topic in map(attrgetter(name), asked)}
        if not any(codes.values()) and (spent := self._spent(call)):
            codes = dict.fromkeys(codes, spent)
        refused = [
            {
                name: getattr(topic, name),
                "topic_id": getattr(topic, "topic_id", UUID_ZERO),
                parts: [
                    {index: getattr(one, number), "error_code": code, **usual}
                    for one in getattr(topic, partitions)
                ],
            }
            for topic in asked
            if (code := codes[getattr(topic, name)])
        ]
        rest = [topic for topic in asked if not codes[getattr(topic, name)]]
        if refused and rest:
            setattr(call.body, topics, rest)
            call.respond = partial(self._both, call.respond, told, refused)
            if call.api is Api.FETCH:
                call.body.max_wait = 0  # a fetch with an error to report does not wait
        return {told: refused} if refused and not rest else None

    def _narrow(self, call: ServedRequest) -> None:
        """Refuse the batches with several records of topics that are narrow; take the others."""
        code = ErrorCode.MESSAGE_TOO_LARGE
        refused = list[ReplyBody]()
        for topic in call.body.topic_data:
            if self.narrow.get(topic.name, 0.0) <= self.scheduler.now:
                continue
            large = [one for one in topic.partition_data if several(one.records)]
            if large:
                parts = [{"index": p.index, "error_code": code, "base_offset": -1} for p in large]
                refused.append({"name": topic.name, "partition_responses": parts})
                numbers = {part.index for part in large}
                left = [one for one in topic.partition_data if one.index not in numbers]
                topic.partition_data = left
        if refused:
            call.respond = partial(self._both, call.respond, "responses", refused)

    def _both(
        self, respond: Respond, told: str, refused: list[ReplyBody], call: ServedRequest,
        body: ReplyBody | None,
    ) -> None:  # fmt: skip
        if body is not None:
            body[told] += refused
        respond(call, body)

    def _of_group(self, service: Service, call: ServedRequest, code: ErrorCode) -> ReplyBody | None:
        if service.groups.machine is None:
            return None
        request = ClientRequest(0, call.api, call.version, Peer("", ""), call.body, "", 0)
        return refuse(request, code).body

    def _respond(self, respond: Respond, call: ServedRequest, body: ReplyBody | None) -> None:
        if body is not None:
            match call.api:
                case Api.METADATA:
                    self._metadata(body)
                case Api.FIND_COORDINATOR:
                    self._coordinators(body)
                case Api.FETCH:
                    self._fetched(call, body)
                case Api.API_VERSIONS if self.world.scene.exact == "v1":
                    body.pop("finalized_features", None)
            self.world.hear("told", call.connection.host, call, body)
        respond(call, body)

    def _metadata(self, body: ReplyBody) -> None:
        body["brokers"] = [
            {"node_id": node, "host": host, "port": PORT} for node, host in enumerate(HOSTS)
        ]
        for topic in body["topics"]:
            for partition in topic.get("partitions", ()):
                partition["leader_id"] = self.leads(topic["name"])

    def _coordinators(self, body: ReplyBody) -> None:
        node = self.coordinator
        told = {"node_id": node, "host": HOSTS[node], "port": PORT}
        if self.scheduler.now < self.uncoordinated_until:
            told = {"node_id": NOBODY, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
        for one in (body, *body["coordinators"]):
            one.update(told)

    def _fetched(self, call: ServedRequest, body: ReplyBody) -> None:
        """Flip one bit of one batch in an answer; the broker's own bytes stay whole."""
        if not self._damaged:
            return
        wanted = self._damaged[0]
        for topic in body["responses"]:
            for partition in topic["partitions"]:
                if partition.get("records") and wanted in (None, topic["topic"]):
                    data = bytearray(partition["records"])
                    data[DAMAGED_AT] ^= 0x10
                    partition["records"] = bytes(data)
                    self._damaged.pop(0)
                    tp = TopicPartition(str(topic["topic"]), partition["partition_index"])
                    self.scheduler.say(BROKER, f"damages {tp} for {call.connection.host}")
                    return


def name_topics(service: Service, call: ServedRequest) -> None:
    """Add names to the topics of a fetch that has only ids; unknown ids get None."""
    if call.api is Api.FETCH:
        for topic in call.body.topics:
            if getattr(topic, "topic", None) is None:
                found = service.topics.by_id.get(topic.topic_id)
                topic.topic = found.name if found else None
