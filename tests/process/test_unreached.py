"""Brokers that advertise an address which this machine cannot reach: each command says so in 10
s.
"""

import subprocess
from pathlib import Path

from streamsx.tools.cli.processes import OURS
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

ADVERTISED = "kafka-internal.invalid:9092"
WHY = f"no connection: {ADVERTISED}: "
REMEDY = "let it advertise one that this machine reaches"


def test_worker_and_send_report_an_unknown_advertised_host_name(tmp_path: Path) -> None:
    options = ("--advertise", ADVERTISED, "--topic", "lines:1")
    with (
        EmbeddedBroker(tmp_path / "broker", *options) as broker,
        Workers(broker.bootstrap, tmp_path / "workers") as workers,
    ):
        workers.start("a")
        started = workers.until_event("worker_started")["mono"]
        command = [*OURS, "send", "lines", "1", "--bootstrap", broker.bootstrap]
        send = subprocess.run(command, capture_output=True, text=True, check=False)
        workers.until(lambda: REMEDY in workers.log("a"), "told", timeout_s=10)
        assert workers.now() < started + 20, "10 s, and what a busy machine takes"
        (line, *_) = [line for line in workers.log("a").splitlines() if "out of reach" in line]
        assert WHY in line
        assert workers.stop("a") == [0]
    assert send.returncode == 4
    error = send.stderr.splitlines()[-1]
    assert error.startswith(
        "error: not acknowledged in 10 s: topic lines: some of 1 records may be"
    )
    assert WHY in error
    assert REMEDY in error
