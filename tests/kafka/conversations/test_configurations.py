"""Configs of topics: which ones can be set, and the ways to change them."""

from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from tests.support.conversation import Conversation, until

TAKEN = (
    "cleanup.policy=", "cleanup.policy=compact", "cleanup.policy=compact,delete",
    "cleanup.policy=compact,compact", "compression.type=zstd", "compression.gzip.level=5",
    "compression.lz4.level=17", "compression.zstd.level=-5", "delete.retention.ms=0",
    "flush.ms=0", "follower.replication.throttled.replicas=", "index.interval.bytes=0",
    "leader.replication.throttled.replicas=*", "local.retention.bytes=-2", "local.retention.ms=-2",
    "max.message.bytes=0", "message.timestamp.after.max.ms=0", "message.timestamp.before.max.ms=0",
    "min.cleanable.dirty.ratio=0.1", "min.cleanable.dirty.ratio=1e-1", "min.insync.replicas=5",
    "preallocate=True", "remote.storage.enable=false", "retention.bytes=-1", "retention.bytes=-2",
    "retention.ms=-1", "retention.ms= 5000 ", "retention.ms=+5", "segment.bytes=1048576",
    "unclean.leader.election.enable=true",
)  # fmt: skip
REFUSED = (
    "cleanup.policy=x", "compression.type=x", "compression.gzip.level=-2",
    "compression.zstd.level=-131073", "delete.retention.ms=-1", "errors=x",
    "file.delete.delay.ms=-1", "flush.messages=0", "flush.ms=-1", "index.interval.bytes=-1",
    "local.retention.ms=-3",
    "max.compaction.lag.ms=0", "max.message.bytes=-1", "message.downconversion.enable=true",
    "message.format.version=3.0", "message.timestamp.before.max.ms=-1",
    "message.timestamp.difference.max.ms=5", "message.timestamp.type=x",
    "min.cleanable.dirty.ratio=-1", "min.cleanable.dirty.ratio=2", "min.compaction.lag.ms=-1",
    "min.insync.replicas=0", "preallocate=maybe", "remote.storage.enable=true", "retention.ms=",
    "retention.ms=-2", "retention.ms=0x10", "retention.ms=1_000", "retention.ms=5e3",
    "retention.ms=9223372036854775808",
    "segment.bytes=2147483648", "segment.index.bytes=3", "segment.jitter.ms=-1", "segment.ms=0",
)  # fmt: skip
SET, DELETE, APPEND, SUBTRACT = range(4)
POLICY, RETENTION = "cleanup.policy", "retention.ms"
TOPIC, BROKER = 2, 4


def described(
    talk: Conversation, kind: int, name: str, *keys: str
) -> tuple[int, list[tuple[Any, ...]]]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    (told,) = talk.ask(Api.DESCRIBE_CONFIGS, 4, resources=[asked]).results
    return told.error_code, sorted((c.name, c.value, c.config_source) for c in told.configs)


def test_topic_configs_are_accepted_or_refused(talk: Conversation) -> None:
    def created(*configs: str) -> int:
        named = (config.partition("=") for config in configs)
        topic = {
            "name": talk.name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
            "configs": [{"name": name, "value": value} for name, _, value in named],
        }  # fmt: skip
        told = talk.ask(Api.CREATE_TOPICS, 4, topics=[topic], timeout=5000, validate_only=True)
        return int(told.topics[0].error_code)

    for config in TAKEN:
        talk.check(config, created(config), E.NONE)
    for config in REFUSED:
        talk.check(config, created(config), E.INVALID_CONFIG)
    lags = created("min.compaction.lag.ms=6", "max.compaction.lag.ms=5")
    talk.check("lags that cross", lags, E.INVALID_CONFIG)
    stamped = created("message.timestamp.type=LogAppendTime")
    talk.check("a time of the broker", stamped, E.NONE)
    default = described(talk, TOPIC, talk.topic(), "segment.bytes")[1][0][1]
    told = created("segment.bytes=14"), default
    talk.check("the length of files", told, (E.INVALID_CONFIG, str(1 << 30)))


def test_described_topic_has_all_configs(talk: Conversation) -> None:
    name = talk.topic(configs={RETENTION: "5000"})
    differs = {"min.insync.replicas", "segment.bytes"}  # set by KRaft for all; of another length
    told = [each for each in described(talk, TOPIC, name)[1] if each[0] not in differs]
    for key, value, source in told:
        talk.check(key, (value, source), DEFAULTS.get(key))
    talk.check("their names", {key for key, *_ in told}, set(DEFAULTS))


FOREVER = str(2**63 - 1)
DEFAULTS = {
    "cleanup.policy": ("delete", 5), "compression.gzip.level": ("-1", 5),
    "compression.lz4.level": ("9", 5), "compression.type": ("producer", 5),
    "compression.zstd.level": ("3", 5), "delete.retention.ms": ("86400000", 5),
    "file.delete.delay.ms": ("60000", 5), "flush.messages": (FOREVER, 5), "flush.ms": (FOREVER, 5),
    "follower.replication.throttled.replicas": ("", 5), "index.interval.bytes": ("4096", 5),
    "leader.replication.throttled.replicas": ("", 5), "local.retention.bytes": ("-2", 5),
    "local.retention.ms": ("-2", 5), "max.compaction.lag.ms": (FOREVER, 5),
    "max.message.bytes": ("1048588", 5), "message.timestamp.after.max.ms": ("3600000", 5),
    "message.timestamp.before.max.ms": (FOREVER, 5), "message.timestamp.type": ("CreateTime", 5),
    "min.cleanable.dirty.ratio": ("0.5", 5), "min.compaction.lag.ms": ("0", 5),
    "preallocate": ("false", 5), "remote.log.copy.disable": ("false", 5),
    "remote.log.delete.on.disable": ("false", 5), "remote.storage.enable": ("false", 5),
    "retention.bytes": ("-1", 5), "retention.ms": ("5000", 1),
    "segment.index.bytes": ("10485760", 5), "segment.jitter.ms": ("0", 5),
    "segment.ms": ("604800000", 5),
    "unclean.leader.election.enable": ("false", 5),
}  # fmt: skip
"""(value, source) of what was set (1) and what is so by default (5)."""

