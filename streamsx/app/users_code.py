"""Places in the user's code, as file and line: for errors, and for what the user has declared."""

import sys
from traceback import walk_tb
from types import FrameType
from typing import Final

OUR_PACKAGE: Final = "streamsx."


def users_line() -> str:
    """Return file and line of the user's code that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack reads all files on the way
    while is_machinery(frame) and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


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
