"""What stands before the real broker: several addresses, of which one leads and one coordinates.

Fronts of one broker, not a cluster: who leads and who coordinates moves between addresses while the
old one goes on serving, and asks there are refused as Kafka refuses them. On the way back answers
are damaged, and some requests are refused that the broker would have granted.

Not here: what a request means (the broker's own files in `api/`).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from streamsx.broker.api.served import answered
from streamsx.broker.connection import Call
from streamsx.broker.events import ClientRequest, Peer, ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api
from streamsx.model import TopicPartition

if TYPE_CHECKING:
    from streamsx.simulation.world import World

PORT = 9092
HOSTS = ("127.0.0.1", "127.0.0.2")
GROUP_APIS = frozenset(
    {
        Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP, Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH, Api.DESCRIBE_GROUPS,
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
"""What its fields are called, in a request (topics, name, partitions, number) and in its answer
(topics, partitions, number), and what stands in one that refuses."""
DAMAGED_AT = -3
"""Inside of the last record of an answer."""
NOBODY = -1


class Front:
    """`coordinator` and `leader`: node numbers. Faults are set here, and end by themselves.

    `leaderless` and `stingy`: of topics, until when they have no leader, or too few replicas for a
    produce; `refused`: so many requests of a kind are refused, with which code. The client of this
    name is `spared`: neither refused nor told damaged records.
    """

    def __init__(self, world: "World", spared: str) -> None:
        self.scheduler, self.world, self._spared = world.scheduler, world, spared
        self.coordinator = self.leader = 0
        self.uncoordinated_until = 0.0
        self.leaderless: dict[str, float] = {}
        self.stingy: dict[str, float] = {}
        self.refused: dict[Api, tuple[int, ErrorCode]] = {}
        self._damaged: list[str | None] = []

    def damage(self, topic: str | None = None) -> None:
        """One of the answers to come, with records of this topic, or of any."""
        self._damaged.append(topic)

    def leads(self, topic: str) -> int:
        """The node, or NOBODY."""
        gone = self.leaderless.get(topic, 0.0) > self.scheduler.now
        return NOBODY if gone else self.leader

    def answer(self, service: Service, call: Call) -> ReplyBody | None:
        """In place of the broker's own."""
        self.world.hear("asked", call.connection.host, call)
        if (refused := self._refused(service, call)) is not None:
            return refused
        call.respond = partial(self._respond, call.respond)
        return answered(service, call)

    def _refused(self, service: Service, call: Call) -> ReplyBody | None:
        node = HOSTS.index(call.connection.address[0])
        if call.api in GROUP_APIS:
            code = ErrorCode.NOT_COORDINATOR if node != self.coordinator else self._spent(call)
            return self._of_group(service, call, code) if code else None
        if call.api in LEADER_APIS:
            leads = all(self.leads(name) == node for name in names(call))
            code = self._spent(call) if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return refusal(call, code) if code else self._poor(call)
        return None

    def _spent(self, call: Call) -> ErrorCode:
        """What this request is refused with, although the broker would grant it."""
        host = call.connection.host
        left, code = self.refused.get(call.api, (0, ErrorCode.NONE))
        if host == self._spared:
            return ErrorCode.NONE
        if left:
            self.refused[call.api] = left - 1, code
            self.scheduler.say("broker", f"refuses {call.api.name} of {host}: {code.name}")
            return code
        return ErrorCode.NONE

    def _poor(self, call: Call) -> ReplyBody | None:
        """As a broker does it: what it refuses of a Produce keeps nothing of the rest away."""
        if call.api is not Api.PRODUCE or call.connection.host == self._spared:
            return None
        poor = {name for name in names(call) if self.stingy.get(name, 0.0) > self.scheduler.now}
        if not poor:
            return None
        asked = call.body.topic_data
        call.body.topic_data = [topic for topic in asked if topic.name in poor]
        told = refusal(call, ErrorCode.NOT_ENOUGH_REPLICAS)
        call.body.topic_data = [topic for topic in asked if topic.name not in poor]
        if not call.body.topic_data:
            return told
        respond = call.respond

        def both(call: Call, body: ReplyBody | None) -> None:
            if body is not None:
                body["responses"] += told["responses"]
            respond(call, body)

        call.respond = both
        return None

    def _of_group(self, service: Service, call: Call, code: ErrorCode) -> ReplyBody | None:
        if (machine := service.groups.machine) is None:
            return None
        request = ClientRequest(0, call.api, call.version, Peer("", ""), call.body, "", 0)
        return machine.refuse(request, code).body

    def _respond(
        self, respond: Callable[[Call, ReplyBody | None], None], call: Call, body: ReplyBody | None
    ) -> None:
        if body is not None:
            match call.api:
                case Api.METADATA:
                    self._metadata(body)
                case Api.FIND_COORDINATOR:
                    self._coordinators(body)
                case Api.FETCH:
                    self._fetched(call, body)
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

    def _fetched(self, call: Call, body: ReplyBody) -> None:
        """One bit of one batch; the broker's own bytes stay whole."""
        if not self._damaged or call.connection.host == self._spared:
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
                    self.scheduler.say("broker", f"damages {tp} for {call.connection.host}")
                    return


def names(call: Call) -> list[str]:
    """Of the topics in a request to a leader."""
    topics, name, *_ = LEADER_APIS[call.api]
    return [getattr(topic, name) for topic in getattr(call.body, topics)]


def refusal(call: Call, code: ErrorCode) -> ReplyBody:
    """Every partition of a request to a leader."""
    topics, name, partitions, number, *answer = LEADER_APIS[call.api]
    told, parts, index, usual = answer
    refused = [
        {
            name: getattr(topic, name),
            parts: [
                {index: getattr(one, number), "error_code": code, **usual}
                for one in getattr(topic, partitions)
            ],
        }
        for topic in getattr(call.body, topics)
    ]
    return {told: refused}