Step = tuple[str, tuple[tuple[str, int, str | None], ...], E, tuple[str, ...]]
STEPS: tuple[Step, ...] = (
    # label, changes, code, what is set then
    ("nothing", (), E.NONE, ()),
    ("one", ((RETENTION, SET, "7000"),), E.NONE, ("retention.ms=7000",)),
    ("twice at once", ((RETENTION, SET, "1"),) * 2, E.INVALID_REQUEST, ("retention.ms=7000",)),
    ("to nothing", ((RETENTION, SET, None),), E.INVALID_REQUEST, ("retention.ms=7000",)),
    (
        "one good, one bad", ((RETENTION, SET, "9"), ("segment.bytes", SET, "-1")),
        E.INVALID_CONFIG, ("retention.ms=7000",),
    ),
    (
        "lags that cross",
        (("min.compaction.lag.ms", SET, "6"), ("max.compaction.lag.ms", SET, "5")),
        E.INVALID_CONFIG, ("retention.ms=7000",),
    ),
    ("delete what is not set", (("segment.ms", DELETE, None),), E.NONE, ("retention.ms=7000",)),
    ("delete what there is not", (("no.such", DELETE, None),), E.NONE, ("retention.ms=7000",)),
    ("delete, with a value", ((RETENTION, DELETE, "5"),), E.NONE, ()),
    ("subtract from a number", ((RETENTION, SUBTRACT, "1"),), E.INVALID_CONFIG, ()),
    ("append", ((POLICY, APPEND, "compact"),), E.NONE, ("cleanup.policy=delete,compact",)),
    ("append again", ((POLICY, APPEND, "compact"),), E.NONE, ("cleanup.policy=delete,compact",)),
    ("subtract", ((POLICY, SUBTRACT, "delete"),), E.NONE, ("cleanup.policy=compact",)),
    ("subtract again", ((POLICY, SUBTRACT, "delete"),), E.NONE, ("cleanup.policy=compact",)),
    ("subtract the last", ((POLICY, SUBTRACT, "compact"),), E.NONE, ("cleanup.policy=",)),
    ("append no value", ((POLICY, APPEND, None),), E.INVALID_REQUEST, ("cleanup.policy=",)),
    ("append nothing", ((POLICY, APPEND, ""),), E.NONE, ("cleanup.policy=",)),
    (
        "append two", ((POLICY, APPEND, "delete,compact"),), E.NONE,
        ("cleanup.policy=delete,compact",),
    ),
)  # fmt: skip


def test_configs_change_incrementally(talk: Conversation) -> None:
    name = talk.topic()

    def alter(kind: int, resource: str, *changes: tuple[str, int, str | None], **about: Any) -> int:
        configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
        asked = {"resource_type": kind, "resource_name": resource, "configs": configs}
        told = talk.ask(
            Api.INCREMENTAL_ALTER_CONFIGS, about.pop("version", 1), resources=[asked], **about
        )
        return int(told.responses[0].error_code)

    def given() -> tuple[str, ...]:
        told = described(talk, TOPIC, name, POLICY, RETENTION, "segment.ms")[1]
        return tuple(f"{key}={value}" for key, value, source in told if source == 1)

    def check(label: str, answer: int, code: E, then: tuple[str, ...]) -> None:
        """Compare an answer again and again: Kafka's controller answers before its change can be
        described.
        """
        talk.check(label, answer, code)
        until(lambda: given() == then, f"{label}: {then} is described")

    trial = alter(TOPIC, name, (RETENTION, SET, "8000"), validate_only=True)
    check("a trial", trial, E.NONE, ())
    for label, changes, code, then in STEPS:
        check(label, alter(TOPIC, name, *changes, version=0), code, then)
    for kind in (0, 1, 3, 99):
        talk.check(f"of type {kind}", alter(kind, name, ("a", SET, "b")), E.INVALID_REQUEST)
        told = described(talk, kind, name, "a")[0]
        talk.check(f"describe type {kind}", told, E.INVALID_REQUEST)
    wrong = E.INVALID_TOPIC_EXCEPTION
    talk.check("of no name for a topic", alter(TOPIC, "a b", (RETENTION, SET, "1")), wrong)
    talk.check("describe no name for a topic", described(talk, TOPIC, "a b")[0], wrong)
    talk.check("describe no name", described(talk, TOPIC, "")[0], wrong)

    node = talk.ask(Api.METADATA, 9, topics=[]).brokers[0].node_id
    found = described(talk, BROKER, str(node), "default.replication.factor", "num.partitions")
    keys = [key for key, *_ in found[1]]
    talk.check(
        "the broker", (found[0], keys), (0, ["default.replication.factor", "num.partitions"])
    )
    talk.check("what holds for all brokers", described(talk, BROKER, "", "num.partitions"), (0, []))
    for other in ("99", "x"):
        told = described(talk, BROKER, other, "num.partitions")[0]
        talk.check(f"broker {other}", told, E.INVALID_REQUEST)
