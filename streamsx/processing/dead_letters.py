"""Dead letters: records that failed, as a topic of their own keeps them.

A dead letter has the key, the value, the timestamp and the headers of its record, as bytes. Further
headers say where it comes from and why it failed. Six of them have Kafka Streams' names (KIP-1034,
Kafka 4.2): `__streams.errors.` with `exception`, `message`, `stacktrace`, `topic`, `partition` and
`offset`. Three are ours: `__streamsx.task`, `__streamsx.operator` and `__streamsx.attempt`, the
number of tries. All values are text in UTF-8.

A failure outside of its record has no dead letter: when a window closes, the record at hand is not
to blame. Nor has a record of the dead-letter topic itself, which would come again for ever. Records
that came too late are dead letters too where an operator asks for it (`on_late="dlq"`), and so are
outputs that a broker refused where `on_produce_error` is `dlq`. These have no offset and no stack
trace.

Not here: the decision which failures become dead letters (`failure_policy`).
"""

from collections.abc import Mapping
from dataclasses import replace
from traceback import format_exception
from typing import Final, NamedTuple

from streamsx.errors import RecordRefused, RecordTooLarge
from streamsx.model import Headers, TaskId, TopicPartition
from streamsx.processing.failure_policy import FailedRecord, Failure
from streamsx.processing.inbox import Outbox, Send

TEXT_BYTES_MAX: Final = 4096
"""Longest message, and longest stack trace, of which the end says most."""
KEPT: Final = "kept in "
"""Beginning of the outcome of a record that is in the dead-letter topic."""
STACK_TRACE: Final = "__streams.errors.stacktrace"


def buried(failure: Failure, topic: str, outbox: Outbox) -> Failure:
    """Send a record that failed to the dead-letter topic; return the failure with its outcome.

    Raises:
        NotFound: the topic is gone.
    """
    return replace(failure, kept=why_not(failure, topic, outbox) or KEPT + topic)


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
    refused = _try(send, record, headers) and _try(send, record, short)
    return refused and f"not in {topic}: {refused}"


def _try(send: Send, record: FailedRecord, headers: Headers) -> str:
    """Send a dead letter with these headers; return why its topic refuses it, empty if not."""
    try:
        send(record.key, record.value, record.timestamp, headers)
    except (RecordTooLarge, RecordRefused) as error:
        return str(error)
    return ""


class RefusedOutput(NamedTuple):
    """Output that a broker refused: where it was to go, why not, and who sent it, if known.

    `error` is the broker's error by its name in Kafka, `message` says all of it.
    """

    to: TopicPartition
    error: str
    message: str
    record: FailedRecord
    task: TaskId | None = None
    operator: str = ""


def kept_or_not(output: RefusedOutput, topic: str, outbox: Outbox) -> str:
    """Send a refused output to the dead-letter topic; return its outcome in words.

    Raises:
        NotFound: the topic is gone.
    """
    record = output.record
    about: dict[str, str | bytes] = {
        "__streams.errors.exception": output.error,
        "__streams.errors.message": _bytes(output.message)[:TEXT_BYTES_MAX],
        "__streams.errors.topic": output.to.topic,
        "__streams.errors.partition": str(output.to.partition),
    }
    if output.task is not None:
        about["__streamsx.task"] = str(output.task)
    if output.operator:
        about["__streamsx.operator"] = output.operator
    refused = _try(outbox.to(topic), record, _with(record, about))
    return f"not in {topic}: {refused}: it is lost" if refused else KEPT + topic


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
    return _with(record, about)


def _with(record: FailedRecord, about: Mapping[str, str | bytes]) -> Headers:
    """Return the headers of a record, and more behind them."""
    return [*(record.headers or ()), *((key, _bytes(text)) for key, text in about.items())]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="replace")
