"""Conversations in bare requests, which the embedded broker must answer as Apache Kafka does.

`Talk.check` compares an answer with Kafka's. Intended differences stand in `DIFFERENCES`, and in no
conversation.
"""

import select
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from streamsx.clock import SystemClock
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from tests.support.apache_kafka import converse

KIND = "talk"
"""A protocol type of our own: of "consumer" Kafka wants to read what members tell each other."""
LOADING = {
    E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR,
}  # fmt: skip
ANSWER_S = 20.0
CLOCK = SystemClock()
NOW = int(CLOCK.wall() * 1000)


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again and again until a condition holds."""
    over = CLOCK.now() + ANSWER_S
    while not condition():
        assert CLOCK.now() < over, f"not in time: {what}"


class Difference(NamedTuple):
    """Answer of the embedded broker where Kafka answers otherwise."""

    ours: object
    why: str


DIFFERENCES = {
    "what stands in records": Difference(
        E.NONE, "of a batch with a right checksum the header is read alone, at a tenth of the time"
    ),
    "the length of files": Difference(
        (E.NONE, str(64 << 20)), "tests want short ones, and small machines no long ones"
    ),
    "a session of a millisecond": Difference(E.MEMBER_ID_REQUIRED, "tests have no time"),
    "requests that are over": Difference(
        (E.REBALANCE_IN_PROGRESS, E.UNKNOWN_MEMBER_ID),
        "a request that waits is answered, though its member asks elsewhere, or is none any more",
    ),
}
"""By the label of the check. One that is no difference any more is wrong too."""


class Parked:
    """Request on a connection of its own that may wait for its answer."""

    def __init__(self, bootstrap: str, api: Api, version: int, body: Mapping[str, Any]) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)
        self._socket.sendall(wire.request_encoder(api, version)(1, body, "talk"))
        self._decode = wire.response_decoder(api, version)

    def answer(self) -> Any:
        with self._socket, self._socket.makefile("rb") as stream:
            return self._decode(stream.read(int.from_bytes(stream.read(4))))[1]

    def close(self) -> None:
        """Close the connection, with or without an answer."""
        self._socket.close()

    def code(self, within_s: float) -> int | None:
        """Return the error code of the answer; None without an answer."""
        told, _, _ = select.select([self._socket], [], [], within_s)
        return int(self.answer().error_code) if told else None


class Conversation:
    """Client that sends bare requests; `ours`: to the embedded broker."""

    def __init__(self, bootstrap: str, *, ours: bool) -> None:
        self.bootstrap, self._ours = bootstrap, ours
        self.name = f"talk-{uuid.uuid4()}"
        self._parked: list[Parked] = []
        self.labels: set[str] = set()
        """Of all checks."""
        self.wrong: dict[str, tuple[object, object]] = {}
        """(answer, expected) by label, of those that were not answered as expected."""
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for parked in self._parked:
            parked.close()

    def check(self, label: str, answer: object, expected: object) -> None:
        """Compare an answer. `expected`: what Kafka answers."""
        assert label not in self.labels, f"{label!r} is checked twice"
        self.labels.add(label)
        if self._ours and label in DIFFERENCES:
            assert expected != DIFFERENCES[label].ours, f"{label!r} is no difference"
            expected = DIFFERENCES[label].ours
        if answer != expected:
            self.wrong[label] = (answer, expected)

    def ask(self, api: Api, version: int, **body: Any) -> Any:
        return converse(self._socket, api, version, body)

    def ready(self, api: Api, version: int, **body: Any) -> Any:
        """Return the answer once the coordinator has loaded what it needs."""
        answer = self.ask(api, version, **body)

        def loaded() -> bool:
            nonlocal answer
            if answer.error_code in LOADING:
                answer = self.ask(api, version, **body)
            return answer.error_code not in LOADING

        until(loaded, "the coordinator has loaded")
        return answer

    def park(self, api: Api, version: int, **body: Any) -> Parked:
        self._parked.append(Parked(self.bootstrap, api, version, body))
        return self._parked[-1]

    # Topics.

    def create(self, name: str, partitions: int = 1, **about: Any) -> int:
        configs = [{"name": n, "value": v} for n, v in about.pop("configs", {}).items()]
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
            "configs": configs, **about,
        }  # fmt: skip
        return int(self.ask(Api.CREATE_TOPICS, 5, topics=[topic]).topics[0].error_code)

    def topic(self, partitions: int = 1, **about: Any) -> str:
        """Create a new topic, and wait until it is ready."""
        name = f"{self.name}-{uuid.uuid4()}"
        assert self.create(name, partitions, **about) == E.NONE
        until(
            lambda: all(self.offset(name, p, -1)[0] == E.NONE for p in range(partitions)),
            f"{name} appears",
        )
        return name

    def topic_id(self, name: str) -> bytes:
        found = self.ask(Api.METADATA, 12, topics=[{"name": name}])
        return bytes(found.topics[0].topic_id)

    def offset(self, topic: str, partition: int, timestamp: int) -> tuple[int, int, int]:
        asked = [{"partition_index": partition, "timestamp": timestamp}]
        (found,) = self.ask(
            Api.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": topic, "partitions": asked}]
        ).topics[0].partitions  # fmt: skip
        return found.error_code, found.offset, found.timestamp

    def produce(
        self, topic: str, records: bytes | bytearray, *, acks: int = -1, partition: int = 0
    ) -> tuple[int, int]:
        data = [{"index": partition, "records": records}]
        found = self.ask(
            Api.PRODUCE, 9, acks=acks, timeout=5000,
            topic_data=[{"name": topic, "partition_data": data}],
        ).responses[0].partition_responses[0]  # fmt: skip
        return found.error_code, found.base_offset

    def fetch(self, topic: str, offset: int, **about: Any) -> Any:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, **about}
        found = self.ask(
            Api.FETCH, 11, replica_id=-1, **body,
            topics=[{"topic": topic, "partitions": [partition]}], forgotten_topics_data=[],
        )  # fmt: skip
        return found.responses[0].partitions[0] if found.responses else found


class Group:
    """Classic group of a conversation; a member's request is answered at once, or parked."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.id = talk, f"{talk.name}-{uuid.uuid4()}"

    def joining(self, member_id: str = "", **about: Any) -> Parked:
        body = {
            "group_id": self.id, "session_timeout": 10_000, "rebalance_timeout": 10_000,
            "member_id": member_id, "group_instance_id": None, "protocol_type": KIND,
            "protocols": [{"name": "range", "metadata": b"topics"}], **about,
        }  # fmt: skip
        return self.talk.park(Api.JOIN_GROUP, body.pop("version", 5), **body)

    def join(self, member_id: str = "", **about: Any) -> Any:
        return self.joining(member_id, **about).answer()

    def syncing(self, member_id: str, generation: int, *, version: int = 4, **about: Any) -> Parked:
        given = about.pop("assignments", {})
        body = {
            "group_id": self.id, "generation_id": generation, "member_id": member_id,
            "group_instance_id": None, "protocol_type": None, "protocol_name": None,
            "assignments": [{"member_id": m, "assignment": a} for m, a in given.items()], **about,
        }  # fmt: skip
        return self.talk.park(Api.SYNC_GROUP, version, **body)

    def sync(self, member_id: str, generation: int, **about: Any) -> Any:
        return self.syncing(member_id, generation, **about).answer()

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        return int(
            self.talk.ask(
                Api.HEARTBEAT, 4, group_id=self.id, generation_id=generation, member_id=member_id,
                group_instance_id=instance,
            ).error_code
        )  # fmt: skip

    def leave(self, member_id: str, instance: str | None = None) -> tuple[int, list[int]]:
        who = [{"member_id": member_id, "group_instance_id": instance}]
        found = self.talk.ask(Api.LEAVE_GROUP, 4, group_id=self.id, members=who)
        return found.error_code, [m.error_code for m in found.members]

    def commit(
        self, member_id: str, generation: int, offsets: Mapping[tuple[str, int], int], **about: Any
    ) -> list[int]:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition, "committed_offset": offset,
                        "committed_metadata": about.get("note", ""),
                    }
                ],
            }
            for (topic, partition), offset in offsets.items()
        ]  # fmt: skip
        found = self.talk.ask(
            Api.OFFSET_COMMIT, about.get("version", 8), group_id=self.id, member_id=member_id,
            generation_id_or_member_epoch=generation, topics=topics,
            group_instance_id=about.get("instance"),
        )  # fmt: skip
        codes = {t.name: [p.error_code for p in t.partitions] for t in found.topics}
        return [code for name, _ in offsets for code in codes[name]]

    def committed(self, topics: Any = None, **about: Any) -> list[tuple[str, int, int, int]]:
        asked = [{"group_id": self.id, "topics": topics}]
        found = self.talk.ask(Api.OFFSET_FETCH, 8, groups=asked, require_stable=True).groups[0]
        return sorted(
            (t.name, p.partition_index, p.committed_offset, p.error_code)
            for t in found.topics
            for p in t.partitions
        )

    def state(self) -> tuple[str, int]:
        found = self.talk.ask(Api.DESCRIBE_GROUPS, 5, groups=[self.id]).groups[0]
        return found.group_state, len(found.members)

    def delete(self) -> int:
        return int(
            self.talk.ask(Api.DELETE_GROUPS, 2, groups_names=[self.id]).results[0].error_code
        )

    def first(self) -> str:
        """Join the only member; STABLE, at generation 1."""
        member_id = str(self.join().member_id)
        self.join(member_id)
        self.sync(member_id, 1, assignments={member_id: member_id.encode()})
        return member_id

    def pair(self) -> tuple[str, str]:
        """Join leader and follower; COMPLETING, at generation 2."""
        leader, follower = self.first(), str(self.join().member_id)
        joining = self.joining(follower)
        self.until_rebalancing(leader, 1)
        self.join(leader)
        joining.answer()
        return leader, follower

    def until_rebalancing(self, member_id: str, generation: int) -> None:
        until(
            lambda: self.beat(member_id, generation) == E.REBALANCE_IN_PROGRESS,
            "a rebalance begins",
        )

    def other(self, *known: str) -> str:
        """Return the one member that is not known yet."""
        found = self.talk.ask(Api.DESCRIBE_GROUPS, 5, groups=[self.id]).groups[0]
        (other,) = {m.member_id for m in found.members} - set(known)
        return str(other)


