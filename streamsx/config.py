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
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import iscoroutinefunction, signature
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
    wrong = f"{value!r}: a duration is written 500ms, 60s or 10m"
    if text.startswith("-") and _AMOUNT.fullmatch(text[1:]):
        wrong += ", and is never below 0"
    return _amount(text, SECONDS, wrong)


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


Function = Callable[[Any], Any]
"""Function of the failure, which returns a reaction; None: the one that would follow otherwise."""
OF_THE_FAILURE: Final = (
    "give a plain function of the failure, which has error, topic, partition, offset, operator "
    "and record"
)
"""Advice for a function that cannot be asked for a reaction."""


def takes(fun: Function, count: int) -> bool:
    """Return whether a function may be called with so many arguments."""
    try:
        signature(fun).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # builtins in C have no signature
        return True
    return True


def takes_failure(fun: Function) -> bool:
    """Return whether a function may be asked for the reaction to a failure."""
    return not iscoroutinefunction(fun) and takes(fun, 1)


def or_function(parse: Callable[[object], T]) -> Callable[[object], T | Function]:
    """Return a parser that accepts a function of the failure, or the values of `parse`."""

    def parsed(value: object) -> T | Function:
        if not callable(value):
            return parse(value)
        if not takes_failure(value):
            raise ValueError(f"{value!r}: {OF_THE_FAILURE}")
        return value

    return parsed


def last_word(choice: object) -> object:
    """Return a reaction, or that which follows the last try."""
    return choice.then if isinstance(choice, Retry) else choice


# -- the table


