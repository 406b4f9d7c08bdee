"""docs/: the site builds without a warning, and the code in the pages for users runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert "Python" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("page", ["index.md", "guide.md", "flows.md", "windows.md", "joins.md"])
def test_code_of_a_user_page_runs(page: str) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert blocks
    names = {"__name__": page}  # a block goes on with the names of the ones above
    for text in blocks:
        exec(compile(text, page, "exec"), names)  # our own text


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md"])
def test_paths_named_in_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:streamsx|tests|docs|tools|state|assignor)/[\w/]+\.\w+)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
