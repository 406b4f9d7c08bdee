"""How much of batches one request may have looked into: the event loop waits for it. Pure.

A batch of 2 kB may hold 64 MiB, or millions of records; a request of 80 kB with 40 of them took
four seconds in which nobody was served.
"""

from streamsx.errors import CorruptRecord
from streamsx.model import Buffer
from streamsx.protocol.compression import EXPANDED_BYTES_MAX
from streamsx.protocol.lenient_records import odd_records, unread
from streamsx.protocol.record_batch import Columns, Header, columns

RECORD_BYTES = 64
"""That a record counts for, beside what is in it: a million of them take as long as 64 MiB."""


class Expansions:
    """Of one request: as much as one batch may hold, and the batch with which it is reached."""

    def __init__(self) -> None:
        self._left = EXPANDED_BYTES_MAX

    def columns(self, header: Header, data: Buffer, start: int) -> Columns | None:
        """The records of one batch, or None: it was too much. Raises CorruptRecord."""
        self._left -= header.records * RECORD_BYTES
        if self._left < 0:
            return None
        found = read(data, start)
        if header.codec:
            self._left -= sum(len(each) for each in (*found.keys, *found.values) if each)
        return found


def read(data: Buffer, start: int) -> Columns:
    """Return the records of one batch, as Kafka takes it: a header's name need not be UTF-8.
    Raises CorruptRecord.
    """
    try:
        return columns(data, start, check=False)
    except CorruptRecord:
        found = columns(data, start, check=False, slowly=odd_records)
        if unread(found):
            raise
        return found
