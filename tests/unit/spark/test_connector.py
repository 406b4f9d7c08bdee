"""What a session needs for Spark's own connector; and what is said where that cannot be had."""

import tomllib
from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.spark import connector
from streamsx.spark.connector import JVM, PYTHON, settings
from streamsx.spark.maven import JarsMissing


def test_python_connector_needs_no_settings_and_refuses_jars() -> None:
    assert settings(PYTHON) == {}
    with pytest.raises(UsageError, match=r"--jars there: .*: give --connector jvm too"):
        settings(PYTHON, Path("there"))


def test_jars_of_folder_are_listed_by_full_path(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    assert settings(JVM, tmp_path) == {"spark.jars": f"{tmp_path}/a.jar,{tmp_path}/b.jar"}


@pytest.mark.parametrize("name", ["", "missing"])
def test_folder_without_jars_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"no jars in .*: give --jars DIR or use the default"):
        settings(JVM, tmp_path / name)


def test_spark_version_without_tested_jars_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector, "version", lambda _: "4.4.1")
    with pytest.raises(UsageError, match=r"no tested jars for Spark 4\.4: give --jars DIR"):
        settings(JVM)


def test_missing_maven_error_names_alternatives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JarsMissing, match=r"connector jvm: Maven .*: give --jars DIR or use"):
        settings(JVM)


def test_pom_is_part_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    listed = project["tool"]["setuptools"]["package-data"]["streamsx"]
    assert str(connector.POM.relative_to(connector.POM.parents[1])) in listed
