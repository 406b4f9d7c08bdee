"""The points at which a process of a test dies."""

import os
import signal

import pytest

from streamsx.tasks.crash_points import CrashPoint


def test_process_is_killed_on_the_nth_pass_of_the_fault_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *about: died.append(about))
    once, twice, never = CrashPoint("after_seal"), CrashPoint("after_seal:2"), CrashPoint("")
    for fault in (once, twice, never):
        fault.reached("after_flush")
    assert died == []
    once.reached("after_seal")
    assert died == [(os.getpid(), signal.SIGKILL)]
    died.clear()
    for expected in (0, 1, 1):
        twice.reached("after_seal")
        assert len(died) == expected
    never.reached("after_seal")
    assert len(died) == 1
