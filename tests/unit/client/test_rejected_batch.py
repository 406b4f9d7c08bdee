"""client/rejected_batch.py: the rest of a rejected batch, and the message about the refused
records.
"""

import pytest

from streamsx.client.rejected_batch import (
    OUTSIDE,
    BatchRefusal,
    RefusedRecord,
    Reworked,
    Run,
    Sender,
    SourceRecords,
    refusal_message,
    rework,
)
from streamsx.model import BATCH_BYTES_MAX, TaskId, TopicPartition
from streamsx.processing.failure_policy import FailedRecord
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import BatchFormat, Builder, columns

TP = TopicPartition("out", 3)
ONE, TWO = Sender(TaskId(0, 0)), Sender(TaskId(0, 1))
RUNS = [Run(0, ONE, SourceRecords("in", 0, 5, 5)), Run(2, TWO, None)]


def batch(*values: bytes, compression: str = "none") -> bytearray:
    builder = Builder(BATCH_BYTES_MAX, compression=compression)
    for number, value in enumerate(values):
        builder.append(number, b"k%d" % number, value, [("h", b"%d" % number)])
    return builder.close(7, 0, 0)


def reworked(
    refusal: BatchRefusal,
    *values: bytes,
    bytes_max: int = BATCH_BYTES_MAX,
    now_ms: int | None = None,
) -> Reworked:
    return rework(batch(*values), RUNS, refusal, BatchFormat(), bytes_max, now_ms)


def values(found: Reworked) -> list[list[bytes | None]]:
    return [columns(part.close(), 0).values for part, _ in found.parts]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_rework_without_named_record_keeps_key_time_and_headers(compression: str) -> None:
    data = batch(b"a", b"bad", b"c", compression=compression)
    refusal = BatchRefusal(ErrorCode.INVALID_RECORD, {1: "no"}, "")
    found = rework(data, RUNS, refusal, BatchFormat(compression), BATCH_BYTES_MAX)
    ((part, runs),) = found.parts
    rows = columns(part.close(), 0)
    assert (rows.keys, rows.values, rows.timestamps) == ([b"k0", b"k2"], [b"a", b"c"], [0, 2])
    assert rows.headers == [[("h", b"0")], [("h", b"2")]]
    assert [(run.start, run.sender) for run in runs] == [(0, ONE), (1, TWO)]
    record = FailedRecord(b"k1", b"bad", 1, [("h", b"1")])
    assert found.refused == [RefusedRecord(ONE, RUNS[0].source, b"k1", 1, "no", [1], record)]


def test_refused_batch_without_named_record_is_halved_to_one_record() -> None:
    refusal = BatchRefusal(ErrorCode.INVALID_RECORD, {}, "said")
    assert values(reworked(refusal, b"a", b"b", b"c")) == [[b"a"], [b"b", b"c"]]
    alone = reworked(refusal, b"a")
    assert (alone.parts, [record.why for record in alone.refused]) == ([], ["said"])


def test_reworked_parts_stay_within_known_size_limit() -> None:
    refusal = BatchRefusal(ErrorCode.MESSAGE_TOO_LARGE, {0: "not looked at"}, "")
    found = reworked(refusal, *(bytes([n]) * 100 for n in range(8)), bytes_max=300)
    assert [len(part) for part in values(found)] == [2, 2, 2, 2]
    assert found.refused == []


def test_refusal_naming_no_record_applies_to_all_records() -> None:
    found = reworked(BatchRefusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, {}, ""), b"a", b"b", b"c")
    assert found.parts == []
    assert [(each.sender, each.records) for each in found.refused] == [(ONE, 2), (TWO, 1)]


def test_refusal_of_all_records_names_the_sources_of_each_run_of_a_sender() -> None:
    """Another task wrote to the partition between two chunks of this one."""
    later = Run(2, ONE, SourceRecords("in", 0, 10, 29))
    runs = [RUNS[0], Run(1, TWO, None), later]
    refusal = BatchRefusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, {}, "")
    found = rework(batch(b"a", b"b", b"c"), runs, refusal, BatchFormat(), BATCH_BYTES_MAX)
    sources = [(each.sender, each.source, each.indices) for each in found.refused]
    assert sources == [(ONE, SourceRecords("in", 0, 5, 29), [0, 2]), (TWO, None, [1])]


def test_rows_refused_for_timestamp_are_retimed_once() -> None:
    refusal = BatchRefusal(ErrorCode.INVALID_TIMESTAMP, {0: "late"}, "")
    ((part, runs),) = reworked(refusal, b"a", b"b", b"c", now_ms=99).parts
    assert columns(part.close(), 0).timestamps == [99, 99, 99]
    assert all(run.retimed for run in runs)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, "send less, or raise max.message.bytes of the topic"),
        (
            ErrorCode.INVALID_TIMESTAMP,
            "correct its timestamp, or raise message.timestamp.after.max.ms",
        ),
        (ErrorCode.INVALID_RECORD, "fix the code that sends it"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "let user alice write to topic out"),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "see the log of the broker"),
    ],
)
def test_refused_record_message_names_place_code_and_remedy(code: ErrorCode, advice: str) -> None:
    record = RefusedRecord(ONE, SourceRecords("in", 0, 5, 9), b"k", 1, "")
    where = "record refused: out-3, key b'k', sent by task 0_0 at in-0 offset 5 to 9"
    assert refusal_message(TP, code, record, "user alice").startswith(
        f"{where}: {code.name}: {advice}"
    )


def test_refusal_of_record_sent_outside_tasks_names_no_task() -> None:
    said = refusal_message(TP, 87, RefusedRecord(OUTSIDE, None, None, 4, "why"), "")
    assert (
        "out-3, 4 records, the first with no key, sent outside of tasks: INVALID_RECORD (why)"
        in said
    )
