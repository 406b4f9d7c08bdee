"""Bugs of ours in a callback of asyncio, on either thread: the process ends and prints
the story.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

IN_TIME_S = 40.0
"""The other thread is waited for 5 s at most; a busy machine."""

DATA_LOOP = """
from streamsx.tasks.state_machine import TABLE, TaskEvent, TaskState
from streamsx.model import Role

del TABLE[Role.ACTIVE][TaskEvent.START, TaskState.CREATED]  # what an assignment asks for first
"""
CONTROL_THREAD = """
from streamsx.group import member, member_events

member.TABLE[member_events.Timer.HEARTBEAT] = (*[member.Unmoved.IMPOSSIBLE] * 5, "")
"""


@pytest.fixture
def planted(
    request: pytest.FixtureRequest,
    broker: EmbeddedBroker | ApacheKafka,
    wordcount: WordCount,
    tmp_path: Path,
) -> Iterator[Workers]:
    """Return workers of an app that breaks one of our machines."""
    (tmp_path / "planted.py").write_text(
        f"from streamsx.examples.wordcount import app\n{request.param}"
    )
    env = {
        "PYTHONPATH": str(tmp_path), "STREAMSX_HEARTBEAT_INTERVAL": "200ms", **wordcount.env,
    }  # fmt: skip
    folder = tmp_path / "workers"
    with Workers(broker.bootstrap, folder, app="planted:app", env=env) as workers:
        yield workers


@pytest.mark.parametrize(
    "planted", [DATA_LOOP, CONTROL_THREAD], ids=["data loop", "control thread"], indirect=True
)
@SLOW_ON_KAFKA
def test_internal_fault_in_a_callback_ends_the_worker_process(planted: Workers) -> None:
    planted.start("a")

    assert planted.code("a", IN_TIME_S) == 1

    log = planted.log("a")
    assert "Traceback" in log
    assert "InvalidTransition" in log
    assert "story" in planted.error("a")
