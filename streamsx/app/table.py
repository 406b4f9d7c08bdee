"""Tables: dicts that live in the stores of the task that runs.

In an agent a table is that task's part of it, read and written. Elsewhere it is all that this
worker's running tasks hold, read only: a key that is missing there raises NotHere if another worker
may have it, and a walk over a part of the table warns once. Another thread (`asyncio.to_thread`) is
refused: read before it starts, write behind its await. A value that was put belongs to the table;
change one in place and put it back, or the change may be lost. None means absent: putting it
deletes.

Not here: caching and codecs of rows (`streamsx.state`), which task has which table.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from streamsx.app.compat import FaustNames, users_line
from streamsx.errors import SettingError, TableNotInTask, TopologyError
from streamsx.processing.inbox import AT_WORK, RUNNING
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.cache import GONE, CachedStore
from streamsx.state.layout import StoreNode
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec, changelog_name

if TYPE_CHECKING:
    from streamsx.app.app import App

K = TypeVar("K")
V = TypeVar("V")

STORES: Final = {"rocksdb": True, "memory": False}
"""Scheme of the URL: whether it is on disk."""


class Table(FaustNames, MutableMapping[K, V]):
    """`default` makes the value of a key that is not there; reading does not store it.

    `key_type`, `value_type`: None takes what JSON gives back, else any type that msgspec reads, a
    Record or a pydantic model: what comes back otherwise than it was put is refused; `store`:
    rocksdb:// or memory://, the app's unless given; `partitions`: asked of the changelog;
    `extra_topic_configs`: of it too.
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
        help: str = "",  # noqa: A002  # Faust's
    ) -> None:
        if default is not None and not callable(default):
            raise TypeError(f"not a function: default={default!r}: table {name}: write default=int")
        self._app, self.name, self.default, self.help = app, name, default, help
        self.key_type, self.value_type, self.made_at = key_type, value_type, users_line()
        self.partitions, self._store_url = partitions, store
        self._config = extra_topic_configs or {}

    # -- the record path

    _store: CachedStore | None = None
    """Of the task whose body is at work."""

    def __getitem__(self, key: K) -> V:
        store = self._store
        if store is None or not AT_WORK._is_owned():  # noqa: SLF001  # of RLock
            store = self._here()
            if store is None:
                return self._or_default(key, self._elsewhere(key))
        cached = key if type(key) is store.key_type else store.cache_key(key)
        value = store.hot.get(cached)
        if (value is None and (value := store.load(cached)) is None) or value is GONE:
            return self._or_default(key, None)
        return value  # type: ignore[no-any-return]  # what was put

    def get(self, key: K, default: Any = None) -> Any:
        """What `self[key]` gives; `default` where that raises KeyError."""
        store = self._store
        if store is None or not AT_WORK._is_owned():  # noqa: SLF001  # of RLock
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
        if store is None or not AT_WORK._is_owned():  # noqa: SLF001  # of RLock
            store = self._here()
            if store is None:
                self._refuse()
        cached = key if type(key) is store.key_type else store.own_key(key)
        store.hot[cached] = GONE if value is None else value

    def _or_default(self, key: K, value: V | None) -> V:
        """Return a value, or for None the default. Raises KeyError without one."""
        if value is not None:
            return value
        if self.default is None:
            raise KeyError(key)
        return self.default()

    def _here(self) -> CachedStore | None:
        """Of the task that runs, remembered while it does; None elsewhere. Raises WrongThread."""
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
        """Raises KeyError when it is not there."""
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return self._elsewhere(key) is not None

    def __iter__(self) -> Iterator[K]:
        return (key for store in self._stores() for key in store.keys())  # noqa: SIM118  # no dict

    def __len__(self) -> int:
        """It reads all keys: `if table` asks for the first one only."""
        return sum(store.count() for store in self._stores())

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def pop(self, key: K, *default: Any) -> Any:
        """Without a default in the call: KeyError when it is not there."""
        value = self._elsewhere(key)
        if value is None and not default:
            raise KeyError(key)
        if value is None:
            return default[0]
        self._writable().delete(key)
        return value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """What is there, else put the default."""
        value = self._elsewhere(key)
        if value is None:
            value = self[key] if default is None else default
            self[key] = value
        return value

    def clear(self) -> None:
        """Of this task's part."""
        store = self._writable()
        for key in list(self):
            store.delete(key)

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __repr__(self) -> str:
        return f"<Table: {self.name}>"

    # -- which stores

    def _stores(self) -> Iterator[CachedStore]:
        """This task's, or those of all that run here. Raises TableNotInTask."""
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
        raise TableNotInTask(
            f"table not in this task: {self.name}, task {task.task}: name it where the agent is "
            f"made: @app.agent(..., tables=[...])"
        )

    # -- what it becomes

    def node(self) -> StoreNode:
        """Its store. Raises SettingError for an unknown store, TopologyError for a type."""
        try:
            keys, values = table_key_codec(self.key_type), table_codec(self.value_type)
        except TopologyError as error:
            raise TopologyError(f"table {self.name}: {error} ({self.made_at})") from error
        scheme, sign, _ = (self._store_url or self._app.conf.store).partition("://")
        if not sign or scheme not in STORES:
            raise SettingError(
                f"unknown store: {self._store_url}: table {self.name}: use rocksdb:// or memory://"
            )

        decode = keys.decode

        def decode_key(data: bytes | None) -> Any:
            """Bytes are written as they are: what is no JSON can be nothing else."""
            try:
                key = decode(data)
            except ValueError:
                if self.key_type is not None:
                    raise
                return data
            return _hashable(key)

        keys, persistent = keys._replace(decode=decode_key), STORES[scheme]
        return StoreNode(self.name, self.changelog, keys, values, self.key_type, persistent)

    @property
    def changelog(self) -> str:
        return changelog_name(self._app.conf.id, self.name)

    def spec(self) -> TopicSpec:
        """Of its changelog."""
        extra = {name: str(value) for name, value in self._config.items()}
        replication = self._app.conf.topic_replication_factor
        config = {**CONFIGS[TopicKind.CHANGELOG], **extra}
        return TopicSpec(self.changelog, TopicKind.CHANGELOG, self.partitions, replication, config)


class _Values(ValuesView[V]):
    """Of one walk over the rows: a mapping's own would look up each key."""

    _mapping: Table[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._rows())  # noqa: SLF001  # a part of it


class _Items(ItemsView[K, V]):
    _mapping: Table[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._rows()  # noqa: SLF001  # a part of it


def _hashable(key: Any) -> Any:
    """JSON has no tuples: a list that was a key was one."""
    return tuple(map(_hashable, key)) if isinstance(key, list) else key
