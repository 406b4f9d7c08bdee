"""`idle=`: windows and joins close by the wall clock when no input comes."""

from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import session, sliding, tumbling
from streamsx.errors import TopologyError
from streamsx.processing.idle import QuietTime
from streamsx.testing import TestDriver

WINDOWS = [
    tumbling("10s", grace="5s", idle="30s"),
    sliding("10s", grace="5s", idle="30s"),
    session("10s", grace="5s", idle="30s"),
]


def counting(window: Any, partitions: int = 1, *, between: bool = False) -> App:
    app = App("idle", topic_partitions=partitions, store="memory://")
    flow = app.flow("in")
    groups = flow.group_by(lambda value: value) if between else flow.group_by_key()
    groups.window(window).count("n", emit="final").to("out")
    return app


def counts(driver: TestDriver) -> list[int]:
    return [each.value for each in driver.read("out")]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.kind)
def test_open_windows_close_once_when_the_input_is_idle(window: Any, *, restarts: bool) -> None:
    with TestDriver(counting(window)) as driver:
        driver.pipe("in", [("a", 1, 1.0), ("a", 1, 2.0)])
        driver.advance("29s")
        assert counts(driver) == []
        driver.pipe("in", [("a", 1, 3.0)])
        driver.advance("29s")
        assert counts(driver) == []
        driver.advance("1s")
        closed = counts(driver)
        assert max(closed) == 3
        if restarts:
            driver.restart()
        driver.advance("10m")
        assert counts(driver) == closed
        driver.pipe("in", [("a", 1, 2.5)])  # late now
        driver.pipe("in", [("a", 1, 100.0)])  # a window of its own
        driver.advance("30s")
        assert counts(driver) == [*closed, 1]


def test_restarts_while_idle_leave_time_in_the_payload_where_it_is() -> None:
    app = App("idle", topic_partitions=1, store="memory://")
    flow = app.flow("in", timestamp=lambda at: at)
    window = tumbling("1h", grace=0, idle="30s")
    flow.group_by_key().window(window).count("n", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1_700_000_000.0)])
        for _ in range(4):
            driver.advance("1m")
            driver.restart()
        driver.pipe("in", [("a", 1_700_003_600.0)])  # the next hour, not late
        driver.advance("1m")
        assert counts(driver) == [1, 1]


@pytest.mark.parametrize("between", [False, True])
def test_restarts_while_the_input_is_idle_close_nothing_more(*, between: bool) -> None:
    with TestDriver(counting(WINDOWS[0], between=between)) as driver:
        driver.pipe("in", [("a", "a", 1.0)])
        for _ in range(4):
            driver.advance("1m")
            driver.restart()
        assert counts(driver) == [1]
        driver.pipe("in", [("a", "a", 12.0), ("a", "a", 9.0)])
        driver.advance("1m")
        assert counts(driver) == [1, 1]


def test_time_of_a_dead_process_does_not_count() -> None:
    with TestDriver(counting(WINDOWS[0])) as driver:
        driver.pipe("in", [("a", 1, 1.0)])
        driver.advance("29s")
        driver.restart()
        driver.advance("29s")
        assert counts(driver) == []
        driver.advance("1s")
        assert counts(driver) == [1]


def test_quiet_time_counts_anew_after_a_pause() -> None:
    quiet = QuietTime()
    assert quiet.ms(0.0, 1, at_end=True) == 0
    assert quiet.ms(20.0, 1, at_end=True) == 20_000
    assert quiet.ms(25.0, 1, at_end=False) == 0
    assert quiet.ms(26.0, 1, at_end=True) == 26_000
    quiet.pause()
    assert quiet.ms(60.0, 1, at_end=True) == 0
    assert quiet.ms(70.0, 1, at_end=True) == 10_000
    assert quiet.ms(71.0, 2, at_end=True) == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_idle_writers_do_not_hold_the_time_of_the_others(*, restarts: bool) -> None:
    with TestDriver(counting(WINDOWS[0], 4, between=True)) as driver:
        driver.pipe("in", [(None, "a", 1.0), (None, "a", 99.0)], partition=2)
        driver.advance("20s")
        assert counts(driver) == []
        driver.pipe("in", [(None, "a", 100.0)], partition=2)
        driver.advance("10s")  # the others are idle, this one is not
        assert counts(driver) == [1]
        if restarts:
            driver.restart()
        driver.pipe("in", [(None, "a", 130.0)], partition=2)
        assert counts(driver) == [1, 1, 1]
        driver.advance("2m")
        assert sum(counts(driver)) == 4


