"""Sentences of the text log: the level of each event, and its fields as a sentence for a person.

The file of events and the JSON log have the events themselves (`journal`), which programs read.
Rounds of a rebalance and other frequent events are sentences of the level DEBUG.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from streamsx.model import brief

Fields = Mapping[str, Any]
"""Fields of an event, and the name of its worker as `worker`."""

NAMES_MAX: Final = 10
"""Most names in one sentence."""
ROUNDS: Final = frozenset({"rebalance_started", "assigned", "revoked", "learner_ready", "promoted"})
"""Events of single rounds. Programs that read the JSON log find them at INFO."""
GUARANTEES: Final = {"at_least_once": "at least once", "exactly_once": "exactly once"}


class Sentence(NamedTuple):
    """Level of an event in the text log, and the function that makes the sentence."""

    level: int
    text: Callable[[Fields], str]


def of_event(event: str, fields: Fields) -> str | None:
    """Return the sentence of an event; None if the table or the fields do not have it."""
    entry = SENTENCES.get(event)
    if entry is None:
        return None
    try:
        return entry.text(fields)
    except (LookupError, TypeError, ValueError):  # an event of another version of the code
        return None


def level_of(event: str, *, as_json: bool = False) -> int:
    """Return the level of an event in the text log, or in the JSON log."""
    if as_json and event in ROUNDS:
        return logging.INFO
    entry = SENTENCES.get(event)
    return logging.INFO if entry is None else entry.level


# -- words


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 task` or `6 tasks`, with commas in large numbers."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def tasks_of(tasks: Sequence[str]) -> str:
    """Return `6 tasks (0_0-1 1_0-3)`."""
    return f"{counted(len(tasks), 'task')} ({brief(tasks)})" if tasks else "no tasks"


def names(some: Sequence[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    shown = list(some[:NAMES_MAX])
    if len(some) > NAMES_MAX:
        shown.append(f"{len(some) - NAMES_MAX} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def shares(numbers: Mapping[str, int]) -> str:
    """Return `a`, or `a (4) and c (2)`: the workers that tasks go to, and how many each."""
    if len(numbers) == 1:
        return next(iter(numbers))
    return names([f"{worker} ({number})" for worker, number in numbers.items()])


def seconds(ms: float) -> str:
    """Return `28 ms` or `1.2 s`."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


# -- sentences


def _started(f: Fields) -> str:
    guarantee = GUARANTEES.get(f["guarantee"], f["guarantee"])
    return (
        f"Worker {f['instance']} started (pid {f['pid']}): app {f['app']}, streamsx {f['version']},"
        f" brokers {f['broker']}, state in {f['directory']}, {guarantee}."
    )


def _round(f: Fields) -> str:
    number = f["generation"]
    ends = f"round {number} ends" if number >= 0 else "the worker joins the group"
    return sentence(f"{ends}: {f['reason'] or 'a join'}")


def _assigned(f: Fields) -> str:
    also = [
        f"{verb} {brief(f[role])}"
        for verb, role in (("learns", "learner"), ("keeps standbys of", "standby"))
        if f[role]
    ]
    return sentence(
        f"round {f['generation']}: " + ", ".join([f"runs {tasks_of(f['active'])}", *also])
    )


def _rebalanced(f: Fields) -> str:
    parts = [f"runs {tasks_of(f['runs'])}"]
    if 0 < len(f["gained"]) < len(f["runs"]):
        parts.append(f"took over {len(f['gained'])} ({brief(f['gained'])})")
    if f["lost"]:
        parts.append(f"gave up {len(f['lost'])} ({brief(f['lost'])})")
    if f["learns"]:
        parts.append(f"learns {brief(f['learns'])}")
    if f["standbys"]:
        parts.append(f"keeps standbys of {brief(f['standbys'])}")
    rounds = counted(f["rounds"], "round")
    took = f"{rounds} in {f['ms'] / 1000:.1f} s"
    gap = f["gap_ms"]
    stood = f"; tasks that stayed paused for {seconds(gap)} at most" if gap and gap >= 1 else ""
    return f"Rebalanced: {', '.join(parts)}; {took}{stood}."


def _joined(f: Fields) -> str:
    came = "is back" if f["back"] else "joined"
    number = len(f["tasks"])
    if not number:
        return f"Worker {f['worker']} {came}; no task moves to it yet."
    verb = "moves" if number == 1 else "move"
    return f"Worker {f['worker']} {came}; {number} of {counted(f['total'], 'task')} {verb} to it."


def _restarted(f: Fields) -> str:
    if f["was"]:
        return (
            f"Worker {f['worker']} started with the state of worker {f['was']}, which has ended; "
            f"{_it_gets(f['tasks'])}."
        )
    return f"Worker {f['worker']} was started again; {_it_gets(f['tasks'])}."


def _it_gets(tasks: Sequence[str]) -> str:
    return f"it gets {tasks_of(tasks)}" if tasks else "it gets no tasks yet"


