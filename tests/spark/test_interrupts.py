"""Interrupted commands of Spark: one line about the progress, and no files left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JAVA = """#!/bin/sh
case "$*" in *launcher.Main*) ;; *pyspark-shell) exec 9> "$HELD"; echo JVM >&9;; esac
exec java "$@"
"""
PROGRESS = (
    "bootstrap: starting", "waiting for", "starting Spark", "reading history", "batch 0: ",
)  # fmt: skip


@pytest.mark.parametrize(
    ("until", "number"),
    [
        pytest.param("JVM", signal.SIGTERM, marks=pytest.mark.slow),
        ("worker", signal.SIGINT),
    ],
)
def test_interrupt_ends_all_processes_without_a_traceback(
    until: str, number: signal.Signals, tmp_path: Path
) -> None:
    java, held, words = tmp_path / "bin" / "java", tmp_path / "held", tmp_path / "words.jsonl"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    words.write_text('{"key": "a", "value": "a", "timestamp": 1700000000000}')
    os.mkfifo(held)  # the JVM and a worker of Python hold it open
    command = [
        sys.executable, "-m", "streamsx", "spark", "bootstrap", "tests.spark.apps:endless",
        "--out", str(tmp_path / "out"), "--history", f"words={words}", "--partitions", "words=1",
        "--no-publish", "--master", "local[1]", "--conf", "spark.driver.memory=1g",
    ]  # fmt: skip
    variables = {"JAVA_HOME": str(tmp_path), "HELD": str(held), "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        command, env=os.environ | variables, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process, held.open() as told:  # fmt: skip
        while told.readline() != f"{until}\n":
            pass
        os.killpg(process.pid, number)  # as a terminal does it, also to the JVM
        out, said = process.communicate()
        assert told.read() == ""  # the end: nobody has it open
    assert process.returncode == 130
    assert out == ""
    assert [line for line in said.splitlines() if not line.startswith(PROGRESS)] == []
