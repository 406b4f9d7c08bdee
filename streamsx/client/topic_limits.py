"""Limits of a topic, as its broker keeps them: sizes, times, keys. Pure.

A record outside of the limits fails where it is sent, while its sender can still get the error.
Rows of a changelog have no such sender, and no reader uses their times. Their times are clamped to
the limits instead, so that a later row never gets an earlier time.

Not here: requests for the limits (`client/topic_limits_watch`).
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
"""Limit in both directions, of brokers before Kafka 3.6."""
TIME_BY: Final = "message.timestamp.type"
ASKED: Final = (SIZE, POLICY, AFTER, BEFORE, EITHER, TIME_BY)
NO_TIME: Final = -1
ALWAYS_ASKED: Final = -(1 << 63) - 1
"""Value of `latest` below every time, also before 1970, so that each record is checked."""
HOUR_MS: Final = 3_600_000
SKEW_MS: Final = 60_000
"""Margin for skew between the clocks of worker and broker; rows stay this far within a limit."""
SKEW_SHARE: Final = 10


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of one topic.

    Attributes:
        bytes_max: Bytes of a batch with one record.
        before_ms: Furthest time before now, in ms.
        after_ms: Furthest time after now, in ms.
        keyed: Whether each record needs a key.
    """

    bytes_max: int = BATCH_BYTES_MAX
    before_ms: int = FOREVER
    after_ms: int = FOREVER
    keyed: bool = False

    def latest(self, now_ms: int) -> int:
        """Return the time up to which records need no check; ALWAYS_ASKED if each record does."""
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
        """Raise RecordRefused for a record without a key, if the topic is compacted."""
        if self.keyed:
            raise RecordRefused(
                f"record refused: topic {topic}: it has no key, and the topic is compacted: give "
                f"it a key, or set {POLICY} of the topic to delete"
            )

    def within(self, timestamp: int, now_ms: int) -> int:
        """Return the time of a changelog's row: its own, or the nearest that the topic takes.

        Without a known limit the row is at most one hour ahead, Kafka's default. A stream time that
        is ahead stays so for ever, and each commit would be refused once.
        """
        before_ms = self.before_ms
        after_ms = self.after_ms if self.after_ms < FOREVER else HOUR_MS
        latest = now_ms + after_ms - min(SKEW_MS, after_ms // SKEW_SHARE)
        earliest = now_ms - before_ms + min(SKEW_MS, before_ms // SKEW_SHARE)
        return max(earliest, min(timestamp, latest))

    def shrunk(self, bytes_max: int) -> "TopicLimits":
        """Return these limits with a size learned from a refusal."""
        return replace(self, bytes_max=max(1, min(self.bytes_max, bytes_max)))


UNKNOWN: Final = TopicLimits()
"""Limits until a broker answers, or if this user may not ask."""


def limits_of(configs: Mapping[str, str | None]) -> TopicLimits:
    """Return the limits in a DescribeConfigs answer; a missing config sets no limit."""

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
