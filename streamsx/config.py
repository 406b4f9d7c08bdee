"""Settings of a worker: each with its default, its unit and its names in Kafka and Faust.

A field's name ends in its unit, and users leave the unit out: `commit_interval_s` is the setting
`commit_interval`. Kafka's dotted names are accepted too: dots become underscores, `.ms` is dropped.

Not here: the sources of values and their precedence (`streamsx.app.settings`).
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from ssl import SSLContext
from types import NoneType
from typing import Any, Final, TypeVar, get_args
from urllib.parse import urlsplit
from zlib import crc32

T = TypeVar("T")

KAFKA_PORT: Final = 9092
SCHEMES: Final = frozenset({"", "kafka", "aiokafka"})
SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
YES: Final = frozenset({"1", "true", "yes", "on"})
NO: Final = frozenset({"0", "false", "no", "off"})
FAUST_LEVELS: Final = {"warn": "warning", "crit": "critical"}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-z]*)")
LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")
HEARTBEATS_PER_SESSION: Final = 3
EAGER: Final = "eager"
AT_LEAST_ONCE: Final = "at_least_once"
EXACTLY_ONCE: Final = "exactly_once"
EXACT_COMMIT_INTERVAL_S: Final = 0.1
COOPERATIVE_SINCE: Final = (2, 4)
"""Release of Kafka Streams."""
_RELEASE = re.compile(r"\d+(\.\d+)+")


# -- parsers of values as people write them; each raises ValueError with the right notation


def seconds(value: object) -> float:
    """Parse a number of seconds, a timedelta, `500ms`, `60s`, `10m`, `1h`, `1d` or `infinite`."""
    total = getattr(value, "total_seconds", None)
    text = str(value if total is None else total()).strip().lower()
    if text in ("infinite", "inf"):
        return math.inf
    return _amount(text, SECONDS, f"{value!r}: a duration is written 500ms, 60s or 10m")


def broker_seconds(value: object) -> float:
    """Parse a duration that brokers receive in milliseconds, as a number of 32 bits."""
    found = seconds(value)
    if not 1 <= found * 1000 < 1 << 31:
        raise ValueError(f"{value!r}: a broker takes 1ms to 24d")
    return found


def within(least: str, most: str, why: str) -> Callable[[object], float]:
    """Return a parser of durations from `least` to `most`; `why`: advice in the error."""
    least_s = seconds(least)
    most_s = seconds(most)

    def parse(value: object) -> float:
        found = seconds(value)
        if not least_s <= found <= most_s:
            raise ValueError(f"{value!r}: give {least} to {most}: {why}")
        return found

    return parse


def replicas(value: object) -> int:
    """Parse a number of replicas, or -1 for the broker's default."""
    found = whole(-1)(value)
    if not found:
        raise ValueError("0 replicas hold no record: give 1 or more, or -1 for the broker's own")
    return found


def size_bytes(value: object) -> int:
    """Parse a number of bytes, `64KiB`, `16MiB` or `1GiB`."""
    text = str(value).strip().lower()
    return int(_amount(text, BYTES, f"{value!r}: a size is written 512, 64KiB or 8MiB"))


def _amount(text: str, units: Mapping[str, float], wrong: str) -> float:
    found = _AMOUNT.fullmatch(text)
    if found is None or found[2] not in units:
        raise ValueError(wrong)
    amount = float(found[1]) * units[found[2]]
    if amount == math.inf:  # 1e999
        raise ValueError(wrong)
    return amount


