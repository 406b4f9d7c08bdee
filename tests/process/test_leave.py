"""Workers that are asked to leave, by name and from outside, while they count: on both brokers.

The output of the tool is compared with the events of the workers.
"""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from streamsx.clock import SystemClock
from streamsx.protocol.record_batch import Builder
from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.command import streamsx
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 400
PAUSE_MS_MAX = 2_000
"""Of a task that stays: 30 to 110 here, more on a busy machine. A worker that stopped for a
rebalance would stand still for longer: at rest the group takes up to 3 s to gather."""
AT_REST_MS_MAX = 20_000
"""Of a leave: 1 to 4 s, most of it a heartbeat interval until the tool is let in."""
LONG_RECORDS = 6_000_000
BATCH_BYTES = 900_000


class Tools:
    """Command line `streamsx COMMAND` for the app of the test."""

    def __init__(self, bootstrap: str, app: str) -> None:
        self._where = ("--app", app, "--bootstrap", bootstrap)

    def begin(
        self, name: str, *options: str, terminal: int | None = None
    ) -> "subprocess.Popen[str]":
        """Start the tool; with a `terminal` it reads from there, and writes errors there."""
        words = (sys.executable, "-m", "streamsx", name, *self._where, *options)
        err = subprocess.PIPE if terminal is None else terminal
        return subprocess.Popen(
            words, stdin=terminal, stdout=subprocess.PIPE, stderr=err, text=True
        )

    def run(self, name: str, *options: str) -> tuple[int, Mapping[str, Any]]:
        """Return the exit code, and the JSON object of the result."""
        tool = self.begin(name, "--json", *options)
        out, error = tool.communicate()
        return tool.returncode, shown(out, error)

    def status(self) -> tuple[int, Mapping[str, Any]]:
        """Return what `run` returns, from a call in this process."""
        done = streamsx("status", *self._where, "--json")
        return done.returncode, shown(done.stdout, done.stderr)

    def leave(self, instances: str, *options: str) -> tuple[int, Mapping[str, Any]]:
        code, told = self.run("leave", "--instances", instances, *options)
        assert list(told["instances"]) == instances.split(",")
        return code, told["instances"]


def shown(out: str, error: str) -> Mapping[str, Any]:
    assert "\x1b" not in out + error
    (line,) = out.splitlines()
    found: Mapping[str, Any] = json.loads(line)
    return found


@pytest.fixture
def tools(broker: EmbeddedBroker | ApacheKafka, wordcount: WordCount) -> Tools:
    return Tools(broker.bootstrap, wordcount.app)


def balanced(workers: Workers) -> bool:
    """Return whether each worker has about its share of the 8 tasks."""
    return all(len(active) >= 2 for active in workers.active().values())


def outcome(
    left: tuple[int, Mapping[str, Any]],
) -> tuple[int, dict[str, tuple[str, int, int]]]:
    """Return the exit code, and by worker: state, tasks moved, tasks left."""
    code, found = left
    return code, {
        name: (told["state"], told["tasks_moved"], told["tasks_left"])
        for name, told in found.items()
    }


