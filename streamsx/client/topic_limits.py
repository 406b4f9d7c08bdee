"""Limits of a topic, as its broker keeps them: sizes, times, keys. Pure.

A record outside of them fails where it is sent, while its sender can still be told. Rows of a
changelog have no such sender, and nobody reads their times: their times are brought within the
limits instead (a clamp, so that a later row never has an earlier time than it would have had).

Not here: who asks a broker for them (`client/topic_limits_watch`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from streamsx.errors import RecordRefused
from streamsx.model import BATCH_BYTES_MAX

FOREVER: Final = (1 << 63) - 1
SIZE: Final = "max.message.bytes"
POLICY: Final = "cleanup.policy"
AFTER: Final = "message.timestamp.after.max.ms"
BEFORE: Final = "message.timestamp.before.max.ms"
EITHER: Final = "message.timestamp.difference.max.ms"
"""Of brokers before Kafka 3.6, for both directions."""
TIME_BY: Final = "message.timestamp.type"
ASKED: Final = (SIZE, POLICY, AFTER, BEFORE, EITHER, TIME_BY)
NO_TIME: Final = -1
ALWAYS_ASKED: Final = -2
"""Below every time, so that each record is looked at."""
HOUR_MS: Final = 3_600_000
SKEW_MS: Final = 60_000
"""Between the clocks of a worker and its broker; rows are kept so far within a limit."""
SKEW_SHARE: Final = 10


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bytes of a batch with one record; times in ms, from now; `keyed`: each record needs a key."""

    bytes_max: int = BATCH_BYTES_MAX
    before_ms: int = FOREVER
    after_ms: int = FOREVER
    keyed: bool = False

    def latest(self, now_ms: int) -> int:
        """Return the time up to which records need no look; below all where each does."""
        return ALWAYS_ASKED if self.before_ms < FOREVER else now_ms + self.after_ms

    def check_time(self, topic: str, timestamp: int, now_ms: int) -> None:
        """Raise RecordRefused for a time that the topic does not take."""
        if timestamp == NO_TIME:
            return
        ahead = timestamp - now_ms
        name, limit = (AFTER, self.after_ms) if ahead > 0 else (BEFORE, self.before_ms)
        if abs(ahead) > limit:
            side = "ahead of now" if ahead > 0 else "before now"
            raise RecordRefused(
                f"record refused: topic {topic}: its timestamp {timestamp} is "
                f"{abs(ahead) / 1000:.0f} s {side}, and {name} of the topic is {limit}: give a "
                "timestamp in seconds since 1970, or raise that limit"
            )

    def check_key(self, topic: str) -> None:
        """Raise RecordRefused for a record without a key, where the topic is compacted."""
        if self.keyed:
            raise RecordRefused(
                f"record refused: topic {topic}: it has no key, and the topic is compacted: give "
                f"it a key, or set {POLICY} of the topic to delete"
            )

    def within(self, timestamp: int, now_ms: int) -> int:
        """Return the time of a changelog's row: its own, or the nearest that the topic takes.

        Without a known limit one hour ahead is the most, as Kafka has it by default: a stream time
        that is ahead stays so for ever, and each commit would be refused once.
        """
        before_ms = self.before_ms
        after_ms = self.after_ms if self.after_ms < FOREVER else HOUR_MS
        latest = now_ms + after_ms - min(SKEW_MS, after_ms // SKEW_SHARE)
        earliest = now_ms - before_ms + min(SKEW_MS, before_ms // SKEW_SHARE)
        return max(earliest, min(timestamp, latest))

    def shrunk(self, bytes_max: int) -> "TopicLimits":
        """Return limits that a refusal has taught."""
        return replace(self, bytes_max=max(1, min(self.bytes_max, bytes_max)))


UNKNOWN: Final = TopicLimits()
"""Until a broker says, or where it does not let us ask."""


def limits_of(configs: Mapping[str, str | None]) -> TopicLimits:
    """Return what DescribeConfigs says of a topic; what it leaves out has no limit."""

    def number(name: str, default: int) -> int:
        text = configs.get(name)
        return default if text is None else int(text)

    either = number(EITHER, FOREVER)
    timed = configs.get(TIME_BY) != "LogAppendTime"
    return TopicLimits(
        bytes_max=number(SIZE, BATCH_BYTES_MAX),
        before_ms=min(either, number(BEFORE, FOREVER)) if timed else FOREVER,
        after_ms=min(either, number(AFTER, FOREVER)) if timed else FOREVER,
        keyed="compact" in (configs.get(POLICY) or ""),
    )
