"""Timestamps of appended records: which ones a topic accepts, and which ones the broker sets. Pure.

The settings are Kafka's `message.timestamp.type`, `message.timestamp.before.max.ms` and
`.after.max.ms`. Not here: changes to the bytes of a batch (`protocol/record_batch:restamp`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from streamsx.broker.configs import CONFIGS, LONG_MAX
from streamsx.broker.refusal import Refused
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import LOG_APPEND_TIME, NO_TIMESTAMP, Header

TYPE = "message.timestamp.type"
BEFORE = "message.timestamp.before.max.ms"
AFTER = "message.timestamp.after.max.ms"
ERRORS_MAX = 1000
"""Limit of records that one response names."""


class TimeLimits(NamedTuple):
    """Timestamp limits of one topic at one time, all in ms since 1970."""

    now: int
    before: int
    """How much older than `now` a record may be, in ms."""
    after: int
    appended: bool
    """True if the broker sets the time of each batch (LogAppendTime); no limit applies then."""

    @classmethod
    def of(cls, configs: Mapping[str, str], now: int) -> Self:
        """Return the limits of a topic with these configurations."""
        kind, before, after = (
            configs.get(name, CONFIGS[name].default) for name in (TYPE, BEFORE, AFTER)
        )
        return cls(now, int(before), int(after), kind == "LogAppendTime")

    @property
    def log_append_time(self) -> int:
        """Return the append time that the response reports for a batch; -1 where clients set it."""
        return self.now if self.appended else NO_TIMESTAMP

    def doubts(self, header: Header) -> bool:
        """Return whether the records have to be checked one by one.

        The header holds the largest timestamp of the records. Kafka reads each record; a client
        that puts a smaller time into its header harms only readers that look up its own records by
        time.
        """
        if self.appended:
            return bool(header.attributes & LOG_APPEND_TIME)
        return self.before < LONG_MAX or header.max_timestamp > self.now + self.after

    def refused(self, header: Header, times: Iterable[int]) -> dict[int, str]:
        """Return why the topic does not accept some of these records, by index in the batch."""
        if self.appended:
            if not header.attributes & LOG_APPEND_TIME:
                return {}
            return {i: "the producer says LogAppendTime" for i, _ in enumerate(times)}
        oldest = self.now - self.before
        newest = self.now + self.after
        return {
            index: f"timestamp {time}: not from {oldest} to {newest}"
            for index, time in enumerate(times)
            if time != NO_TIMESTAMP and not oldest <= time <= newest
        }


def refusal(unkeyed: Mapping[int, str], untimely: Mapping[int, str]) -> Refused:
    """Return the refusal of a batch with such records; the refusal names them by index."""
    code = ErrorCode.INVALID_RECORD
    what = "a record has no key, and the topic is compacted"
    if untimely.keys() - unkeyed.keys():
        code = ErrorCode.INVALID_TIMESTAMP
        what = f"the time of a record is out of range: see {BEFORE} and {AFTER} of the topic"
    found = sorted({**untimely, **unkeyed}.items())[:ERRORS_MAX]
    errors = [{"batch_index": index, "batch_index_error_message": why} for index, why in found]
    return Refused(code, record_errors=errors, error_message=what)
