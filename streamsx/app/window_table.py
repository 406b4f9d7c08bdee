"""Tables by window, as Faust has them: a key has a value in each window.

    views = app.Table("views", default=int).tumbling(10, expires=60)

    @app.agent(pages)
    async def count(stream):
        async for page in stream:
            views[page] += 1            # in all windows that hold the record
            views[page].current()       # in the newest of them

Which windows a record is in follows from the record's timestamp, or from a field of the value
(`relative_to_field`), or from stream time (`relative_to_now`). A window expires when stream time
has reached its end and `expires`. An expired window reads as absent, what is put there is counted
as late, and `on_window_close` is called with it when the body next uses the table. Faust goes by
the clock of the worker, and forgets at a restart what has yet to close; here stream time counts.

Not here: rows and expiry (`streamsx.state.window_store`), windows of flows (`window`).
"""

import operator
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

from streamsx.app.declaration import declaration
from streamsx.app.stream import Event
from streamsx.app.users_code import users_line
from streamsx.config import seconds
from streamsx.operators.operator import Counts
from streamsx.operators.timestamp import to_ms
from streamsx.processing.inbox import RUNNING, TaskContext
from streamsx.state.layout import FAUST_GAP_S, NEVER, Timing
from streamsx.state.window_store import WindowStore

if TYPE_CHECKING:
    from streamsx.app.table import Table

SLICE_ROWS: Final = 500
TimeOf = Callable[[Event | None], int]
"""Function that returns the time in ms that chooses windows: of an event, or of the record at hand.
"""


