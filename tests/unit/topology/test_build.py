"""topology/build.py, internal_topics.py, nodes.py: topics, their names, signatures, layouts."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from streamsx import App, Stream
from streamsx.errors import NameClash, TopologyError
from streamsx.examples.wordcount import app
from streamsx.operators.forward import forward
from streamsx.operators.operator import Operator
from streamsx.operators.rekey import rekey
from streamsx.state.layout import StoreNode
from streamsx.topology.build import Topology, check_names
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec, repartition_names
from streamsx.topology.nodes import Branch, Source, SubTopology
from tests.support.codecs import coded

Make = Callable[..., Any]


def test_topic_both_sent_to_and_read_is_a_source(stage: Make, topology: Make) -> None:
    specs = [
        TopicSpec("words", TopicKind.OUTPUT),
        TopicSpec("words", TopicKind.SOURCE, 4, config={"a": "1"}),
        TopicSpec("words", TopicKind.OUTPUT),
    ]
    made = topology(stage("a", "words"), specs=specs)
    assert made.topics == (TopicSpec("words", TopicKind.SOURCE, 4, config={"a": "1"}),)


@pytest.mark.parametrize(
    "specs",
    [
        [TopicSpec("t", TopicKind.SOURCE), TopicSpec("t", TopicKind.CHANGELOG)],
        [TopicSpec("t", TopicKind.REPARTITION), TopicSpec("t", TopicKind.OUTPUT)],
        [TopicSpec("t", TopicKind.SOURCE, 2), TopicSpec("t", TopicKind.SOURCE, 4)],
    ],
)
def test_two_topics_with_one_name_are_an_error(
    stage: Make, topology: Make, specs: list[TopicSpec]
) -> None:
    with pytest.raises(NameClash, match="two topics with one name: t"):
        topology(stage("a", "t"), specs=specs)


@pytest.mark.parametrize("name", ["", "a b", "ö", "<lambda>", "a" * 250, "a/b"])
def test_topic_name_kafka_refuses_is_a_topology_error(name: str) -> None:
    with pytest.raises(TopologyError, match="not a name of a topic"):
        TopicSpec(name, TopicKind.SOURCE)


def test_internal_topics_have_the_configs_for_their_use() -> None:
    assert CONFIGS[TopicKind.CHANGELOG] == {"cleanup.policy": "compact"}
    assert CONFIGS[TopicKind.REPARTITION]["retention.ms"] == "-1"


@pytest.mark.parametrize(
    ("topic", "has_prefix", "ours", "faust_s"),
    [
        ("t", False, "app-m.a-t-n-repartition", "m.a-t-n-repartition"),
        ("app-m.a", True, "app-m.a-n-repartition", "app-m.a-n-repartition"),
        ("app-t", False, "app-m.a-app-t-n-repartition", "m.a-app-t-n-repartition"),
        ("t", True, "app-m.a-t-n-repartition", "t-n-repartition"),
    ],
)
def test_repartition_topic_name_holds_app_and_agent_once(
    topic: str, has_prefix: bool, ours: str, faust_s: str
) -> None:
    names = repartition_names("app", "m.a", topic, "n", has_prefix=has_prefix)
    assert names == {"app": ours, "faust": faust_s}


def test_repartition_topics_under_other_names_are_refused() -> None:
    made = Topology("app", (), (), otherwise=frozenset({"a-t-n-repartition"}))
    check_names(made, {"app-a-t-n-repartition", "t"}, "app")
    with pytest.raises(TopologyError, match=r": a-t-n-repartition: .*='faust' to continue"):
        check_names(made, {"a-t-n-repartition", "t"}, "app")


def test_signatures_differ_for_any_difference_in_the_sub_topology(
    stage: Make, topology: Make
) -> None:
    variants = [
        topology(stage("a", "one")),
        topology(stage("b", "one")),
        topology(stage("a", "two")),
        topology(stage("a", "one", tables="t")),
        topology(stage("a", "one", tables="u")),
        topology(stage("a", "one", "out")),
        topology(stage("a", "one", "out", loop=True)),
    ]
    signatures = [each.signatures for each in variants]
    assert len(set(signatures)) == len(variants)
    assert all(0 <= number < 1 << 32 for (number,) in signatures)
    assert topology(stage("a", "one")).signatures == signatures[0]


def shop() -> App:
    """Return an app with several agents on one topic: by two keys, as it comes, and without a
    repartition topic.
    """
    made = App("shop")
    orders = made.topic("orders")
    by_user, by_sku = made.Table("by_user"), made.Table("by_sku", key_type=str)

    async def users(stream: Stream[Any]) -> None:
        async for order in stream.group_by(itemgetter("user"), name="user"):
            by_user[order["user"]] = order

    async def skus(stream: Stream[Any]) -> None:
        async for order in stream.group_by(itemgetter("sku"), name="sku", partitions=3):
            by_sku[order["sku"]] = order

    async def copy(stream: Stream[Any]) -> None:
        async for _ in stream.through("copies"):
            pass

    async def watch(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    for fun in (watch, users, skus, copy):
        made.agent(orders, name=fun.__name__)(fun)
    return made


def test_signatures_are_equal_to_earlier_versions() -> None:
    """Members of several versions share a group during a rolling upgrade: if these numbers change,
    each upgrade changes the topology.
    """
    assert app.topology().signatures == (1929826881, 4164395724)
    assert shop().topology().signatures == (1299717959, 778107637, 2864610614, 2641254704)


def test_signatures_differ_for_operator_trees_with_different_forks() -> None:
    def of(first: Operator) -> tuple[int, ...]:
        source = Source("t", coded(str), coded(str), (Branch("a", first),))
        return Topology("app", (SubTopology(0, (source,)),), ()).signatures

    one = forward("x")
    other = forward("y")
    key = rekey(str, str.encode)
    fork = replace(key, then=(one, other))
    assert of(fork) != of(replace(key, then=(replace(one, then=(other,)),)))


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_signatures_are_equal_in_every_process(seed: str) -> None:
    code = "from streamsx.examples.wordcount import app; print(app.topology().signatures)"
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{app.topology().signatures}\n"


def test_store_layout_describes_the_rows() -> None:
    node = StoreNode("t", "app-t-changelog", coded(bytes, name="raw"), coded(bytes))
    assert node.layout(4) == (
        '{"version":1,"store":"kv","key":"raw","value":"json","topic":"app-t-changelog",'
        '"partitions":4}'
    )


def test_own_topics_are_the_topics_written_by_tasks_of_the_app() -> None:
    made = App("own")
    other, asked = made.topic("other"), made.topic("asked")

    @made.agent(made.topic("in"))
    async def first(stream: Stream[Any]) -> None:
        async for value in stream.group_by(lambda value: value, name="key"):
            await other.send(value=value)
            await alone.send(value=value)

    @made.agent(other)
    async def second(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    @made.agent(asked)
    async def third(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    @made.agent(name="alone")
    async def alone(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    found = made.topology()
    assert found.own == {spec.name for spec in found.topics} - {"in", "asked"}
