"""`streamsx spark`: what is wrong with arguments, and is known without a JVM, is said before it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

JAVA = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "17.0.15"' >&2; exit 0; }
touch "$JAVA_HOME/started"
exit 1
"""
SHOP = "streamsx.examples.shop"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
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
        (f"compact {SHOP} --out new --conf spark.sql.x=1", 4, ""),
    ],
)
def test_it_is_refused_before_a_jvm_starts(
    words: str, code: int, said: str, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "streamsx", "spark", *words.split()], check=False, cwd=tmp_path,
        capture_output=True, text=True, env=os.environ | {"JAVA_HOME": str(tmp_path)},
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    assert said in last
    assert done.returncode == code
    assert not (tmp_path / "started").exists()
