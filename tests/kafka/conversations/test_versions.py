"""Fetch and ListOffsets in every version, at every leader epoch, with any limit of bytes."""

from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from tests.support.conversation import NOW, Conversation, batch

UNSUPPORTED = (E.UNSUPPORTED_VERSION, -1)
SPECIAL = {-3: 7, -4: 8, -5: 9, -6: 11}
"""What may be asked for instead of a timestamp, and since which version of ListOffsets."""
EMPTY = {-1: 0, -2: 0, -3: -1, -4: 0, -5: -1, -6: -1, 0: -1, NOW: -1}
FILLED = {-1: 2, -2: 0, -3: 1, -4: 0, -5: -1, -6: -1, 0: 0, NOW + 1: 1, NOW + 2: -1}
"""The offset that is found."""


def listed(talk: Conversation, version: int, topic: str, timestamp: int) -> tuple[int, int]:
    asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    (found,) = talk.ask(
        Api.LIST_OFFSETS, version, replica_id=-1, isolation_level=0,
        topics=[{"name": topic, "partitions": [asked]}],
    ).topics[0].partitions  # fmt: skip
    if version >= 4:
        assert found.leader_epoch == (-1 if found.offset < 0 else 0), (version, timestamp)
    return found.error_code, found.offset


def test_offsets_are_listed_in_every_version(talk: Conversation) -> None:
    name = talk.topic()
    for what, expected in (("empty", EMPTY), ("filled", FILLED)):
        for version in range(1, 12):
            told = {time: listed(talk, version, name, time) for time in expected}
            talk.check(
                f"{what}, version {version}",
                told,
                {
                    time: (E.NONE, offset) if version >= SPECIAL.get(time, 1) else UNSUPPORTED
                    for time, offset in expected.items()
                },
            )
        talk.check(f"{what}, no such time", listed(talk, 11, name, -9), UNSUPPORTED)
        talk.produce(name, batch(b"a", b"b"))


def fetched(talk: Conversation, version: int, topics: list[dict[str, Any]], **about: Any) -> Any:
    body = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [],
    }  # fmt: skip
    return talk.ask(Api.FETCH, version, topics=topics, **(body | about))


def place(partition: int = 0, offset: int = 0, most: int = 1 << 20, **about: Any) -> dict[str, Any]:
    return {
        "partition": partition, "fetch_offset": offset, "partition_max_bytes": most,
        "current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1, **about,
    }  # fmt: skip


def test_records_are_fetched_in_every_version(talk: Conversation) -> None:
    name = talk.topic(2)
    topic_id, no = talk.topic_id(name), f"{name}-no"
    talk.produce(name, batch(b"a", b"b"))
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    for level in (0, 1):
        for version in range(4, 19):
            told = fetched(
                talk, version, isolation_level=level,
                topics=[
                    {
                        "topic": name, "topic_id": topic_id,
                        "partitions": [place(), place(1), place(7)],
                    },
                    {"topic": no, "topic_id": b"?" * 16, "partitions": [place()]},
                ],
            )  # fmt: skip
            found = sorted(
                (
                    topic.topic_id == topic_id if version >= 13 else topic.topic == name,
                    p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset,
                    p.aborted_transactions if not p.error_code else None,
                    columns(bytes(p.records or b""), 0).values,
                )
                for topic in told.responses
                for p in topic.partitions
            )  # fmt: skip
            aborted: list[object] | None = [] if level else None
            talk.check(
                f"level {level}, version {version}",
                found,
                [
                    (False, 0, E.UNKNOWN_TOPIC_ID if version >= 13 else unknown, -1, -1, None, []),
                    (True, 0, E.NONE, 2, 2, aborted, [b"a", b"b"]),
                    (True, 1, E.NONE, 0, 0, aborted, []),
                    (True, 7, unknown, -1, -1, None, []),
                ],
            )


