"""User code that does not end with its worker: cancelled, waited for, named, and left behind.

`except CancelledError: pass` in a loop makes a body, a timer or a task of the app that ends for
nobody. Everything of the worker is closed by then: it costs the record that it has at hand, which
is not committed, and no more.
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
PACKAGE = __name__.split(".")[0]


async def end_leftovers(others: AbstractSet[asyncio.Task[Any]], seconds: float) -> list[str]:
    """Cancel all that runs on this loop beside `others` and the caller, and wait for it. Log what
    has not ended in time, and return it, one line each.
    """
    left = asyncio.all_tasks() - others - {asyncio.current_task()}
    for task in sorted(left, key=asyncio.Task.get_name):
        if not task.cancelling():  # a second one would cut short what the first one has begun
            task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=min(TOLD_AFTER_S, seconds))
    if left and seconds > TOLD_AFTER_S:
        rest_s = seconds - TOLD_AFTER_S
        LOG.warning("waiting %.0f s for what was cancelled: %s", rest_s, "; ".join(_named(left)))
        _, left = await asyncio.wait(left, timeout=rest_s)
    found = _named(left)
    for each in found:
        LOG.warning(
            "left behind: %s: it was cancelled and goes on: let CancelledError end it; the worker "
            "ends without it",
            each,
        )
    return found


def _named(tasks: set[asyncio.Task[Any]]) -> list[str]:
    """Return one line for each place in users' code, with the names of those that wait there."""
    places = defaultdict[str, list[str]](list)
    for each in sorted(tasks, key=asyncio.Task.get_name):
        places[place_of(each)].append(each.get_name())
    found = []
    for place, names in sorted(places.items()):
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        found.append(f"{', '.join(names[:NAMES_MAX])}{more} at {place}")
    return found


def place_of(task: asyncio.Task[Any]) -> str:
    """Return the file and line where it waits, in users' code as far as there is some."""
    frames = list(_frames(task.get_coro()))
    own = [frame for frame in frames if frame[0] not in (PACKAGE, "asyncio")]
    _, file, line = (own or frames or [("", "unknown place", 0)])[-1]
    return f"{file}:{line}"


def _frames(coroutine: Any) -> Iterator[tuple[str, str, int]]:
    """Yield package, file and line of each coroutine that waits, the outermost first."""
    while iscoroutine(coroutine) and (frame := coroutine.cr_frame) is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        yield package, frame.f_code.co_filename, frame.f_lineno
        coroutine = coroutine.cr_await
