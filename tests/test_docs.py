"""docs/: the site builds without a warning, its reference is whole, and the code in pages runs.

python tests/test_docs.py      # the blocks of code in pages for users that do not run, and why
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import getattr_static, isclass, isfunction, isroutine, signature
from pathlib import Path
from typing import Any

import pytest

import streamsx
from streamsx import errors
from streamsx.assignor.model import METRICS
from streamsx.testing import Broker
from streamsx.tools.cli.command import INTERRUPTED, UNREAD

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = ["README.md", *sorted(page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- not run: (.+) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTED = re.compile(r"^::: (\S+)$(?:\n    options:\n(?:      .+\n)*)?", re.MULTILINE)
MEMBERS = re.compile(r"^      members: \[(.*)\]$", re.MULTILINE)
ARGUMENT = re.compile(r"^ +\**(\w+): ", re.MULTILINE)
EVENT = re.compile(r"^### (\w+)$")
FIELD = re.compile(r"^\| `(\w+)`")
MARK = "made of the code"

INNER = {
    "streamsx.Agent": "body specs stages",
    "streamsx.App": "check_thread earlier_ids finalize is_leader look now_ms override running_host "
    "settled stores topology",
    "streamsx.Table": "changelog clock_ms node or_default own_windows spec windows_here",
    "streamsx.Topic": "derived key_codec maybe_declare repartition_names specs value_codec",
    "streamsx.app.table_flow.TableFlow": "store",
    "streamsx.app.window_table.WindowSet": "apply",
    "streamsx.app.window_table.WindowTable": "event_time find newest note now put starts",
    "streamsx.processing.failure_policy.Failure": "reason",
    "streamsx.testing.driver.TestDriver": "is_leader last_sent look now_ms send_late stores thread "
    "to warn_of_part",
}
"""Members of documented classes that are for other modules of this package."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built once."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    built = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.mark.xdist_group("site")
def test_site_builds_without_a_warning(site: Path) -> None:
    assert "Python" in (site / "index.html").read_text()


# -- the reference


@pytest.mark.xdist_group("site")
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("settings", ["STREAMSX_COMMIT_INTERVAL", "broker_commit_interval", "commit.interval.ms"]),
        ("commands", ["simulate scale", "--max-learners", "--instance-id"]),
        ("metrics", ["streamsx_records_failed_total", "streamsx_broker_requests_total"]),
        ("errors", ["RecordTooLarge", "SettingError"]),
    ],
)
def test_page_has_its_parts_that_are_made_of_the_code(
    site: Path, page: str, words: list[str]
) -> None:
    text = (site / "reference" / page / "index.html").read_text()
    assert MARK not in text
    assert [word for word in words if word not in text] == []


def documented() -> Iterator[tuple[str, set[str]]]:
    """Yield the path of each object with a section of its own, and the members named there."""
    for page in sorted(REFERENCE.glob("*.md")):
        for found in DOCUMENTED.finditer(page.read_text()):
            members = MEMBERS.search(found[0])
            yield found[1], set(members[1].split(", ")) if members else set()


def test_reference_has_each_public_name() -> None:
    public = {f"streamsx.{name}" for name in streamsx.__all__ if name != "__version__"}
    assert public - {path for path, _ in documented()} == set()


@pytest.mark.parametrize(("path", "members"), [*documented()])
def test_each_member_is_in_the_reference_or_is_inner(path: str, members: set[str]) -> None:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not isclass(found):
        return
    own = {each for each in vars(found) if not each.startswith("_") and is_call(found, each)}
    assert own - members == set(INNER.get(path, "").split())


@pytest.mark.parametrize(("path", "members"), [*documented()])
def test_each_argument_of_a_public_call_has_its_line(path: str, members: set[str]) -> None:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    calls = [getattr_static(found, each) for each in members if each] if isclass(found) else [found]
    lacking = [
        f"{call.__name__}({argument}=)"
        for call in calls
        if isfunction(call)
        for argument in signature(call).parameters
        if argument not in {"self", *ARGUMENT.findall(call.__doc__ or "")}
    ]
    assert lacking == []


def is_call(kind: type, name: str) -> bool:
    """Return whether an attribute of a class is a method or a property."""
    found = getattr_static(kind, name)
    return isroutine(found) or type(found).__name__ in ("property", "cached_property")


def journal_calls() -> dict[str, set[str]]:
    """Return the names of all events that the code writes, each with its fields."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "streamsx").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            event = node.args[0]
            if name.strip("_") == "journal" and isinstance(event, ast.Constant):
                fields = {each.arg for each in node.keywords if each.arg}
                found.setdefault(str(event.value), set()).update(fields)
    return found


def told_events() -> dict[str, set[str]]:
    """Return the events of the reference, each with its fields."""
    found: dict[str, set[str]] = {}
    event = ""
    for line in (REFERENCE / "events.md").read_text().splitlines():
        if heading := EVENT.match(line):
            event = heading[1]
            found[event] = set()
        elif event and (field := FIELD.match(line)):
            found[event].add(field[1])
    return found


def test_reference_has_each_event_with_its_fields() -> None:
    written = journal_calls()
    told = told_events()
    assert written.keys() - told.keys() == set()
    written["worker_started"] -= {"instance"}  # a field of every event
    lacking = {event: fields - told[event] for event, fields in written.items()}
    assert {event: fields for event, fields in lacking.items() if fields} == {}


def test_reference_has_each_metric() -> None:
    text = (REFERENCE / "metrics.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in text] == []


@pytest.mark.xdist_group("site")
def test_reference_has_each_metric_of_a_running_broker(site: Path) -> None:
    text = (site / "reference" / "metrics" / "index.html").read_text()
    with Broker() as broker:
        names = {metric.declared.name for metric in broker.server.metrics.metrics()}
    assert {name for name in names if name not in text} == set()


def test_reference_has_each_exit_code() -> None:
    text = (REFERENCE / "commands.md").read_text()
    kinds = (found for found in vars(errors).values() if isclass(found))
    codes = {0, INTERRUPTED, UNREAD, *(getattr(kind, "exit_code", 0) for kind in kinds)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == codes


# -- code in pages


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(page: str) -> None:
    """Run the blocks of a page: each goes on with the names of those above.

    A line `<!-- not run: REASON -->` ahead of a block keeps it from running.
    """
    names: dict[str, Any] = {"__name__": Path(page).stem, "streamsx": streamsx}
    for reason, text in BLOCK.findall((ROOT / page).read_text()):
        if not reason:
            exec(compile(text, page, "exec"), names)  # our own text


def not_run() -> Iterator[str]:
    """Yield a line for each block of code that does not run."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for found in BLOCK.finditer(text):
            if found[1]:
                yield f"{page}:{text.count(chr(10), 0, found.start()) + 1}: {found[1]}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md"])
def test_paths_named_in_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:streamsx|tests|docs|tools|state|assignor)/[\w/]+\.\w+)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in not_run()))
