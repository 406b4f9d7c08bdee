"""Reasons why a worker runs no tasks, in the log."""

import logging

import pytest

from streamsx.assignor.wire import AssignmentView
from streamsx.clock import SystemClock
from streamsx.journal import Journal
from streamsx.tasks.idle_log import IdleLog


@pytest.fixture
def idle(caplog: pytest.LogCaptureFixture) -> IdleLog:
    caplog.set_level(logging.INFO, "streamsx")
    return IdleLog({0: ["add"], 1: ["sum", "add"]}, Journal("c", SystemClock()))


def test_worker_without_tasks_says_why_once(
    idle: IdleLog, caplog: pytest.LogCaptureFixture
) -> None:
    for why in ("the app has 4 tasks and 5 workers", "the app has 4 tasks and 6 workers", ""):
        idle.assigned(AssignmentView(idle=why))
        idle.settled()
    assert caplog.messages == [
        "Worker c has no tasks: the app has 4 tasks and 5 workers; no action needed."
    ]


def test_reason_of_a_round_that_another_one_follows_is_not_logged(
    idle: IdleLog, caplog: pytest.LogCaptureFixture
) -> None:
    idle.assigned(AssignmentView(idle="the app has 4 tasks and 5 workers"))
    idle.assigned(AssignmentView())
    idle.settled()
    assert caplog.messages == []


def test_agents_that_the_leader_runs_otherwise_are_named_once(
    idle: IdleLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        idle.assigned(AssignmentView(led_by="a", differs=frozenset({1, 7})))
        idle.settled()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "Worker c runs other code than the leader, worker a: add and sum of this code do not run, "
        "or only in part, until all workers run the same code."
    )