def setting(
    default: object,
    parse: Callable[[object], T],
    *names: str,
    doc: str,
    varies: str = "",
    kafka: str = "",
    faust: str = "",
    env: str = "",
) -> T:
    """Return a field of Config.

    Args:
        default: the value where none is given.
        parse: parser of a value as people write it.
        names: further names.
        doc: meaning of the setting, in sentences, for the settings reference.
        varies: the defaults that depend on another setting, in words.
        kafka: dotted name of Kafka or of Kafka Streams, which is accepted in `config={...}`.
        faust: Faust's name, which is also the name of its environment variable.
        env: Faust's environment variable, if its name differs.
    """
    known = (*names, faust) if faust else names
    metadata = {
        "parse": parse,
        "names": known,
        "env": env or faust.upper(),
        "doc": doc,
        "varies": varies,
        "kafka": kafka,
    }
    if default is MISSING:
        return field(metadata=metadata)  # type: ignore[no-any-return]
    return field(default=default, metadata=metadata)  # type: ignore[return-value]  # checked by a test


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a worker, in the order and the groups of the settings reference.

    The reference (docs/reference/settings.md) is made from `doc` of each setting.
    """

    id: str = setting(
        MISSING,
        legal,
        "application_id",
        kafka="application.id",
        doc="Name of the app: the first argument of `App`. It names the group of the workers, the "
        "internal topics and the state directory, so keep it for as long as the state shall live.",
    )
    version: int = setting(
        1,
        whole(1),
        env="APP_VERSION",
        doc="Version of the app. From 2 on the app has an id of its own, made by `id_format`, and "
        "so a group, internal topics and state of its own: it begins anew.",
    )
    id_format: str = setting(
        "{id}-v{self.version}",
        str,
        env="APP_ID_FORMAT",
        doc="Form of the id from `version` 2 on.",
    )
    instance_id: str | None = setting(
        None,
        or_none(legal),
        doc="Name of the worker in `status`, `leave`, `explain` and events. Without it a name is "
        "made at the first start and kept in the state directory. Two workers of an app need "
        "different names.",
    )
    capacity: int = setting(
        1,
        whole(1),
        doc="Weight of the worker: a worker with capacity 2 gets twice as many tasks as one with "
        "capacity 1.",
    )
    tags: tuple[tuple[str, str], ...] = setting(
        (),
        labels,
        doc="Labels of the worker, as a dict or as `zone=a,rack=b`. The copies of a task are "
        "spread over the values of these labels; the first label counts most. Give all workers "
        "the same keys.",
    )

    bootstrap: tuple[str, ...] = setting(
        (f"localhost:{KAFKA_PORT}",),
        servers,
        "broker",
        "bootstrap_servers",
        env="BROKER_URL",
        kafka="bootstrap.servers",
        doc="Addresses of brokers: `HOST:PORT` or `kafka://HOST:PORT`, with commas between "
        "several. One that answers is enough; it knows the others.",
    )
    broker_credentials: object = setting(
        None,
        credentials,
        doc="Credentials for the brokers, as one of Faust's objects: `SASLCredentials`, "
        "`SSLCredentials`, `OAuthCredentials` or `GSSAPICredentials`. In code only.",
    )
    ssl_context: object = setting(
        None,
        tls,
        doc="TLS context for the connections to brokers, as made by "
        "`ssl.create_default_context()`. In code only.",
    )

    processing_guarantee: str = setting(
        "at_least_once",
        guarantee,
        faust="processing_guarantee",
        kafka="processing.guarantee",
        doc="`at_least_once`: after a kill the records since the last commit are processed again. "
        "`exactly_once`: outputs, changelogs and offsets are committed in one transaction, so "
        "readers with `isolation_level=read_committed` see each result once.",
    )
    commit_interval_s: float = setting(
        1.0,
        commit_seconds,
        faust="broker_commit_interval",
        kafka="commit.interval.ms",
        varies="`100ms` under `exactly_once`",
        doc="Time between two commits of a worker. What was done since the last commit is "
        "repeated after a kill. Under `exactly_once` an output is visible after this time.",
    )
    transaction_timeout_s: float = setting(
        10.0,
        broker_seconds,
        kafka="transaction.timeout.ms",
        doc="Time after which brokers abort the transaction of a worker that has died; the next "
        "owners of its tasks wait so long. It has to be longer than `commit_interval`, and no "
        "longer than the brokers' `transaction.max.timeout.ms`. Under `exactly_once` only.",
    )
    on_error: str | Retry | Function = setting(  # noqa: RUF009  # a field, as all others
        "log",
        or_function(reaction),
        doc="Reaction to a record on which an agent or a step raises. `log`: skip the record and "
        "log it. `dlq`: send it to the dead-letter topic too. `stop_task`: stop its task; the "
        "other tasks go on. `stop`: end the worker. `stop_app`: end all workers of the app. "
        "`retry` or `retry(5, 2s, log)`: try the record again first (`streamsx.retry`). In code "
        "also a [function of the failure](../dead-letters.md#choose-by-agent-or-by-failure) that "
        "returns one of these, or None for `log`. An agent or a flow may have a reaction of its "
        "own.",
    )
    on_decode_error: str | Function = setting(  # noqa: RUF009  # a field, as all others
        "log",
        or_function(decode_reaction),
        doc="Reaction to a record whose bytes cannot be decoded: `log`, `dlq`, `stop_task`, "
        "`stop` or `stop_app`, as for `on_error`. In code also a function of the failure.",
    )
    dlq_topic: str | None = setting(
        None,
        or_none(legal),
        varies="`{id}-dlq`",
        doc="Name of the dead-letter topic.",
    )
    consecutive_failures_max: int | None = setting(
        10,
        or_none(whole(1)),
        doc="Number of records in a row that fail and so stop their task, at the first of them. "
        "The worker goes on. `none`: no limit.",
    )
    on_produce_error: str | Function = setting(  # noqa: RUF009  # a field, as all others
        "stop_task",
        or_function(produce_reaction),
        doc="Reaction to an output that a broker refuses for good, because it is too large for "
        "its topic, say. `stop_task`: stop the task that sent it, at the task's last commit. "
        "`stop`: end the worker. `stop_app`: end all workers of the app. `log`: leave the output "
        "out. `dlq`: send it to the dead-letter topic instead. In code also a function of the "
        "failure that returns one of these, or None for `stop_task`.",
    )

    protocol_type: str = setting(
        "consumer",
        one_of("consumer", "stream"),
        doc="Protocol type of the group. `consumer` is right unless the group was made by Kafka "
        "Streams, whose groups are of type `stream`.",
    )
    session_timeout_s: float = setting(
        45.0,
        broker_seconds,
        faust="broker_session_timeout",
        kafka="session.timeout.ms",
        doc="Time without a heartbeat after which the group takes a worker for dead and moves its "
        "tasks. At least three times `heartbeat_interval`.",
    )
    heartbeat_interval_s: float = setting(
        1.0,
        broker_seconds,
        faust="broker_heartbeat_interval",
        kafka="heartbeat.interval.ms",
        doc="Time between two heartbeats. A worker learns of a rebalance within this time.",
    )
    rebalance_timeout_s: float = setting(
        60.0,
        broker_seconds,
        faust="broker_rebalance_timeout",
        doc="Longest time that a rebalance waits for a worker to join it.",
    )
    static_membership: bool = setting(
        False,
        flag,
        doc="Whether the group knows the worker by its `instance_id` (KIP-345). A worker that "
        "comes back within `session_timeout` has its tasks again, without a rebalance.",
    )
    on_stop: str = setting(
        "leave",
        one_of("leave", "stay"),
        varies="`stay` with `static_membership`",
        doc="What SIGTERM does. `leave`: others learn the tasks, then the worker leaves the "
        "group. `stay`: the worker commits and ends, and stays a member for the rest of its "
        "session; only with `static_membership`.",
    )
    upgrade_from: str | None = setting(
        None,
        or_none(release),
        kafka="upgrade.from",
        doc="Release of Kafka Streams that the group comes from, such as `2.3`, or `eager`. "
        "Before 2.4 all partitions are released ahead of each rebalance.",
    )
    rebalancing_mode: str = setting(
        "incremental",
        one_of("incremental", "default", "upgrading"),
        "stream_rebalancing_mode",
        doc="`incremental` and `default`: tasks that stay do not stop in a rebalance. "
        "`upgrading`: all tasks are released ahead of each rebalance, while old workers of "
        "another assignor are replaced one by one.",
    )
    revoke_before_join: str = setting(
        "none",
        one_of("none", "all", later=("being_learned", "learned")),
        doc="Tasks that a worker releases before it joins a rebalance: `none` or `all`.",
    )
    revoke_timeout_s: float = setting(
        60.0,
        revoke_seconds,
        varies="that of `rebalance_timeout`, where only that is given",
        doc="Longest time that the group waits for a task that its worker does not give back. "
        "After it the task is lost to that worker.",
    )
    scale_down_timeout_s: float = setting(
        math.inf,
        seconds,
        doc="Longest time that a leaving worker waits until others have learned its tasks. After "
        "it the tasks move all the same, and are restored by their new owners. It counts at "
        "SIGTERM, if it is below `shutdown_timeout`, and for `streamsx swap`; `streamsx leave` "
        "has `--timeout`.",
    )
    shutdown_timeout_s: float = setting(
        25.0,
        seconds,
        doc="Longest time from SIGTERM to the end of a worker. Set it below the time after which "
        "your platform kills a process (30 s in Kubernetes). A second signal ends the worker "
        "within seconds.",
    )

    acceptable_recovery_lag: int = setting(
        10_000,
        whole(0),
        kafka="acceptable.recovery.lag",
        doc="Number of changelog records that a copy of a task may be behind and count as ready. "
        "A task moves to a learner only when its lag is at most this. The value of the worker "
        "that leads the group is in force: give all workers the same.",
    )
    imbalance_percentage: float = setting(
        0.2,
        share,
        "stream_imbalance_percentage",
        doc="How uneven the tasks may be spread before tasks move, as a share: `0.2` is a fifth. "
        "The leader's value is in force.",
    )
    num_standby_replicas: int = setting(
        0,
        whole(0),
        "num_standby_tasks",
        faust="table_standby_replicas",
        kafka="num.standby.replicas",
        doc="Number of standbys of each task with state: copies that other workers keep up to "
        "date, so that a task goes on at once when its worker dies. The leader's value is in "
        "force.",
    )
    max_learners: int | None = setting(
        None,
        or_none(whole(0)),
        "max_warmup_replicas",
        kafka="max.warmup.replicas",
        doc="Most learners of the whole group at a time. `none`: no limit. `0`: none: tasks move "
        "at once, and stand still until they are restored. The leader's value is in force.",
    )
    max_learners_per_member: int | None = setting(
        2,
        or_none(whole(0)),
        doc="Most tasks that one worker learns at a time. `none`: no limit. `0`: as for "
        "`max_learners`. The leader's value is in force.",
    )
    learner_partial_rebalance: bool = setting(
        True,
        flag,
        doc="Whether each task moves as soon as it is learned. With `false` a worker asks for "
        "its tasks when it has learned all of them: fewer rebalances, later moves.",
    )

    state_dir: str | None = setting(
        None,
        or_none(text),
        "datadir",
        env="APP_DATADIR",
        kafka="state.dir",
        varies="a slot of `./{id}-data/`",
        doc="Directory of the worker's stores and its name. One process holds it. The default is "
        "the slot with the worker's `instance_id`, or the first free slot (`0`, `1`, ...).",
    )
    snapshot: str | None = setting(
        None,
        or_none(text),
        doc="Place of snapshots: a folder or a URI. Empty stores begin with the newest snapshot "
        "there and read only the rest from their changelogs.",
    )
    store: str = setting(
        "rocksdb://",
        one_of("rocksdb://", "memory://"),
        env="APP_STORE",
        doc="Where tables live: `rocksdb://` on the disk, or `memory://`. A table may have its "
        "own. Tables in memory are restored from their changelogs at each start.",
    )
    memory_budget_bytes: int = setting(
        512 << 20,
        positive(size_bytes),
        doc="Memory for caches, RocksDB, fetched batches and records that wait for their "
        "acknowledgement. The process takes about 120 MiB more. Tables in memory are not "
        "counted.",
    )
    state_cleanup_delay_s: float = setting(
        600.0,
        seconds,
        kafka="state.cleanup.delay.ms",
        doc="Time after which the store of a task that runs elsewhere is deleted from the disk.",
    )
    restore_slice_s: float = setting(
        0.005,
        slice_seconds,
        doc="Longest time of one step of a restore. So long records of running tasks wait for "
        "it: a larger value restores faster.",
    )

    fetch_max_wait_s: float = setting(
        0.25,
        broker_seconds,
        kafka="fetch.max.wait.ms",
        doc="Longest time that a broker holds a fetch without new records.",
    )
    fetch_max_bytes: int = setting(
        16 << 20,
        positive(size_bytes),
        "fetch_max_bytes",
        kafka="fetch.max.bytes",
        doc="Most bytes of one answer to a fetch. At least `consumer_max_fetch_size`.",
    )
    consumer_max_fetch_size_bytes: int = setting(
        1 << 20,
        positive(size_bytes),
        "max_partition_fetch_bytes",
        env="CONSUMER_MAX_FETCH_SIZE",
        kafka="max.partition.fetch.bytes",
        doc="Most bytes of one partition in an answer to a fetch. A larger single record is read "
        "all the same.",
    )
    fetch_hold_bytes: int = setting(
        1 << 20,
        positive(size_bytes),
        "fetch_hold_bytes",
        doc="Bytes of one partition that may wait in a worker. A partition with more is not "
        "fetched until some are processed.",
    )
    consumer_auto_offset_reset: str = setting(
        "earliest",
        one_of("earliest", "latest"),
        "auto_offset_reset",
        faust="consumer_auto_offset_reset",
        kafka="auto.offset.reset",
        doc="Where an app that has never committed begins to read its topics: `earliest` or "
        "`latest`. A task without state whose committed offsets are gone begins there too.",
    )
    on_lost_offsets: str = setting(
        "stop",
        one_of("stop", "earliest", "latest"),
        doc="Reaction of a task with state whose committed offsets are gone: `stop` the task, so "
        "that nothing counts twice, or begin at the start (`earliest`) or the end (`latest`) of "
        "its topics.",
    )
    broker_check_crcs: bool = setting(
        True,
        flag,
        "check_crcs",
        env="BROKER_CHECK_CRCS",
        kafka="check.crcs",
        doc="Whether the checksums of record batches are checked.",
    )

    producer_linger_s: float = setting(
        0.005,
        linger_seconds,
        "linger",
        env="PRODUCER_LINGER",
        kafka="linger.ms",
        doc="Longest time that a record waits for others in its batch.",
    )
    produce_buffer_bytes: int = setting(
        32 << 20,
        positive(size_bytes),
        "buffer_memory",
        kafka="buffer.memory",
        doc="Most bytes that are sent and not acknowledged yet, a sixteenth of `memory_budget` "
        "at most. When they are used up, processing waits for the brokers.",
    )
    producer_compression_type: str | None = setting(
        None,
        or_none(one_of("gzip", "snappy", "lz4", "zstd")),
        "compression_type",
        env="PRODUCER_COMPRESSION_TYPE",
        kafka="compression.type",
        doc="Compression of the batches that are sent: `none`, `gzip`, `snappy`, `lz4` or `zstd`.",
    )

    topic_partitions: int = setting(
        8,
        whole(1),
        env="TOPIC_PARTITIONS",
        doc="Number of partitions of topics that the app makes, where nothing else gives it.",
    )
    topic_replication_factor: int = setting(
        -1,
        replicas,
        "replication_factor",
        env="TOPIC_REPLICATION_FACTOR",
        kafka="replication.factor",
        doc="Number of replicas of topics that the app makes. `-1`: the brokers' "
        "`default.replication.factor`.",
    )
    repartition_names: str = setting(
        "app",
        one_of("app", "faust"),
        doc="Names of the topics that `group_by` of an agent makes. `app`: they begin with the "
        "id of the app. `faust`: Faust's names, to go on with the topics of a Faust app; two "
        "apps may then have the same.",
    )
    topic_allow_declare: bool = setting(
        True,
        flag,
        env="TOPIC_ALLOW_DECLARE",
        doc="Whether a worker makes the topics that are missing.",
    )
    key_serializer: object = setting(
        "raw",
        as_it_is,
        env="APP_KEY_SERIALIZER",
        doc="Serializer of keys where topic and type give none: `raw` (bytes and text), `json`, "
        "or any of Faust's.",
    )
    value_serializer: object = setting(
        "json",
        as_it_is,
        env="APP_VALUE_SERIALIZER",
        doc="Serializer of values where topic and type give none: `json`, `raw` (bytes and "
        "text), or any of Faust's.",
    )

    events_file: str | None = setting(
        None,
        or_none(text),
        doc="File to which the worker writes its [events](events.md), as JSON Lines. The option "
        "`--events` of a worker.",
    )
    log_format: str = setting(
        "text",
        one_of("text", "json"),
        doc="Form of the log: `text` for people, or `json`, one object a line.",
    )
    log_level: str = setting(
        "info",
        level,
        doc="Least level of log lines: `debug`, `info`, `warning`, `error` or `critical`.",
    )


GROUPS: Final = {
    "id": "Identity",
    "bootstrap": "Brokers",
    "processing_guarantee": "Guarantee and failures",
    "protocol_type": "Group",
    "acceptable_recovery_lag": "Assignment",
    "state_dir": "State",
    "fetch_max_wait_s": "Fetching",
    "producer_linger_s": "Producing",
    "topic_partitions": "Topics",
    "events_file": "Log and events",
}
"""First field of each group of settings -> title of the group."""


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
