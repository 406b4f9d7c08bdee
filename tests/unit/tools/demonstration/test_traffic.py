"""Rate of the demo's lines, and their end."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.event_loops import run
from streamsx.protocol.wire import Api
from streamsx.tools.demonstration.traffic import PACE_MAX, Feed, pace
from tests.support.scripted_broker import Answer, Asked, ScriptedBroker


def test_default_feed_runs_at_the_maximum_pace() -> None:
    assert pace(200_000, 200_000, shown=False) == PACE_MAX == 5_000


def test_pace_is_scaled_to_the_number_of_lines() -> None:
    assert pace(4_000, 4_000, shown=False) == 100


@given(st.integers(1, 10**7), st.floats(0, 1), st.booleans())
def test_pace_stays_positive_and_below_the_maximum(records: int, left: float, shown: bool) -> None:
    found = pace(records, max(1, int(records * left)), shown=shown)
    assert 0 < found <= PACE_MAX


def test_pace_slows_for_the_last_lines_until_all_was_shown() -> None:
    assert pace(200_000, 10_000, shown=False) == 1_000
    assert pace(200_000, 10_000, shown=True) == PACE_MAX


async def ended_while_it_feeds(cluster: Cluster, asked: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        feed = Feed(SystemClock(), "lines", 200_000)
        _ = tasks.create_task(feed.run(cluster))
        await asked.wait()
        raise KeyError("interrupted")


async def interrupted() -> None:
    """Interrupt like Ctrl-C: the group ends first, then its connections."""
    asked = asyncio.Event()

    async def silent(_: Asked) -> None:
        asked.set()
        await asyncio.Event().wait()

    answers: dict[int, Answer] = {
        Api.INIT_PRODUCER_ID: lambda _: {"producer_id": 7, "producer_epoch": 0},
        Api.PRODUCE: silent,
    }
    async with ScriptedBroker(answers, {"lines": 4}) as broker:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        await cluster.follow(["lines"])
        with pytest.raises(ExceptionGroup) as caught:
            await ended_while_it_feeds(cluster, asked)
        assert [type(error) for error in caught.value.exceptions] == [KeyError]
        await cluster.stop()


def test_interrupted_feed_ends_without_further_requests() -> None:
    run(interrupted())
