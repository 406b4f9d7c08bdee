"""Missing parts of Spark: one line with the command that installs them, before a JVM starts."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

from streamsx.errors import Bug, NotFound, SparkGone, StreamsxError, UsageError
from streamsx.spark.session import PACKAGES, is_local, require, translate_error

ROOT = Path(__file__).parents[3]
INSTALL = "pip install -e '.[spark]'"
JDK = "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"


Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return the error of `require` with this PATH and environment; "" if nothing is missing."""

    def ask(path: str = "", **environment: str) -> str:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        for name, word in {"PATH": path, **environment}.items():
            monkeypatch.setenv(name, word)
        try:
            require()
        except UsageError as error:
            return f"error: {error}"
        return ""

    return ask


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Write a program `java` that prints `SAYS` as its version."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$SAYS" >&2\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("name", PACKAGES)
def test_missing_package_is_named(name: str, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert said() == f"error: spark: {name} is not installed: {INSTALL}"


@pytest.mark.parametrize(
    ("name", "found", "wanted"),
    [("pyspark", "4.0.1", "4.2"), ("pandas", "1.5.3", "2.2"), ("pyarrow", "9.0.0", "18.0")],
)
def test_outdated_package_is_named(
    name: str, found: str, wanted: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ModuleType(name)
    monkeypatch.setattr(old, "__version__", found, raising=False)
    monkeypatch.setitem(sys.modules, name, old)
    line = f"error: spark: {name} {found} is too old, {wanted} is needed: {INSTALL}"
    assert said() == line


def test_required_packages_match_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = " ".join(chain.from_iterable(project["optional-dependencies"].values()))
    for name, (major, minor) in PACKAGES.items():
        assert name in extra
        assert f">={major}.{minor}".removesuffix(".0") in extra


def test_missing_java_error_names_remedy(tmp_path: Path, said: Said) -> None:
    assert said() == f"error: spark: no Java found: {JDK} or set JAVA_HOME"
    assert said(JAVA_HOME=str(tmp_path)).startswith(
        f"error: spark: no Java found in JAVA_HOME={tmp_path}: install"
    )


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "11.0.2" 2019', 11), ('java version "1.8.0_292"', 8)]
)
def test_outdated_java_is_named(java: Path, says: str, version: int, said: Said) -> None:
    line = f"error: spark: Java {version} at {java} is too old: 17 or newer is needed: {JDK}"
    assert said(path=str(java.parent), SAYS=says) == line
    assert said(JAVA_HOME=str(java.parents[1]), SAYS=says) == line


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'java version "25" 2025'])
def test_recent_java_is_accepted(java: Path, says: str, said: Said) -> None:
    assert said(path=str(java.parent), SAYS=says) == ""


def test_java_without_version_is_refused(java: Path, said: Said) -> None:
    assert "does not say its version: 'what?" in said(path=str(java.parent), SAYS="what?")


@pytest.mark.parametrize("what", ["import streamsx", "import streamsx.tools.worker", "help"])
def test_spark_packages_are_not_imported_unless_needed(what: str) -> None:
    if what == "help":
        what = (
            "import sys; sys.argv = ['streamsx', '--help']\n"
            "from streamsx.__main__ import main\n"
            "try: main()\n"
            "except SystemExit: pass"
        )
    heavy = "{'pyspark', 'pandas', 'numpy', 'pyarrow', 'py4j'}"
    code = f"{what}\nimport sys; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", True),
        ("spark://local:7077", False), ("yarn", False), ("localhost:7077", False), ("", False),
    ],
)  # fmt: skip
def test_local_master_is_recognized(master: str, local: bool) -> None:
    assert is_local(master) is local


KILLED = "processes of a task were killed each time it was tried"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("Traceback:\nstreamsx.errors.NotFound: no such topic: a\n\tat", NotFound,
         "no such topic: a"),
        ("streamsx.errors.OfLater: said", StreamsxError, "said"),
        ("of\n[PATH_NOT_FOUND] Path: a\n\tat", UsageError, "spark: [PATH_NOT_FOUND] Path: a"),
        ("o80.collectToPython. : Lost task 0.3: Python worker exited unexpectedly (crashed)\n\tat",
         SparkGone, f"spark: {KILLED}: find out what killed them (memory?), then try again"),
        ("[INTERNAL_ERROR] of Spark", ValueError, "[INTERNAL_ERROR] of Spark"),
    ],
)  # fmt: skip
def test_executor_error_is_classified_by_cause(text: str, kind: type[Exception], says: str) -> None:
    found = translate_error(ValueError(text))
    assert type(found) is kind
    assert str(found) == says


def test_classified_error_is_left_unchanged() -> None:
    said = Bug("streamsx.errors.NotFound: of another one")
    assert translate_error(said) is said
