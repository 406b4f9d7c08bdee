"""Discovery of the tables and topics that an agent uses, before anything runs.

Derived topics: the body is started on an empty inbox and runs to its first wait for input, with
temporary stores and an outbox that discards. Then the body is closed.

Tables and topics: the search follows everything that the body's code can name: globals, closures,
modules, containers, objects and functions of the same top-level package. A name is enough, because
the search cannot know whether the name is ever used. A superfluous find binds a sub-topology too
strongly. A missed table is reported by name when used: `TableNotInTask`.

Not here: the use of the findings (`agent`).
"""

import dis
import functools
import sys
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from itertools import pairwise
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from streamsx.app.agent import Agent, BodyUses
from streamsx.app.channel import Topic
from streamsx.app.compat import FaustNames, refusal
from streamsx.app.stream import Derived, Stream
from streamsx.app.table import Table
from streamsx.app.users_code import users_place
from streamsx.app.window_table import WindowTable
from streamsx.errors import NotSupported, TopologyError
from streamsx.mistakes import at
from streamsx.model import Headers, TaskId
from streamsx.processing.inbox import (
    RUNNING,
    Inbox,
    Outbox,
    Send,
    SendRows,
    TaskContext,
    Values,
    returned,
)
from streamsx.state.factory import make_store
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.topology.nodes import Source

if TYPE_CHECKING:
    from streamsx.app.app import App

THROWN_AWAY_BYTES = 1 << 20
ENDS_MAX = 100
NAMED = {"LOAD_GLOBAL", "LOAD_DEREF"}
OF_IT = {"LOAD_ATTR", "LOAD_METHOD"}
"""Instructions of `thing.name`: one of NAMED, then one of OF_IT."""


def reached(app: "App", agent: Agent, stores: Mapping[str, StoreNode]) -> BodyUses:
    """Return the stores and topics that an agent uses. A table may be without a store by mistake.

    Raises:
        TopologyError: the body fails before its first record, or a table does not exist.
    """
    found = list(_walk(app, agent.fun, *agent.sinks))
    tables = agent.tables
    if tables is None:
        tables = frozenset(thing.name for thing in found if isinstance(thing, Table))
    unknown = sorted(tables - app.tables.keys())
    if unknown:
        raise TopologyError(
            f"no such table: {', '.join(unknown)}: agent {agent.name}: make it with app.Table"
        )
    derived = _derived(agent, stores)
    note = ""
    if derived is None:
        note = (
            f"topics of an agent are not known: {agent.name}: its body waits for something else "
            "before its first record: if it calls group_by or through, call them before that "
            f"({agent.made_at})"
        )
    touched = tuple(stores[name] for name in sorted(tables & stores.keys()))
    return BodyUses(touched, _topics(found), tuple(derived or ()), note)


def sends_to(app: "App", function: Callable[..., Any]) -> tuple[Topic, ...]:
    """Return the topics that a function other than an agent can reach."""
    return _topics(_walk(app, function))


def _topics(found: Iterable[Any]) -> tuple[Topic, ...]:
    """Return the topics among the findings. An agent stands for the topic that the agent reads."""
    channels = (thing.channel if isinstance(thing, Agent) else thing for thing in found)
    return tuple(channel for channel in channels if isinstance(channel, Topic))


# -- derived topics


