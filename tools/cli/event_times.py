"""Event time of each task, as the group has committed it, and what holds event time back. Pure.

A task behind a repartition topic has the time of the slowest task that writes the topic. So one
task without input holds back all tasks below it. Not here: how writers tell their times
(`streamsx.processing.progress`).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from streamsx.log_sentences import counted
from streamsx.model import TaskId, brief
from streamsx.tools.cli.app_input import AppInput, TaskInput
from streamsx.tools.cli.times import age, utc

NONE = -1
HELD_BACK_MS = 60_000
"""Least distance between the slowest writer and the fastest one that is worth a note."""
QUIET_S = 60.0
"""Least time without a record after which a task that holds others back is worth a note."""
OTHERS_GO_ON = "`idle=` of the window lets the others continue"
CLOSES = "`idle=` of the window closes what is open"


class EventTime(NamedTuple):
    """Event time of a task in ms, -1: none yet.

    `closed`: time up to which the windows of its stores have closed, None: it has none. `holder`:
    the task that holds event time back, which may be this one, None: no task does. `ahead`: the
    time of the fastest task that the holder does not keep up with. `late`: records that came too
    late.
    """

    at: int
    closed: int | None = None
    holder: TaskId | None = None
    ahead: int = NONE
    late: int = 0


class Hold(NamedTuple):
    """Sentence on a task that holds event time back.

    `matters`: records or open results may wait for it. Otherwise it has been quiet only a moment.
    """

    text: str
    matters: bool


def event_times(
    topics: Mapping[int, tuple[str, ...]], tasks: Mapping[TaskId, TaskInput]
) -> dict[TaskId, EventTime]:
    """Return the event time of each task that has committed. `topics`: by sub-topology."""
    from streamsx.topology.time_links import stage_of_topics

    stages = {f"{stage_of_topics(names):08x}": number for number, names in topics.items()}
    counts = Counter(task.subtopology for task in tasks)
    found: dict[TaskId, EventTime] = {}
    for task, known in tasks.items():
        besides = [place.beside for place in known.places.values()]
        if not besides:
            continue
        told = [
            each
            for beside in besides
            for stage, times in beside.told.items()
            if (number := stages.get(stage)) is not None
            for each in _slowest_and_fastest(number, times, counts[number])
        ]
        closed = [at for beside in besides for at in beside.closed.values()]
        at = max(beside.stream_time for beside in besides)
        stores = {store for beside in besides for store in beside.late}
        late = sum(max(beside.late.get(store, 0) for beside in besides) for store in stores)
        found[task] = EventTime(at, min(closed, default=None), *_held(told), late)
    ahead: dict[int, int] = {}
    for task, each in found.items():
        ahead[task.subtopology] = max(each.at, ahead.get(task.subtopology, NONE))
    found = {
        task: _standing(task, each, ahead[task.subtopology], tasks) or each
        for task, each in found.items()
    }
    return {task: each._replace(holder=_root(task, found)) for task, each in found.items()}


def _standing(
    task: TaskId, here: EventTime, ahead: int, tasks: Mapping[TaskId, TaskInput]
) -> EventTime | None:
    """Return the time of a task with open windows whose input has ended; None for any other task.

    Windows that have closed beyond the task's time have closed by `idle=`, and nothing waits.

    The tasks of one sub-topology read the partitions of the same topics, so a partition without
    records is far behind the others. `ahead`: the highest time of these tasks.
    """
    if here.closed is None or here.closed > here.at or here.holder is not None:
        return None
    if tasks[task].lag != 0:
        return None
    far = ahead - here.at >= HELD_BACK_MS
    return here._replace(holder=task, ahead=ahead) if far else None


def _slowest_and_fastest(
    number: int, times: Sequence[int | None], partitions: int
) -> Iterator[tuple[int, TaskId]]:
    """Yield the times of the slowest and of the fastest writer of a stage, with the writer.

    `times` may end before silent writers, and has None for idle ones. Only these two are made,
    because each task knows the times of all writers of a stage.
    """
    known = [time for time in times if time is not None]
    if len(times) < partitions:
        yield NONE, TaskId(number, len(times))
    elif known:
        yield min(known), TaskId(number, times.index(min(known)))
    if known:
        yield max(known), TaskId(number, times.index(max(known)))


def _held(told: Collection[tuple[int, TaskId]]) -> tuple[TaskId | None, int]:
    """Return the slowest writer and the time of the fastest one, if they are far apart."""
    if not told:
        return None, NONE
    time, slowest = min(told)
    fastest = max(told)[0]
    return (slowest, fastest) if fastest - time >= HELD_BACK_MS else (None, NONE)


def _root(task: TaskId, found: Mapping[TaskId, EventTime]) -> TaskId | None:
    """Return the task at the end of the chain of tasks that hold each other back."""
    seen = {task}
    holder = found[task].holder
    while holder is not None and holder in found and holder not in seen:
        seen.add(holder)
        holder = found[holder].holder or holder
    return holder


def holds(
    times: Mapping[TaskId, EventTime],
    known: AppInput,
    topics: Mapping[int, tuple[str, ...]],
    now_s: float,
    since_s: float = 0.0,
    only: TaskId | None = None,
) -> Iterator[Hold]:
    """Yield a sentence for each task that holds others back, with these, and what to do.

    Args:
        times: event time of each task.
        known: progress through the input.
        topics: source topics by sub-topology.
        now_s: Unix time.
        since_s: Unix time of the last rebalance, 0 if it is not known.
        only: name no other task that is held back.
    """
    behind: defaultdict[TaskId, list[TaskId]] = defaultdict(list)
    for task, each in sorted(times.items()):
        if each.holder is not None and only in (None, task):
            behind[each.holder].append(task)
    for holder, held in sorted(behind.items()):
        others = [task for task in held if task != holder]
        at = times[holder].at if holder in times else NONE
        stands = "stands still" if at < 0 else f"stands at {moment(at)}"
        ahead = moment(max(times[task].ahead for task in held))
        place = _place(topics.get(holder.subtopology, ()), holder.partition)
        who = f"task {holder}{place}" if others else f"its input{place}"
        here = known.tasks.get(holder)
        quiet_s = now_s - ((here and here.committed_s) or since_s)
        why = _why(who, here, at, quiet_s)
        rest = OTHERS_GO_ON if others else CLOSES
        advice = f"; {rest}" if here is not None and here.lag == 0 else ""
        yield Hold(
            f"{brief(others or held)}: event time {stands} while others are at {ahead}, because "
            f"{why}{advice}",
            matters=here is None or here.lag != 0 or quiet_s >= QUIET_S,
        )


def _place(topics: Sequence[str], partition: int) -> str:
    noun = "topics" if len(topics) > 1 else "topic"
    return f" ({noun} {', '.join(topics)}, partition {partition})" if topics else ""


def _why(who: str, known: TaskInput | None, at: int, quiet_s: float) -> str:
    if known is None or known.lag is None:
        return f"the progress of {who} is not known now"
    if known.lag:
        return f"{who} has {counted(known.lag, 'record')} waiting"
    if at < 0:
        return f"{who} has had no record yet"
    return (
        f"{who} has had no record for {age(quiet_s)}" if known.committed_s else f"{who} has ended"
    )


def moment(ms: int) -> str:
    """Return an event time for people; times of users may lie beyond all years."""
    if ms < 0:
        return "no time yet"
    try:
        return utc(ms / 1000)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
