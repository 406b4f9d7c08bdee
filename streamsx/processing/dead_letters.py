"""Dead letters: records that failed, as a topic of their own keeps them.

A dead letter has the key, the value, the timestamp and the headers of its record, as bytes. Further
headers say where it comes from and why it failed. Six of them have Kafka Streams' names (KIP-1034,
Kafka 4.2): `__streams.errors.` with `exception`, `message`, `stacktrace`, `topic`, `partition` and
`offset`. Three are ours: `__streamsx.task`, `__streamsx.operator` and `__streamsx.attempt`, the
number of tries. All values are text in UTF-8.

A failure outside of its record has no dead letter: when a window closes, the record at hand is not
to blame. Nor has a record of the dead-letter topic itself, which would come again for ever. Records
that came too late are dead letters too where an operator asks for it (`on_late="dlq"`).

Not here: the decision which failures become dead letters (`failure_policy`).
"""

from dataclasses import replace
from traceback import format_exception
from typing import Final

from streamsx.errors import RecordRefused, RecordTooLarge
from streamsx.model import Headers
from streamsx.processing.failure_policy import FailedRecord, Failure
from streamsx.processing.inbox import Outbox

TEXT_BYTES_MAX: Final = 4096
"""Longest message, and longest stack trace, of which the end says most."""
STACK_TRACE: Final = "__streams.errors.stacktrace"


def buried(failure: Failure, topic: str, outbox: Outbox) -> Failure:
    """Send a record that failed to the dead-letter topic; return the failure with its outcome.

    Raises:
        NotFound: the topic is gone.
    """
    return replace(failure, kept=why_not(failure, topic, outbox) or f"kept in {topic}")


def why_not(failure: Failure, topic: str, outbox: Outbox) -> str:
    """Send a dead letter; return why there is none, empty if it is sent.

    A record that leaves no room for the stack trace goes without it.

    Raises:
        NotFound: the topic is gone.
    """
    record = failure.record
    if record is None:
        return f"not in {topic}: it is a result, not a record"
    if failure.topic == topic:
        return f"not sent to {topic} again"
    send = outbox.to(topic)
    headers = headers_of(failure, record)
    short = [header for header in headers if header[0] != STACK_TRACE]
    refused: Exception | None = None
    for each in (headers, short):
        try:
            send(record.key, record.value, record.timestamp, each)
        except (RecordTooLarge, RecordRefused) as error:
            refused = error
        else:
            return ""
    return f"not in {topic}: {refused}"


def headers_of(failure: Failure, record: FailedRecord) -> Headers:
    """Return the headers of a dead letter: those of its record, and where and why it failed."""
    error = failure.error
    about: dict[str, str | bytes] = {
        "__streams.errors.exception": failure.exception,
        "__streams.errors.message": _bytes(str(error))[:TEXT_BYTES_MAX],
        STACK_TRACE: _bytes("".join(format_exception(error)))[-TEXT_BYTES_MAX:],
        "__streams.errors.topic": failure.topic,
        "__streams.errors.partition": str(failure.partition),
        "__streams.errors.offset": str(failure.offset),
        "__streamsx.task": str(failure.task),
        "__streamsx.operator": failure.operator,
        "__streamsx.attempt": str(failure.attempt),
    }
    told = [(key, _bytes(text)) for key, text in about.items()]
    return [*(record.headers or ()), *told]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="replace")
