"""Stages made by hand: topics in, topics out, tables, and an agent that never runs."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from streamsx.operators.forward import forward
from streamsx.state.layout import StoreNode
from streamsx.topology.build import Topology, build
from streamsx.topology.internal_topics import CONFIGS, TopicKind, TopicSpec
from streamsx.topology.nodes import AgentNode, Branch, Source, SubTopology
from tests.support.codecs import coded


def same(value: Any) -> Any:
    return value


CODEC = coded(same)


def make_stage(
    name: str, reads: str, sends: str = "", tables: str = "", *, loop: bool = False
) -> SubTopology:
    """Make a stage from names with spaces in between; `loop`: it forwards, and has no agent."""
    steps = (Branch(name, forward(sends)),) if loop else ()
    agents = () if loop else (AgentNode(name, same),)
    sources = tuple(Source(topic, CODEC, CODEC, steps, agents) for topic in reads.split())
    stores = (StoreNode(name, f"app-{name}-changelog", CODEC, CODEC) for name in tables.split())
    return SubTopology(0, sources, tuple(stores), frozenset(sends.split()))


def make_topology(*stages: SubTopology, specs: Iterable[TopicSpec] = ()) -> Topology:
    given = {spec.name for spec in specs}
    reads = {source.topic for stage in stages for source in stage.sources}
    sends = {topic for stage in stages for topic in stage.outputs} - reads
    kinds = {
        **dict.fromkeys(reads, TopicKind.SOURCE),
        **dict.fromkeys(sends, TopicKind.OUTPUT),
        **{store.changelog: TopicKind.CHANGELOG for stage in stages for store in stage.stores},
    }
    made = [
        TopicSpec(name, kind, config=CONFIGS[kind])
        for name, kind in kinds.items()
        if name not in given
    ]
    return build("app", stages, [*specs, *made])


@pytest.fixture
def stage() -> Callable[..., SubTopology]:
    return make_stage


@pytest.fixture
def topology() -> Callable[..., Topology]:
    return make_topology
