"""`streamsx worker`: the output of an app in its process."""

import subprocess
import sys
from pathlib import Path

from streamsx.testing import Broker

PRINTS = """
from streamsx import App

app = App("prints")

@app.task
async def tell():
    print("one short line")
"""


def test_line_that_an_app_prints_appears_while_its_worker_runs(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    command = [sys.executable, "-m", "streamsx", "worker", "prints", "-l", "warning"]
    with (
        Broker() as broker,
        subprocess.Popen(
            [*command, "--bootstrap", broker.bootstrap],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
        ) as worker,
    ):  # fmt: skip
        assert worker.stdout is not None
        assert worker.stdout.readline() == "one short line\n"
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(30) == 0
