"""What an agent touches, found out before anything runs.

Derived topics: the body is started on an empty inbox and goes to its first wait for input, with
stores that are thrown away and an outbox that keeps nothing. Then it is closed.

Tables and topics: everything that the body's code can name is walked through: globals, closures,
modules, containers, objects and functions of the same top-level package. A name is enough; whether
it is ever used cannot be told. What it finds too much binds a sub-topology too strongly; what it
misses is told by name when it is touched: `TableNotInTask`.

Not here: what becomes of it (`agent`).
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
from streamsx.errors import NotSupported, TopologyError
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
from streamsx.state.cache import CachedStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.topology.nodes import Source

if TYPE_CHECKING:
    from streamsx.app.app import App

THROWN_AWAY_BYTES = 1 << 20
ENDS_MAX = 100
NAMED = {"LOAD_GLOBAL", "LOAD_DEREF"}
OF_IT = {"LOAD_ATTR", "LOAD_METHOD"}
"""Instructions of `thing.name`, one behind the other."""


def reached(app: "App", agent: Agent, stores: Mapping[str, StoreNode]) -> BodyUses:
    """What the agent touches.

    Raises TopologyError when its body fails before its first record.
    """
    found = list(_walk(app, agent.fun, *agent.sinks))
    tables = agent.tables
    if tables is None:
        tables = frozenset(thing.name for thing in found if isinstance(thing, Table))
    unknown = sorted(tables - stores.keys())
    if unknown:
        raise TopologyError(
            f"no such table: {', '.join(unknown)}: agent {agent.name}: make it with app.Table"
        )
    derived, note = _derived(agent, stores), ""
    if derived is None:
        note = (
            f"body not looked into: agent {agent.name}: it waits for something before its first "
            "record: call group_by before that"
        )
    touched = tuple(stores[name] for name in sorted(tables))
    return BodyUses(touched, _topics(found), tuple(derived or ()), note)


def sends_to(app: "App", function: Callable[..., Any]) -> tuple[Topic, ...]:
    """Topics that a function can reach which is no agent."""
    return _topics(_walk(app, function))


def _topics(found: Iterable[Any]) -> tuple[Topic, ...]:
    """An agent stands for the topic that it reads."""
    channels = (thing.channel if isinstance(thing, Agent) else thing for thing in found)
    return tuple(channel for channel in channels if isinstance(channel, Topic))


# -- derived topics


class _Nowhere(Outbox):
    """An outbox that keeps nothing."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        def send(key: bytes | None, value: bytes | None, at: int, headers: Headers | None) -> None:
            pass

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        raise AssertionError(f"a changelog before the first record: {topic}")


def _derived(agent: Agent, nodes: Mapping[str, StoreNode]) -> list[Derived] | None:
    """None: the agent waits for what only the loop of a worker can give."""
    derived: list[Derived] = []
    errors: list[Exception] = []
    stores = {n: CachedStore(node, MemoryRows(), THROWN_AWAY_BYTES) for n, node in nodes.items()}
    inbox = Inbox(0, errors.append)
    inbox.gate = _Empty()
    empty = Values(inbox, Source("", agent.channel.key_codec, agent.channel.value_codec))
    body = agent.body(Stream(agent.name, agent.channel, empty, derived.append))
    context, hooks = copy_context(), sys.get_asyncgen_hooks()
    context.run(RUNNING.set, TaskContext(TaskId(0, 0), stores, _Nowhere(), inbox))
    sys.set_asyncgen_hooks(None, None)  # a running loop must not adopt what is stepped by hand
    try:
        asked = context.run(body.send, None)
    except NotSupported:
        raise
    except Exception as raised:
        error = returned(agent.name) if isinstance(raised, StopIteration) else raised
        if isinstance(error, RuntimeError) and "event loop" in str(error):
            return None
        raise TopologyError(
            f"agent fails before its first record: {agent.name}: {type(error).__name__}: {error}: "
            "mend it, or move it behind the first record"
        ) from error
    finally:
        context.run(_end, body)
        sys.set_asyncgen_hooks(*hooks)
    return derived if asked is inbox.gate else None


def _end(body: Coroutine[Any, Any, None]) -> None:
    """Whatever it does about it: each thing that it awaits in a `finally` refuses to be its end."""
    for _ in range(ENDS_MAX):
        with suppress(Exception):
            body.close()
            return


class _Empty:
    """The gate of an inbox that nothing comes into."""

    def __await__(self) -> Generator[Any, None, None]:
        yield self


# -- tables and topics


def _walk(app: "App", *roots: Any) -> Iterator[Any]:
    """Each table, topic and agent once, in the order in which the code names them."""
    package = roots[0].__module__.partition(".")[0]
    seen: dict[int, tuple[Any, frozenset[str]]] = {}
    """By id, with the thing, so that nobody else gets its id, and the names it was asked for."""
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
        elif thing is app:
            left += [(table, names) for table in app.tables.values() if "tables" in names]
        else:
            left += [(lead, names) for lead in _leads(thing, names, package)]


def _leads(thing: Any, names: Collection[str], package: str) -> Iterable[Any]:
    """What one object leads to. `names`: of the attributes in the code that led to it."""
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
    """Raises NotSupported for what a line takes of ours that only Faust has: it might be reached
    with the first record, or the thousandth.
    """
    ours = isinstance(thing, FaustNames) or thing is sys.modules["streamsx"]
    if ours and (error := refusal(thing, name)):
        raise error


def _of_scope(scope: ModuleType | type, names: Collection[str], package: str) -> Iterable[Any]:
    """Of a module or class; a class is also made, and its objects are called."""
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
    """Of a function and those within it."""
    nested = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [code, *(each for inner in nested for each in _codes(inner))]


def _is_filled(cell: CellType) -> bool:
    return cell != CellType()  # one that is not assigned yet


def _is_of(module: str | None, package: str) -> bool:
    return (module or "").partition(".")[0] == package
