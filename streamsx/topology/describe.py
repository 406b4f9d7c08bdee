"""Descriptions of a topology: as text, as a mermaid diagram, as data for JSON.

Not here: printing, and the source text of the loops (`streamsx.processing.compile`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from streamsx.log_sentences import counted
from streamsx.operators.operator import Operator
from streamsx.state.layout import BUFFER, NEVER, SESSION, SLIDING, WINDOW, StoreNode, Timing
from streamsx.topology.build import Topology, outline
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import Layout

IF_CREATED: Final = " if created"
UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


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
    """Yield lines of text: each sub-topology with its steps, then the topics.

    The numbers that depend on topics which are not known to exist say so: those that exist by then
    keep their partitions.
    """
    made = {spec.name for spec in partitions.create}
    yield topology.app_id
    for each in topology.subtopologies:
        state = "stateful" if each.stateful else "stateless"
        yield ""
        tasks = counted(partitions.tasks[each.number], "task")
        new = [topic for topic in each.topics if topic in made]
        note = f" if {', '.join(new)} {'is' if len(new) == 1 else 'are'} created" if new else ""
        yield f"sub-topology {each.number}: {state}, {tasks}{note}"
        yield from (f"  {line}" for line in _steps(each))
    width = max((len(spec.name) for spec in topology.topics), default=0)
    yield ""
    yield "topics"
    for spec in topology.topics:
        config = " ".join(f"{name}={value}" for name, value in sorted(spec.config.items()))
        count = partitions.counts[spec.name]
        note = IF_CREATED if spec.name in made else " " * len(IF_CREATED) * bool(made)
        yield f"  {spec.name:{width}}  {spec.kind.value:11}  {count:4}{note}  {config}".rstrip()


def _steps(each: SubTopology) -> Iterator[str]:
    seen: set[int] = set()
    for source in each.sources:
        yield f"reads   {source.topic}"
        for branch in source.branches:
            yield (
                f"  {branch.agent}"
                if branch.of_flow
                else f"  agent {branch.agent}, ahead of its body"
            )
            yield from (f"    {line}" for line in _below(branch.first, seen))
        yield from (f"  agent {agent.name}" for agent in source.agents)
    for store in each.stores:
        where = "on disk" if store.persistent else "in memory"
        codecs = f"keys {store.keys.name}, values {store.values.name}"
        word = "buffer" if store.kind == BUFFER else "table"
        times = "".join(f", {text}" for text in _times(store))
        yield f"{word:7} {store.name}: {codecs}{times}, {where}, changelog {store.changelog}"
    for topic in sorted(each.outputs):
        yield f"sends   {topic}" + (
            ", with the event time of each task" if topic in each.tells else ""
        )


def _below(operator: Operator, seen: set[int]) -> Iterator[str]:
    """Yield an operator and those below; of one that several flows share, the rest once."""
    line = _label(operator) + (f" to {operator.topic}" if operator.topic else "")
    if id(operator) in seen:
        yield f"{line}, as above"
        return
    seen.add(id(operator))
    yield line
    for each in operator.then:
        yield from (f"  {below}" for below in _below(each, seen))


def _label(operator: Operator) -> str:
    """Return the kind of an operator and the names of its stores."""
    stores = dict.fromkeys(node.name for node in operator.stores.values())
    return " ".join((operator.kind, ", ".join(stores))).rstrip()


def _times(store: StoreNode) -> list[str]:
    """Return words for the times of a store, such as `tumbling 1h` and `grace 5m`."""
    words = TIMES.get(store.kind)
    return [] if words is None or store.timing is None else words(store.timing)


def _window(timing: Timing) -> list[str]:
    same = timing.size == timing.step
    kind = "tumbling" if same else "hopping"
    step = "" if same else f" each {_time(timing.step)}"
    lasts = timing.stays >= NEVER
    stays = "kept for ever" if lasts else f"grace {_time(timing.stays - timing.size)}"
    return [f"{kind} {_time(timing.size)}{step}", stays]


def _session(timing: Timing) -> list[str]:
    grace = timing.stays - timing.size
    return [f"gap {_time(timing.size)}", *([f"grace {_time(grace)}"] if grace >= 0 else [])]


def _sliding(timing: Timing) -> list[str]:
    return [f"sliding {_time(timing.size)}", f"grace {_time(timing.stays)}"]


def _buffer(timing: Timing) -> list[str]:
    return [f"kept {_time(timing.stays)}"]


TIMES: Final[Mapping[str, Callable[[Timing], list[str]]]] = {
    WINDOW: _window, SESSION: _session, SLIDING: _sliding, BUFFER: _buffer,
}  # fmt: skip
"""Words for the times of a store, by its kind."""


def _time(ms: int) -> str:
    """Return a duration as users write it: `90s`, `1h`."""
    if not ms:
        return "0"
    found = (f"{ms // size}{unit}" for unit, size in UNITS if ms % size == 0)
    return next(found, f"{ms}ms")


def as_mermaid(topology: Topology) -> Iterator[str]:
    """Yield lines of a flowchart: topics between sub-topologies, tables within."""
    names = {spec.name: f"t{n}" for n, spec in enumerate(topology.topics)}
    yield "flowchart LR"
    changelogs = {store.changelog for each in topology.subtopologies for store in each.stores}
    tells = {topic for each in topology.subtopologies for topic in each.tells}
    for spec in topology.topics:
        if spec.name not in changelogs:
            times = "<br>with event time" if spec.name in tells else ""
            yield f'  {names[spec.name]}[/"{spec.name}{times}"/]'
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
    flows = _FlowDrawing(here, names, tables)
    for n, source in enumerate(each.sources):
        topic = names[source.topic]
        arrows += [f"{topic} --> {agents[agent.name]}" for agent in source.agents]
        for m, branch in enumerate(source.branches):
            if branch.of_flow:
                flows.draw(topic, branch.first)
                continue
            box = f"{here}o{n}_{m}"
            steps = list(branch.first.walk())
            boxes.append(f'{box}["{branch.agent}: {" ".join(step.kind for step in steps)}"]')
            arrows.append(f"{topic} --> {box}")
            arrows += [f"{box} --> {names[step.topic]}" for step in steps if step.topic]
            used = dict.fromkeys(node.name for step in steps for node in step.stores.values())
            arrows += [f"{box} <--> {tables[name]}" for name in used]
    boxes += [f'{box}["{name}"]' for name, box in agents.items()]
    boxes += flows.boxes
    boxes += [
        f'{tables[store.name]}[("{"<br>".join((store.name, *_times(store)))}")]'
        for store in each.stores
    ]
    arrows += flows.arrows
    of_agents = [tables[store.name] for store in each.stores if not store.by_bytes]
    arrows += [f"{box} <--> {table}" for box in agents.values() for table in of_agents]
    operators = [step for source in each.sources for step in source.operators]
    if agents:
        ahead = {step.topic for step in operators}
        arrows += [f"{here} --> {names[topic]}" for topic in sorted(each.outputs - ahead)]
    return boxes, arrows


class _FlowDrawing:
    """Boxes of the operators of a sub-topology's flows, with arrows to tables and topics.

    An operator that sends is an arrow to its topic. An operator below two others has one box.
    """

    def __init__(self, here: str, names: Mapping[str, str], tables: Mapping[str, str]) -> None:
        self.boxes: list[str] = []
        self.arrows: list[str] = []
        self._here = here
        self._names = names
        self._tables = tables
        self._drawn: dict[int, str] = {}

    def draw(self, above: str, operator: Operator) -> None:
        """Draw an operator and all below, with an arrow from the box above."""
        if operator.topic is not None:
            self._arrow(f"{above} --> {self._names[operator.topic]}")
            return
        box = self._drawn.get(id(operator))
        if box is not None:
            self._arrow(f"{above} --> {box}")
            return
        box = self._drawn[id(operator)] = f"{self._here}f{len(self._drawn)}"
        self.boxes.append(f'{box}["{operator.kind}"]')
        self._arrow(f"{above} --> {box}")
        for name in dict.fromkeys(node.name for node in operator.stores.values()):
            self._arrow(f"{box} <--> {self._tables[name]}")
        for each in operator.then:
            self.draw(box, each)

    def _arrow(self, arrow: str) -> None:
        if arrow not in self.arrows:
            self.arrows.append(arrow)
