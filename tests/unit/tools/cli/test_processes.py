"""Child processes: output, cost and exit codes; none is left behind."""

import os
import select
import signal
import sys
from pathlib import Path
from resource import struct_rusage
from threading import Event

import pytest

from streamsx.tools.cli.processes import Child, Died

FOR_EVER = "import threading; threading.Event().wait()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready');" + FOR_EVER


def child(folder: Path, code: str, *, prints: bool = False) -> Child:
    return Child("c", folder / "c.log", [sys.executable, "-uc", code], prints=prints)


def test_ended_child_has_an_exit_code_a_cost_and_a_log(tmp_path: Path) -> None:
    ended = child(tmp_path, "import sys; print('out'); sum(range(10**6)); sys.exit('err')")
    assert ended.wait(30) == ended.code == 1
    assert 0.001 < ended.cpu_s < 30
    assert ended.tail() == ["out", "err"]
    assert child(tmp_path, "print('again')").wait(30) == 0
    assert ended.tail(2) == ["err", "again"]
    ended.send(signal.SIGTERM)  # to nobody


def test_running_child_has_no_exit_code_and_receives_signals(tmp_path: Path) -> None:
    runs = child(tmp_path, FOR_EVER)
    with pytest.raises(TimeoutError):
        runs.wait(0.01)
    assert runs.code is None
    runs.send(signal.SIGTERM)
    assert runs.wait(30) == -signal.SIGTERM


def test_ready_line_of_a_child_is_returned(tmp_path: Path) -> None:
    ready = child(tmp_path, f"print('ready 127.0.0.1:1'); {FOR_EVER}", prints=True)
    assert ready.ready() == "127.0.0.1:1"
    assert ready.kill() == ready.code == -signal.SIGKILL


@pytest.mark.parametrize("code", [f"print('hello'); {FOR_EVER}", "import sys; sys.exit('no')"])
def test_child_that_does_not_get_ready_is_killed_and_reported(code: str, tmp_path: Path) -> None:
    odd = child(tmp_path, code, prints=True)
    with pytest.raises(Died, match=r"c ended unexpectedly, .*c\.log"):
        odd.ready()
    assert odd.code is not None


def test_child_ending_while_killed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits has the exit status already, and has not passed it on."""
    reaped, go_on, wait4 = Event(), Event(), os.wait4

    def slow(pid: int, options: int) -> tuple[int, int, struct_rusage]:
        told = wait4(pid, options)
        reaped.set()
        go_on.wait(30)
        return told

    monkeypatch.setattr(os, "wait4", slow)
    ends = child(tmp_path, "")
    assert reaped.wait(30)
    ends.send(signal.SIGKILL)
    go_on.set()
    assert ends.kill() == 0


def test_child_ignoring_sigterm_is_killed_after_a_while(tmp_path: Path) -> None:
    stubborn = child(tmp_path, DEAF, prints=True)
    stubborn.ready()
    assert stubborn.stop(0.01) == -signal.SIGKILL
    assert child(tmp_path, FOR_EVER).stop() == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_child_does_not_outlive_the_parent(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from streamsx.tools.cli.processes import Child;"
        f"child = Child('c', Path('c.log'), [sys.executable, '-c', {FOR_EVER!r}]);"
        f"print('ready', child.pid); {FOR_EVER}"
    )
    command = [sys.executable, "-uc", code]
    parent = Child("p", tmp_path / "p.log", command, folder=tmp_path, prints=True)
    grandchild = os.pidfd_open(int(parent.ready()))
    parent.kill()
    ended, _, _ = select.select([grandchild], [], [], 10)  # readable once its process has ended
    os.close(grandchild)
    assert ended
