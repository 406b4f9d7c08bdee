"""Topics: created, described, changed, grown and deleted."""

from collections.abc import Iterable
from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import Conversation, batch, until


def test_topics_are_created_changed_and_deleted(talk: Conversation) -> None:
    check, name = talk.check, talk.topic(2, configs={"retention.ms": "5000"})
    check("create again", talk.create(name), E.TOPIC_ALREADY_EXISTS)
    for bad in ("", ".", "..", "a b", "a/b", "x" * 250):
        check(f"create {bad!r:.9}", talk.create(bad), E.INVALID_TOPIC_EXCEPTION)
    other = f"{talk.name}-other"
    check("create with 0 partitions", talk.create(other, 0), E.INVALID_PARTITIONS)
    check(
        "create with 2 replicas",
        talk.create(other, replication_factor=2),
        E.INVALID_REPLICATION_FACTOR,
    )
    for config in (
        {"no.such": "1"},
        {"retention.ms": "x"},
        {"cleanup.policy": "x"},
        {"segment.bytes": "-1"},
    ):
        check(f"create with {config}", talk.create(other, configs=config), E.INVALID_CONFIG)

    def grow(topic: str, count: int) -> int:
        asked = [{"name": topic, "count": count, "assignments": None}]
        found = talk.ask(Api.CREATE_PARTITIONS, 2, topics=asked, timeout=5000, validate_only=False)
        return int(found.results[0].error_code)

    check("grow to fewer", grow(name, 1), E.INVALID_PARTITIONS)
    check("grow to as many", grow(name, 2), E.INVALID_PARTITIONS)
    check("grow what is not there", grow(other, 2), E.UNKNOWN_TOPIC_OR_PARTITION)
    check("grow", grow(name, 3), E.NONE)

    def metadata(**asked: object) -> tuple[int, str | None]:
        found = talk.ask(
            Api.METADATA, 12, topics=[asked], allow_auto_topic_creation=False
        ).topics[0]  # fmt: skip
        return found.error_code, found.name

    whole = talk.ask(Api.METADATA, 10, topics=[{"name": name}], allow_auto_topic_creation=False)
    nothing = -(2**31)  # operations were not asked for
    check("operations", whole.cluster_authorized_operations, nothing)
    check("operations on a topic", whole.topics[0].topic_authorized_operations, nothing)
    check(
        "metadata of what is not there", metadata(name=other), (E.UNKNOWN_TOPIC_OR_PARTITION, other)
    )
    check(
        "metadata of an unknown id", metadata(topic_id=b"?" * 16, name=None)[0], E.UNKNOWN_TOPIC_ID
    )
    check("metadata of no name", metadata(name="a b")[0], E.INVALID_TOPIC_EXCEPTION)
    check("metadata by id", metadata(topic_id=talk.topic_id(name), name=None), (E.NONE, name))

    def alter(topic: str, operation: int, key: str, value: str | None) -> int:
        changes = [{"name": key, "config_operation": operation, "value": value}]
        asked = [{"resource_type": 2, "resource_name": topic, "configs": changes}]
        return int(
            talk.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=asked).responses[0].error_code
        )

    check(
        "alter what is not there",
        alter(other, 0, "retention.ms", "1"),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("alter an unknown key", alter(name, 0, "no.such", "1"), E.INVALID_CONFIG)
    check("alter to a bad value", alter(name, 0, "retention.ms", "soon"), E.INVALID_CONFIG)
    check("append to what is no list", alter(name, 2, "retention.ms", "1"), E.INVALID_CONFIG)
    check("alter by no operation", alter(name, 9, "retention.ms", "1") != E.NONE, True)
    check("a list with blanks", alter(name, 0, "cleanup.policy", " compact, delete"), E.NONE)
    check("no such policy", alter(name, 0, "cleanup.policy", "compact, burn"), E.INVALID_CONFIG)
    check("delete a list", alter(name, 1, "cleanup.policy", None), E.NONE)
    check("a large boolean", alter(name, 0, "preallocate", " TRUE"), E.NONE)
    check("alter", alter(name, 0, "max.message.bytes", "10000"), E.NONE)
    check("append", alter(name, 2, "cleanup.policy", "compact"), E.NONE)
    check("delete a setting", alter(name, 1, "retention.ms", None), E.NONE)

    three = ("cleanup.policy", "max.message.bytes", "retention.ms")

    def described(topic: str, keys: Iterable[str] = three) -> Any:
        asked = [{"resource_type": 2, "resource_name": topic, "configuration_keys": [*keys]}]
        return talk.ask(Api.DESCRIBE_CONFIGS, 4, resources=asked).results[0]

    def seen() -> bool:
        return bool(described(name, ["retention.ms"]).configs[0].config_source == 5)

    until(seen, "the last change is described")  # Kafka answers before that
    told = {c.name for c in described(name, ()).configs}
    check("describe by no keys", told >= set(three), True)

    check("describe what is not there", described(other).error_code, E.UNKNOWN_TOPIC_OR_PARTITION)
    check(
        "describe",
        sorted((c.name, c.value, c.config_source, c.config_type) for c in described(name).configs),
        [
            ("cleanup.policy", "delete,compact", 1, 7), ("max.message.bytes", "10000", 1, 3),
            ("retention.ms", "604800000", 5, 5),
        ],
    )  # fmt: skip
    check("a long batch", talk.produce(name, batch(bytes(10_000)))[0], E.MESSAGE_TOO_LARGE)

    def delete(**asked: object) -> int:
        found = talk.ask(Api.DELETE_TOPICS, 6, topics=[asked], timeout=5000)
        return int(found.responses[0].error_code)

    topic_id = talk.topic_id(name)
    check("delete what is not there", delete(name=other), E.UNKNOWN_TOPIC_OR_PARTITION)
    check("delete an unknown id", delete(name=None, topic_id=b"?" * 16), E.UNKNOWN_TOPIC_ID)
    check("delete by id", delete(name=None, topic_id=topic_id), E.NONE)


def test_bad_new_topics_are_refused(talk: Conversation) -> None:
    check, taken = talk.check, talk.topic(2)
    node = talk.ask(Api.METADATA, 9, topics=[]).brokers[0].node_id
    names = iter(f"{talk.name}-{i}" for i in range(1000))

    def placed(*brokers: list[int], first: int = 0) -> list[dict[str, Any]]:
        return [
            {"partition_index": i, "broker_ids": ids} for i, ids in enumerate(brokers, start=first)
        ]

    def made(count: int = 1, replicas: int = 1, **about: Any) -> tuple[int, int, int]:
        topic = {
            "name": next(names), "num_partitions": count, "replication_factor": replicas,
            "assignments": [], "configs": [], **about,
        }  # fmt: skip
        told = talk.ask(Api.CREATE_TOPICS, 7, topics=[topic], timeout=5000).topics[0]
        return told.error_code, told.num_partitions, told.replication_factor

    def wrong(code: int) -> tuple[int, int, int]:
        return code, -1, -1

    check("by default", made(-1, -1), (E.NONE, 1, 1))
    check("-2 partitions", made(-2), wrong(E.INVALID_PARTITIONS))
    check("-2 replicas", made(1, -2), wrong(E.INVALID_REPLICATION_FACTOR))
    check("no replicas", made(1, 0), wrong(E.INVALID_REPLICATION_FACTOR))
    misplaced = wrong(E.INVALID_REPLICA_ASSIGNMENT)
    for label, places, told in (
        ("by hand", placed([node], [node]), (E.NONE, 2, 1)),
        ("from 1 on", placed([node], first=1), misplaced),
        ("on nothing", placed([]), misplaced),
        ("on a stranger", placed([node + 55]), misplaced),
        ("twice on one", placed([node, node]), misplaced),
    ):
        check(f"placed {label}", made(-1, -1, assignments=places), told)
    both = made(2, 1, assignments=placed([node]))
    check("numbers and places", both, wrong(E.INVALID_REQUEST))
    check("taken", made(name=taken), wrong(E.TOPIC_ALREADY_EXISTS))
    check("with a dot", made(name=f"{talk.name}.a.b"), (E.NONE, 1, 1))
    alike = made(name=f"{talk.name}.a_b")
    check("too much like another", alike, wrong(E.INVALID_TOPIC_EXCEPTION))
    for label in ("asked for", "asked for again"):
        topics = [{"name": f"{talk.name}.a_b"}]
        told = talk.ask(Api.METADATA, 12, topics=topics, allow_auto_topic_creation=True)
        check(label, told.topics[0].error_code, E.UNKNOWN_TOPIC_OR_PARTITION)
    value = [{"name": "retention.ms", "value": None}]
    check("set to nothing", made(configs=value), wrong(E.INVALID_CONFIG))

    def grown(topic: str, count: int, *places: list[int], **about: Any) -> int:
        hand = [{"broker_ids": ids} for ids in places] or None
        asked = {"topics": [{"name": topic, "count": count, "assignments": hand}], "timeout": 5000}
        told = talk.ask(Api.CREATE_PARTITIONS, 3, **asked, **about)
        return int(told.results[0].error_code)

    check("a trial to grow", grown(taken, 9, validate_only=True), E.NONE)
    check("grown to -1", grown(taken, -1), E.INVALID_PARTITIONS)
    check("grown by 2 on 1", grown(taken, 4, [node]), E.INVALID_REPLICA_ASSIGNMENT)
    check("grown on a stranger", grown(taken, 3, [node + 55]), E.INVALID_REPLICA_ASSIGNMENT)
    check("grown by hand", grown(taken, 3, [node]), E.NONE)


def test_topic_named_twice_in_a_request_is_refused_once(talk: Conversation) -> None:
    check, name, new = talk.check, talk.topic(), f"{talk.name}-new"
    topic = {
        "name": new, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [],
    }  # fmt: skip
    told = talk.ask(Api.CREATE_TOPICS, 7, topics=[topic, topic], timeout=5000).topics
    check("made", [(t.name, t.error_code) for t in told], [(new, E.INVALID_REQUEST)])
    asked = [{"name": name, "count": count, "assignments": None} for count in (5, 6)]
    grown = talk.ask(Api.CREATE_PARTITIONS, 3, topics=asked, timeout=5000).results
    check("grown", [(t.name, t.error_code) for t in grown], [(name, E.INVALID_REQUEST)])

    def deleted(*topics: dict[str, Any]) -> list[int]:
        told = talk.ask(Api.DELETE_TOPICS, 6, topics=topics, timeout=5000).responses
        return sorted(t.error_code for t in told)

    check("deleted", deleted({"name": name}, {"name": name}), [E.INVALID_REQUEST])
    by_both = {"name": name, "topic_id": talk.topic_id(name)}
    check("by name and by id", deleted(by_both), [E.INVALID_REQUEST])
    check("by nothing", deleted({"name": None}), [E.INVALID_REQUEST])
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    check("no names for topics", deleted({"name": "a b"}, {"name": ""}), [unknown, unknown])
    check("none", deleted(), [])
    check("once", deleted({"name": name}), [E.NONE])


def test_topics_are_created_and_deleted_in_every_version(talk: Conversation) -> None:
    no = f"{talk.name}-no"
    for version in range(2, 8):
        name = f"{talk.name}-{version}"
        topic = {
            "name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [],
            "configs": [{"name": "retention.ms", "value": "5000"}],
        }  # fmt: skip
        trial = talk.ask(Api.CREATE_TOPICS, version, topics=[topic], validate_only=True).topics[0]
        made = talk.ask(Api.CREATE_TOPICS, version, topics=[topic], timeout=5000).topics[0]
        told = [trial.error_code, made.error_code]
        if version >= 5:
            told += made.num_partitions, made.replication_factor
        talk.check(f"made by {version}", told, [0, 0, 2, 1][: len(told)])
        gone = talk.ask(
            Api.DELETE_TOPICS, version - 1, topic_names=[name, no], timeout=5000,
            topics=[{"name": name}, {"name": no}],
        )  # fmt: skip
        codes = {t.name: t.error_code for t in gone.responses}
        talk.check(f"deleted by {version - 1}", codes, {name: 0, no: E.UNKNOWN_TOPIC_OR_PARTITION})


def test_metadata_request_creates_the_topic(talk: Conversation) -> None:
    for version in (3, 4, 9, 13):
        name = f"{talk.name}-{version}"

        def found(name: str = name, version: int = version) -> bool:
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            return bool(talk.ask(Api.METADATA, version, **asked).topics[0].error_code == E.NONE)

        until(found, f"{name} is there")
        talk.check(f"asked for in {version}", talk.create(name), E.TOPIC_ALREADY_EXISTS)