def flag(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in YES | NO:
        raise ValueError(f"not yes or no: {value!r}: write true or false")
    return word in YES


def share(value: object) -> float:
    """Parse a share, 0 or more: 0.2 is a fifth."""
    with suppress(ValueError):
        found = float(str(value))
        if 0 <= found < math.inf:
            return found
    raise ValueError(f"{value!r}: a share is written 0.2")


def positive(parse: Callable[[object], T]) -> Callable[[object], T]:
    """Return a parser that refuses 0 and infinity: with a share of 0 nothing is ever read."""

    def parsed(value: object) -> T:
        found = parse(value)
        if not 0 < found < math.inf:  # type: ignore[operator]  # always a number
            raise ValueError(f"{value!r}: give more than 0, and an end")
        return found

    return parsed


def text(value: object) -> str:
    """Parse a text that is not empty, as in `--state-dir "$STATE"` where STATE is not set."""
    if not str(value).strip():
        raise ValueError("nothing is given: write it, or leave it out")
    return str(value)


def legal(value: object) -> str:
    """Parse a name that suits a topic, a group, a folder and an item of a list with commas."""
    name = str(value)
    if not LEGAL.fullmatch(name) or not name.strip("."):
        raise ValueError(f"{name!r}: use letters, digits, dots, dashes and underscores")
    return name


def whole(least: int) -> Callable[[object], int]:
    """Return a parser of whole numbers from `least` on."""

    def parse(value: object) -> int:
        with suppress(ValueError):
            if not isinstance(value, bool) and (found := int(str(value))) >= least:
                return found
        raise ValueError(f"not a whole number from {least} on: {value!r}")

    return parse


def one_of(*words: str, later: tuple[str, ...] = ()) -> Callable[[object], str]:
    """Return a parser of a choice of words.

    `later`: words that this version refuses with a message of their own.
    """

    def parse(value: object) -> str:
        word = str(getattr(value, "value", value))  # Faust uses enums for some settings
        if word in later:
            raise ValueError(f"not in this version: {word}: use {' or '.join(words)}")
        if word not in words:
            raise ValueError(f"not one of {', '.join(words)}: {word!r}")
        return word

    return parse


def guarantee(value: object) -> str:
    """Parse a guarantee, also in the spellings of Kafka Streams and of Quix Streams."""
    word = str(getattr(value, "value", value)).replace("-", "_")
    return one_of(AT_LEAST_ONCE, EXACTLY_ONCE)(EXACTLY_ONCE if word == "exactly_once_v2" else word)


def level(value: object) -> str:
    """Parse a log level, also in Faust's spelling."""
    word = str(value).lower()
    levels = one_of("debug", "info", "warning", "error", "critical")
    return levels(FAUST_LEVELS.get(word, word))


def or_none(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a parser that accepts None, the word `none`, or the values of `parse`."""
    return lambda value: None if value in (None, "none") else parse(value)


def as_it_is(value: object) -> object:
    return value


def credentials(value: object) -> object:
    """Parse credentials of Faust's classes, or an SSLContext; their content is checked at use."""
    if value is None or isinstance(value, SSLContext) or hasattr(value, "protocol"):
        return value
    kinds = "SASLCredentials, SSLCredentials, OAuthCredentials or GSSAPICredentials"
    raise ValueError(f"a {type(value).__name__}: give {kinds}")


def tls(value: object) -> SSLContext | None:
    if value is None or isinstance(value, SSLContext):
        return value
    raise ValueError(f"a {type(value).__name__}: give one that ssl.create_default_context() makes")


def release(value: object) -> str:
    """Parse a release of Kafka Streams, as in its `upgrade.from`, or `eager`."""
    text = str(value)
    if text != EAGER and not _RELEASE.fullmatch(text):
        raise ValueError(f"{value!r}: write the release you come from, such as 2.3, or {EAGER}")
    return text


def labels(value: object) -> tuple[tuple[str, str], ...]:
    """Parse keys and values from a dict or `zone=a,rack=b`; the first key counts most."""
    told: Any = value
    if isinstance(value, str):
        told = [part.partition("=")[::2] for part in value.split(",") if part.strip()]
    elif isinstance(value, Mapping):
        told = [*value.items()]
    elif not isinstance(value, tuple):
        raise ValueError(f"{value!r}: write a dict, or KEY=VALUE, with commas between several")
    made = tuple((str(key).strip(), str(found).strip()) for key, found in told)
    if not all(key and found for key, found in made):
        raise ValueError(f"{value!r}: write KEY=VALUE, with commas between several")
    if twice := [key for key, count in Counter(key for key, _ in made).items() if count > 1]:
        raise ValueError(f"{value!r}: {', '.join(twice)} has two values")
    return made


def servers(value: object) -> tuple[str, ...]:
    """Parse broker addresses into HOST:PORT each.

    The value is one URL or several: a list, or a text with commas or semicolons.
    """
    several = value if isinstance(value, list | tuple) else str(value).replace(";", ",").split(",")
    return tuple(_server(str(part).strip()) for part in several)


def _server(text: str) -> str:
    with suppress(ValueError):  # an invalid port, or an unclosed bracket
        url = urlsplit(text if "//" in text else f"//{text}")
        host = url.hostname
        port = KAFKA_PORT if url.port is None else url.port
        if url.scheme in SCHEMES and host and port:
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise ValueError(f"not a broker: {text!r}: write kafka://HOST:PORT")


commit_seconds: Final = within(
    "1ms", "1d",
    "100ms to 1m is sensible: what was done since the last commit is repeated after a kill",
)  # fmt: skip
revoke_seconds: Final = within(
    "1ms", "24d",
    "30s to 10m is sensible: so long the group waits for a task that its worker does not give back",
)  # fmt: skip
linger_seconds: Final = within(
    "0ms", "1m", "0 to 100ms is sensible: so long a record waits for others in its batch"
)

backoff_seconds: Final = within(
    "1ms", "1m", "100ms to 10s is sensible: so long a task stands before it tries its record again"
)
slice_seconds: Final = within(
    "0.1ms", "1s", "1ms to 20ms is sensible: so long records wait for a task that is restored"
)

# -- reactions


REACTIONS: Final = ("log", "dlq", "stop_task", "stop", "stop_app")
"""Reactions to a record that failed."""
PRODUCE_REACTIONS: Final = ("stop_task", "stop", "stop_app", "log", "dlq")
"""Reactions to an output that a broker refused for good."""
RETRIED: Final = (
    "a broker has refused the record for good, and the producer has retried what can be retried: "
    f"use one of {', '.join(PRODUCE_REACTIONS)}"
)
"""Reason why `retry` is no reaction to a refused output."""


RETRY: Final = "retry"
_RETRY = re.compile(rf"{RETRY}\((.*)\)")
BACKOFF_MAX_S: Final = 60.0
DOUBLINGS_MAX: Final = 30
JITTER: Final = 0.2
"""Largest part by which a wait is longer or shorter than said, so that tasks do not try at once."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Reaction to a record that failed: try it `attempts` times in all, then react with a word.

    The first wait takes `backoff_s`, and each further one twice the time, up to BACKOFF_MAX_S.
    """

    attempts: int = 3
    backoff_s: float = 1.0
    then: str = "dlq"

    def wait_s(self, attempt: int, place: str) -> float:
        """Return the wait behind a try, in seconds; the record's place decides the jitter."""
        wait_s = min(self.backoff_s * 2.0 ** min(attempt - 1, DOUBLINGS_MAX), BACKOFF_MAX_S)
        part = crc32(f"{place} {attempt}".encode()) / (1 << 32)
        return min(wait_s * (1 - JITTER + 2 * JITTER * part), BACKOFF_MAX_S)

    def __str__(self) -> str:
        return f"{RETRY}({self.attempts}, {self.backoff_s:g}s, {self.then})"


def retry_of(attempts: object = 3, backoff: object = "1s", then: object = "dlq") -> Retry:
    """Return a Retry, checked.

    Raises:
        ValueError: a part is wrong.
    """
    return Retry(whole(1)(attempts), backoff_seconds(backoff), one_of(*REACTIONS)(then))


def reaction(value: object) -> str | Retry:
    """Parse a reaction: a word, a Retry, or the text of one as in `retry(5, 2s, log)`."""
    if isinstance(value, Retry):
        return value
    word = str(getattr(value, "value", value)).strip()
    if word == RETRY:
        return Retry()
    if found := _RETRY.fullmatch(word):
        parts = [part.strip() for part in found[1].split(",")]
        if len(parts) > len(fields(Retry)) or not all(parts):
            raise ValueError(f"{word!r}: a retry is written retry, or {RETRY}(5, 2s, log)")
        return retry_of(*parts)
    return one_of(*REACTIONS, RETRY)(word)


def decode_reaction(value: object) -> str:
    """Parse a reaction to bytes that cannot be decoded."""
    if _is_retry(value):
        raise ValueError(f"{value}: bytes do not get better: use {' or '.join(REACTIONS)}")
    return one_of(*REACTIONS)(value)


def produce_reaction(value: object) -> str:
    """Parse the reaction to an output that a broker refused."""
    if _is_retry(value):
        raise ValueError(f"{value}: {RETRIED}")
    return one_of(*PRODUCE_REACTIONS)(value)


def _is_retry(value: object) -> bool:
    return isinstance(value, Retry) or str(value).strip().partition("(")[0] == RETRY


def last_word(choice: object) -> object:
    """Return a reaction, or that which follows the last try."""
    return choice.then if isinstance(choice, Retry) else choice


# -- the table


def setting(
    default: object, parse: Callable[[object], T], *names: str, faust: str = "", env: str = ""
) -> T:
    """Return a field of Config.

    `names`: further names. `faust`: Faust's name, which is also the name of its environment
    variable. `env`: Faust's environment variable, if its name differs.
    """
    known = (*names, faust) if faust else names
    metadata = {"parse": parse, "names": known, "env": env or faust.upper()}
    return field(default=default, metadata=metadata)  # type: ignore[return-value]  # checked by a test


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a worker. `id` names the group and the internal topics.

    None means: no limit for `max_learners`, `max_learners_per_member` and
    `consecutive_failures_max` (the number of records in a row that fail and so stop their task; the
    worker goes on); for `state_dir` the slot of `{id}-data/` with its `instance_id`, or the first
    free slot; for `instance_id` a name that is made at the first start.

    The group knows a worker with `static_membership` by its `instance_id`. `on_stop` decides
    whether SIGTERM lets such a worker `stay` a member for the rest of its session.

    `on_error`, `on_decode_error`: the reaction to a record that fails, or cannot be decoded. `log`
    skips it, `dlq` sends it to `dlq_topic` too, `stop_task` stops its task, `stop` the worker,
    and `stop_app` all workers of the app. `retry` tries it again first; not for `on_decode_error`.

    `on_produce_error`: the reaction to an output that a broker refuses for good: too large for its
    topic, say. `stop_task` stops the task that sent it at the task's last commit, `stop` the
    worker, and `stop_app` all workers of the app. `log` leaves it out, `dlq` sends it to
    `dlq_topic` in place of its topic.

    `processing_guarantee`: with `exactly_once` outputs, changelogs and offsets are committed in one
    transaction. `transaction_timeout`: the time after which brokers abort the transaction of a
    worker that has died; others wait so long for its tasks.

    `on_lost_offsets`: the reaction of a task with state whose committed offsets are gone: `stop`,
    or begin at the start or the end of its topics.

    For settings that concern the whole group the leader's values are in force, so give all workers
    the same: `acceptable_recovery_lag`, `imbalance_percentage`, `max_learners`,
    `max_learners_per_member`, `num_standby_replicas`, and the keys of `tags`.
    """

    id: str = field(metadata={"parse": legal, "names": ("application_id",), "env": ""})
    version: int = setting(1, whole(1), env="APP_VERSION")
    id_format: str = setting("{id}-v{self.version}", str, env="APP_ID_FORMAT")
    instance_id: str | None = setting(None, or_none(legal))
    capacity: int = setting(1, whole(1))
    tags: tuple[tuple[str, str], ...] = setting((), labels)

    bootstrap: tuple[str, ...] = setting(
        (f"localhost:{KAFKA_PORT}",), servers, "broker", "bootstrap_servers", env="BROKER_URL"
    )
    broker_credentials: object = setting(None, credentials)
    ssl_context: object = setting(None, tls)

    processing_guarantee: str = setting(
        "at_least_once",
        guarantee,
        faust="processing_guarantee",
    )
    commit_interval_s: float = setting(
        1.0, commit_seconds, faust="broker_commit_interval"
    )  # default with exactly_once: 100ms
    transaction_timeout_s: float = setting(10.0, broker_seconds)
    on_error: str | Retry = setting("log", reaction)  # noqa: RUF009  # a field, as all others
    on_decode_error: str = setting("log", decode_reaction)
    dlq_topic: str | None = setting(None, or_none(legal))  # default: {id}-dlq
    consecutive_failures_max: int | None = setting(10, or_none(whole(1)))
    on_produce_error: str = setting("stop_task", produce_reaction)

    protocol_type: str = setting("consumer", one_of("consumer", "stream"))
    session_timeout_s: float = setting(45.0, broker_seconds, faust="broker_session_timeout")
    heartbeat_interval_s: float = setting(1.0, broker_seconds, faust="broker_heartbeat_interval")
    rebalance_timeout_s: float = setting(60.0, broker_seconds, faust="broker_rebalance_timeout")
    static_membership: bool = setting(False, flag)
    on_stop: str = setting("leave", one_of("leave", "stay"))  # default with static_membership: stay
    upgrade_from: str | None = setting(None, or_none(release))
    rebalancing_mode: str = setting(
        "incremental", one_of("incremental", "default", "upgrading"), "stream_rebalancing_mode"
    )
    revoke_before_join: str = setting(
        "none", one_of("none", "all", later=("being_learned", "learned"))
    )
    revoke_timeout_s: float = setting(60.0, revoke_seconds)  # default: rebalance_timeout
    scale_down_timeout_s: float = setting(math.inf, seconds)
    shutdown_timeout_s: float = setting(25.0, seconds)

    acceptable_recovery_lag: int = setting(10_000, whole(0))
    imbalance_percentage: float = setting(0.2, share, "stream_imbalance_percentage")
    num_standby_replicas: int = setting(
        0, whole(0), "num_standby_tasks", faust="table_standby_replicas"
    )
    max_learners: int | None = setting(None, or_none(whole(0)), "max_warmup_replicas")
    max_learners_per_member: int | None = setting(2, or_none(whole(0)))
    learner_partial_rebalance: bool = setting(True, flag)

    state_dir: str | None = setting(None, or_none(text), "datadir", env="APP_DATADIR")
    snapshot: str | None = setting(None, or_none(text))
    store: str = setting("rocksdb://", one_of("rocksdb://", "memory://"), env="APP_STORE")
    memory_budget_bytes: int = setting(512 << 20, positive(size_bytes))
    state_cleanup_delay_s: float = setting(600.0, seconds)
    restore_slice_s: float = setting(0.005, slice_seconds)

    fetch_max_wait_s: float = setting(0.25, broker_seconds)
    fetch_max_bytes: int = setting(16 << 20, positive(size_bytes), "fetch_max_bytes")
    consumer_max_fetch_size_bytes: int = setting(
        1 << 20, positive(size_bytes), "max_partition_fetch_bytes", env="CONSUMER_MAX_FETCH_SIZE"
    )
    fetch_hold_bytes: int = setting(1 << 20, positive(size_bytes), "fetch_hold_bytes")
    consumer_auto_offset_reset: str = setting(
        "earliest",
        one_of("earliest", "latest"),
        "auto_offset_reset",
        faust="consumer_auto_offset_reset",
    )
    on_lost_offsets: str = setting("stop", one_of("stop", "earliest", "latest"))
    broker_check_crcs: bool = setting(True, flag, "check_crcs", env="BROKER_CHECK_CRCS")

    producer_linger_s: float = setting(0.005, linger_seconds, "linger", env="PRODUCER_LINGER")
    produce_buffer_bytes: int = setting(32 << 20, positive(size_bytes), "buffer_memory")
    producer_compression_type: str | None = setting(
        None,
        or_none(one_of("gzip", "snappy", "lz4", "zstd")),
        "compression_type",
        env="PRODUCER_COMPRESSION_TYPE",
    )

    topic_partitions: int = setting(8, whole(1), env="TOPIC_PARTITIONS")
    topic_replication_factor: int = setting(
        -1, replicas, "replication_factor", env="TOPIC_REPLICATION_FACTOR"
    )  # -1: the broker's default.replication.factor
    repartition_names: str = setting("app", one_of("app", "faust"))
    topic_allow_declare: bool = setting(True, flag, env="TOPIC_ALLOW_DECLARE")
    key_serializer: object = setting("raw", as_it_is, env="APP_KEY_SERIALIZER")
    value_serializer: object = setting("json", as_it_is, env="APP_VALUE_SERIALIZER")

    events_file: str | None = setting(None, or_none(text))
    log_format: str = setting("text", one_of("text", "json"))
    log_level: str = setting("info", level)


def is_exact(config: Config) -> bool:
    """Return whether outputs, changelogs and offsets are committed in one transaction."""
    return config.processing_guarantee == EXACTLY_ONCE


def name_of(known: "Field[object]") -> str:
    """Return the users' name of a field."""
    if known.name in known.metadata["names"]:
        return known.name
    return known.name.removesuffix("_s").removesuffix("_bytes")


def takes_none(known: "Field[object]") -> bool:
    """Return whether None is a value of this setting, rather than a sign that it is not set."""
    return known.type is object or NoneType in get_args(known.type)


SETTINGS: Final[dict[str, "Field[object]"]] = {
    name: known
    for known in fields(Config)
    for name in (name_of(known), known.name, *known.metadata["names"])
}
"""Fields by every accepted name, the users' names first."""


def contradictions(config: Config) -> Iterator[str]:
    """Yield a message for each pair of settings that contradict each other; both are named."""
    least = HEARTBEATS_PER_SESSION * config.heartbeat_interval_s
    if config.session_timeout_s < least:
        yield (
            f"session_timeout {config.session_timeout_s:g} s is below {HEARTBEATS_PER_SESSION} "
            f"times heartbeat_interval {config.heartbeat_interval_s:g} s"
        )
    if config.rebalancing_mode == "upgrading" and config.protocol_type != "consumer":
        yield (
            f"rebalancing_mode upgrading is of protocol_type consumer, which is "
            f"{config.protocol_type}"
        )
    if config.on_stop == "stay" and not config.static_membership:
        yield "on_stop stay is of static_membership, which is false"
    if is_exact(config) and config.transaction_timeout_s <= config.commit_interval_s:
        yield (
            f"transaction_timeout {config.transaction_timeout_s:g} s is not above "
            f"commit_interval {config.commit_interval_s:g} s, so brokers would abort transactions "
            "ahead of their commit"
        )
    if config.fetch_max_bytes < config.consumer_max_fetch_size_bytes:
        yield (
            f"fetch_max_bytes {config.fetch_max_bytes} is below consumer_max_fetch_size "
            f"{config.consumer_max_fetch_size_bytes}"
        )