def _left_group(f: Fields) -> str:
    tasks = f["tasks"]
    who = f"{f['worker']}, the leader," if f["led"] else f["worker"]
    if not tasks:
        rest = "left the group" if f["led"] else "is not in the group any more; it had no tasks"
        return f"Worker {who} {rest}."
    moved = f"moved to {shares(f['to'])}" if f["to"] else "without a worker now"
    return f"Worker {who} left the group; its {counted(len(tasks), 'task')} {moved}."


def _worker_lost(f: Fields) -> str:
    who = f"{f['worker']}, the leader," if f["led"] else f["worker"]
    why = (
        f"no heartbeat within its session_timeout ({f['session_timeout_s']:g} s), or it ended "
        "with an error"
    )
    tasks = f["tasks"]
    if not tasks:
        rest = "It had no tasks; no action needed for the others."
    elif f["to"]:
        move = "moves" if len(tasks) == 1 else "move"
        rest = f"Its {tasks_of(tasks)} {move} to {shares(f['to'])}. Look at the log of that worker."
    else:
        rest = f"Without a worker: {tasks_of(tasks)}. Start one."
    return f"Worker {who} is gone: {why}. {rest}"


def _waits(f: Fields) -> str:
    waited = f"The rebalance has waited {f['seconds']:.0f} s"
    if f["phase"] == "plan":
        leader = f" (worker {f['leader']})" if f["leader"] else ""
        return f"{waited} for the plan of the leader{leader}; no action needed."
    others = names(f["workers"]) + " were in the group before" if f["workers"] else ""
    who = f"workers to rejoin: {others}" if others else "other workers to rejoin"
    return (
        f"{waited} for {who}. A worker that died is removed when its session_timeout ends; no "
        "action needed."
    )


def _code_differs(f: Fields) -> str:
    leader = f", worker {f['leader']}" if f["leader"] else ""
    verb = "does" if len(f["readers"]) == 1 else "do"
    return (
        f"Worker {f['worker']} runs other code than the leader{leader}: {names(f['readers'])} of "
        f"this code {verb} not run, or only in part, until all workers run the same code."
    )


def _idle(f: Fields) -> str:
    asks = "same code" in f["why"] or "create them" in f["why"]
    rest = "" if asks else "; no action needed"
    return f"Worker {f['worker']} has no tasks: {f['why']}{rest}."


def _lost(f: Fields) -> str:
    return (
        f"Worker {f['worker']} lost {tasks_of(f['tasks'])}: {f['reason']}. Others repeat what it "
        "had not committed; no action needed."
    )


def _leaving(f: Fields) -> str:
    if f.get("stays"):
        return (
            f"Worker {f['worker']} ends and stays in the group: its tasks wait for its next start."
        )
    until = f"by {f['deadline']} at the latest" if f["deadline"] else "as soon as others have them"
    if f.get("at_once"):
        return f"Worker {f['worker']} leaves at once: its tasks commit first; it is gone {until}."
    return f"Worker {f['worker']} leaves: others take over its tasks first; it is gone {until}."


def _left(f: Fields) -> str:
    state = f"; its state stays in {f['directory']}" if f.get("directory") else ""
    did = "ended, and stays in the group" if f.get("stays") else "left the group"
    return f"Worker {f['worker']} {did}{state}."


def _processed(f: Fields) -> str:
    rest = f"; {f['lag']:,} more wait here" if f["lag"] else ""
    if not f["records"]:
        return f"Processed no records for a while{rest}."
    return f"Processed {counted(f['records'], 'record')}, {f['per_second']:g} a second{rest}."


def _takes_long(f: Fields) -> str:
    body = [at.rpartition(":")[0] for at in f["waits_at"][:1]]
    own = [at for at in f["waits_at"] if at.rpartition(":")[0] in body]  # not those of libraries
    waits = f"; it waits at {own[-1]}" if own else ""
    return (
        f"Agent {f['operator']} has worked on one record for {f['seconds']} s: {f['topic']}-"
        f"{f['partition']} offset {f['offset']}, task {f['task']}{waits}. The task processes "
        "nothing meanwhile; give calls of other systems a time-out."
    )


def _stood_still(f: Fields) -> str:
    return (
        f"This worker stood still for {seconds(f['ms'])}: its process was stopped, the machine was "
        "busy, or code of the app blocked it. Run code that blocks, such as time.sleep, by "
        "asyncio.to_thread."
    )


def _restored(f: Fields) -> str:
    return (
        f"Restored task {f['task']} ({f['role']}): {f['restored']:,} of {f['end']:,} records of "
        "its changelogs."
    )


def _restoring(f: Fields) -> str:
    return (
        f"Restoring {tasks_of(f['tasks'])} from their changelogs: {f['percent']} %, "
        f"{counted(f['left'], 'record')} left."
    )


