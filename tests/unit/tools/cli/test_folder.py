"""tools/cli/folder.py: a whole folder under its name, or none that would stop the next command."""

from pathlib import Path

import pytest

from streamsx.errors import UsageError
from streamsx.tools.cli.folder import new_folder


def test_folder_appears_under_the_final_name_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "of" / "july"
    with new_folder(str(out)) as draft:
        (draft / "rows").touch()
        assert not out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["july"]
    assert [path.name for path in out.iterdir()] == ["rows"]
    with pytest.raises(UsageError, match=r"is there already: .*/july: give another"):
        new_folder(str(out)).__enter__()


def test_interrupted_folder_leaves_nothing_and_can_be_retried(tmp_path: Path) -> None:
    def begun() -> None:
        with new_folder(str(tmp_path / "july")) as draft:
            (draft / "half").touch()
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            begun()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["s3://b/july", "file:///july", "file:/july"])
def test_uri_is_refused_as_a_folder_path(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no folder of this machine: .*: give its path"):
        new_folder(given).__enter__()
    assert list(tmp_path.iterdir()) == []
