"""User code that does not end with its worker: cancelled, awaited, logged by name, and left behind.

A loop with `except CancelledError: pass` makes a body, a timer or a task of the app that never
ends. All parts of the worker are closed by then. So the only loss is the record at hand, which is
not committed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from inspect import iscoroutine
from typing import Any

from streamsx.journal import LOG

TOLD_AFTER_S = 1.0
NAMES_MAX = 3
WAITS = "The worker waits up to %.0f s for code of the app that was cancelled and still runs: %s."
PACKAGE = __name__.split(".")[0]


async def end_leftovers(others: AbstractSet[asyncio.Task[Any]], seconds: float) -> list[str]:
    """Cancel and await all tasks on this loop except `others` and the caller.

    Returns:
        One line for each place with tasks that have not ended in time; these lines are logged too.
    """
    left = asyncio.all_tasks() - others - {asyncio.current_task()}
    for task in sorted(left, key=asyncio.Task.get_name):
        if not task.cancelling():  # a second cancel would interrupt the cleanup of the first
            task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=min(TOLD_AFTER_S, seconds))
    if left and seconds > TOLD_AFTER_S:
        rest_s = seconds - TOLD_AFTER_S
        LOG.warning(WAITS, rest_s, "; ".join(_named(left)))
        _, left = await asyncio.wait(left, timeout=rest_s)
    found = _named(left)
    for each in found:
        LOG.warning(
            "Left behind: %s. It was cancelled and still runs: let CancelledError end it. The "
            "worker ends without it.",
            each,
        )
    return found


def _named(tasks: set[asyncio.Task[Any]]) -> list[str]:
    """Return one line for each place in user code, with the names of the tasks that wait there."""
    places = defaultdict[str, list[str]](list)
    for each in sorted(tasks, key=asyncio.Task.get_name):
        places[place_of(each)].append(each.get_name())
    found = []
    for place, names in sorted(places.items()):
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        found.append(f"{', '.join(names[:NAMES_MAX])}{more} at {place}")
    return found


def place_of(task: asyncio.Task[Any]) -> str:
    """Return the file and line where a task waits, in user code if possible."""
    frames = list(_frames(task.get_coro()))
    own = [frame for frame in frames if frame[0] not in (PACKAGE, "asyncio")]
    _, file, line = (own or frames or [("", "unknown place", 0)])[-1]
    return f"{file}:{line}"


def _frames(coroutine: Any) -> Iterator[tuple[str, str, int]]:
    """Yield package, file and line of each waiting coroutine, the outermost first."""
    while iscoroutine(coroutine) and (frame := coroutine.cr_frame) is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        yield package, frame.f_code.co_filename, frame.f_lineno
        coroutine = coroutine.cr_await