class _Nowhere(Outbox):
    """Outbox that discards all records."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        def send(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            pass

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        raise AssertionError(f"a changelog before the first record: {topic}")


def _derived(agent: Agent, nodes: Mapping[str, StoreNode]) -> list[Derived] | None:
    """Run an agent's body to its first wait for input, and return the topics that it derives.

    Returns:
        None if the body waits for something that only a worker's event loop provides.

    Raises:
        TopologyError: the body fails.
    """
    derived: list[Derived] = []
    errors: list[Exception] = []
    stores = {n: make_store(node, MemoryRows(), THROWN_AWAY_BYTES) for n, node in nodes.items()}
    inbox = Inbox(0, errors.append)
    inbox.gate = _Empty()
    empty = Values(inbox, Source("", agent.channel.key_codec, agent.channel.value_codec))
    body = agent.body(Stream(agent.name, agent.channel, empty, derived.append))
    context = copy_context()
    hooks = sys.get_asyncgen_hooks()
    context.run(RUNNING.set, TaskContext(TaskId(0, 0), stores, _Nowhere(), inbox))
    sys.set_asyncgen_hooks(None, None)  # no running loop may adopt a generator stepped by hand
    try:
        asked = context.run(body.send, None)
    except NotSupported as refused:
        raise at(refused, users_place(refused)) from refused
    except Exception as raised:
        error = returned(agent.name) if isinstance(raised, StopIteration) else raised
        if isinstance(error, RuntimeError) and "event loop" in str(error):
            return None
        failed = TopologyError(
            f"agent fails before its first record: {agent.name}: {type(error).__name__}: {error}: "
            "fix it, or move it after the first record"
        )
        raise at(failed, users_place(raised)) from error
    finally:
        context.run(_close, body)
        sys.set_asyncgen_hooks(*hooks)
    return derived if asked is inbox.gate else None


def _close(body: Coroutine[Any, Any, None]) -> None:
    """Close a body, at most ENDS_MAX times: each `await` in a `finally` refuses one close."""
    for _ in range(ENDS_MAX):
        with suppress(Exception):
            body.close()
            return


class _Empty:
    """Gate of an inbox that stays empty."""

    def __await__(self) -> Generator[Any, None, None]:
        yield self


# -- tables and topics


def _walk(app: "App", *roots: Any) -> Iterator[Any]:
    """Yield each table, topic and agent once, in the order in which the code names them."""
    package = roots[0].__module__.partition(".")[0]
    seen: dict[int, tuple[Any, frozenset[str]]] = {}
    """Objects by id, kept so that no other object gets the id, with attribute names followed."""
    left: list[tuple[Any, frozenset[str]]] = [(root, frozenset()) for root in roots]
    while left:
        thing, names = left.pop(0)
        if isinstance(thing, FunctionType) and _is_of(thing.__module__, package):
            names = frozenset(name for code in _codes(thing.__code__) for name in code.co_names)
        _, before = seen.get(id(thing), (None, None))
        if before is not None and names <= before:
            continue
        seen[id(thing)] = thing, names | (before or names)
        if isinstance(thing, Table | Topic | Agent):
            if before is None:
                yield thing
        elif isinstance(thing, WindowTable):
            tables = [thing.table] if thing.index is None else [thing.table, thing.index]
            left += [(each, names) for each in (*tables, thing.table.on_window_close)]
        elif thing is app:
            left += [(table, names) for table in app.tables.values() if "tables" in names]
        else:
            left += [(lead, names) for lead in _leads(thing, names, package)]


def _leads(thing: Any, names: Collection[str], package: str) -> Iterable[Any]:
    """Return the objects reachable from one. `names` are attributes in the code that led here."""
    for kind, leads in LEADS.items():
        if isinstance(thing, kind):
            return leads(thing, names, package)
    if not _is_of(type(thing).__module__, package):
        return ()
    return [*getattr(thing, "__dict__", {}).values(), *type(thing).__mro__]


def _of_function(function: FunctionType, _names: Collection[str], package: str) -> Iterable[Any]:
    if not _is_of(function.__module__, package):
        return
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    scope = {**function.__globals__, **enclosed}
    for code in _codes(function.__code__):
        steps = list(dis.get_instructions(code))
        loads = (each.argval for each in steps if each.opname == "LOAD_GLOBAL")
        yield from (scope[name] for name in dict.fromkeys(loads) if name in scope)
        for thing, name in pairwise(steps):
            if thing.opname in NAMED and name.opname in OF_IT and thing.argval in scope:
                _refuse(scope[thing.argval], name.argval)
    yield from enclosed.values()
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)


def _refuse(thing: Any, name: str) -> None:
    """Raise NotSupported if the code uses an attribute that only Faust has.

    The line might run with the first record, or with the thousandth.
    """
    ours = isinstance(thing, FaustNames) or thing is sys.modules["streamsx"]
    if ours and (error := refusal(thing, name)):
        raise error


def _of_scope(scope: ModuleType | type, names: Collection[str], package: str) -> Iterable[Any]:
    """Return named members of a module or class, plus the methods that make and call objects."""
    home = scope.__name__ if isinstance(scope, ModuleType) else scope.__module__
    known = vars(scope) if _is_of(home, package) else {}
    return [known[name] for name in sorted({*names, "__init__", "__call__"}) if name in known]


LEADS: Final[dict[Any, Callable[[Any, Collection[str], str], Iterable[Any]]]] = {
    functools.partial: lambda made, _names, _of: [made.func, *made.args, *made.keywords.values()],
    MethodType: lambda method, _names, _of: [method.__func__, method.__self__],
    FunctionType: _of_function,
    (ModuleType, type): _of_scope,
    Mapping: lambda mapping, _names, _of: mapping.values(),
    (list, tuple, set, frozenset): lambda container, _names, _of: container,
}


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code of a function and of all functions within."""
    nested = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [code, *(each for inner in nested for each in _codes(inner))]


def _is_filled(cell: CellType) -> bool:
    return cell != CellType()  # empty before the first assignment


def _is_of(module: str | None, package: str) -> bool:
    return (module or "").partition(".")[0] == package
