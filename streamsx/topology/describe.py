"""Descriptions of a topology: as text, as a mermaid diagram, as data for JSON.

Not here: printing, and the source text of the loops (`streamsx.processing.compile`).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from streamsx.operators.operator import Operator
from streamsx.state.layout import BUFFER, NEVER, SESSION, WINDOW, StoreNode
from streamsx.topology.build import Topology, outline
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import Layout

ROWS: Final = {
    WINDOW: "windows of {size:g} s every {step:g} s",
    SESSION: "sessions with gaps up to {size:g} s",
    BUFFER: "records of a join",
}
"""Text of a kind of stores, with sizes in seconds."""


def as_data(topology: Topology, partitions: Layout) -> dict[str, object]:
    """Return data for JSON: sub-topologies with tasks and signature, topics with their config."""
    pairs = zip(topology.subtopologies, topology.signatures, strict=True)
    return {
        "app": topology.app_id,
        "subtopologies": [
            {
                "number": each.number,
                "stateful": each.stateful,
                "tasks": partitions.tasks[each.number],
                "signature": signature,
                **outline(each),
            }
            for each, signature in pairs
        ],
        "topics": [
            {
                "name": spec.name,
                "kind": spec.kind.value,
                "partitions": partitions.counts[spec.name],
                "replication": spec.replication,
                "config": dict(spec.config),
            }
            for spec in topology.topics
        ],
    }


def as_text(topology: Topology, partitions: Layout) -> Iterator[str]:
    """Yield lines of text: each sub-topology with its steps, then the topics."""
    yield topology.app_id
    for each in topology.subtopologies:
        state = "stateful" if each.stateful else "stateless"
        yield ""
        yield f"sub-topology {each.number}: {state}, {partitions.tasks[each.number]} tasks"
        yield from (f"  {line}" for line in _steps(each))
    width = max((len(spec.name) for spec in topology.topics), default=0)
    yield ""
    yield "topics"
    for spec in topology.topics:
        config = " ".join(f"{name}={value}" for name, value in sorted(spec.config.items()))
        count = partitions.counts[spec.name]
        yield f"  {spec.name:{width}}  {spec.kind.value:11}  {count:4}  {config}".rstrip()


def _steps(each: SubTopology) -> Iterator[str]:
    for source in each.sources:
        yield f"reads   {source.topic}"
        for branch in source.branches:
            name = branch.agent
            yield f"  {name}" if branch.is_flow else f"  agent {name}, ahead of its body"
            yield from (f"    {line}" for line in _below(branch.first))
        yield from (f"  agent {agent.name}" for agent in source.agents)
    for store in each.stores:
        where = "on disk" if store.persistent else "in memory"
        codecs = f"{_rows(store)}keys {store.keys.name}, values {store.values.name}"
        yield f"table   {store.name}: {codecs}, {where}, changelog {store.changelog}"
    yield from (f"sends   {topic}" for topic in sorted(each.outputs))


def _rows(store: StoreNode) -> str:
    """Return the kind of a store with its sizes; nothing for a store of values by key."""
    timing = store.timing
    if timing is None:
        return ""
    text = ROWS[store.kind].format(size=timing.size / 1000, step=timing.step / 1000)
    stays = "kept for ever" if timing.stays >= NEVER else f"open for {timing.stays / 1000:g} s"
    return f"{text}, {stays}, "


def _below(operator: Operator) -> Iterator[str]:
    yield operator.kind + (f" to {operator.topic}" if operator.topic else "")
    for each in operator.then:
        yield from (f"  {line}" for line in _below(each))


def as_mermaid(topology: Topology) -> Iterator[str]:
    """Yield lines of a flowchart: topics between sub-topologies, tables within."""
    names = {spec.name: f"t{n}" for n, spec in enumerate(topology.topics)}
    yield "flowchart LR"
    changelogs = {store.changelog for each in topology.subtopologies for store in each.stores}
    for spec in topology.topics:
        if spec.name not in changelogs:
            yield f'  {names[spec.name]}[/"{spec.name}"/]'
    for each in topology.subtopologies:
        boxes, arrows = _drawn(each, names)
        yield f'  subgraph s{each.number}["sub-topology {each.number}"]'
        yield from (f"    {line}" for line in boxes)
        yield "  end"
        yield from (f"  {line}" for line in arrows)


def _drawn(each: SubTopology, names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return a sub-topology's boxes, and the arrows into, within and out of the sub-topology."""
    boxes = list[str]()
    arrows = list[str]()
    here = f"s{each.number}"
    found = dict.fromkeys(agent.name for source in each.sources for agent in source.agents)
    agents = {name: f"{here}a{n}" for n, name in enumerate(found)}
    tables = {store.name: f"{here}d{n}" for n, store in enumerate(each.stores)}
    for n, source in enumerate(each.sources):
        topic = names[source.topic]
        arrows += [f"{topic} --> {agents[agent.name]}" for agent in source.agents]
        for m, branch in enumerate(source.branches):
            box = f"{here}o{n}_{m}"
            steps = list(branch.first.walk())
            boxes.append(f'{box}["{branch.agent}: {" ".join(step.kind for step in steps)}"]')
            arrows.append(f"{topic} --> {box}")
            arrows += [f"{box} --> {names[step.topic]}" for step in steps if step.topic]
            used = dict.fromkeys(node.name for step in steps for node in step.stores.values())
            arrows += [f"{box} <--> {tables[name]}" for name in used]
    boxes += [f'{box}["{name}"]' for name, box in agents.items()]
    boxes += [f'{box}[("{name}")]' for name, box in tables.items()]
    operators = [step for source in each.sources for step in source.operators]
    flows = {node.name for step in operators for node in step.stores.values()}
    own = [table for name, table in tables.items() if name not in flows]
    arrows += [f"{box} <--> {table}" for box in agents.values() for table in own]
    if agents:
        ahead = {step.topic for step in operators}
        arrows += [f"{here} --> {names[topic]}" for topic in sorted(each.outputs - ahead)]
    return boxes, arrows