def _restore_over(f: Fields) -> str:
    return (
        f"Restored {tasks_of(f['tasks'])} from their changelogs: {counted(f['records'], 'record')}"
        f" in {f['ms'] / 1000:.0f} s."
    )


def _snapshot(f: Fields) -> str:
    return (
        f"Began store {f['store']} of task {f['task']} with snapshot {f['number']}: "
        f"{counted(f['rows'], 'row')}, {f['bytes']:,} bytes in {seconds(f['ms'])}."
    )


def _promoted(f: Fields) -> str:
    return (
        f"Task {f['task']} moved here and runs, {seconds(f['handover_ms'])} after its assignment; "
        f"its copy was {counted(f['lag'] or 0, 'record')} behind."
    )


def _aborted(f: Fields) -> str:
    rest = "" if f.get("stops") else "; no action needed"  # a line of its own says what to do
    return (
        f"The transaction was aborted: {f['why']}. {counted(f['tasks'], 'task')} "
        f"{'goes' if f['tasks'] == 1 else 'go'} back to the last commit{rest}."
    )


def _error(f: Fields) -> str:
    what, where = f["what"], f["where"]
    named = where == "worker" or where in what or where.removeprefix("task ") in what
    return sentence(what if named else f"{where}: {what}")


SENTENCES: Final[Mapping[str, Sentence]] = {
    "worker_started": Sentence(logging.INFO, _started),
    "rebalance_started": Sentence(logging.DEBUG, _round),
    "assigned": Sentence(logging.DEBUG, _assigned),
    "plan": Sentence(
        logging.DEBUG,
        lambda f: f"Plan of round {f['generation']}: {counted(len(f['decisions']), 'decision')}.",
    ),
    "revoked": Sentence(logging.DEBUG, lambda f: f"Gives up {tasks_of(f['tasks'])}."),
    "rebalanced": Sentence(logging.INFO, _rebalanced),
    "rebalance_waits": Sentence(logging.INFO, _waits),
    "worker_joined": Sentence(logging.INFO, _joined),
    "worker_restarted": Sentence(logging.INFO, _restarted),
    "worker_left": Sentence(logging.INFO, _left_group),
    "worker_lost": Sentence(logging.WARNING, _worker_lost),
    "worker_differs": Sentence(
        logging.WARNING,
        lambda f: (
            f"Worker {f['worker']} runs other code than this worker, which leads: parts of its app "
            "do not run there until all workers run the same code."
        ),
    ),
    "code_differs": Sentence(logging.WARNING, _code_differs),
    "idle": Sentence(logging.INFO, _idle),
    "lost": Sentence(logging.WARNING, _lost),
    "task": Sentence(
        logging.DEBUG, lambda f: f"Task {f['task']} ({f['role']}): {f['from']} to {f['to']}."
    ),
    "restore_progress": Sentence(logging.DEBUG, _restored),
    "restoring": Sentence(logging.INFO, _restoring),
    "restored": Sentence(logging.INFO, _restore_over),
    "snapshot_fetched": Sentence(logging.INFO, _snapshot),
    "learner_ready": Sentence(
        logging.DEBUG,
        lambda f: f"Learner {f['task']} is ready, {counted(f['lag'] or 0, 'record')} behind.",
    ),
    "promoted": Sentence(logging.DEBUG, _promoted),
    "first_record": Sentence(
        logging.DEBUG, lambda f: f"Task {f['task']} processed its first record."
    ),
    "processed": Sentence(logging.INFO, _processed),
    "commit": Sentence(
        logging.DEBUG,
        lambda f: (
            f"Committed {counted(f['records'], 'record')} of {counted(f['tasks'], 'task')} in "
            f"{seconds(f['ms'])}."
        ),
    ),
    "aborted": Sentence(logging.INFO, _aborted),
    "gap": Sentence(
        logging.DEBUG,
        lambda f: f"Task {f['task']} paused for {seconds(f['ms'])} in the rebalance.",
    ),
    "calm_gap": Sentence(
        logging.DEBUG,
        lambda f: (
            f"Task {f['task']} paused for {seconds(f['ms'])} at most in the {f['seconds']:.0f} s "
            "before the rebalance."
        ),
    ),
    "metrics": Sentence(
        logging.DEBUG, lambda f: f"The worker has had {counted(f['rebalance-total'], 'round')}."
    ),
    "leaving": Sentence(logging.INFO, _leaving),
    "stays": Sentence(
        logging.INFO, lambda f: f"Worker {f['worker']} stays: the request to leave was taken back."
    ),
    "left": Sentence(logging.INFO, _left),
    "record_takes_long": Sentence(logging.WARNING, _takes_long),
    "stood_still": Sentence(logging.WARNING, _stood_still),
    "error": Sentence(logging.ERROR, _error),
}  # fmt: skip
"""Sentence of each event. `failed` and `refused` have none: the log has a limited number of lines
about the same (`tasks/failure_reports`, `tasks/produce_errors`)."""
