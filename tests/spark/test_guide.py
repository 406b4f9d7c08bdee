"""examples/shop.md as it stands: its commands in their order, on Apache Kafka, with small numbers.

Commands of Spark run in the one session of all tests, everything else in a shell, workers as
processes. What the workers keep is compared with what plain Python makes of the same orders.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamsx.app.lookup import app_named
from streamsx.examples.shop import Customer, Order
from streamsx.examples.shop_history import history
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.spark.checkout import discard_all
from streamsx.tools import spark as command
from tests.examples.test_shop import plain
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]
GUIDE: Final = Path(__file__).parents[2] / "examples" / "shop.md"
SMALL: Final = {
    "100000": "1500", "102000": "1600", "103000": "1650",
    "2000": "100", "1000": "50", "5000": "200",
}  # fmt: skip
PLACES: Final = "logs|lake|past|compacted|stopped|twelve|night"
APPS: Final = {"shop": 6, "shop2": 12}


def steps(folder: Path, bootstrap: str) -> list[tuple[str, str]]:
    """The blocks that are run, commands one by one: with these brokers, numbers and folders."""
    guide = GUIDE.read_text()
    guide = re.sub(r"\b\d{4,6}\b", lambda word: SMALL.get(word[0], word[0]), guide)
    guide = re.sub(rf"(?<=[ '\"])({PLACES})(?=[/ \"\n]|$)", rf"{folder}/\1", guide)
    guide = guide.replace("localhost:9092", bootstrap)
    found = []
    for kind, text in re.findall(r"^```(sh|python)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL):
        found += [(kind, each) for each in (text.splitlines() if kind == "sh" else [text])]
    return found


class Shell:
    """Shell of one bash for the whole guide. The output of its children goes to a file."""

    def __init__(self, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.log = folder / "shell.log"
        with self.log.open("w") as log:
            self._bash = subprocess.Popen(
                ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                cwd=folder, env={**os.environ, "PATH": path}, process_group=0,
            )  # fmt: skip

    def __call__(self, line: str) -> None:
        """Run a command until it has ended with 0."""
        assert self._bash.stdin
        assert self._bash.stdout
        self._bash.stdin.write(f"{line}\necho ::$?\n")
        self._bash.stdin.flush()
        said = [self._bash.stdout.readline()]
        while said[-1] and not said[-1].startswith("::"):
            said.append(self._bash.stdout.readline())
        assert said[-1] == "::0\n", f"{line}: {said}: {self.log.read_text()}"

    def close(self) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()
    discard_all()


class Guide:
    """The guide under way, step by step. `said`: by the last command of each name."""

    def __init__(self, spark: "SparkSession", shell: Shell, client: Client) -> None:
        self._spark, self._shell, self._client = spark, shell, client
        self.said: dict[str, Any] = {}
        self.python: dict[str, Any] = {}

    def step(self, kind: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        words = shlex.split(text)
        if kind == "python":
            exec(text, self.python)  # ours: it is what users will paste
        elif words[:4] == ["python", "-m", "streamsx", "spark"]:
            self.said[words[4]] = spark_command(words[4:], monkeypatch, capsys)
        else:
            if words[:4] == ["python", "-m", "streamsx", "status"]:
                self._until_all_is_done("shop2" if "shop-v2" in words else "shop")
            if words[0] == "export":
                for name, value in (word.split("=") for word in words[1:]):
                    monkeypatch.setenv(name, value)
            self._shell(text)

    def _until_all_is_done(self, name: str) -> None:
        app = app_named(name)
        topics = {topic for plan in app.topology().subtopologies for topic in plan.topics}
        tps = [TopicPartition(topic, n) for topic in topics for n in range(APPS[name])]
        nothing = dict.fromkeys(tps, 0)

        def done() -> bool:
            at = self._client.committed(app.conf.id, tps)
            return {tp: max(n, 0) for tp, n in at.items()} == nothing | self._client.ends(tps)

        self._client._persist(done, f"all of {name}")

    def tables(self, name: str) -> tuple[dict[str, Any], ...]:
        """Return the tables of the live changelogs, each key in the partition of records with that
        key.
        """
        from streamsx.spark.state import state

        found = []
        for store, kind in (("standing", Order), ("customers", Customer), ("sold", None)):
            rows = state(name, store, spark=self._spark).collect()
            assert all(partition_of(r.key.encode(), APPS[name]) == r.partition for r in rows)
            values = ((r.key, json.loads(r.value)) for r in rows)
            found.append({key: kind(**value) if kind else value for key, value in values})
            assert len(found[-1]) == len(rows)
        return tuple(found)


def spark_command(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Return the JSON result of the command."""
    monkeypatch.setattr(sys, "argv", ["streamsx spark", *words, "--json"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return json.loads(said.out.splitlines()[-1])


@pytest.mark.slow
def test_shop_guide_commands_work_as_documented(
    spark: "SparkSession",
    kafka: ApacheKafka,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Executors do not look where the test is.
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    client = Client(kafka.bootstrap)
    client.delete("orders")
    guide = Guide(spark, shell, client)
    past, *later = (
        list(history(orders, 200, first=first))
        for orders, first in ((1500, 0), (100, 1500), (50, 1600), (50, 1650))
    )
    live, late, new = ([row for row in rows if row.value] for rows in later)
    done = []
    for kind, text in steps(tmp_path, kafka.bootstrap):
        guide.step(kind, text, monkeypatch, capsys)
        done.append(text)
        if text.endswith("status --app shop"):
            assert guide.tables("shop") == plain([*past, *live])
        elif text.endswith("status --app shop-v2"):
            standing, customers, sold = guide.tables("shop2")
            assert (standing, customers, sold) == plain([*past, *live, *late, *new])
    client.delete("orders")
    client.close()
    said = guide.said
    assert guide.python["spent"] == sum(each.cents for each in plain(past)[1].values())
    steps_said = [step.partition("  #")[0] for step in said["rescale"]["procedure"]]
    assert len(steps_said) == 4
    assert [each for each in done if each in steps_said] == steps_said[:3]
    assert any(each.startswith(steps_said[3]) for each in done)
    logs = [*(tmp_path / "logs").iterdir(), tmp_path / "d.jsonl"]
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    fetched = {e["instance"] for e in events if e["event"] == "snapshot_fetched"}
    assert fetched == set("abcd")
    assert said["events"]["rebalances"] > 2
    for name in ("rebalances.png", "gaps.png"):
        assert (tmp_path / "night" / name).stat().st_size > 1000
