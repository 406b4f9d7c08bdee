"""What waits in a loop: results for a commit, and changes of rows for the end of their record.

Not here: which results wait (`emit="commit"` of `streamsx.operators`), and which changes
(`compile`), the units of a careful task (`careful`).
"""

from collections.abc import Callable
from typing import Any


class WaitingChanges:
    """Changes of rows that leave for a topic once all ways behind a fork are done."""

    def __init__(self) -> None:
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def holding(self, send: Callable[..., None]) -> Callable[..., None]:
        """Return a function that keeps a record for `leave`."""
        held = self._held

        def hold(*record: Any) -> None:
            held.append((send, record))

        return hold

    def leave(self) -> None:
        """Send what waits, in order."""
        for send, record in self._held:
            send(*record)
        self._held.clear()

    def drop(self) -> None:
        """Drop what waits, because its record has failed."""
        self._held.clear()


class WaitingResults(dict[Any, Any]):
    """Results of an operator that wait for a commit; those of the record at hand can be undone."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[Any, Any] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        self._before.setdefault(key, self.get(key))
        super().__setitem__(key, value)

    def clear(self) -> None:
        super().clear()
        self._before = {}

    def keep(self) -> None:
        self._before = {}

    def undo(self) -> None:
        """Set all results back to what they were before the record."""
        for key, value in self._before.items():
            if value is None:
                self.pop(key, None)
            else:
                super().__setitem__(key, value)
        self._before = {}
