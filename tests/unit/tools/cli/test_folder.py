"""tools/cli/folder.py: whole, under its name, or nothing that the next one would stop at."""

from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.tools.cli.folder import new_folder


def test_it_has_its_name_when_all_is_in_it(tmp_path: Path) -> None:
    out = tmp_path / "of" / "july"
    with new_folder(str(out)) as draft:
        (draft / "rows").touch()
        assert not out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["july"]
    assert [path.name for path in out.iterdir()] == ["rows"]
    with pytest.raises(UsageError, match=r"is there already: .*/july: give another"):
        new_folder(str(out)).__enter__()


def test_who_is_interrupted_leaves_nothing_and_may_begin_again(tmp_path: Path) -> None:
    def begun() -> None:
        with new_folder(str(tmp_path / "july")) as draft:
            (draft / "half").touch()
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            begun()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["s3://b/july", "file:///july", "file:/july"])
def test_a_uri_is_no_path(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no folder of this machine: .*: give its path"):
        new_folder(given).__enter__()
    assert list(tmp_path.iterdir()) == []
