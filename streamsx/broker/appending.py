"""What a client wants to append: whether it is a batch, and a new one, that may be written."""

from collections.abc import Callable

from streamsx.broker.expanding import Expansions
from streamsx.broker.log import Log
from streamsx.broker.refusal import Refused
from streamsx.kafka.batch import HEADER_BYTES, LENGTH_END, MAGIC, Header, scan
from streamsx.kafka.compression import CODECS
from streamsx.kafka.errors import ErrorCode

MAGIC_AT = 16

Admit = Callable[[Header], None]
"""Raises Refused for what its transaction may not write."""


def admit_none(_: Header) -> None:
    """Where nobody knows of transactions. Raises Refused: 48."""
    raise Refused(ErrorCode.INVALID_TXN_STATE)


def append(
    log: Log, records: memoryview | None, bytes_max: int, admit: Admit = admit_none, *,
    keyed: Expansions | None = None,
) -> int:  # fmt: skip
    """Appends one batch of a client, in place: `records` is changed. `admit` is asked about batches
    of transactions; in a `keyed` log records without a key would stay for ever. Gives the offset of
    its first record; if it is here already, where that is. Raises Refused, CorruptRecord, or
    OSError, and then nothing changed.
    """
    if records is None:
        raise Refused(ErrorCode.INVALID_RECORD)
    header = check_batch(records, bytes_max)
    if keyed is not None:
        if (found := keyed.columns(header, records, 0)) is None:
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE)
        if None in found.keys:
            raise Refused(ErrorCode.INVALID_RECORD)
    if header.transactional:
        admit(header)
    if (known := log.producers.duplicate_of(header)) is not None:
        return known
    return log.append(records, header)


def check_batch(records: memoryview, bytes_max: int) -> Header:
    """The header of what a client wants to append: exactly one whole batch of its own making.

    Raises Refused: 87 for anything that is no such batch, 2 for what no broker could ever have
    meant, 10 for a long one; CorruptRecord if its checksum is wrong.
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
    """Whether its numbers agree, so that the offsets of the log can only rise."""
    counted = not header.base_offset and 0 < header.records == header.last_offset_delta + 1
    sequenced = header.producer_id < 0 or min(header.producer_epoch, header.base_sequence) >= 0
    owned = header.producer_id >= 0 or not header.transactional
    readable = header.codec < len(CODECS) and not header.control
    return counted and sequenced and owned and readable
