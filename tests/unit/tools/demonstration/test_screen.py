"""Output of the demo: on a terminal, in a file, at the end."""

import asyncio
import io
import re
import threading

import pytest
from rich.console import Console

from streamsx.tools.cli import progress
from streamsx.tools.demonstration.group import DemoGroup, SeenTask, SeenWorker
from streamsx.tools.demonstration.screen import (
    DemoStage,
    DemoView,
    conclude,
    picture,
    screen,
    summary,
)
from streamsx.tools.demonstration.verdict import DemoFacts, DemoResult, verdict

WORKERS = tuple(f"w{number}" for number in range(1, 9))
FACTS = DemoFacts(records=10**9, workers=WORKERS, stateful=frozenset({1}))
RESULT: DemoResult = {
    **verdict((), FACTS),
    "ok": True,
    "distinct": 8831,
    "mismatches": 0,
    "rebalances": 7,
    "promotions": [
        {"task": f"1_{n}", "from": "w1", "to": "w3", "learn_ms": 90.4 + n, "handover_ms": 9_999.4}
        for n in range(8)
    ],
    "leave": {"instance": "w1", "tasks_moved": 5, "ms": 1700.2, "exit_code": 0},
    "calm_gap_ms_max": 22.2,
    "staying_gap_ms_max": 48.4,
    "moving_gap_ms_max": 155.0,
    "records_per_cpu_s": 10_000.4,
    "why": "",
}


class Paper(io.StringIO):
    """Output that is no terminal; `lines` are counted as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = asyncio.Semaphore(0)

    def flush(self) -> None:
        self.lines.release()


class Terminal(io.StringIO):
    """Terminal; `drawn` is set once the picture is on it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "streamsx demo" in text:
            self.drawn.set()
        return super().write(text)


def view(stage: DemoStage = DemoStage.JOIN) -> DemoView:
    """Return a view of the largest width and height."""
    tasks = {f"{number}_{n}": SeenTask("active", "running") for number in (0, 1) for n in range(4)}
    tasks |= {f"1_{n}": SeenTask("learner", "tailing", 10**6, 10**6) for n in (4, 5, 6, 7)}
    tasks |= {"0_7": SeenTask("active", "opening")}
    group = DemoGroup({name: SeenWorker("has left", tasks, commits=10**6) for name in WORKERS})
    return DemoView(group, RESULT, frozenset({1}), stage, 12345.6, 12345.6, 10**9, 10**9)


@pytest.mark.parametrize("stage", DemoStage)
def test_picture_is_no_wider_than_80_columns(stage: DemoStage) -> None:
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as drawn:
        console.print(picture(view(stage)))
    assert max(len(line.rstrip()) for line in drawn.get().splitlines()) <= 80


def test_picture_does_not_wrap_in_80_columns() -> None:
    heights = []
    for width in (80, 200):
        console = Console(file=io.StringIO(), width=width)
        with console.capture() as drawn:
            console.print(picture(view()))
        heights.append(drawn.get().count("\n"))
    assert heights[0] == heights[1]


def test_tasks_are_drawn_by_their_state() -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as drawn:
        console.print(picture(view()))
    row = next(line for line in drawn.get().splitlines() if line.startswith(" w1  "))
    assert row.split() == ["w1", *"████···░", *"████▒▒▒▒", "learns", "1,000,000"]
    assert "1_4" in drawn.get()
    assert "w1 → w3" in drawn.get()


async def shown(terminal: Terminal) -> None:
    """Show a hundred views at once, until one is drawn."""
    async with screen(terminal) as show:
        for _ in range(100):
            show(view())
        await asyncio.to_thread(terminal.drawn.wait, 30)


def test_file_output_gets_plain_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.01)
    file = Paper()

    async def two_lines() -> None:
        async with screen(file) as show:
            for _ in range(2):
                for _ in range(100):
                    show(view())
                await file.lines.acquire()

    asyncio.run(two_lines())
    conclude(file, RESULT, ["Its files: [bold]/tmp/x[/]"])
    told = file.getvalue()
    assert told.count("join: 1,000,000,000 lines, 81,001/s") == 2
    assert told.endswith("Its files: [bold]/tmp/x[/]\n")
    assert not re.search(r"[^\n\x20-\x7e]", told)


def test_terminal_is_redrawn_at_intervals_and_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    asyncio.run(shown(terminal))
    drawn = terminal.getvalue()
    assert 1 <= drawn.count("streamsx demo") < 50  # of 100 views, however late this one wakes up
    assert drawn.index("\x1b[?1049h") < drawn.index("\x1b[?1049l")  # the other screen, and back
    assert drawn.index("\x1b[?25l") < drawn.rindex("\x1b[?25h")  # no cursor, and a cursor


def test_terminal_is_restored_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()

    async def crash() -> None:
        async with screen(terminal) as show:
            show(view())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(crash())
    assert terminal.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_no_color_disables_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    asyncio.run(shown(terminal))
    conclude(terminal, RESULT, [])
    styles = re.findall(r"\x1b\[([\d;]*)m", terminal.getvalue())
    assert styles
    assert not {part for style in styles for part in style.split(";")} & {"31", "32", "33", "38"}


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()

    async def dumb() -> None:
        async with screen(terminal) as show:
            show(view())

    asyncio.run(dumb())
    conclude(terminal, RESULT, [])
    assert "streamsx demo: ok" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_summary_lists_the_proven_results() -> None:
    told = "\n".join(summary(RESULT))
    assert "0 counts differ" in told
    assert "8 tasks with state were learned" in told
    assert "in 97 ms" in told
    assert "w1 was asked to leave: 5 tasks moved" in told
    assert "48 ms at most" in told
    assert max(map(len, told.splitlines())) <= 80


def test_summary_omits_stages_not_reached() -> None:
    assert list(summary(verdict((), FACTS))) == []