@SLOW_ON_KAFKA
def test_worker_leaves_when_others_have_learned_the_tasks(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    workers.start("a", "b", "c", acceptable_recovery_lag=100, heartbeat_interval="1s")
    wordcount.feed(LINES_PER_S)
    workers.until(lambda: balanced(workers), "balanced")
    _, before = tools.status()
    asked = workers.now()

    left = tools.leave("b")

    mine = before["instances"]["b"]["active"]
    assert outcome(left) == (0, {"b": ("left", len(mine), 0)})
    assert workers.code("b") == 0
    counted = [task for task in mine if task.startswith("1_")]
    for task in counted:
        learned = workers.until_event("learner_ready", task=task, since=asked)
        released = workers.until_event("task", of="b", task=task, to="closing", since=asked)
        promoted = workers.until_event("promoted", task=task, since=asked)
        assert learned["mono"] < released["mono"] < promoted["mono"]
        assert learned["instance"] == promoted["instance"] != "b"
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    assert all(gap["ms"] < PAUSE_MS_MAX for gap in workers.events("gap"))
    _, after = tools.status()
    assert sorted(after["instances"]) == ["a", "c"]
    assert after["tasks"] == sum(len(it["active"]) for it in after["instances"].values()) == 8
    for here in after["instances"].values():
        assert list(here["lag"]) == here["active"]
        assert None not in here["lag"].values()
        assert list(here["committed"]) == here["active"]
    code, checked = tools.run("status", "--check")
    assert (code, checked["ok"], checked["wrong"]) == (0, True, "")


@pytest.mark.slow
@SLOW_ON_KAFKA
def test_idle_group_lets_two_workers_leave_at_once_then_the_last(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    workers.start("a", "b", "c")
    workers.until(lambda: balanced(workers), "balanced")
    _, before = tools.status()
    last = next(name for name in "abc" if name != before["leader"])
    others = [name for name in "abc" if name != last]

    left = tools.leave(",".join(others))

    shares = {name: len(before["instances"][name]["active"]) for name in "abc"}
    assert outcome(left) == (0, {name: ("left", shares[name], 0) for name in others})
    assert max(told["ms"] for told in left[1].values()) < AT_REST_MS_MAX
    assert [workers.code(name) for name in others] == [0, 0]

    assert outcome(tools.leave(last)) == (0, {last: ("left", 0, 8)})
    assert workers.code(last) == 0
    assert not workers.events("lost", "error")
    code, told = tools.status()
    assert (code, told["state"], told["instances"]) == (0, "Empty", {})
    explain = tools.begin("explain")
    assert "no rebalance to explain" in explain.communicate()[1]
    assert explain.returncode == 3
    assert outcome(tools.leave(last)) == (3, {last: ("unknown", 0, 0)})


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_person_at_a_terminal_is_asked_before_the_last_worker_leaves(
    broker: EmbeddedBroker, wordcount: WordCount, workers: Workers, tools: Tools
) -> None:
    workers.start("a")
    workers.until(lambda: len(workers.held("a")) == 8, "a runs all tasks")

    def answered(answer: bytes) -> tuple[int, bytes]:
        screen, keyboard = pty.openpty()
        with tools.begin("leave", "--instances", "a", terminal=keyboard) as tool:
            os.close(keyboard)
            said = b""
            while b"[y/N] " not in said:
                said += os.read(screen, 4096)
            os.write(screen, answer)
            code = tool.wait()
        os.close(screen)
        return code, said

    code, said = answered(b"n\n")
    assert code == 1
    assert b"warning: no worker of the app stays: its 8 tasks stand still until" in said
    assert workers.all["a"].alive
    workers.all["a"].expected = True
    assert answered(b"y\n")[0] == 0
    assert workers.code("a") == 0


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_swap_replaces_a_host_and_no_other_worker_learns_tasks(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    """c joins and is named as successor at once; tasks that it got before that are its own."""
    workers.start("a", "b", acceptable_recovery_lag=100)
    wordcount.feed(LINES_PER_S)
    workers.until(lambda: balanced(workers), "balanced")
    for new, code in (("c", 3), ("b", 2)):
        tool = tools.begin("swap", "--old", "b", "--new", new)
        _, error = tool.communicate()
        assert (tool.returncode, error[:7]) == (code, "error: ")
    workers.start("c", acceptable_recovery_lag=100)
    workers.until_event("assigned", of="c")
    asked = workers.now()

    code, told = tools.run("swap", "--old", "b", "--new", "c")

    swapped = told["instances"]["b"]
    assert (code, swapped["state"], swapped["tasks_left"]) == (0, "left", 0)
    assert workers.code("b") == 0
    given = {e["task"] for e in workers.events("task", of="b", to="closing") if e["mono"] > asked}
    assert len(given) >= 2
    for task in (task for task in given if task.startswith("1_")):
        assert workers.until_event("promoted", task=task, since=asked)["instance"] == "c"
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    assert workers.stop("a", "c") == [0, 0]


# With one partition b runs what counts, and a learns it for longer than three commands take, and
# than the shortest deadline lasts.


def started_with_a_long_changelog(workers: Workers, wordcount: WordCount) -> int:
    """Start a worker on a long changelog; return its length. Later counts come after it."""
    (changelog,) = wordcount.changelog
    wordcount.client.create(changelog.topic, 1, {"cleanup.policy": "compact"})
    batch = Builder(BATCH_BYTES, compression="lz4")
    now_ms = int(SystemClock().wall() * 1000)
    while batch.append(now_ms, b'"# %d"' % (batch.count % 500), b"1"):
        pass
    data = batch.close()
    for _ in range(LONG_RECORDS // batch.count):
        wordcount.client.send_raw(changelog, data)
    (length,) = wordcount.client.ends([changelog]).values()
    workers.start("b", heartbeat_interval="500ms")
    workers.until(lambda: workers.active()["b"] == {"0_0", "1_0"}, "b runs both")
    workers.start("a", heartbeat_interval="500ms")
    workers.until(lambda: workers.active()["a"] == {"0_0"}, "a runs one")
    wordcount.feed(LINES_PER_S)
    return length


def check(workers: Workers, wordcount: WordCount, since: int) -> None:
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts(since) == wordcount.words


@pytest.mark.parametrize("wordcount", [1], indirect=True)
@SLOW_ON_KAFKA
@pytest.mark.slow
def test_leave_mark_outlives_an_interrupted_tool_until_cancelled(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    length = started_with_a_long_changelog(workers, wordcount)
    tool = tools.begin("leave", "--instances", "b")
    workers.until_event("leaving", of="b")

    tool.send_signal(signal.SIGINT)

    out, error = tool.communicate()
    assert (tool.returncode, out) == (130, "")
    assert error == (
        "interrupted: the workers that were asked to leave still do: --cancel takes it back\n"
    )
    assert len(wordcount.client.members(wordcount.app)) == 2
    assert outcome(tools.leave("b,z", "--no-wait")) == (
        3, {"b": ("leaving", 0, 1), "z": ("unknown", 0, 0)},
    )  # fmt: skip

    code, found = tools.leave("b", "--cancel")

    assert (code, found["b"]["state"]) == (0, "cancelled")
    workers.until_event("stays", of="b")
    _, after = tools.status()
    assert {name: it["state"] for name, it in after["instances"].items()} == {
        "a": "running", "b": "running",
    }  # fmt: skip
    check(workers, wordcount, length)
    assert workers.stop("a", "b") == [0, 0]


@pytest.mark.parametrize("wordcount", [1], indirect=True)
@SLOW_ON_KAFKA
@pytest.mark.slow
def test_worker_leaves_at_the_deadline_with_tasks_not_learned(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    length = started_with_a_long_changelog(workers, wordcount)
    tool = tools.begin("leave", "--instances", "b", "--json", "--timeout", "2s")
    workers.until_event("assigned", of="a", learner=["1_0"])

    out, _ = tool.communicate()
    found = json.loads(out)["instances"]
    assert outcome((tool.returncode, found)) == (1, {"b": ("timeout", 0, 1)})
    assert workers.code("b") == 0
    workers.until(lambda: workers.active() == {"a": {"0_0", "1_0"}}, "a runs both")
    check(workers, wordcount, length)
    assert not workers.events("error")
    assert workers.stop("a") == [0]


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_group_of_protocol_type_stream_is_led_and_left_like_others(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    workers.start("a", "b", protocol_type="stream")
    wordcount.feed(LINES_PER_S)
    workers.until(lambda: balanced(workers), "balanced")
    workers.start("c", commit_interval="1s")
    assert workers.code("c") == 1
    assert "workers with another protocol_type" in workers.error("c")

    code, told = tools.leave("b")

    assert (code, told["b"]["state"]) == (0, "left")
    assert workers.code("b") == 0
    assert tools.status()[1]["state"] == "Stable"
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.surplus() == 0
    assert workers.stop("a") == [0]


TOOL_SESSION_S, SLACK_S = 6.0, 20.0


def calm(workers: Workers) -> bool:
    """Wait until the last rebalance of each worker is half a second old."""
    last = {e["instance"]: e["event"] for e in workers.events("assigned", "metrics")}
    return balanced(workers) and set(last.values()) == {"metrics"} and len(last) == len(workers.all)


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_killed_leave_tool_delays_the_group_by_at_most_one_session(
    workers: Workers, wordcount: WordCount, tools: Tools
) -> None:
    """The tool counts as a member once it has a member id. By then the group has its request, or
    the next call of the tool sends it again.
    """
    workers.start("a", "b", "c")
    wordcount.feed(LINES_PER_S)
    workers.until(lambda: calm(workers), "calm")
    asked = workers.now()
    tool = tools.begin("leave", "--instances", "b", "--timeout", "60s")
    workers.all["b"].expected = True
    workers.until_event("rebalance_started", since=asked)

    tool.kill()
    tool.communicate()

    killed = workers.now()
    code, told = tools.leave("b", "--timeout", "60s")
    assert (code, told["b"]["state"]) in ((0, "left"), (3, "unknown"))
    assert workers.code("b") == 0
    assert workers.now() - killed < TOOL_SESSION_S + SLACK_S
    workers.until_event("gap", since=killed)
    longest = max(e["ms"] for e in workers.events("gap") if e["mono"] > asked)
    assert longest < PAUSE_MS_MAX
    wordcount.enough()
    workers.until(lambda: wordcount.drained, "drained")
    assert wordcount.counts() == wordcount.words
    assert not workers.events("lost", "error")
    assert workers.stop("a", "c") == [0, 0]
