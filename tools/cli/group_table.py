"""Drawing of an app's status for people: a line, a row for each worker, and notes. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from streamsx.log_sentences import counted
from streamsx.model import TaskId, brief
from streamsx.tools.cli.event_times import NONE, moment
from streamsx.tools.cli.times import age, utc

WORST_MAX = 3
"""Most tasks that are shown with their lag; `--json` has all of them."""
STABLE = "Stable"
BEHIND = (
    "behind: records of the input that the tasks have not committed yet; a healthy worker shows "
    "what came since its last commit"
)
WINDOWS_AT = "a window closes when `windows at` passes its end and its grace"
UNREAD_NAME = "(not known)"


def drawn(data: Mapping[str, Any], now_s: float, *, times: bool = False) -> Group:
    """Return the drawing. `now_s`: Unix time; `times`: with the event time of each task."""
    if data["note"]:
        return Group(*_without_workers(data, now_s))
    if data["leader"] is None and not any(here["active"] for here in data["instances"].values()):
        return Group(_unsettled(data, now_s))
    told: list[RenderableType] = [_heading(data), _table(data, now_s), *_notes(data)]
    if times:
        more = [note for note in data["time_notes"] if note not in data["notes"]]
        told += [*more, _times(data), f"windows at: {WINDOWS_AT}"]
    return Group(*told, BEHIND)


def _title(data: Mapping[str, Any]) -> str:
    return f"{data['app']} at {utc(data['at'])}"


def _without_workers(data: Mapping[str, Any], now_s: float) -> Iterator[str]:
    yield f"{_title(data)}: {data['note']}"
    if data["committed"]:
        yield f"last commit: {utc(data['committed'])}, {age(now_s - data['committed'])} ago"
    if data["lag"] is not None:
        yield f"behind: {data['lag']} records of the input are not committed"


def _unsettled(data: Mapping[str, Any], now_s: float) -> str:
    count = len(data["instances"])
    last = data["committed"]
    since = f"; the last commit was {age(now_s - last)} ago" if last else ""
    since += f", {data['lag']} records are not committed" * bool(data["lag"])
    return (
        f"{_title(data)}: rebalancing, with {counted(count, 'worker')} in the group{since}: "
        "a worker that has died is waited for until its session ends"
    )


def _heading(data: Mapping[str, Any]) -> str:
    state = "running" if data["state"] == STABLE else "rebalancing; ahead of that"
    workers = len(data["instances"])
    what = f"{counted(data['tasks'], 'task')} on {counted(workers, 'worker')}"
    moving = f", moving: {brief(data['unassigned'])}" * bool(data["unassigned"])
    return f"{_title(data)}: {state}, {what}, leader {data['leader'] or 'not known'}{moving}"


def _table(data: Mapping[str, Any], now_s: float) -> Table:
    table = Table(box=None)
    instances = data["instances"].values()
    some = [column for column in ("learns", "standby") if any(map(COPIES[column], instances))]
    for column in ("worker", "state", "runs", "behind", "last commit", *some, "version"):
        table.add_column(column, overflow="fold")
    for name, here in data["instances"].items():
        state = here["state"] + f", {len(here['stopped'])} stopped" * bool(here["stopped"])
        table.add_row(
            UNREAD_NAME if name == here["member"] else name,
            state,
            _runs(here),
            far_of(here["lag"]),
            _last_commit(here["committed"], now_s),
            *(COPIES[column](here) for column in some),
            here["version"],
        )
    return table


def _learns(here: Mapping[str, Any]) -> str:
    lags = ((each["task"], each["lag"]) for each in here["learner"])
    return ", ".join(f"{task} ({'?' if lag is None else lag} behind)" for task, lag in lags)


def _follows(here: Mapping[str, Any]) -> str:
    return brief(here["standby"])


COPIES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "learns": _learns, "standby": _follows,
}  # fmt: skip
"""Columns that are shown only if a worker has something there."""


def _runs(here: Mapping[str, Any]) -> str:
    """Return the tasks that process records, and then those that have stopped."""
    stopped = here["stopped"]
    runs = brief(task for task in here["active"] if task not in stopped)
    stands = f"stopped {brief(stopped)}" * bool(stopped)
    return ", ".join(filter(None, (runs, stands)))


def _last_commit(committed: Mapping[str, int | None], now_s: float) -> str:
    newest = max((at for at in committed.values() if at is not None), default=None)
    return "" if newest is None else f"{age(now_s - newest)} ago"


def _notes(data: Mapping[str, Any]) -> Iterator[str]:
    for name, here in data["instances"].items():
        label = UNREAD_NAME if name == here["member"] else name
        for told in (here["note"], *(each["why"] for each in here["failures"])):
            if told:
                yield f"{label}: {told}"
    yield from data["notes"]


def _times(data: Mapping[str, Any]) -> Table:
    table = Table(box=None)
    for column in ("task", "event time", "windows at", "held back by", "late records"):
        table.add_column(column, overflow="fold")
    for task, each in sorted(data["time"].items(), key=lambda item: TaskId.parse(item[0])):
        closed = "" if each["closed"] is None else moment(each["closed"])
        at = NONE if each["at"] is None else each["at"]
        holder = "its own input" if each["held_back_by"] == task else each["held_back_by"] or ""
        table.add_row(task, moment(at), closed, holder, str(each["late"] or ""))
    return table


def far_of(lags: Mapping[str, int | None]) -> str:
    """Return the lag of all tasks in records, and the tasks that lag most, the farthest first."""
    known = {task: lag for task, lag in lags.items() if lag}
    worst = sorted(known, key=lambda task: -known[task])
    words = [f"{task} {known[task]}" for task in worst[:WORST_MAX]]
    words += [f"{task} ?" for task, lag in lags.items() if lag is None][:WORST_MAX]
    rest = ", ..." * (len(worst) > WORST_MAX)
    return f"{sum(known.values())} ({', '.join(words)}{rest})" if words else "0" * bool(lags)
