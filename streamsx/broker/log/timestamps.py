"""Times of records that clients append: which a topic takes, and which it sets itself. Pure.

As Kafka's `message.timestamp.type`, `message.timestamp.before.max.ms` and `.after.max.ms`. Not
here: what is done to the bytes of a batch (`protocol/record_batch:restamp`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from streamsx.broker.configs import CONFIGS, LONG_MAX
from streamsx.broker.refusal import Refused
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import LOG_APPEND_TIME, NO_TIMESTAMP, Header

TYPE = "message.timestamp.type"
BEFORE, AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
ERRORS_MAX = 1000
"""Records that one answer names."""


class TimeLimits(NamedTuple):
    """Limits of one topic at one time, all in ms since 1970."""

    now: int
    before: int
    """How much older than that a record may be."""
    after: int
    appended: bool
    """The broker sets the time of each batch (LogAppendTime), and limits none."""

    @classmethod
    def of(cls, configs: Mapping[str, str], now: int) -> Self:
        """Return the limits of a topic for which these configurations were set."""
        kind, before, after = (
            configs.get(name, CONFIGS[name].default) for name in (TYPE, BEFORE, AFTER)
        )
        return cls(now, int(before), int(after), kind == "LogAppendTime")

    @property
    def log_append_time(self) -> int:
        """Return the time that an answer tells of a batch; -1 where clients set it."""
        return self.now if self.appended else NO_TIMESTAMP

    def doubts(self, header: Header) -> bool:
        """Tell whether the records have to be looked at.

        The header says what their newest time is. Kafka reads each record; a client that says less
        in its header harms only readers that look for its own records by time.
        """
        if self.appended:
            return bool(header.attributes & LOG_APPEND_TIME)
        return self.before < LONG_MAX or header.max_timestamp > self.now + self.after

    def refused(self, header: Header, times: Iterable[int]) -> dict[int, str]:
        """Return why the topic does not take some of these records, by their place in the batch."""
        if self.appended:
            if not header.attributes & LOG_APPEND_TIME:
                return {}
            return {i: "the producer says LogAppendTime" for i, _ in enumerate(times)}
        oldest, newest = self.now - self.before, self.now + self.after
        return {
            index: f"timestamp {time}: not from {oldest} to {newest}"
            for index, time in enumerate(times)
            if time != NO_TIMESTAMP and not oldest <= time <= newest
        }


def refusal(unkeyed: Mapping[int, str], untimely: Mapping[int, str]) -> Refused:
    """Return the refusal of a batch with such records, which names them by their place in it."""
    code, what = ErrorCode.INVALID_RECORD, "a record has no key, and the topic is compacted"
    if untimely.keys() - unkeyed.keys():
        code = ErrorCode.INVALID_TIMESTAMP
        what = f"the time of a record is out of range: see {BEFORE} and {AFTER} of the topic"
    found = sorted({**untimely, **unkeyed}.items())[:ERRORS_MAX]
    errors = [{"batch_index": index, "batch_index_error_message": why} for index, why in found]
    return Refused(code, record_errors=errors, error_message=what)
