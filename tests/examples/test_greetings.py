"""examples/greetings.py, as its docstring tells it."""

import pytest

from streamsx.examples import greetings
from streamsx.testing import TestDriver


def test_each_name_is_greeted_once_over_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    with TestDriver(greetings.app, partitions={"names": 2}) as driver:
        driver.pipe("names", ["Ann", "Bob"])
        driver.restart()
        driver.pipe("names", ["Cleo"])
        found = [(each.key, each.value) for each in driver.read(greetings.greetings)]
    wanted = [(name.encode(), f"Hello {name}") for name in ("Ann", "Bob", "Cleo")]
    assert sorted(found) == wanted
    assert sorted(capsys.readouterr().out.splitlines()) == [greeting for _, greeting in wanted]