class WindowTable:
    """Table by window; made by `Table.tumbling` and `Table.hopping`.

    `table[key]` is a `WindowSet`: the windows of a key. `table[key] += 1` counts in all windows
    that hold the time of the record at hand.

    Args:
        index: Table of the keys; None without `key_index`.
    """

    def __init__(
        self,
        table: "Table[Any, Any]",
        timing: Timing,
        index: "Table[Any, Any] | None",
        time_of: TimeOf | None = None,
    ) -> None:
        self.table = table
        self.name = table.name
        self.timing = timing
        self.index = index
        self.time_of = time_of or self.event_time

    def __repr__(self) -> str:
        return f"<WindowTable: {self.name}>"

    # -- times

    def relative_to_stream(self) -> "WindowTable":
        """Return the table by the timestamps of records, the default."""
        return self._relative(self.event_time)

    def relative_to_now(self) -> "WindowTable":
        """Return the table by stream time: a late record counts in the newest windows."""
        return self._relative(self.now)

    @declaration
    def relative_to_field(self, field: Any) -> "WindowTable":
        """Return the table by a time in the value.

        Args:
            field: Field of a Record, or function of the value. The time is a datetime, its text in
                ISO 8601, or seconds since 1970.

        Raises:
            TypeError: `field` is another object.
        """
        read = getattr(field, "getattr", field)
        if not callable(read):
            raise TypeError(f"not a field: {field!r} ({users_line()}): write Model.field")

        def field_time(event: Event | None) -> int:
            found = read(self._record().value_at_hand if event is None else event.value)
            return to_ms(datetime.fromisoformat(found) if isinstance(found, str) else found)

        return self._relative(field_time)

    def _relative(self, time_of: TimeOf) -> "WindowTable":
        return WindowTable(self.table, self.timing, self.index, time_of)

    def event_time(self, event: Event | None) -> int:
        """Return the timestamp of an event, or of the record at hand."""
        if event is not None:
            return round(event.message.timestamp * 1000)
        inbox = self._record().inbox
        assert inbox.batch is not None, self.name
        return inbox.batch.timestamps[inbox.index]

    def now(self, event: Event | None = None) -> int:
        """Return stream time at the record at hand; outside of a record the clock's time."""
        running = RUNNING.get(None)
        if running is None or running.inbox.batch is None:
            return self.table.clock_ms()
        return running.inbox.stream_time

    def _record(self) -> TaskContext:
        """Return the context of the record at hand."""
        running = RUNNING.get(None)
        if running is None or running.inbox.batch is None:
            raise RuntimeError(
                f"no current record: table {self.name}: outside of an agent's stream only "
                ".now() works"
            )
        return running

    def newest(self, at_ms: int) -> int:
        """Return the start of the newest window that holds a time."""
        return at_ms - at_ms % self.timing.step

    def starts(self, at_ms: int) -> range:
        """Return the starts of the windows that hold a time."""
        size, step = self.timing.size, self.timing.step
        return range(max(0, (at_ms - size) // step * step + step), at_ms + 1, step)

    # -- one window of one key

    @cached_property
    def _encode(self) -> Callable[[Any], Any]:
        """Return the encoder of the table's keys."""
        return self.table.node().keys.encode

    def find(self, key: Any, start: int) -> Any:
        """Return the value of a key in a window, else the default. Raises KeyError without one."""
        stores = self._stores()
        raw = self._encode(key)
        found = (store.fetch(raw, start) for store in stores)
        value = next((value for value in found if value is not None), None)
        return self.table.or_default(key, value)

    def put(self, key: Any, start: int, value: Any) -> None:
        """Set the value of a key in a window; None deletes. An expired window stays as it is."""
        (store,) = self._own()
        if start + store.stays <= store.closed:
            RUNNING.get().counts.setdefault(self.name, Counts()).late += 1
        else:
            store.put_window(self._encode(key), start, value)

    def _stores(self) -> Iterator[WindowStore]:
        """Return the store of this task, or those of all tasks that run here."""
        return self._own() if RUNNING.get(None) is not None else self.table.windows_here()

    def _own(self) -> Iterator[WindowStore]:
        """Return the store of this task, after what is due has expired."""
        store = self.table.own_windows()
        now = RUNNING.get().inbox.stream_time
        if now >= store.due and self.timing.stays < NEVER:
            self._expire(store, now)
        return iter((store,))

    def _expire(self, store: WindowStore, now: int) -> None:
        """Expire what is due. One call that fails keeps no other from being made."""
        told = self.table.on_window_close
        if told is None:
            for _ in store.drop(now, SLICE_ROWS):
                pass
            return
        errors = list[Exception]()
        for start, raw, value in [each for part in store.close(now, SLICE_ROWS) for each in part]:
            begin = start / 1000
            end = begin + self.timing.size / 1000 - FAUST_GAP_S
            try:
                told((store.decode_key(raw), (begin, end)), value)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("on_window_close", errors)

    # -- as a dict

    def __getitem__(self, key: Any) -> "WindowSet":
        return WindowSet(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the value of a key in all windows that hold the time."""
        if isinstance(value, WindowSet):
            return  # of `table[key] += 1`, which has put its values already
        self.note(key)
        for start in self.starts(self.time_of(None)):
            self.put(key, start, value)

    def __delitem__(self, key: Any) -> None:
        """Delete a key in all windows that hold the time."""
        if self.index is not None:
            self.index.pop(key, None)
        for start in self.starts(self.time_of(None)):
            self.put(key, start, None)

    def __contains__(self, key: Any) -> bool:
        start = self.newest(self.time_of(None))
        raw = self._encode(key)
        return any(store.fetch(raw, start) is not None for store in self._stores())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def keys(self) -> "WindowView":
        """Return a view of the keys with a value in a window. The table needs `key_index=True`."""
        return WindowView(self, lambda key, _value: key)

    def values(self) -> "WindowView":
        """Return a view of the values in a window. The table needs `key_index=True`."""
        return WindowView(self, lambda _key, value: value)

    def items(self) -> "WindowView":
        """Return a view of keys with values in a window. The table needs `key_index=True`."""
        return WindowView(self, lambda key, value: (key, value))

    def note(self, key: Any) -> None:
        """Put a key into the index."""
        if self.index is not None and key not in self.index:
            self.index[key] = 1

    def _keys(self) -> "Table[Any, Any]":
        if self.index is None:
            raise NotImplementedError(
                f"keys of a windowed table are not kept: {self.name}: make it with key_index=True"
            )
        return self.index


class WindowView:
    """Keys, values or items of a table with a key index, of one window that a time chooses.

    Iterating the view takes the newest window that holds the time of the record at hand.
    """

    def __init__(self, windows: WindowTable, shape: Callable[[Any, Any], Any]) -> None:
        self._windows = windows
        self._shape = shape

    def __iter__(self) -> Iterator[Any]:
        windows = self._windows
        return self._of(lambda: windows.newest(windows.time_of(None)))

    def now(self) -> Iterator[Any]:
        """Return those of the oldest window that holds stream time."""
        return self._of(lambda: self._windows.starts(self._windows.now())[0])

    def current(self, event: Event | None = None) -> Iterator[Any]:
        """Return those of the newest window that holds a record's timestamp.

        Args:
            event: Event whose timestamp counts; the record at hand unless given.
        """
        return self._of(lambda: self._windows.newest(self._windows.event_time(event)))

    def delta(self, back: object, event: Event | None = None) -> Iterator[Any]:
        """Return those of the newest window that held a time ago.

        Args:
            back: Duration to go back from the record's timestamp.
            event: Event whose timestamp counts; the record at hand unless given.
        """
        windows = self._windows
        return self._of(lambda: windows.newest(windows.event_time(event) - _ms(back)))

    def _of(self, chosen: Callable[[], int]) -> Iterator[Any]:
        keys = iter(self._windows)
        start = chosen()
        for key in keys:
            try:
                yield self._shape(key, self._windows.find(key, start))
            except KeyError:
                continue


def _in_place(change: Callable[[Any, Any], Any]) -> "Callable[[WindowSet, Any], WindowSet]":
    """Return the method of an operator such as `+=`."""

    def method(windows: "WindowSet", other: Any) -> "WindowSet":
        return windows.apply(change, other)

    return method


class WindowSet:
    """Windows of one key, of which a time chooses one or several.

    `windows += 1` and the other operators in place change the value in all windows that hold the
    time.
    """

    __slots__ = ("_event", "_key", "_windows")

    def __init__(self, windows: WindowTable, key: Any, event: Event | None = None) -> None:
        self._windows = windows
        self._key = key
        self._event = event

    def __getitem__(self, event: Event) -> "WindowSet":
        """Return the same windows as of another event."""
        if not isinstance(event, Event):
            self._refuse()
        return WindowSet(self._windows, self._key, event)

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(
            f"a window cannot be read by its bounds: table {self._windows.name}: write "
            ".current(), .now() or .delta(...)"
        )

    def value(self, event: Event | None = None) -> Any:
        """Return the value in the newest window that holds the time that the table goes by.

        Args:
            event: Event whose time counts; the record at hand unless given.
        """
        return self._at(self._windows.time_of(event or self._event))

    def current(self, event: Event | None = None) -> Any:
        """Return the value in the newest window that holds a record's timestamp.

        Args:
            event: Event whose timestamp counts; the record at hand unless given.
        """
        return self._at(self._windows.event_time(event or self._event))

    def now(self) -> Any:
        """Return the value in the oldest window that holds stream time."""
        return self._windows.find(self._key, self._windows.starts(self._windows.now())[0])

    def delta(self, back: object, event: Event | None = None) -> Any:
        """Return the value in the newest window that held a time ago.

        Args:
            back: Duration to go back from the record's timestamp.
            event: Event whose timestamp counts; the record at hand unless given.
        """
        return self._at(self._windows.event_time(event or self._event) - _ms(back))

    def _at(self, at_ms: int) -> Any:
        return self._windows.find(self._key, self._windows.newest(at_ms))

    def apply(
        self, change: Callable[[Any, Any], Any], value: Any, event: Event | None = None
    ) -> "WindowSet":
        """Replace the value in all windows that hold the time by `change(old, value)`."""
        windows = self._windows
        windows.note(self._key)
        for start in windows.starts(windows.time_of(event or self._event)):
            windows.put(self._key, start, change(windows.find(self._key, start), value))
        return self

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __ipow__ = _in_place(operator.pow)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)
    __iand__ = _in_place(operator.and_)
    __ixor__ = _in_place(operator.xor)
    __ior__ = _in_place(operator.or_)

    def __repr__(self) -> str:
        return f"<WindowSet: {self._windows.name}, key {self._key!r}>"


def _ms(duration: object) -> int:
    return round(seconds(duration) * 1000)


def window_timing(table: str, size: object, step: object, expires: object) -> Timing:
    """Return the times of a table by window; `expires` None keeps its windows for ever."""
    size_ms, step_ms = _ms(size), _ms(step)
    if not 0 < step_ms <= size_ms:
        raise ValueError(
            f"bad window: size {size!r}, step {step!r}: table {table} ({users_line()}): write a "
            "size, and a step that is not above it"
        )
    return Timing(size_ms, step_ms, NEVER if expires is None else size_ms + _ms(expires))
