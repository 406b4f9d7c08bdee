"""Mistakes of a module whose import this package has refused: the first one and those behind it.

A refusal ends the import at the first mistake. The statements behind it are run one by one, in the
same module, to find more. A statement that needs what a refused statement would have made is left
out, and so is a statement that may do more than declare: a loop, a condition, a call of other code.

Not here: the import itself (`lookup`), mistakes of the graph (`App.topology`).
"""

import __future__

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any, Final

from streamsx.app.app import App
from streamsx.app.compat import OURS, is_machinery, users_place
from streamsx.errors import UsageError
from streamsx.mistakes import all_of, at

MODULE: Final = "<module>"
MISTAKES: Final = (UsageError, TypeError, ValueError)
"""Errors that this package raises for a wrong declaration."""
DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
DECLARES: Final = (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
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
    """Return whether a statement only declares: a definition, an assignment, a call of ours."""
    if not isinstance(statement, ast.Expr):
        return isinstance(statement, DECLARES)
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if any(isinstance(call, ast.Attribute) and call.attr == RUNS for call in calls):
        return False
    root = statement.value
    while isinstance(root, ast.Call | ast.Attribute):
        root = root.func if isinstance(root, ast.Call) else root.value
    thing = known.get(root.id) if isinstance(root, ast.Name) else None
    return type(thing).__module__.startswith(OURS)


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
