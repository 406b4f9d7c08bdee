"""The pages under docs/ name modules, functions and tests that exist, and list every module.

python tests/test_architecture.py      # the table of all modules, for docs/packages/modules.md
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)
TABLE = ROOT / "docs" / "packages" / "modules.md"
LINKS = ("assignor", "examples", "state", "tools")
BEGIN, END = "<!-- modules -->", "<!-- end of modules -->"
PLACE = re.compile(r"`([\w/]+):([A-Z_a-z][\w.]*)`")
MODULE = re.compile(r"`(?!tests/)([a-z_]+(?:/[a-z_]+)+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def sources() -> list[tuple[str, Path]]:
    """Return the path of each module by its short name: `worker/data_loop`, `assignor/target`."""
    own = [(path, path.relative_to(ROOT / "streamsx")) for path in inside(ROOT / "streamsx")]
    own += [(path, path.relative_to(ROOT)) for link in LINKS for path in inside(ROOT / link)]
    return sorted((str(short.with_suffix("")), path) for path, short in own)


def inside(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from inside(path)
        elif path.suffix == ".py":
            yield path


def purpose(path: Path) -> str:
    """The first paragraph of its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def lines() -> Iterator[str]:
    """A table for each package, a line for each module."""
    packages: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for name, path in sources():
        packages[name.rpartition("/")[0]].append((name, path))
    for package, modules in sorted(packages.items()):
        whole = next((path for name, path in modules if name.endswith("__init__")), None)
        yield f"**{package or 'streamsx'}**: {purpose(whole) if whole else ''}".rstrip(": ")
        yield "\n| | |\n|---|---|"
        for name, path in modules:
            if not name.endswith("__init__"):
                yield f"| `{name}` | {purpose(path)} |"
        yield ""


def defined(path: Path, name: str) -> bool:
    """`Class.method`, `Class.FIELD`, `function` or `NAME`."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = next((node for node in body if part in named(node)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


def named(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign):
        return {node.target.id} if isinstance(node.target, ast.Name) else set()
    return {getattr(node, "name", "")}


def test_table_of_modules_has_each_docstring() -> None:
    written = TABLE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert written == "\n".join(lines()).strip(), "run python tests/test_architecture.py"


@pytest.mark.parametrize(("module", "name"), sorted(set(PLACE.findall(TEXT))))
def test_names_in_pages_exist(module: str, name: str) -> None:
    assert defined(dict(sources())[module], name)


def test_modules_named_in_pages_exist() -> None:
    known = dict(sources())
    assert [name for name in MODULE.findall(TEXT) if name not in known] == []


@pytest.mark.parametrize(("file", "test"), sorted(set(TEST.findall(TEXT))))
def test_tests_named_in_pages_exist(file: str, test: str) -> None:
    assert (ROOT / file).exists()
    assert not test or defined(ROOT / file, test)


if __name__ == "__main__":
    print("\n".join(lines()).strip())  # noqa: T201
