"""Screen of the demo: live on a terminal, a line now and then elsewhere, and a summary at the end.

No line is wider than 80 columns. Without a terminal there are no control characters. The terminal
is restored at the end of the `with` block. Not here: the course of the demo (`story`), its checks
(`verdict`).
"""

import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamsx.tools.cli.progress import console_on, progress
from streamsx.tools.demonstration.group import (
    LEARNER,
    RUNNING,
    TAILING,
    DemoGroup,
    SeenTask,
    SeenWorker,
)
from streamsx.tools.demonstration.verdict import DemoResult

WIDTH = 80
REDRAWS_PER_S = 5
MOVES_SHOWN = 6
LEARNERS_SHOWN = 6
PARTITIONS = 8
GAPS = {"calm": "calm", "staying": "of tasks that stay", "moving": "of tasks that move"}


class DemoStage(Enum):
    """Stages of the demo, with their explanations on the screen."""

    START = """Workers start and share the word count. Tasks 0_* cut lines into words and
        keep nothing; tasks 1_* count each word and keep the counts."""
    CALM = """Nothing changes for a while. The longest pause that a task makes now is what
        all pauses that follow are compared with."""
    JOIN = """One worker more. Tasks without state move at once. The others run on where they
        are until the new worker has learned them."""
    LEAVE = """The first worker was told to leave. It runs on until others have learned its
        tasks, hands them over, and ends by itself."""
    DRAIN = "All of it was shown. The other lines follow, to the last one."
    COMPARE = "The workers stop. Each count is held against a plain count."

    @property
    def title(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class DemoView:
    """Contents of the screen.

    `result` holds the figures that are known so far. `left` counts records that are not committed
    yet. `feeds_s` is the time since the first line, in seconds. `stateful` holds the numbers of the
    sub-topologies with state.
    """

    group: DemoGroup
    result: DemoResult
    stateful: frozenset[int]
    stage: DemoStage = DemoStage.START
    seconds: float = 0.0
    feeds_s: float = 0.0
    sent: int = 0
    left: int = 0


@asynccontextmanager
async def screen(stream: TextIO) -> AsyncIterator[Callable[[DemoView], None]]:
    """Open the screen during the block; give a function that shows the newest view."""
    console = console_on(stream, markup=True)
    if console.is_terminal:
        with Live(console=console, screen=True, refresh_per_second=REDRAWS_PER_S) as live:
            yield lambda view: live.update(picture(view))
        return
    async with progress(stream, "workers start") as say:
        yield lambda view: say(line(view))


def conclude(stream: TextIO, result: DemoResult, notes: Iterable[str]) -> None:
    """Print the summary after the live screen has closed."""
    console = console_on(stream)
    word, style = ("ok", "green") if result["ok"] else (f"failed: {result['why']}", "red")
    title = textwrap.fill(f"streamsx demo: {word}", WIDTH)
    console.print(title, style=f"bold {style}", soft_wrap=True)
    for text in (*summary(result), *notes):
        console.print(text, soft_wrap=True)


# -- the live screen


def picture(view: DemoView) -> RenderableType:
    """Return the whole live screen, at most 80 columns wide."""
    words = textwrap.wrap(" ".join(view.stage.value.split()), WIDTH - 2)
    parts = (
        heading(view), Text("\n".join([*words, ""][:2]), "italic"), traffic(view), workers(view),
        learners(view.group), promoted(view.result),
    )  # fmt: skip
    spaced = (Constrain(Padding(part, (0, 1, 1, 1)), WIDTH) for part in parts)
    return Padding(Stack(*spaced), (1, 0, 0, 0))


def columns(widths: Sequence[int], *rows: Sequence[RenderableType]) -> Table:
    table = Table.grid()
    for width in widths:
        table.add_column(width=width, no_wrap=True, overflow="crop")
    for row in rows:
        table.add_row(*row)
    return table


def heading(view: DemoView) -> Table:
    steps = Text()
    for stage in DemoStage:
        style = "bold reverse" if stage is view.stage else "dim"
        steps.append(f" {stage.title} ", style).append(" ")
    return columns([15, 57, 6], ["[bold]streamsx demo", steps, f"[dim]{view.seconds:.0f} s"])


def traffic(view: DemoView) -> RenderableType:
    records = view.result["records"]
    bar = ProgressBar(records, view.sent, width=38, complete_style="cyan", finished_style="cyan")
    done = sum(worker.records for worker in view.group.workers.values())
    gaps = ((words, view.result[f"{name}_gap_ms_max"]) for name, words in GAPS.items())
    pauses = ", ".join(f"{words} {ms:.0f} ms" for words, ms in gaps if ms is not None)
    return Stack(
        columns([9, 40, 29], ["lines", bar, f"{view.sent:,} of {records:,}"]),
        f"in       {per_s(view.sent, view)}",
        f"done     {per_s(done, view)}, lines and words; {view.left:,} not committed",
        f"pauses   {pauses or 'not measured yet'}",
    )


def per_s(count: int, view: DemoView) -> str:
    """Return a count as a rate per second since the first line."""
    return f"{count / max(1.0, view.feeds_s):,.0f}/s"


def workers(view: DemoView) -> RenderableType:
    """Return a row for each worker with a cell for each task, so that moves are visible."""
    numbers = sorted({int(t[0]) for each in view.group.workers.values() for t in each.tasks})
    kinds = ["with state" if number in view.stateful else "no state" for number in numbers]
    digits = " ".join(map(str, range(PARTITIONS)))
    heads = (f"[dim]{number}_{digits}" for number in numbers)
    rows: list[list[RenderableType]] = [["", *kinds, "", "commits"], ["tasks", *heads, "", ""]]
    for name, worker in sorted(view.group.workers.items()):
        cells = [cells_of(worker, number, number in view.stateful) for number in numbers]
        doing = "[yellow]learns" if worker.learns() else worker.doing
        rows.append([f"[bold]{name}", *cells, doing, f"{worker.commits:7,}"])
    legend = Text("           █ runs   ▒ learns   ░ opens, closes", "dim")
    return Stack(columns([9, *[21 for _ in numbers], 11, 9], *rows), legend)


def cells_of(worker: SeenWorker, number: int, stateful: bool) -> Text:
    text = Text("  ")
    for partition in range(PARTITIONS):
        text.append(*sign_of(worker.tasks.get(f"{number}_{partition}"), stateful)).append(" ")
    return text


def sign_of(held: SeenTask | None, stateful: bool) -> tuple[str, str]:
    """Return the sign of a task on a worker, and the style of the sign."""
    if held is None:
        return "·", "dim"
    if held.role == LEARNER:
        return "▒", "yellow"
    return ("█" if held.state == RUNNING else "░"), ("green" if stateful else "blue")


def learners(group: DemoGroup) -> Table:
    rows: list[list[RenderableType]] = []
    for name, worker in sorted(group.workers.items()):
        for task, held in sorted(worker.learns().items()):
            bar = ProgressBar(max(1, held.end), held.restored, width=18, finished_style="yellow")
            how = f"{held.restored:,} of {held.end:,} rows"
            ready = "[yellow]follows" if held.state == TAILING else ""
            rows.append([f"[bold]{task}", f"{name} learns", bar, how, ready])
    return columns([9, 13, 20, 28, 8], *rows[:LEARNERS_SHOWN])


def promoted(result: DemoResult) -> Table:
    rows = [
        (
            f"[bold]{each['task']}",
            f"{each['from']} → {each['to']}",
            f"handed over in {each['handover_ms']:.0f} ms, learned in {each['learn_ms']:.0f} ms",
        )
        for each in reversed(result["promotions"][-MOVES_SHOWN:])
    ]
    return columns([9, 13, 56], *rows)


# -- words


def line(view: DemoView) -> str:
    """Return the state of the demo as one line, for output without a terminal."""
    held = ", ".join(
        f"{name} {len(worker.tasks) - len(worker.learns())}+{len(worker.learns())}"
        for name, worker in sorted(view.group.workers.items())
    )
    told = f"{view.seconds:3.0f} s  {view.stage.title}: {view.sent:,} lines"
    return f"{told}, {per_s(view.sent, view)}; tasks+learners: {held}"


TOLD = {
    "counted": "{records:,} lines, {distinct:,} different words: {mismatches:,} counts differ from "
    "a plain count of the same lines.",
    "learned": "{learned} tasks with state were learned while they ran on elsewhere, in "
    "{learn_ms:.0f} ms or less, and then handed over in {handover_ms:.0f} ms or less.",
    "left": "{instance} was asked to leave: {tasks_moved} tasks moved, and it ended by itself "
    "after {ms:,.0f} ms with exit code {exit_code:d}.",
    "stayed": "Tasks that stayed where they were paused for {staying_gap_ms_max:.0f} ms at most "
    "during {rebalances} rebalances; without any it had been {calm_gap_ms_max:.0f} ms.",
    "moved": "Tasks that moved paused for {moving_gap_ms_max:.0f} ms at most.",
    "cost": "{records_per_cpu_s:,.0f} lines per CPU second of the workers.",
}


def summary(result: DemoResult) -> Iterator[str]:
    """Yield the results as sentences; leave out results that the demo has not reached."""
    known = {**result, **result["leave"], "learned": len(result["promotions"]) or None}
    for name in ("learn_ms", "handover_ms"):
        known[name] = max((each[name] for each in result["promotions"]), default=None)
    for name, text in TOLD.items():
        with suppress(TypeError):  # None has no such format
            told = f"{name:>9}  {text.format_map(known)}"
            yield textwrap.fill(told, WIDTH, subsequent_indent=" " * 11)
