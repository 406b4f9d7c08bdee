"""What an app becomes: signatures that members compare, names of topics and of readers.

A signature that changes makes members of two releases strangers to each other. A name that changes
leaves state or records behind under the old one.
"""

import json
from typing import Any

import pytest

import streamsx
from streamsx.examples import shop, wordcount
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.layout import StoreNode, Timing
from streamsx.topology.build import outline
from streamsx.topology.internal_topics import (
    agent_topic_name,
    changelog_name,
    repartition_names,
)
from streamsx.topology.nodes import SubTopology, reader_name

COMPACTED = {"cleanup.policy": "compact"}
REPARTITION = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800"}
SELL = "streamsx.examples.shop.sell-shop-changes-product-repartition"


def till(names: str = "app") -> streamsx.App:
    """Return an app that groups, goes through a topic, and has an agent without a topic."""
    app = streamsx.App("till", repartition_names=names)
    totals = app.Table("totals", default=float, key_type=str, value_type=float)
    middle = app.topic("till-mid", value_type=str)

    @app.agent("receipts", name="add")
    async def add(stream: Any) -> None:
        async for receipt in stream.group_by(lambda receipt: receipt["user"], name="user"):
            totals[receipt["user"]] += receipt["price"]

    @app.agent("notes", name="hand-on")
    async def hand_on(stream: Any) -> None:
        async for _ in stream.through(middle):
            pass

    @app.agent(name="alone")
    async def alone(stream: Any) -> None:
        async for _ in stream:
            pass

    return app


