"""Clients of all kinds on a broker that is killed: their histories are judged."""

import os
from pathlib import Path

import pytest

from tests.support.embedded_broker import EmbeddedBroker
from tests.support.history.anomalies import Kind, told
from tests.support.history.judge import forbidden, judge
from tests.support.history.recording import EVERYBODY, Recording

SHORT_S, LONG_S = 3.0, 10.0


def record(seed: int, duration_s: float, folder: Path, *options: str) -> None:
    """Record a history; raise AssertionError for a forbidden anomaly or a client that is stuck."""
    journals = folder / "journals"
    journals.mkdir()
    with (
        EmbeddedBroker(folder / "broker", *options) as broker,
        Recording(seed, broker, journals, EVERYBODY) as recording,
    ):
        history = recording.run(duration_s)
    found = forbidden(judge(history))
    assert not found, f"seed {seed}: {len(found)} anomalies\n{told(found[:5], history)}"


class Forgetful(EmbeddedBroker):
    """Broker that has lost the end of its logs when it is back after a kill."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._logs = folder

    def kill(self) -> None:
        super().kill()
        for log in self._logs.rglob("history-*/*.log"):
            os.truncate(log, log.stat().st_size // 2)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_broker_losing_acknowledged_records_is_detected(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    kinds = ("plain", "transactional", "reader", "uncommitted")
    with (
        Forgetful(tmp_path / "broker") as broker,
        Recording(7, broker, journals, kinds) as recording,
    ):
        history = recording.run(SHORT_S)
    found = {anomaly.kind for anomaly in forbidden(judge(history))}
    assert {Kind.LOST_WRITE, Kind.INCONSISTENT_OFFSET} <= found


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_client_history_on_a_killed_broker_keeps_the_kafka_promises(
    tmp_path: Path,
) -> None:
    record(1, SHORT_S, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [(), ("--sync",)], ids=["interval", "sync"])
@pytest.mark.parametrize("seed", range(10))
def test_twenty_client_histories_with_kills_have_no_forbidden_anomaly(
    seed: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    """No acknowledged write is lost, no aborted record is read, all readers see one order, and no
    committed offset goes back.
    """
    record(seed, LONG_S, tmp_path, *options)
