"""Jars from Maven: copied once, whole or not at all. A program named mvn on PATH plays Maven."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.maven import JarsMissing, jars

COPIES = """#!/bin/sh
echo called >> "$LOG"
for word; do case $word in -DoutputDirectory=*) echo > "${word#*=}/some.jar";; esac; done
"""
FAILS = """#!/bin/sh
for word; do case $word in -DoutputDirectory=*) echo > "${word#*=}/half.jar";; esac; done
echo "Unknown host"; exit 1
"""


@pytest.fixture
def pom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    return pom


def install(pom: Path, script: str) -> None:
    mvn = pom.with_name("mvn")
    mvn.write_text(script)
    mvn.chmod(0o755)


def test_concurrent_jar_requests_copy_once(pom: Path) -> None:
    install(pom, COPIES)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(jars, [pom, pom])
    assert first == second
    assert [path.name for path in first.iterdir()] == ["some.jar"]
    assert pom.with_name("log").read_text() == "called\n"


def test_other_pom_has_other_folder(pom: Path) -> None:
    install(pom, COPIES)
    first = jars(pom)
    pom.write_text("<project>2</project>")
    assert jars(pom) != first


def test_failed_copy_leaves_nothing_behind(pom: Path) -> None:
    install(pom, FAILS)
    with pytest.raises(JarsMissing, match=r"Maven Central does not answer: .*: Unknown host"):
        jars(pom)
    install(pom, COPIES)
    assert [path.name for path in jars(pom).iterdir()] == ["some.jar"]


def test_missing_maven_raises_jars_missing(pom: Path) -> None:
    with pytest.raises(JarsMissing, match="No such file or directory: 'mvn'"):
        jars(pom)
