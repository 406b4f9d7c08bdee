"""Topics: made, described, changed, grown and deleted."""

from collections.abc import Iterable
from typing import Any

from streamsx.kafka.errors import ErrorCode as E
from streamsx.kafka.wire import Api
from tests.support.talk import Talk, batch


def test_topics_are_made_changed_and_deleted(talk: Talk) -> None:
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
