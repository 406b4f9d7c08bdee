"""Generated loop of a flow: it keeps no result that nothing reads, and decodes nothing in vain."""

from collections.abc import Callable

import pytest

from streamsx import App, session, sliding, tumbling
from streamsx.app.flow import Flow
from streamsx.app.table_flow import TableFlow
from streamsx.processing.compile import source_text

AGGREGATES: dict[str, Callable[[Flow], TableFlow]] = {
    "plain": lambda flow: flow.group_by_key().count("n"),
    "tumbling": lambda flow: flow.group_by_key().window(tumbling("10s")).count("n"),
    "session": lambda flow: flow.group_by_key().window(session("10s")).count("n"),
    "sliding": lambda flow: flow.group_by_key().window(sliding("10s")).count("n"),
}


@pytest.fixture
def app() -> App:
    return App("x", topic_partitions=1, store="memory://")


def text(app: App) -> str:
    ((source,),) = (each.sources for each in app.topology().subtopologies)
    return source_text(source)


@pytest.mark.parametrize("kind", AGGREGATES)
def test_aggregate_keeps_results_for_the_commit_only_if_a_step_reads_them(
    app: App, kind: str
) -> None:
    AGGREGATES[kind](app.flow("t"))
    assert "pending" not in text(app)


@pytest.mark.parametrize("kind", ["plain", "tumbling"])
def test_values_are_not_decoded_for_a_count_whose_results_are_sent(app: App, kind: str) -> None:
    counts = AGGREGATES[kind](app.flow("t"))
    counts.to("out")
    loop = text(app)
    assert "pending" in loop
    assert "decode_value" not in loop


def test_values_are_decoded_for_a_step_beside_a_count(app: App) -> None:
    flow = app.flow("t")
    flow.group_by_key().count("n").to("out")
    flow.filter(bool).to("some")
    assert "decode_value" in text(app)
