"""Tables: dicts over the stores of the running task.

In an agent a table is the part that the agent's task holds, read and written. Elsewhere a table is
all parts that this worker's running tasks hold, read only: a missing key raises NotHere if another
worker may have the key, and iterating a part of the table warns once. Another thread
(`asyncio.to_thread`) is refused: read before the thread starts, write after its await. A value that
was put belongs to the table; change a value in place and put it back, or the change may be lost.
None means absent: putting None deletes the key.

Not here: caching and codecs of rows (`streamsx.state`), the assignment of tables to tasks.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from streamsx.app.compat import FaustNames
from streamsx.app.declaration import declaration
from streamsx.app.users_code import users_line
from streamsx.app.window_table import WindowTable, window_timing
from streamsx.errors import SettingError, TableNotInTask, TopologyError
from streamsx.processing.inbox import AT_WORK, RUNNING
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.cache import GONE, CachedStore
from streamsx.state.layout import KEY_VALUE, WINDOW, StoreNode, Timing
from streamsx.state.window_store import WindowStore
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec, changelog_name

if TYPE_CHECKING:
    from streamsx.app.app import App

K = TypeVar("K")
V = TypeVar("V")

STORES: Final = {"rocksdb": True, "memory": False}
"""Scheme of the URL -> whether the store is on disk."""
TURN: Final = AT_WORK
"""Lock of the thread whose body is at work, under a name that is not imported.

