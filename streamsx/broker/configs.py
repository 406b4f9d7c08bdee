"""The configurations of a topic: names, defaults, and what values they take. As Kafka's. Pure.

Honoured so far are max.message.bytes and segment.bytes; cleanup is not here yet. Batches stay as
they were sent, whatever compression.type says.
"""

from enum import IntEnum
from typing import NamedTuple

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class Kind(IntEnum):
    """Numbered as DescribeConfigs tells them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Config(NamedTuple):
    """A default, and what else there may be: numbers from `low` on, or some of `choices`."""

    default: str
    kind: Kind
    low: float = 0
    choices: tuple[str, ...] = ()


CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CONFIGS = {
    "cleanup.policy": Config("delete", Kind.LIST, choices=("delete", "compact")),
    "compression.type": Config("producer", Kind.STRING, choices=CODECS),
    "delete.retention.ms": Config("86400000", Kind.LONG),
    "file.delete.delay.ms": Config("60000", Kind.LONG),
    "flush.messages": Config(str(LONG_MAX), Kind.LONG, 1),
    "flush.ms": Config(str(LONG_MAX), Kind.LONG),
    "index.interval.bytes": Config("4096", Kind.INT),
    "max.compaction.lag.ms": Config(str(LONG_MAX), Kind.LONG, 1),
    "max.message.bytes": Config("1048588", Kind.INT),
    "message.timestamp.after.max.ms": Config("3600000", Kind.LONG),
    "message.timestamp.before.max.ms": Config(str(LONG_MAX), Kind.LONG),
    "message.timestamp.type": Config("CreateTime", Kind.STRING, choices=("CreateTime",)),
    "min.cleanable.dirty.ratio": Config("0.5", Kind.DOUBLE),
    "min.compaction.lag.ms": Config("0", Kind.LONG),
    "min.insync.replicas": Config("1", Kind.INT, 1),
    "preallocate": Config("false", Kind.BOOLEAN, choices=("true", "false")),
    "retention.bytes": Config("-1", Kind.LONG, -1),
    "retention.ms": Config("604800000", Kind.LONG, -1),
    "segment.bytes": Config(str(64 << 20), Kind.INT, 14),
    "segment.index.bytes": Config("10485760", Kind.INT, 4),
    "segment.jitter.ms": Config("0", Kind.LONG),
    "segment.ms": Config("604800000", Kind.LONG, 1),
    "unclean.leader.election.enable": Config("false", Kind.BOOLEAN, choices=("true", "false")),
}
HIGH = {Kind.INT: INT_MAX, Kind.LONG: LONG_MAX, Kind.DOUBLE: 1}


def wrong(name: str, value: str | None) -> str | None:
    """What is wrong with a configuration, if anything is."""
    config = CONFIGS.get(name)
    if config is None:
        return f"{name}: there is no such topic configuration"
    if value is None:
        return f"{name}: a value is needed"
    if config.choices:
        given = value.split(",") if config.kind is Kind.LIST else [value]
        return None if set(given) <= set(config.choices) else f"{name}: not one of {config.choices}"
    try:
        number = float(value) if config.kind is Kind.DOUBLE else int(value)
    except ValueError:
        return f"{name}: {value!r} is no number"
    high = HIGH[config.kind]
    return None if config.low <= number <= high else f"{name}: not from {config.low:g} to {high}"
