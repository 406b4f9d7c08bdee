"""Functions that fail after windows: how many results may be lost, and what the task does."""

from collections.abc import Callable
from typing import Any

import pytest

from streamsx import App, tumbling
from streamsx.errors import TaskStopped
from streamsx.testing import TestDriver


def made_app(fun: Callable[[int], int], emit: str) -> App:
    app = App("x", topic_partitions=1, store="memory://")
    windows = app.flow("o").group_by_key().window(tumbling("10s", grace=0))
    windows.count("c", emit=emit).map_values(fun).to("out")
    return app


def a_window(number: int, keys: int) -> list[Any]:
    return [(f"key{n}", 1, number * 10) for n in range(keys)]


def feed(driver: TestDriver, windows: int, keys: int) -> None:
    for window in range(windows):
        driver.pipe("o", a_window(window, keys))


@pytest.mark.parametrize("emit", ["final", "commit"])
def test_results_behind_broken_code_stop_their_task_and_come_when_it_is_mended(emit: str) -> None:
    mended: list[bool] = []

    def typo(n: int) -> int:
        if not mended:
            raise KeyError("typo")
        return n

    with TestDriver(made_app(typo, emit), raises=False) as driver:
        with pytest.raises(TaskStopped, match="10 results in a row failed"):
            feed(driver, windows=2, keys=30)
        mended.append(True)
        driver.restart()
        driver.pipe("o", [("k", 1, 300)])

        keys = {record.key for record in driver.read("out")}

    assert len(keys) >= 30


def test_failed_results_of_several_windows_add_up_over_good_records() -> None:
    def broken(_n: int) -> int:
        raise KeyError("typo")

    with TestDriver(made_app(broken, "final"), raises=False) as driver:
        with pytest.raises(TaskStopped, match="10 results in a row failed"):
            feed(driver, windows=9, keys=3)
        assert len(driver.failures) == 10


def test_failed_results_among_good_ones_do_not_stop_their_task() -> None:
    def odd(n: int) -> int:
        return 1 // (n - 2)

    with TestDriver(made_app(odd, "final"), raises=False) as driver:
        for window in range(30):
            rows = a_window(window, keys=3)
            driver.pipe("o", [*rows, rows[0]])
        driver.pipe("o", [("k", 1, 1000)])

        assert len(driver.failures) == 30
        assert len(driver.read("out")) == 60