class Consumers:
    """Group of the consumer protocol, and a topic that its coordinator knows."""

    def __init__(self, talk: Conversation, partitions: int = 4) -> None:
        self.talk, self.topic = talk, talk.topic(partitions)
        self.topic_id = talk.topic_id(self.topic)
        self.id, everything = f"{talk.name}-before-{uuid.uuid4()}", [*range(partitions)]
        until(lambda: self.beat("a", 0)[1] == everything, f"{self.topic} is assigned")
        self.beat("a", -1)
        self.id = f"{talk.name}-{uuid.uuid4()}"

    def beat(self, member: str, epoch: int, *owned: int, version: int = 1, **about: Any) -> Any:
        """Send a heartbeat; return the error code, or epoch and partitions.

        `owned` is sent if it is not empty, or None.
        """
        body: dict[str, Any] = {
            "group_id": self.id, "member_id": member, "member_epoch": epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": None,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        if epoch == 0:
            body |= {"rebalance_timeout": 60_000, "subscribed_topic_names": [self.topic]}
            body["topic_partitions"] = []
        if owned:
            held = [{"topic_id": self.topic_id, "partitions": [p for p in owned if p >= 0]}]
            body["topic_partitions"] = held
        told = self.talk.ready(Api.CONSUMER_GROUP_HEARTBEAT, version, **body | about)
        if told.error_code:
            return E(told.error_code)
        if told.assignment is None:
            return told.member_epoch, None
        topics = told.assignment.topic_partitions
        return told.member_epoch, sorted(p for topic in topics for p in topic.partitions)

    def commit(self, member: str, epoch: int, *partitions: int, version: int = 9) -> set[E]:
        at = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        asked = [{"partition_index": p, **at} for p in partitions]
        told = self.talk.ask(
            Api.OFFSET_COMMIT, version, group_id=self.id, member_id=member,
            generation_id_or_member_epoch=epoch, group_instance_id=None,
            topics=[{"name": self.topic, "partitions": asked}],
        )  # fmt: skip
        return {E(p.error_code) for p in told.topics[0].partitions}

    def fetch(self, member: str | None, epoch: int) -> E:
        asked = {"group_id": self.id, "member_id": member, "member_epoch": epoch, "topics": None}
        told = self.talk.ask(Api.OFFSET_FETCH, 9, groups=[asked], require_stable=False)
        return E(told.groups[0].error_code)

    def described(self) -> Any:
        """Return code, state, both epochs and assignor; of each member its epoch, owned and target
        partitions.
        """
        told = self.talk.ask(
            Api.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[self.id],
            include_authorized_operations=False,
        ).groups[0]  # fmt: skip
        members = [
            (
                m.member_id, m.instance_id, m.member_epoch, m.member_type,
                *([p for t in of.topic_partitions for p in t.partitions]
                  for of in (m.assignment, m.target_assignment)),
            )
            for m in sorted(told.members, key=lambda m: str(m.member_id))
        ]  # fmt: skip
        whole = told.group_state, told.group_epoch, told.assignment_epoch, told.assignor_name
        return E(told.error_code), *whole, members

    def listed(self) -> list[tuple[str, str, str]]:
        told = self.talk.ask(Api.LIST_GROUPS, 5, states_filter=[], types_filter=[])
        found = [group for group in told.groups if group.group_id == self.id]
        return [(group.protocol_type, group.group_state, group.group_type) for group in found]

    def delete(self) -> E:
        told = self.talk.ask(Api.DELETE_GROUPS, 2, groups_names=[self.id])
        return E(told.results[0].error_code)


def batch(
    *values: bytes, time: int = NOW, pid: int = -1, epoch: int = -1, seq: int = -1
) -> bytearray:
    builder = Builder(1 << 20)
    for i, value in enumerate(values):
        builder.append(time + i, None, value)
    return builder.close(pid, epoch, seq)