def test_fetch_returns_as_much_as_requested(talk: Conversation) -> None:
    name = talk.topic()
    size = len(batch(b"x" * 50, b"y"))
    for _ in range(4):
        talk.produce(name, batch(b"x" * 50, b"y"))

    def got(**about: Any) -> int:
        most = about.pop("partition_max", 1 << 20)
        told = fetched(talk, 11, [{"topic": name, "partitions": [place(0, 0, most)]}], **about)
        return len(bytes(told.responses[0].partitions[0].records or b""))

    for most, least in ((0, size), (1, size), (size - 1, size), (size, size), (size + 1, size + 1)):
        talk.check(f"{most - size} of a partition", got(partition_max=most), least)
        talk.check(f"{most - size} of all", got(max_bytes=most), least)
    talk.check("two and a half", got(partition_max=2 * size + size // 2), 2 * size + size // 2)
    talk.check("all", got(), 4 * size)

    def told(offset: int, **about: Any) -> tuple[int, int, int]:
        wanted = [{"topic": name, "partitions": [place(0, offset)]}]
        (p,) = fetched(talk, 11, wanted, **about).responses[0].partitions
        return p.error_code, p.high_watermark, p.log_start_offset

    nowhere = (E.OFFSET_OUT_OF_RANGE, -1, -1)
    for offset, answer in ((-1, nowhere), (8, (E.NONE, 8, 0)), (9, nowhere)):
        talk.check(f"at {offset}", told(offset), answer)
    talk.check("a wait of less than nothing", told(8, max_wait=-1), (E.NONE, 8, 0))
    talk.check("less than nothing to wait for", told(8, min_bytes=-1, max_wait=9000)[0], E.NONE)


def test_fetch_sessions_start_but_are_not_kept(talk: Conversation) -> None:
    name = talk.topic()
    for session, epoch, code in (
        (0, -1, E.NONE), (0, 0, E.NONE), (5, 0, E.NONE), (5, -1, E.NONE),
        (0, 1, E.FETCH_SESSION_ID_NOT_FOUND), (5, 3, E.FETCH_SESSION_ID_NOT_FOUND),
    ):  # fmt: skip
        told = fetched(
            talk, 11, [{"topic": name, "partitions": [place()]}], session_id=session,
            session_epoch=epoch,
        )  # fmt: skip
        talk.check(f"session {session} epoch {epoch}", told.error_code, code)


def test_partition_leader_has_one_epoch(talk: Conversation) -> None:
    name = talk.topic()
    talk.produce(name, batch(b"a", b"b"))
    later = E.UNKNOWN_LEADER_EPOCH
    for current in (-1, 0, 1, 5):
        known, place_of = current <= 0, {"current_leader_epoch": current}

        asked: dict[str, Any] = {"partition_index": 0, "timestamp": -1, **place_of}
        (found,) = talk.ask(
            Api.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": name, "partitions": [asked]}]
        ).topics[0].partitions  # fmt: skip
        told = found.error_code, found.offset, found.leader_epoch
        talk.check(f"offsets at {current}", told, (E.NONE, 2, 0) if known else (later, -1, -1))

        for of, end in ((-1, (-1, -1)), (0, (0, 2)), (1, (-1, -1))):
            asked = {"partition": 0, "leader_epoch": of, **place_of}
            (found,) = talk.ask(
                Api.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1,
                topics=[{"topic": name, "partitions": [asked]}],
            ).topics[0].partitions  # fmt: skip
            told = found.error_code, found.leader_epoch, found.end_offset
            expected = (E.NONE, *end) if known else (later, -1, -1)
            talk.check(f"the end of {of} at {current}", told, expected)

        for last, code in ((-1, E.NONE), (0, E.NONE), (3, E.OFFSET_OUT_OF_RANGE)):
            wanted = place(last_fetched_epoch=last, **place_of)
            told = fetched(talk, 12, [{"topic": name, "partitions": [wanted]}])
            talk.check(
                f"records behind {last} at {current}",
                told.responses[0].partitions[0].error_code,
                code if known else later,
            )


def test_topics_are_described_in_every_metadata_version(talk: Conversation) -> None:
    name = talk.topic(2)
    for version in range(14):
        told = talk.ask(
            Api.METADATA, version, topics=[{"name": name}, {"name": "a b"}],
            allow_auto_topic_creation=False,
        )  # fmt: skip
        found = {
            t.name: (t.error_code, sorted(p.partition_index for p in t.partitions))
            for t in told.topics
        }
        talk.check(f"version {version}", found, {name: (0, [0, 1]), "a b": (17, [])})
    both = [{"name": f"{name}-no", "topic_id": talk.topic_id(name)}]
    told = talk.ask(Api.METADATA, 12, topics=both, allow_auto_topic_creation=False)
    talk.check("an id counts more than a name", [t.name for t in told.topics], [name])
    for label, asked in (("none", []), ("an empty name", [{"name": ""}])):
        told = talk.ask(Api.METADATA, 12, topics=asked, allow_auto_topic_creation=False)
        talk.check(label, [t.error_code for t in told.topics], [17] * len(asked))


def test_records_are_deleted_in_every_version(talk: Conversation) -> None:
    name = talk.topic()
    talk.produce(name, batch(b"a", b"b", b"c"))
    for version in range(3):
        asked = [{"partition_index": i, "offset": version + 1} for i in (0, 5)]
        told = talk.ask(
            Api.DELETE_RECORDS, version, timeout=5000,
            topics=[{"name": n, "partitions": asked} for n in (name, f"{name}-no")],
        )  # fmt: skip
        found = sorted(
            (t.name, p.partition_index, p.error_code, p.low_watermark)
            for t in told.topics
            for p in t.partitions
        )
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        expected = [
            (name, 0, E.NONE, version + 1), (name, 5, unknown, -1),
            (f"{name}-no", 0, unknown, -1), (f"{name}-no", 5, unknown, -1),
        ]  # fmt: skip
        talk.check(f"version {version}", found, expected)
