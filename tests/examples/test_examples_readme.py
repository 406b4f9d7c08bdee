"""examples/README.md: it lists each app, in an order, with a test that is there."""

import ast
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text()
ROWS = re.findall(
    r"^\|(?: (\d) \|)? \[([\w.]+)\]\(([\w./]+)\).*\]\(([\w./]+)\) \|$", README, re.MULTILINE
)
APPS = sorted(
    path
    for path in EXAMPLES.rglob("*.py")
    if re.search(r"^app = App\(", path.read_text(), re.MULTILINE)
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(EXAMPLES).with_suffix("").parts)


def test_eight_examples_stand_in_order_and_two_behind_them() -> None:
    assert [number for number, *_ in ROWS] == [*"12345678", "", ""]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_example_and_its_test_exist(row: tuple[str, str, str, str]) -> None:
    _, _, place, test = row
    assert (EXAMPLES / place).is_file()
    assert (EXAMPLES / test).is_file()


@pytest.mark.parametrize("path", APPS, ids=name_of)
def test_app_is_listed_and_its_docstring_says_how_to_run_it(path: Path) -> None:
    listed = {name for _, name, *_ in ROWS}
    assert path.relative_to(EXAMPLES).parts[0] in listed
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    command = re.search(r"streamsx worker\s(?:\\\s+)?(\S+)", docstring)
    assert command, path
    assert command[1] == f"streamsx.examples.{name_of(path)}"
