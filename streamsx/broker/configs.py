"""Configuration names of a topic, with defaults and allowed values, as in Kafka. Pure.

The broker applies max.message.bytes, message.timestamp.*, and the sizes and times of segments, of
retention and of compaction. The other configurations are accepted and reported back, without
effect. Batches stay as they were sent, whatever compression.type is set to.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.protocol.compiler import STRING_BYTES_MAX

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
SET_HERE = 1
BY_DEFAULT = 5


class ConfigType(IntEnum):
    """Value types of a configuration, numbered as DescribeConfigs reports them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigDef(NamedTuple):
    """Default, type and allowed values of one configuration.

    Numbers are allowed from `low` on. Words are allowed if they are in `choices`; without choices
    any text is allowed.
    """

    default: str
    kind: ConfigType
    low: float = 0
    choices: tuple[str, ...] = ()


TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
BOOLS = ("true", "false")
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CONFIGS = {
    "cleanup.policy": ConfigDef("delete", ConfigType.LIST, choices=("delete", "compact")),
    "compression.gzip.level": ConfigDef("-1", ConfigType.INT, -1),
    "compression.lz4.level": ConfigDef("9", ConfigType.INT, 1),
    "compression.type": ConfigDef("producer", ConfigType.STRING, choices=CODECS),
    "compression.zstd.level": ConfigDef("3", ConfigType.INT, -131072),
    "delete.retention.ms": ConfigDef("86400000", ConfigType.LONG),
    "file.delete.delay.ms": ConfigDef("60000", ConfigType.LONG),
    "flush.messages": ConfigDef(str(LONG_MAX), ConfigType.LONG, 1),
    "flush.ms": ConfigDef(str(LONG_MAX), ConfigType.LONG),
    "follower.replication.throttled.replicas": ConfigDef("", ConfigType.LIST),
    "index.interval.bytes": ConfigDef("4096", ConfigType.INT),
    "leader.replication.throttled.replicas": ConfigDef("", ConfigType.LIST),
    "local.retention.bytes": ConfigDef("-2", ConfigType.LONG, -2),
    "local.retention.ms": ConfigDef("-2", ConfigType.LONG, -2),
    "max.compaction.lag.ms": ConfigDef(str(LONG_MAX), ConfigType.LONG, 1),
    "max.message.bytes": ConfigDef("1048588", ConfigType.INT),
    "message.timestamp.after.max.ms": ConfigDef("3600000", ConfigType.LONG),
    "message.timestamp.before.max.ms": ConfigDef(str(LONG_MAX), ConfigType.LONG),
    "message.timestamp.type": ConfigDef("CreateTime", ConfigType.STRING, choices=TIMESTAMP_TYPES),
    "min.cleanable.dirty.ratio": ConfigDef("0.5", ConfigType.DOUBLE),
    "min.compaction.lag.ms": ConfigDef("0", ConfigType.LONG),
    "min.insync.replicas": ConfigDef("1", ConfigType.INT, 1),
    "preallocate": ConfigDef("false", ConfigType.BOOLEAN, choices=BOOLS),
    "remote.log.copy.disable": ConfigDef("false", ConfigType.BOOLEAN, choices=BOOLS),
    "remote.log.delete.on.disable": ConfigDef("false", ConfigType.BOOLEAN, choices=BOOLS),
    "remote.storage.enable": ConfigDef("false", ConfigType.BOOLEAN, choices=("false",)),
    "retention.bytes": ConfigDef("-1", ConfigType.LONG, -LONG_MAX),
    "retention.ms": ConfigDef("604800000", ConfigType.LONG, -1),
    "segment.bytes": ConfigDef(str(64 << 20), ConfigType.INT, 14),
    "segment.index.bytes": ConfigDef("10485760", ConfigType.INT, 4),
    "segment.jitter.ms": ConfigDef("0", ConfigType.LONG),
    "segment.ms": ConfigDef("604800000", ConfigType.LONG, 1),
    "unclean.leader.election.enable": ConfigDef("false", ConfigType.BOOLEAN, choices=BOOLS),
}
COMPACTION_LAGS = "min.compaction.lag.ms", "max.compaction.lag.ms"
HIGH = {ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX, ConfigType.DOUBLE: 1}


def told(
    configs: Mapping[str, ConfigDef], given: Mapping[str, str], *, read_only: bool = False
) -> list[ReplyBody]:
    """Return these configurations as items of a reply: the given value, or else the default."""
    return [
        {
            "name": name,
            "value": given.get(name, config.default),
            "read_only": read_only,
            "config_source": SET_HERE if name in given else BY_DEFAULT,
            "config_type": config.kind,
        }
        for name, config in configs.items()
    ]


def listed(value: str) -> list[str]:
    """Return the parts of a comma-separated list, without the blanks around them."""
    return [part.strip() for part in value.split(",")]


def wrong(name: str, value: str | None) -> str | None:
    """Return the reason for which a configuration is invalid, or None if there is none."""
    config = CONFIGS.get(name)
    if config is None:
        return f"{name}: unknown topic config"
    if value is None:
        return f"{name}: a value is needed"
    if len(value.encode()) > STRING_BYTES_MAX:  # appending may make a list too long
        return f"{name}: longer than {STRING_BYTES_MAX} bytes"
    if config.choices:
        many = config.kind is ConfigType.LIST
        given = [each for each in listed(value) if each] if many else [value]
        if config.kind is ConfigType.BOOLEAN:
            given = [value.strip().lower()]
        return None if set(given) <= set(config.choices) else f"{name}: not one of {config.choices}"
    if config.kind in (ConfigType.LIST, ConfigType.STRING):
        return None
    read = float if config.kind is ConfigType.DOUBLE else int
    try:
        number = read(value.replace("_", "x"))  # Python reads "1_000" as a number, Kafka does not
    except ValueError:
        return f"{name}: {value!r} is no number"
    high = HIGH[config.kind]
    return None if config.low <= number <= high else f"{name}: not from {config.low:g} to {high}"


def crossed(configs: Mapping[str, str]) -> str | None:
    """Return the contradiction between configurations that are valid by themselves, or None."""
    least, most = (int(configs.get(name, CONFIGS[name].default)) for name in COMPACTION_LAGS)
    return "{}: more than {}".format(*COMPACTION_LAGS) if least > most else None
