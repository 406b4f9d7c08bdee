"""`streamsx demo` as CONTRACTS.md describes it, on the embedded broker: small, interrupted,
robbed.
"""

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Moment
from time import perf_counter
from typing import Any

import pytest

from streamsx.errors import BrokerUnreachable
from streamsx.tools import demo
from streamsx.tools.demonstration import story
from tests.support.command import streamsx

HURRIED = {**os.environ, "STREAMSX_HEARTBEAT_INTERVAL": "500ms"}
FIELDS = [
    "ok", "records", "distinct", "mismatches", "workers", "rebalances", "promotions", "leave",
    "calm_gap_ms_max", "staying_gap_ms_max", "moving_gap_ms_max", "records_per_s",
    "records_per_cpu_s", "seconds",
]  # fmt: skip
WAIT_S = 60.0


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "streamsx", "demo", *options]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*options), check=False, capture_output=True, text=True, env=HURRIED
    )


def children(pid: int) -> dict[str, int]:
    """Return the processes of a demo: pids by the names of their logs. Works on Linux only."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    found = {}
    for child in " ".join(file.read_text() for file in threads).split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        named = "--instance-id" in words
        found[words[words.index("--instance-id") + 1] if named else words[3]] = int(child)
    return found


@contextmanager
def running(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", dict[str, int]]]:
    """Start a demo, wait until its workers have joined, and yield it with its processes."""
    with subprocess.Popen(
        command("--json", "--dir", str(folder)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=HURRIED,
    ) as process:  # fmt: skip
        until = perf_counter() + WAIT_S
        while len(told := [f for f in folder.glob("*/w?.jsonl") if f.stat().st_size]) < 2:
            assert perf_counter() < until, told
            Moment().wait(0.05)
        try:
            yield process, children(process.pid)
        finally:
            process.kill()


def ended(pids: Iterator[int]) -> bool:
    """Return whether all of the processes are gone, or go soon."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        readable, _, _ = select.select([handle], [], [], WAIT_S)  # once it has ended
        os.close(handle)
        if not readable:
            return False
    return True


def result_of(stdout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_small_demo_succeeds_and_leaves_files(tmp_path: Path) -> None:
    done = run("--json", "--records", "4000", "--dir", str(tmp_path))
    result = result_of(done.stdout)

    assert done.returncode == 0, done.stderr
    assert list(result)[: len(FIELDS)] == FIELDS
    assert (result["ok"], result["records"], result["mismatches"]) == (True, 4000, 0)
    assert result["workers"] == ["w1", "w2", "w3"]
    assert any(promotion["to"] == "w3" for promotion in result["promotions"])
    assert (result["leave"]["instance"], result["leave"]["exit_code"]) == ("w1", 0)
    assert done.stdout.count("\n") == 1
    assert not re.search(r"[^\n\x20-\x7e]", done.stdout + done.stderr)
    assert "streamsx demo: ok" in done.stderr
    (folder,) = tmp_path.iterdir()
    assert (folder / "w3.jsonl").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists children")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
        (signal.SIGKILL, -9),
    ],
)
def test_signalled_demo_leaves_no_process_running(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running(tmp_path) as (process, found):
        assert sorted(found) == ["broker", "w1", "w2"]
        process.send_signal(number)
        assert process.wait(WAIT_S) == code
        assert ended(iter(found.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists children")
@pytest.mark.parametrize("name", [pytest.param("broker", marks=pytest.mark.slow), "w2"])
def test_demo_names_the_killed_process_with_the_end_of_the_log(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as (process, found):
        os.kill(found[name], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=WAIT_S)
        assert ended(iter(found.values()))
    (log,) = tmp_path.glob(f"*/{name}.log")
    result = result_of(stdout)

    assert process.returncode == 1
    assert (result["ok"], result["mismatches"]) == (False, None)
    assert result["why"] == f"{name} ended unexpectedly, killed by SIGKILL: see {log}"
    assert log.read_text().splitlines()[-1] in stderr


def test_demo_over_the_time_limit_fails_and_names_the_stage(tmp_path: Path) -> None:
    done = run("--seconds-limit", "2", "--json", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "not done in 2 s" in result_of(done.stdout)["why"]
    why = result_of(done.stdout)["why"]
    assert re.search("it was at '(start|calm)': allow more with --seconds-limit", why), why


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--unknown"], "unrecognized arguments: --unknown"),
        (["--records", "0"], "not a whole number from 1 on"),
        (["--records", "many"], "--records"),
        (["--workers", "0"], "--workers"),
        (["--workers", "8"], "--workers"),
        (["--seconds-limit", "soon"], "a duration is written"),
        (["--bootstrap", "nowhere"], "write HOST:PORT"),
        (["--dir", __file__], "Not a directory: give --dir one that can be written"),
    ],
)
def test_bad_demo_options_are_one_line_and_exit_code_2(options: list[str], said: str) -> None:
    done = streamsx("demo", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_ends_in_30_s_when_the_cluster_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert story.START_TIMEOUT_S < 30
    assert BrokerUnreachable.exit_code == 4
    monkeypatch.setattr(story, "START_TIMEOUT_S", 0.3)
    for name in (*story.SETTINGS, "WORDCOUNT_NAME"):
        monkeypatch.setenv(name, "put back behind the test")
    options = argparse.Namespace(
        records=1, workers=1, bootstrap="127.0.0.1:1", dir=str(tmp_path), keep=False,
        seconds_limit=10.0, json=True, people=sys.stderr,
    )  # fmt: skip
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker in 0.3 s: 127.0.0.1:1"):
        demo.show(options)


def test_demo_help_imports_nothing_slow() -> None:
    code = "import sys, streamsx.tools.demo; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"asyncio", "aiokafka", "faust", "rich"} & set(modules)
