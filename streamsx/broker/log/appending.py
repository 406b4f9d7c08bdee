"""Validation and append of a client's batch, which must be well formed, new, and allowed."""

from collections.abc import Callable

from streamsx.broker.log.expanding import Expansions
from streamsx.broker.log.log import Log
from streamsx.broker.log.timestamps import TimeLimits, refusal
from streamsx.broker.refusal import Refused
from streamsx.protocol.compression import CODECS
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import (
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    Header,
    restamp,
    scan,
)

MAGIC_AT = 16

Admit = Callable[[Header], None]
"""Callback that raises Refused for a batch that its transaction may not write."""


def admit_none(_: Header) -> None:
    """Refuse every transactional batch.

    Raises:
        Refused: Always, with code 48.
    """
    raise Refused(ErrorCode.INVALID_TXN_STATE)


def append(
    log: Log, records: memoryview | None, bytes_max: int, admit: Admit = admit_none, *,
    keyed: Expansions | None = None, timed: tuple[TimeLimits, Expansions] | None = None,
) -> int:  # fmt: skip
    """Append one batch of a client, in place: `records` is changed.

    Args:
        admit: Called for batches of transactions.
        keyed: Set for a compacted topic, in which a record without a key would stay for ever.
        timed: Limits of timestamps of the topic.

    Returns:
        The offset of the first record; for a duplicate, the offset at which the log holds the
            batch.

    Raises:
        Refused: The batch may not be appended.
        CorruptRecord: The batch is damaged.
        OSError: The disk refused. In all three cases the log is unchanged.
    """
    if records is None:
        raise Refused(ErrorCode.INVALID_RECORD)
    header = check_batch(records, bytes_max)
    doubtful = timed is not None and timed[0].doubts(header)
    if keyed is not None or (timed and doubtful):
        check_records(header, records, keyed, timed if doubtful else None)
    if header.transactional:
        admit(header)
    if (known := log.producers.duplicate_of(header)) is not None:
        return known
    if timed is not None:
        header = stamped(header, records, timed[0])
    return log.append(records, header)


def check_records(
    header: Header,
    records: memoryview,
    keyed: Expansions | None,
    timed: tuple[TimeLimits, Expansions] | None,
) -> None:
    """Check that the topic takes the keys and the timestamps of all records.

    Raises:
        Refused: A record has no key, or a timestamp out of range.
    """
    expansions = keyed or (timed and timed[1])
    assert expansions, "there is something to look for"
    if (found := expansions.columns(header, records, 0)) is None:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
    unkeyed: dict[int, str] = {}
    if keyed is not None and None in found.keys:
        unkeyed = {i: "no key" for i, key in enumerate(found.keys) if key is None}
    untimely = timed[0].refused(header, found.timestamps) if timed else {}
    if unkeyed or untimely:
        raise refusal(unkeyed, untimely)


def stamped(header: Header, records: memoryview, limits: TimeLimits) -> Header:
    """Set the timestamp of a batch if its topic requires that; return the resulting header."""
    if limits.appended:
        return restamp(records, header, limits.now, appended=True)
    if header.attributes & LOG_APPEND_TIME:
        return restamp(records, header, header.max_timestamp, appended=False)
    return header


def check_batch(records: memoryview, bytes_max: int) -> Header:
    """Return the header of a client's batch: exactly one complete batch that a producer may write.

    Raises:
        Refused: 87 for anything that is no such batch, 2 for bytes that no broker could accept, 10
            for a batch that is too long.
        CorruptRecord: The checksum is wrong.
    """
    size = int.from_bytes(records[LENGTH_END - 4 : LENGTH_END], signed=True) + LENGTH_END
    magic = records[MAGIC_AT] if len(records) > MAGIC_AT else MAGIC
    if magic > MAGIC or (len(records) >= HEADER_BYTES > size):
        raise Refused(ErrorCode.CORRUPT_MESSAGE)
    if len(records) < HEADER_BYTES or size != len(records) or magic != MAGIC:
        raise Refused(ErrorCode.INVALID_RECORD)
    if size > bytes_max:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
    _, _, header = next(scan(records, check=True))
    if not sound(header):
        raise Refused(ErrorCode.INVALID_RECORD)
    return header


def sound(header: Header) -> bool:
    """Return whether the numbers of a header agree, so that the offsets of the log can
    only rise.
    """
    counted = not header.base_offset and 0 < header.records == header.last_offset_delta + 1
    sequenced = header.producer_id < 0 or min(header.producer_epoch, header.base_sequence) >= 0
    owned = header.producer_id >= 0 or not header.transactional
    readable = header.codec < len(CODECS) and not header.control
    return counted and sequenced and owned and readable