APPS = {"wordcount": wordcount.app, "shop": shop.app, "till": till()}
SIGNATURES = {
    "wordcount": (1929826881, 4164395724),
    "shop": (1326204835, 1692345120, 3364248137),
    "till": (3746114052, 2532820325, 750582317, 2442871071, 2119662694),
}
OUTLINES = {
    "wordcount": [
        (
            '{"sources": [{"topic": "wordcount-lines", "operators": [], "agents":'
            ' ["streamsx.examples.wordcount.split"]}], "stores": [],'
            ' "outputs": ["wordcount-words"]}'
        ),
        (
            '{"sources": [{"topic": "wordcount-words", "operators": [], "agents":'
            ' ["streamsx.examples.wordcount.count"]}], "stores": [{"name": "counts", "changelog":'
            ' "wordcount-counts-changelog", "key": "json", "value": "json", "persistent": true}],'
            ' "outputs": []}'
        ),
    ],
    "till": [
        (
            '{"sources": [{"topic": "notes", "operators": [{"kind": "forward", "topic": "'
            'till-mid"}], "agents": []}], "stores": [], "outputs": ["till-mid"]}'
        ),
        (
            '{"sources": [{"topic": "receipts", "operators": [{"kind": "rekey", "topic": '
            'null}, {"kind": "forward", "topic": "till-add-receipts-user-repartition"}], '
            '"agents": []}], "stores": [], "outputs": ["till-add-receipts-user-repartitio'
            'n"]}'
        ),
        (
            '{"sources": [{"topic": "till-add-receipts-user-repartition", "operators": []'
            ', "agents": ["add"]}], "stores": [{"name": "totals", "changelog": "till-tota'
            'ls-changelog", "key": "json", "value": "json", "persistent": true}], "output'
            's": []}'
        ),
        (
            '{"sources": [{"topic": "till-alone", "operators": [], "agents": ["alone"]}],'
            ' "stores": [], "outputs": []}'
        ),
        (
            '{"sources": [{"topic": "till-mid", "operators": [], "agents": ["hand-on"]}],'
            ' "stores": [], "outputs": ["till-mid"]}'
        ),
    ],
}
TOPICS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "wordcount": {
        "wordcount-counts-changelog": ("changelog", COMPACTED),
        "wordcount-lines": ("source", {}),
        "wordcount-words": ("source", {}),
    },
    "shop": {
        "orders": ("source", {}),
        "shop-changes": ("source", {}),
        "shop-customers-changelog": ("changelog", COMPACTED),
        "shop-sold-changelog": ("changelog", COMPACTED),
        "shop-standing-changelog": ("changelog", COMPACTED),
        f"shop-{SELL}": ("repartition", REPARTITION),
    },
    "till": {
        "notes": ("source", {}),
        "receipts": ("source", {}),
        "till-add-receipts-user-repartition": ("repartition", REPARTITION),
        "till-alone": ("source", {}),
        "till-mid": ("source", {}),
        "till-totals-changelog": ("changelog", COMPACTED),
    },
}
OTHERWISE = {"wordcount": set(), "shop": {SELL}, "till": {"add-receipts-user-repartition"}}
READERS = {
    "streamsx.examples.wordcount.split": "ee43bf88",
    "streamsx.examples.wordcount.count": "82131a3e",
    "streamsx.examples.shop.place": "d3f77f78",
    "streamsx.examples.shop.spend": "ee7ba3d9",
    "streamsx.examples.shop.sell": "c5447239",
    "add": "7e9e5ac3",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_sub_topologies_are_these(name: str) -> None:
    assert APPS[name].topology().signatures == SIGNATURES[name]


@pytest.mark.parametrize("name", OUTLINES)
def test_outlines_that_are_hashed_are_this_text(name: str) -> None:
    made = [json.dumps(outline(each)) for each in APPS[name].topology().subtopologies]
    assert made == OUTLINES[name]


@pytest.mark.parametrize("name", TOPICS)
def test_topics_of_an_app_have_these_names_kinds_and_configs(name: str) -> None:
    made = APPS[name].topology().topics
    assert {each.name: (each.kind.value, dict(each.config)) for each in made} == TOPICS[name]


@pytest.mark.parametrize("name", OTHERWISE)
def test_repartition_topics_have_these_names_under_the_other_setting(name: str) -> None:
    assert APPS[name].topology().otherwise == OTHERWISE[name]


def test_repartition_topic_has_faust_s_name_where_it_is_asked_for() -> None:
    made = {each.name for each in till("faust").topology().topics}
    assert "add-receipts-user-repartition" in made
    assert "till-add-receipts-user-repartition" not in made


@pytest.mark.parametrize("agent", READERS)
def test_reader_has_this_name_in_commits(agent: str) -> None:
    assert reader_name(agent) == READERS[agent]


@pytest.mark.parametrize("name", APPS)
def test_readers_of_a_topology_have_the_names_of_their_agents(name: str) -> None:
    for plan in APPS[name].topology().subtopologies:
        for source in plan.sources:
            for short, agent in source.readers.items():
                assert READERS.get(agent, short) == short


def test_names_of_internal_topics() -> None:
    assert changelog_name("a", "t") == "a-t-changelog"
    assert agent_topic_name("a", "m.f") == "a-m.f"
    assert repartition_names("a", "m.f", "in", "k", has_prefix=False) == {
        "app": "a-m.f-in-k-repartition", "faust": "m.f-in-k-repartition",
    }  # fmt: skip
    assert repartition_names("a", "m.f", "a-in", "k", has_prefix=True) == {
        "app": "a-in-k-repartition", "faust": "a-in-k-repartition",
    }  # fmt: skip
    assert repartition_names("a", "m.f", "in", "k", has_prefix=True) == {
        "app": "a-m.f-in-k-repartition", "faust": "in-k-repartition",
    }  # fmt: skip


def test_outline_of_a_store_by_time_has_its_kind_and_sizes() -> None:
    node = StoreNode(
        "v", "a-v-changelog", table_key_codec(str), table_codec(int),
        kind="window", timing=Timing(10_000, 5_000, 12_000),
    )  # fmt: skip
    assert json.dumps(outline(SubTopology(0, (), (node,)))["stores"]) == (
        '[{"name": "v", "changelog": "a-v-changelog", "key": "json", "value": "json",'
        ' "persistent": true, "kind": "window", "size": 10000, "step": 5000}]'
    )
