"""Mistakes of a module whose import this package has refused: the first one and those behind it.

A refusal ends the import at the first mistake. The statements behind it are run one by one, in the
same module, to find more. A statement that needs what a refused statement would have made is left
out, and so is a statement that may do more than declare: a loop, a condition, a call of other code,
an import that runs a further module.

Not here: the import itself (`lookup`), mistakes of the graph (`App.topology`).
"""

import __future__

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.util import resolve_name
from pathlib import Path
from traceback import walk_tb
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from streamsx.app.app import App
from streamsx.app.compat import OUR_PACKAGE, OURS, is_machinery, users_place
from streamsx.errors import UsageError
from streamsx.mistakes import all_of, at

MODULE: Final = "<module>"
MISTAKES: Final = (UsageError, TypeError, ValueError)
"""Errors that this package raises for a wrong declaration."""
DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
PLAIN: Final = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Pass)
"""Statements that only declare, as far as the calls in them do."""
DECLARING: Final = (OURS, "streamsx.operators.", "streamsx.serde.", "faust.models.")
"""Modules of which all functions, classes and objects only declare."""
HARMLESS: Final = (
    bool, bytes, dict, float, frozenset, int, list, range, set, str, tuple, dataclass, datetime,
    field, timedelta,
)  # fmt: skip
"""Other code that a declaration may call."""
RUNS: Final = "main"
"""Method of an app that runs it."""
FUTURES: Final[int] = sum(
    getattr(__future__, name).compiler_flag for name in __future__.all_feature_names
)
OTHERS: Final = "no such table: "
"""Beginning of errors about a table that may have been refused itself."""


def import_mistakes(error: BaseException) -> Iterator[UsageError]:
    """Yield the mistake that ended an import, and further ones of the modules under way."""
    yield from _as_mistakes(error)
    under_way = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _of_module(frame)]
    for frame, line in reversed(under_way):
        yield from _behind(frame, line)
    for frame, _ in under_way:
        for thing in list(frame.f_globals.values()):
            if isinstance(thing, App):
                try:
                    thing.topology()
                except UsageError as found:
                    yield from (each for each in all_of(found) if OTHERS not in str(each))


def refused(error: BaseException) -> bool:
    """Return whether this package has raised an error for a declaration of the user."""
    if not isinstance(error, MISTAKES):
        return False
    if isinstance(error, UsageError):
        return True
    last = [frame for frame, _ in walk_tb(error.__traceback__)][-1:]
    return any(frame.f_globals.get("__name__", "").startswith(OURS) for frame in last)


def _as_mistakes(error: BaseException) -> Iterator[UsageError]:
    """Yield an error as mistakes with their place."""
    place = users_place(error)
    if not isinstance(error, UsageError):
        error = UsageError(str(error))
    yield from (at(each, place) for each in all_of(error))


def _of_module(frame: FrameType) -> bool:
    return frame.f_code.co_name == MODULE and not is_machinery(frame)


def _behind(frame: FrameType, line: int) -> Iterator[UsageError]:
    """Run the declarations behind a line of a module, and yield the mistakes among them."""
    try:
        statements = ast.parse(Path(frame.f_code.co_filename).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # no file, or another one by now
        return
    missing: set[str] = set()
    for statement in statements:
        if (statement.end_lineno or 0) < line:
            continue
        asked = _first_line(statement) > line and _declares(statement, frame.f_globals)
        if asked and not missing.intersection(_needed(statement)):
            try:
                exec(_compiled(statement, frame.f_code), frame.f_globals)  # noqa: S102  # the user's
                continue
            except (Exception, SystemExit) as error:
                if refused(error):
                    yield from _as_mistakes(error)
        missing |= set(_bound(statement))


def _compiled(statement: ast.stmt, code: CodeType) -> CodeType:
    module = ast.Module([statement], [])
    made: CodeType = compile(
        module, code.co_filename, "exec", flags=code.co_flags & FUTURES, dont_inherit=True
    )
    return made


def _first_line(statement: ast.stmt) -> int:
    decorators = statement.decorator_list if isinstance(statement, DEFINITIONS) else []
    return min(statement.lineno, *(each.lineno for each in decorators), statement.lineno)


def _declares(statement: ast.stmt, known: dict[str, Any]) -> bool:
    """Return whether a statement only declares: whether it runs no code of others.

    The code behind a refusal has not run yet, and must not run now: it may wait, write, or end the
    process.
    """
    if isinstance(statement, ast.Import | ast.ImportFrom):
        try:
            return all(name in sys.modules for name in _imported(statement, known))
        except ImportError:  # relative to no package
            return False
    return all(_plain(node, known) for node in _running(statement))


def _plain(node: ast.AST, known: dict[str, Any]) -> bool:
    """Return whether a part of a statement runs no code of others by itself."""
    match node:
        case ast.Call():
            return _ours(node.func, known)
        case ast.Attribute(ctx=ast.Store()):
            return _ours(node.value, known)
        case ast.Subscript(ctx=ast.Store()):
            return False
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return all(_ours(each, known) for each in node.decorator_list)
        case ast.stmt():
            return isinstance(node, PLAIN)
    return True


def _imported(statement: ast.Import | ast.ImportFrom, known: dict[str, Any]) -> Iterator[str]:
    """Yield the modules that an import would load."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    name = "." * statement.level + (statement.module or "")
    module = resolve_name(name, known.get("__package__") or "")
    yield module
    there = getattr(sys.modules.get(module), "__dict__", ())
    names = [alias.name for alias in statement.names if alias.name != "*"]
    if not f"{module}.".startswith(OUR_PACKAGE):  # its names are loaded when they are first used
        yield from (f"{module}.{each}" for each in names if each not in there)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run with it; bodies of functions run later."""
    yield node
    for name, part in ast.iter_fields(node):
        if name == "body" and isinstance(node, FUNCTIONS):
            continue
        for each in part if isinstance(part, list) else [part]:
            if isinstance(each, ast.AST):
                yield from _running(each)


def _ours(called: ast.expr, known: dict[str, Any]) -> bool:
    """Return whether an expression comes from an object of this package, or is harmless."""
    path: list[str] = []
    while isinstance(called, ast.Call | ast.Attribute):
        if isinstance(called, ast.Call):
            path = []
            called = called.func
            continue
        if called.attr == RUNS:
            return False
        path.append(called.attr)
        called = called.value
    if not isinstance(called, ast.Name):
        return False
    thing = known.get(called.id, getattr(builtins, called.id, None))
    try:
        while isinstance(thing, ModuleType) and path:
            thing = _of(thing, path.pop())
    except UsageError:  # a name of Faust that is refused: the statement tells why
        return True
    if any(thing is each for each in HARMLESS):
        return True
    named = isinstance(thing, type | FunctionType | BuiltinFunctionType)
    home = str((thing if named else type(thing)).__module__)
    return home.startswith(DECLARING)


def _of(module: ModuleType, name: str) -> Any:
    """Return an object of a module; of this package it is loaded if need be."""
    ours = f"{module.__name__}.".startswith(OUR_PACKAGE)
    return getattr(module, name, None) if ours else vars(module).get(name)


def _needed(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement reads when it runs; bodies of functions run later."""
    parts: Iterable[ast.AST] = [statement]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [*statement.decorator_list, statement.args]
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives a value."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