def test_idle_window_behind_a_repartition_topic_closes() -> None:
    with TestDriver(counting(WINDOWS[0], 2, between=True)) as driver:
        driver.pipe("in", [(None, "a", 1.0), (None, "b", 2.0)])
        driver.advance("30s")
        driver.advance("30s")
        assert counts(driver) == [1, 1]


def test_join_gives_unmatched_records_when_both_inputs_are_idle() -> None:
    app = App("idle", topic_partitions=1, store="memory://")
    joined = app.flow("l").join(
        app.flow("r"),
        lambda a, b: [a, b],
        kind="outer",
        within="10s",
        grace=0,
        idle="30s",
        name="j",
    )
    joined.to("out")
    with TestDriver(app) as driver:
        driver.pipe("l", [("a", 1, 1.0)])
        driver.advance("20s")
        driver.pipe("r", [("b", 2, 2.0)])
        driver.advance("20s")
        assert driver.read("out") == []
        driver.advance("10s")
        assert [each.value for each in driver.read("out")] == [[1, None], [None, 2]]
        driver.advance("10m")
        assert len(driver.read("out")) == 2


def test_chained_windows_close_one_behind_the_other() -> None:
    app = App("idle", topic_partitions=1, store="memory://")
    first = app.flow("in").group_by_key().window(tumbling("10s", grace=0, idle="30s"))
    flow = first.count("first", emit="final").to_flow()
    plain = flow.rekey(lambda _n, key, _t, _h: key.key, metadata=True)
    second = plain.group_by_key().window(tumbling("20s", grace=0, idle="30s"))
    second.sum(lambda n: n, "second", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1, 1.0), ("a", 1, 2.0)])
        driver.advance("30s")
        driver.advance("30s")
        assert counts(driver) == [2]


@pytest.mark.parametrize("restarts", [False, True])
def test_idle_window_behind_a_foreign_key_join_closes(*, restarts: bool) -> None:
    """The two sub-topologies of such a join write to each other."""
    app = App("idle", topic_partitions=2, store="memory://")
    orders, towns = app.table("orders"), app.table("towns")
    both = orders.join(towns, lambda _, n: n, key=lambda order: order["town"], name="both")
    groups = both.to_flow().group_by(lambda n: f"n{n}")
    groups.window(tumbling("10s", grace=0, idle="5s")).count("n", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("towns", [("t0", 0, 1.0), ("t1", 1, 1.0)])
        driver.pipe("orders", [(f"o{n}", {"town": f"t{n % 2}"}, 2.0) for n in range(6)])
        driver.advance("3s")
        if restarts:
            driver.restart()
        assert counts(driver) == []
        for _ in range(4):  # the tasks are idle one behind the other
            driver.advance("6s")
        assert counts(driver) == [3, 3]


@pytest.mark.parametrize("idle", ["0s", "0.1ms"])
def test_idle_time_that_is_none_is_refused(idle: Any) -> None:
    with pytest.raises(TopologyError, match=r"bad idle time .*test_idle.py:\d+"):
        tumbling("10s", idle=idle)


@pytest.mark.parametrize("restarts", [False, True])
def test_suppressed_changes_leave_when_the_input_is_idle(*, restarts: bool) -> None:
    app = App("idle", topic_partitions=1, store="memory://")
    app.table("in").suppress("10s", idle="30s").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1, 1.0), ("a", 2, 2.0), ("b", 3, 3.0)])
        driver.advance("20s")
        if restarts:
            driver.restart()
        assert driver.read("out") == []
        driver.advance("31s")
        assert [(each.key, each.value) for each in driver.read("out")] == [(b"a", 2), (b"b", 3)]
        driver.restart()
        driver.advance("60s")
        assert len(driver.read("out")) == 2


def test_final_result_of_idle_input_is_no_newer_than_its_records() -> None:
    """A day ends later than now, and a broker refuses a time in the future."""
    app = App("idle", topic_partitions=1, store="memory://")
    days = app.flow("in").group_by_key().window(tumbling("1d", grace=0, idle="30s"))
    days.count("n", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1, 50.0), ("a", 1, 40.0)])
        driver.advance("30s")
        assert [(each.value, each.timestamp) for each in driver.read("out")] == [(2, 50.0)]
        driver.pipe("in", [("b", 1, 86_400.0), ("b", 1, 200_000.0)])  # closed by a record
        assert [each.timestamp for each in driver.read("out")][1:] == [172_799.999]


def test_idle_window_behind_a_topic_waits_once() -> None:
    """The event times that tasks send through a repartition topic do not count as input."""
    with TestDriver(counting(tumbling("10s", grace=0, idle="8s"), 4, between=True)) as driver:
        for at in range(20):
            driver.pipe("in", [(f"k{at}", "a", float(at))])
        driver.advance("8s")
        driver.advance("1s")
        assert sum(counts(driver)) == 20
