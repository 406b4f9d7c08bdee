"""How much of batches one request may have looked into: the event loop waits for it. Pure.

A batch of 2 kB may hold 64 MiB, or millions of records; a request of 80 kB with 40 of them took
four seconds in which nobody was served.
"""

from streamsx.kafka.batch import Columns, Header, columns
from streamsx.kafka.compression import EXPANDED_BYTES_MAX
from streamsx.model import Buffer

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
        found = columns(data, start, check=False)
        if header.codec:
            self._left -= sum(len(each) for each in (*found.keys, *found.values) if each)
        return found
