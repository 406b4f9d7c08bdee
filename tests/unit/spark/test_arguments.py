"""`streamsx spark`: wrong arguments are reported before a JVM starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.testing import Broker

ROOT = Path(__file__).parents[3]
JAVA = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "17.0.15"' >&2; exit 0; }
touch "$JAVA_HOME/started"
exit 1
"""
ASK = """
import json, os, sys
from tests.support.command import streamsx

for words in json.load(sys.stdin):
    done = streamsx("spark", *words.split())
    print(json.dumps([done.returncode, done.stderr, os.path.exists("started")]))
"""
SHOP = "streamsx.examples.shop"
CASES = [
    (f"compact {SHOP} --out new --store none", 3, "no such store: none: app shop has"),
    ("compact nowhere --out new", 2, "no such module: nowhere"),
    (f"copy {SHOP} --state new --topics orders:other", 3, "no snapshot: "),
    (f"rescale {SHOP} --state new --out other --partitions orders=12", 3, "no snapshot: "),
    (f"state {SHOP} --store none --live", 3, "no such store: none: app shop has"),
    (f"state {SHOP} --store sold --state new", 3, "no snapshot: "),
    (f"state {SHOP} --store sold --state new --live", 2, "give either --state URI or --live"),
    (f"state {SHOP} --store sold", 2, "give either --state URI or --live"),
    (f"state {SHOP} --store sold --store standing --live", 2, "give one at a time"),
    (f"bootstrap {SHOP} --out new --history orders=a.csv", 2, "write kafka, none, or files"),
    (f"bootstrap {SHOP} --out new", 2, "no history: orders: give --history"),
    (f"bootstrap {SHOP} --out nope://x --history orders=none", 2, "nope"),
    (f"bootstrap {SHOP} --out new --history ordres=none", 2, "did you mean orders?"),
    (f"bootstrap {SHOP} --out new --history orders=gone/*.orc", 3, "no such file: gone/*.orc"),
    (f"run {SHOP} --state nope://x", 2, "nope"),
    (f"state {SHOP} --store sold --live --out bin", 2, "is there already: bin: give another"),
    ("events bin --out bin", 2, "is there already: bin: give another"),
    ("events gone.jsonl --out new", 3, "no such file: gone.jsonl"),
    (f"compact {SHOP} --out new --conf spark.sql.x=1", 3, "no such topic: orders, shop-changes"),
]
Answer = tuple[int, str, bool]

pytestmark = pytest.mark.xdist_group("arguments")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return exit code and stderr of each command, and whether a JVM has started by then.

    One process calls them all: it imports PySpark once, and has no session of another test.
    """
    folder = tmp_path_factory.mktemp("arguments")
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    every = [words for words, _, _ in CASES]
    with Broker() as broker:  # without one the last command would look for it for ten seconds
        env = {"JAVA_HOME": str(folder), "STREAMSX_BOOTSTRAP": broker.bootstrap}
        done = subprocess.run(
            [sys.executable, "-c", ASK], input=json.dumps(every), cwd=folder, check=True,
            env=os.environ | env | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    return dict(zip(every, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("words", "code", "said"), CASES)
def test_invalid_argument_is_refused_before_jvm_starts(
    words: str, code: int, said: str, answers: dict[str, Answer]
) -> None:
    found, stderr, started = answers[words]
    last = stderr.splitlines()[-1]
    assert last.startswith("error: "), stderr
    assert said in last
    assert found == code
    assert not started
