"""`streamsx spark` on the command line; tests that need Spark itself are in tests/spark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.tools import spark as commands
from streamsx.tools.cli.plots import gap_lengths, settle_times
from tests.support.command import streamsx

LOADED = (
    "import sys; sys.argv = ['streamsx', *{}]\n"
    "from streamsx.__main__ import main\n"
    "try: main()\n"
    "except SystemExit: pass\n"
    "print([n for n in ('pyspark', 'pyarrow', 'pandas', 'matplotlib') if n in sys.modules])"
)


ALARM = """
import asyncio
import streamsx

app = streamsx.App("alarm")


@app.agent("alarms")
async def wake(stream):
    await asyncio.sleep(1)
    async for alarm in stream:
        print(alarm)
"""


def python(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=cwd
    )


def spark(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return streamsx("spark", *arguments, cwd=cwd)


def test_help_lists_each_command_and_imports_nothing_heavy() -> None:
    done = python("-c", LOADED.format(["spark", "--help"]))
    assert "    events    Turn event logs of workers" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    for name in ("events", "bootstrap"):
        done = python("-c", LOADED.format(["spark", name, "--help"]))
        assert "--out " in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: no command: there are "),
        (["event"], "error: no such command: event: did you mean events?"),
        (
            ["run", "a", "--state", "s", "--connector", "jvm"],
            "error: unrecognized arguments: --con",
        ),
        (["bootstrap", "a", "--out", "o", "--history", "a"], "error: argument --history: 'a': wri"),
        (["bootstrap", "a", "--out", "o", "--partitions", "a=0"], "error: argument --partitions: "),
        (["bootstrap", "a", "--out", "o", "--until", "noon"], "error: argument --until: 'noon': w"),
        (["run", "a", "--state", "s", "--max-records", "0"], "error: argument --max-records: "),
        (
            ["copy", "a", "--state", "s", "--topics", "b:c", "--partitions", "d=9"],
            "error: --partitions of d: nothing is copied there",
        ),
        (["run", "nowhere", "--state", "s"], "error: no such module: nowhere"),
        (["events", "x", "--out", "o", "--conf", "a=b"], "error: argument --conf: 'a=b': write sp"),
    ],
)
def test_unknown_spark_command_is_exit_code_2(arguments: list[str], said: str) -> None:
    done = spark(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(said)  # behind progress, on a busy machine


EXAMPLES: dict[str, tuple[str, dict[str, object]]] = {
    "bootstrap": (
        ("shop --history orders=lake/*.parquet --history clicks=kafka --out s3://b/shop "
        "--until 2026-01-31T12:00 --partitions orders=6 --partitions clicks=3 --replace "
        "--no-publish --task-memory 64MiB --scratch tmp --debug"),
        {
            "history": {"orders": "lake/*.parquet", "clicks": "kafka"}, "until": 1769860800000,
            "partitions": {"orders": 6, "clicks": 3}, "task_bytes": 64 << 20, "publishes": False,
        },
    ),
    "compact": ("shop --out snap --store sold --store standing", {"store": ["sold", "standing"]}),
    "copy": ("shop --state snap --topics orders:orders-12", {"topics": {"orders": "orders-12"}}),
    "rescale": (
        "shop --state snap --partitions orders=12 clicks=12 --out twelve",
        {"partitions": {"orders": 12, "clicks": 12}},
    ),
    "state": ("shop --store sold --live --limit 5 --out a.parquet", {"limit": 5, "state": None}),
    "check": ("shop", {"app": "shop"}),
    "entry": ("", {}),
    "events": ("a.jsonl b --out night", {"paths": ["a.jsonl", "b"], "out": "night"}),
    "handover": ("shop --state snap --force", {"state": "snap", "force": True}),
    "run": (
        ("shop --state snap --every 5s --max-records 10 --from latest --sink parquet=out --keep 2 "
        "--master local[2] --conf spark.a=b=c --conf spark.d= --available-now"),
        {
            "every": 5.0, "start": "latest", "sink": "parquet=out",
            "conf": {"spark.a": "b=c", "spark.d": ""},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_each_spark_command_parses_the_expected_options(name: str) -> None:
    words, expected = EXAMPLES[name]
    given = vars(commands.parser().parse_args([name, *words.split(), "--json"]))
    assert given.items() >= expected.items()
    assert given["json"]


TWICE = "given twice: give it once"
RUN = "run shop --state s"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bootstrap shop --out o --history orders=a --history orders=b", f"orders is {TWICE}"),
        ("bootstrap shop --out o --partitions a=3 --partitions a=5", f"a is {TWICE}"),
        ("rescale shop --state s --out o --partitions a=3 a=5", f"a is {TWICE}"),
        ("copy shop --state s --topics a:b a:c", f"a is {TWICE}"),
        ("copy shop --state s --topics a", "'a': write OLD:NEW"),
        (f"{RUN} --conf spark.a=1 --conf spark.a=2", f"spark.a is {TWICE}"),
        (f"{RUN} --every 0", "argument --every: '0': give more than 0"),
        (f"{RUN} --task-memory 0", "argument --task-memory: '0': give more than 0"),
        (f"{RUN} --sink file", "argument --sink: 'file': write kafka, noop or parquet=DIR"),
        (f"{RUN} --sink parquet=", "argument --sink: 'parquet=': write kafka, noop or parquet="),
        ("run shop --state EMPTY", "argument --state: nothing is given"),
        ("state shop --store a --state EMPTY", "argument --state: nothing is given"),
        ("state shop --store a --live --limit -1", "argument --limit: not a whole number from 1"),
        ("bootstrap shop --out EMPTY", "argument --out: nothing is given"),
        ("events x --out EMPTY", "argument --out: nothing is given"),
        ("handover shop", "the following arguments are required: --state"),
    ],
)
def test_contradictory_or_bad_options_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.parser().parse_args(["" if word == "EMPTY" else word for word in words.split()])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert told.count("\n") == 1


def test_spark_entry_prints_a_file_that_runs_the_command() -> None:
    path = spark("entry").stdout.strip()
    done = python(path, "events", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: streamsx spark events" in done.stdout
    assert spark("entry", "--json").stdout == f'{{"entry": "{path}"}}\n'


def test_check_reports_stages_or_every_reason(tmp_path: Path) -> None:
    done = spark("check", "streamsx.examples.shop", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["app"]) == (0, True, "shop")
    stores = {stage["stage"]: stage["stores"] for stage in told["stages"]}
    assert stores == {0: ["standing"], 1: ["customers"], 2: ["sold"]}
    assert "1: 8 tasks read shop-changes; keeps customers" in done.stderr
    assert "note: agent 'streamsx.examples.shop.spend' (" in done.stderr

    (tmp_path / "alarm.py").write_text(ALARM)
    done = spark("check", "alarm", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["stages"]) == (2, False, [])
    assert "error: app 'alarm' cannot run on Spark (1 reason):\n  agent" in done.stderr
    assert "alarm.py:8): waits for something outside its stream" in done.stderr


def test_plots_are_drawn_also_without_data(tmp_path: Path) -> None:
    """Generations may start again, times be unknown, gaps be absent."""
    for name, generations, gaps in (("some", [1, 2, 1], [0.0, 120.5]), ("none", [], [])):
        times = [None, 12.5, 700.0][: len(generations)]
        settle_times(tmp_path / f"{name}-1.png", generations, times, [0, 4, 2][: len(generations)])
        gap_lengths(tmp_path / f"{name}-2.png", gaps, [45_000.0] * len(gaps), gaps)
    drawn = list(tmp_path.iterdir())
    assert len(drawn) == 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
