"""Limit on the bytes that one request may expand from batches, since the event loop waits. Pure.

A batch of 2 kB may hold 64 MiB, or millions of records. A request of 80 kB with 40 such batches
took four seconds in which no client was served.
"""

from streamsx.errors import CorruptRecord
from streamsx.model import Buffer
from streamsx.protocol.compression import EXPANDED_BYTES_MAX
from streamsx.protocol.lenient_records import odd_records, unread
from streamsx.protocol.record_batch import Columns, Header, columns

RECORD_BYTES = 64
"""Bytes that a record counts for, besides its content: a million records take as long as 64 MiB."""


class Expansions:
    """Allowance of one request: as much as one batch may hold, plus the batch that exceeds the
    allowance.
    """

    def __init__(self) -> None:
        self._left = EXPANDED_BYTES_MAX

    def columns(self, header: Header, data: Buffer, start: int) -> Columns | None:
        """Return the records of one batch, or None if the allowance is used up.

        Raises:
            CorruptRecord: The batch is damaged.
        """
        self._left -= header.records * RECORD_BYTES
        if self._left < 0:
            return None
        found = read(data, start)
        if header.codec:
            self._left -= sum(len(each) for each in (*found.keys, *found.values) if each)
        return found


def read(data: Buffer, start: int) -> Columns:
    """Return the records of one batch by Kafka's rules: a header's name need not be UTF-8.

    Raises:
        CorruptRecord: The batch is damaged.
    """
    try:
        return columns(data, start, check=False)
    except CorruptRecord:
        found = columns(data, start, check=False, slowly=odd_records)
        if unread(found):
            raise
        return found
