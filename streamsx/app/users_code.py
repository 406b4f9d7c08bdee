"""Places in the user's code, as file and line: for errors, and for what the user has declared."""

import ast
import sys
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Final

OUR_PACKAGE: Final = "streamsx."
CATCHING: Final = (ast.Try, ast.TryStar, ast.With)
"""Statements below which an error may be caught."""


def users_line() -> str:
    """Return file and line of the user's code that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack reads all files on the way
    while is_machinery(frame) and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def users_code_catches() -> bool:
    """Return whether the user's code may catch an error of the call that is under way.

    The user's frames end at the command of this package that imports their module.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        if _catches(frame):
            return True
        frame = frame.f_back
    return False


def _is_ours(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__', '')}.".startswith(OUR_PACKAGE)


def _catches(frame: FrameType) -> bool:
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):  # no file, or another one by now
        return False
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, CATCHING))
    return any(body[0].lineno <= frame.f_lineno <= (body[-1].end_lineno or 0) for body in bodies)


def users_place(error: BaseException) -> str:
    """Return file and line of the user's code that failed; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if not is_machinery(frame)
    ]
    return places[-1] if places else ""


def is_machinery(frame: FrameType) -> bool:
    """Return whether a frame is one of this package, or of the import system."""
    name = frame.f_globals.get("__name__", "")
    return (
        f"{name}.".startswith((OUR_PACKAGE, "importlib.")) or "<frozen" in frame.f_code.co_filename
    )
