"""app/lookup.py: the app of a module, or the reason why there is none."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamsx.app.lookup import app_named
from streamsx.errors import UsageError

Write = Callable[[str, str], None]
APP = "from streamsx import App\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write modules into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def written(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    return written


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_case_loads_the_module_written_for_the_case(write: Write, name: str) -> None:
    write("shop0.py", APP + f"app = App({name!r})\n")
    assert repr(app_named("shop0")) == f"<App: {name}>"


def test_module_with_several_apps_gives_the_one_called_app(write: Write) -> None:
    write("shop1.py", APP + "other = App('b')\napp = App('a')\n")
    assert repr(app_named("shop1")) == "<App: a>"
    assert repr(app_named("shop1:other")) == "<App: b>"


def test_only_app_of_a_module_may_have_any_name(write: Write) -> None:
    write("shop2.py", APP + "application = again = App('a')\n")
    assert repr(app_named("shop2")) == "<App: a>"


def test_path_of_a_file_stands_for_its_module(write: Write, tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    write("shop20.py", APP + "app = App('a')\nother = App('b')\n")
    write("apps/shop21.py", APP + "app = App('c')\n")
    assert repr(app_named("shop20.py")) == "<App: a>"
    assert repr(app_named("./shop20.py:other")) == "<App: b>"
    assert repr(app_named("./apps/shop21.py")) == "<App: c>"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("shop3", APP + "a = App('a')\nb = App('b')\n", "several apps: .* shop3:a, shop3:b"),
        ("shop4", "x = 1\n", "no app in the module: shop4"),
        ("shop5:x", "x = 1\n", "not an app: shop5:x"),
        ("shop6:y", "x = 1\n", "not an app: shop6:y"),
        ("shop7", "import no_such_thing\n", "cannot be imported: shop7: ModuleNotFoundError"),
        ("shop8", "1 / 0\n", "cannot be imported: shop8: ZeroDivisionError"),
        ("shop9", "def (\n", "cannot be imported: shop9: SyntaxError"),
        ("shop10", "raise SystemExit\n", "cannot be imported: shop10: SystemExit"),
        ("shop.py", "", r"no such module: shop\.py: did you mean shop\? give the name as in an"),
        ("./apps/shop.py", "", r"no such module: \./apps/shop\.py: did you mean apps\.shop\?"),
        ("nowhere", "", "no such module: nowhere: give the name as in an import"),
        ("nowhere.at.all", "", "no such module: nowhere.at.all"),
    ],
)
def test_failed_lookup_is_reported_in_one_line(
    write: Write, name: str, text: str, says: str
) -> None:
    if text:
        write(f"{name.partition(':')[0]}.py", text)
    with pytest.raises(UsageError, match=says):
        app_named(name)