CPython takes an imported name for a module and makes a bound method at each call: a check takes 65
ns by that name and 12 by this one.
"""


class Table(FaustNames, MutableMapping[K, V]):
    """Table of values by key; made by `App.Table` and used like a dict.

        totals = app.Table("totals", default=float)
        ...
        totals[order["user"]] += order["price"]

    In an agent a table is the part of the agent's task, read and written. Elsewhere it is all parts
    that this worker's tasks hold, read only. Put a value back after a change in place, or the
    change may be lost. None means absent: putting None deletes the key.

    Args:
        default: Function that makes the value of a missing key. Reading stores nothing.
        key_type: Type of keys; None accepts the types of JSON.
        value_type: Type of values: a Record, a pydantic model, a type that msgspec reads; None
            accepts the types of JSON. A value that would come back different is refused.
        partitions: Number of partitions of the changelog; that of the source unless given.
        store: `rocksdb://` or `memory://`; the app's unless given.
        extra_topic_configs: Further configs of the changelog, by Kafka's names.
        on_window_close: Plain function that is called with `(key, (start, end))` and the value when
            a window expires; times in seconds since 1970. For tables by window.
        help: Faust's; has no effect.
    """

    def __init__(
        self,
        app: "App",
        name: str,
        *,
        default: Callable[[], V] | None = None,
        key_type: Any = None,
        value_type: Any = None,
        partitions: int | None = None,
        store: str | None = None,
        extra_topic_configs: Mapping[str, object] | None = None,
        on_window_close: Callable[[Any, V], Any] | None = None,
        help: str = "",  # noqa: A002  # Faust's name
    ) -> None:
        if default is not None and not callable(default):
            raise TypeError(f"bad default: default={default!r}: table {name}: write default=int")
        self._app = app
        self.name = name
        self.default = default
        self.help = help
        self.key_type = key_type
        self.value_type = value_type
        self.made_at = users_line()
        self.partitions = partitions
        self._store_url = store
        self._config = extra_topic_configs or {}
        if on_window_close is not None:
            check_window_function(name, on_window_close)
        self.on_window_close = on_window_close
        self._timing: Timing | None = None

    # -- by window

    @declaration
    def tumbling(
        self, size: object, expires: object = None, key_index: bool = False
    ) -> WindowTable:
        """Return this table by windows of a size, one behind the other.

            views = app.Table("views", default=int).tumbling("10s", expires="1m")

        Args:
            size: Duration of a window.
            expires: Duration for which a window is kept beyond its end, in stream time; for ever
                unless given.
            key_index: Whether keys are kept in a table of their own, so that they can be iterated.

        Raises:
            TopologyError: the table has other windows already.
            ValueError: a duration is wrong.
        """
        return self._windowed(size, size, expires, key_index=key_index)

    @declaration
    def hopping(
        self, size: object, step: object, expires: object = None, key_index: bool = False
    ) -> WindowTable:
        """Return this table by windows that overlap: a record is in several of them.

        Args:
            size: Duration of a window.
            step: Duration between the starts of two windows, not above `size`.
            expires: Duration for which a window is kept beyond its end, in stream time; for ever
                unless given.
            key_index: Whether keys are kept in a table of their own, so that they can be iterated.

        Raises:
            TopologyError: the table has other windows already.
            ValueError: a duration is wrong.
        """
        return self._windowed(size, step, expires, key_index=key_index)

    def _windowed(
        self, size: object, step: object, expires: object, *, key_index: bool
    ) -> WindowTable:
        timing = window_timing(self.name, size, step, expires)
        if self._timing not in (None, timing):
            raise TopologyError(
                f"two windows for one table: {self.name} ({users_line()}): make a table for each"
            )
        self._timing = timing
        index = None
        if key_index:
            options: dict[str, Any] = {"key_type": self.key_type, "value_type": int}
            index = self._app.Table(
                f"{self.name}-key_index",
                store=self._store_url,
                partitions=self.partitions,
                **options,
            )
        return WindowTable(self, timing, index)

    def own_windows(self) -> WindowStore:
        """Return the windows in the store of this task. Raises TableNotInTask, WrongThread."""
        store = self._store
        if store is None or not TURN._is_owned():  # noqa: SLF001  # method of RLock
            store = self._writable()
        return cast("WindowStore", store)

    def windows_here(self) -> Iterator[WindowStore]:
        """Return the windows of all tasks that run here."""
        return cast("Iterator[WindowStore]", self._stores())

    def clock_ms(self) -> int:
        """Return the time of the worker's clock, in ms."""
        return self._app.now_ms()

    # -- the record path

    _store: CachedStore | None = None
    """Store of the task whose body is at work."""

    def __getitem__(self, key: K) -> V:
        store = self._store
        if store is None or not TURN._is_owned():  # noqa: SLF001  # method of RLock
            store = self._here()
            if store is None:
                return self.or_default(key, self._elsewhere(key))
        cached = key if type(key) is store.key_type else store.cache_key(key)
        value = store.hot.get(cached)
        if (value is None and (value := store.load(cached)) is None) or value is GONE:
            return self.or_default(key, None)
        return value  # type: ignore[no-any-return]  # the value that was put

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; for a missing key the table's default, or else `default`.

        Args:
            key: Key to look up.
            default: Value for a missing key, if the table has no default.

        Raises:
            NotHere: the key is missing, and another worker may have it; outside of agents.
        """
        store = self._store
        if store is None or not TURN._is_owned():  # noqa: SLF001  # method of RLock
            store = self._here()
        if store is None:
            value = self._elsewhere(key)
        else:
            cached = key if type(key) is store.key_type else store.cache_key(key)
            value = store.hot.get(cached)
            if value is None:
                value = store.load(cached)
        if value is None or value is GONE:
            return default if self.default is None else self.default()
        return value

    def __setitem__(self, key: K, value: V) -> None:
        store = self._store
        if store is None or not TURN._is_owned():  # noqa: SLF001  # method of RLock
            store = self._here()
            if store is None:
                self._refuse()
        cached = key if type(key) is store.key_type else store.own_key(key)
        store.hot[cached] = GONE if value is None else value

    def or_default(self, key: K, value: V | None) -> V:
        """Return a value, or for None the default. Raises KeyError without a default."""
        if value is not None:
            return value
        if self.default is None:
            raise KeyError(key)
        return self.default()

    def _here(self) -> CachedStore | None:
        """Return the store of the running task, bound while the body is at work.

        Returns:
            None outside of a task, and in a task without this table.

        Raises:
            WrongThread: the caller is on another thread than the body.
        """
        task = RUNNING.get(None)
        if task is None:
            return None
        task.check_thread("table", self.name)
        if self.name not in task.stores:
            return None
        store: CachedStore = task.stores[self.name]
        if task.at_work:
            task.bind(self, "_store", store)
        return store

    # -- the rest of a dict

    def __delitem__(self, key: K) -> None:
        """Delete a key. Raises KeyError for a missing key."""
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return self._elsewhere(key) is not None

    def __iter__(self) -> Iterator[K]:
        return (key for store in self._stores() for key in store.keys())  # noqa: SIM118  # not a dict

    def __len__(self) -> int:
        """Count all keys by reading them; `if table` reads only the first one."""
        return sum(store.count() for store in self._stores())

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def values(self) -> ValuesView[V]:
        """Return the values, read in one walk."""
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        """Return keys with values, read in one walk."""
        return _Items(self)

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a key and return its value.

        Args:
            key: Key to remove.
            *default: Value to return for a missing key.

        Raises:
            KeyError: the key is missing, and there is no default.
        """
        value = self._elsewhere(key)
        if value is None and not default:
            raise KeyError(key)
        if value is None:
            return default[0]
        self._writable().delete(key)
        return value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; put a default first if the key is missing.

        Args:
            key: Key to look up.
            default: Value to put; the table's default unless given.
        """
        value = self._elsewhere(key)
        if value is None:
            value = self[key] if default is None else default
            self[key] = value
        return value

    def clear(self) -> None:
        """Delete all keys in this task's part."""
        store = self._writable()
        for key in list(self):
            store.delete(key)

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __repr__(self) -> str:
        return f"<Table: {self.name}>"

    # -- which stores

    def _stores(self) -> Iterator[CachedStore]:
        """Return this task's store, or those of all tasks that run here. Raises TableNotInTask."""
        if RUNNING.get(None) is None:
            return iter(self._app.stores(self.name).values())
        return iter((self._writable(),))

    def _elsewhere(self, key: Any) -> Any:
        """Return the value of a key; None where it is missing. Raises NotHere, TableNotInTask."""
        if RUNNING.get(None) is None:
            return self._app.look(self.name, key)
        return self._writable().get(key)

    def _rows(self) -> Iterator[tuple[Any, Any]]:
        for store in self._stores():
            yield from store.items()

    def _writable(self) -> CachedStore:
        return self._here() or self._refuse()

    def _refuse(self) -> NoReturn:
        task = RUNNING.get(None)
        if task is None:
            self._app.check_thread(f"table {self.name}")
            raise TypeError(
                f"written outside of an agent: table {self.name}: a table belongs to the task "
                "whose records change it: send to a topic, and change the table in its agent"
            )
        agents = self._app.table_users.get(self.name)
        users = (
            f"it belongs to {' and '.join(agents)}" if agents else "no agent was found to use it"
        )
        raise TableNotInTask(
            f"table not in this task: {self.name}, task {task.task} ({users_line()}): {users}, "
            "and the app was not seen to use it in this agent: name it where the agent is made, "
            "@app.agent(..., tables=[...]); then the topics of all its agents need one number of "
            "partitions; or send to a topic of an agent that has it"
        )

    # -- the store and the topic

    def node(self) -> StoreNode:
        """Return the store. Raises SettingError for an unknown store, TopologyError for a type."""
        try:
            keys = table_key_codec(self.key_type)
            values = table_codec(self.value_type)
        except TopologyError as error:
            raise TopologyError(f"table {self.name}: {error} ({self.made_at})") from error
        scheme, sign, _ = (self._store_url or self._app.conf.store).partition("://")
        if not sign or scheme not in STORES:
            raise SettingError(
                f"unknown store: {self._store_url}: table {self.name} ({self.made_at}): use "
                "rocksdb:// or memory://"
            )

        decode = keys.decode

        def decode_key(data: bytes | None) -> Any:
            """Decode a key. Bytes that are not JSON are a bytes key, which is stored unchanged."""
            try:
                key = decode(data)
            except ValueError:
                if self.key_type is not None:
                    raise
                return data
            return _hashable(key)

        keys = keys._replace(decode=decode_key)
        persistent = STORES[scheme]
        kind = KEY_VALUE if self._timing is None else WINDOW
        made = self.name, self.changelog, keys, values, self.key_type, persistent
        return StoreNode(*made, kind, self._timing)

    @property
    def changelog(self) -> str:
        return changelog_name(self._app.conf.id, self.name)

    def spec(self) -> TopicSpec:
        """Return the spec of the changelog."""
        extra = {name: str(value) for name, value in self._config.items()}
        replication = self._app.conf.topic_replication_factor
        config = {**CONFIGS[TopicKind.CHANGELOG], **extra}
        kind = TopicKind.CHANGELOG
        return TopicSpec(self.changelog, kind, self.partitions, replication, config, self.made_at)


class _Values(ValuesView[V]):
    """Values of one walk over the rows; those of a Mapping would look up each key."""

    _mapping: Table[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._rows())  # noqa: SLF001  # view of the table


class _Items(ItemsView[K, V]):
    _mapping: Table[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._rows()  # noqa: SLF001  # view of the table


def check_window_function(table: str, fun: Any) -> None:
    """Refuse what is no plain function for `on_window_close`. Raises TypeError with the line."""
    if not callable(fun) or iscoroutinefunction(fun):
        raise TypeError(
            f"on_window_close={fun!r}: not a plain function: table {table} ({users_line()}): write "
            "def, and send with topic.send(...), which needs no await"
        )


def _hashable(key: Any) -> Any:
    """Return a key with tuples for lists: JSON has no tuples, and no key can be a list."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
