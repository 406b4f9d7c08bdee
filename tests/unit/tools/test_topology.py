"""`streamsx topology`, as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import streamsx

SHOP = """
import streamsx

app = streamsx.App("shop", web_port=1)
totals = app.Table("totals", default=float)
print("imported")

@app.agent("orders")
async def add(stream):
    async for order in stream.group_by(lambda o: o["user"], name="user"):
        totals[order["user"]] += order["price"]

if __name__ == "__main__":
    app.main()
"""
WORD_COUNT = "streamsx.examples.wordcount"


def run(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=cwd
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_topology_prints_text_by_default() -> None:
    done = streamsx("topology", WORD_COUNT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sub-topology 1: stateful, 8 tasks if wordcount-words is created\n" in done.stdout


def test_json_option_puts_json_on_the_last_stdout_line(shop: Path) -> None:
    done = streamsx("topology", "shop", "--json", cwd=shop)
    data = json.loads(done.stdout.splitlines()[-1])
    assert [each["outputs"] for each in data["subtopologies"]] == [
        ["shop-shop.add-orders-user-repartition"], [],
    ]  # fmt: skip
    assert "sub-topology 0: stateless" in done.stderr


def test_faust_argument_order_and_app_main_run_the_same_command(shop: Path) -> None:
    ours = streamsx("topology", "shop", "--format", "mermaid", cwd=shop)
    faust_s = streamsx("-A", "shop", "topology", "--format", "mermaid", cwd=shop)
    main = run("shop.py", "topology", "--format", "mermaid", cwd=shop)
    assert ours.returncode == 0
    assert ours.stdout == faust_s.stdout == main.stdout
    assert "t1 --> s1a0" in ours.stdout


def test_source_option_prints_the_generated_loops(shop: Path) -> None:
    done = streamsx("topology", "shop", "--source", cwd=shop)
    assert "# orders\ndef run(records, failed):" in done.stdout
    assert "key_0 = encode_key_0(key_of_0(value))" in done.stdout


def test_notes_go_to_stderr(shop: Path) -> None:
    done = streamsx("topology", "shop", "--format", "json", cwd=shop)
    assert done.stderr == ("note: setting without effect here: web_port (app shop): leave it out\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "error: no such module: nope: give the name as in an import"),
        (["shop:totals"], "error: not an app: shop:totals: name an object"),
        (["shop", "--format", "svg"], "error: argument --format: invalid choice"),
        ([], "error: the following arguments are required"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    shop: Path, arguments: list[str], says: str
) -> None:
    done = streamsx("topology", *arguments, cwd=shop)
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_traceback_is_printed_with_debug() -> None:
    done = run("-m", "streamsx", "topology", "nope", "--debug")
    assert "Traceback" in done.stderr
