"""Cycles of transactions that each depend on the next one (Adya's G0 and G1c). Pure."""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tests.support.history.anomalies import Anomaly, Kind
from tests.support.history.events import Level, Poll, Send
from tests.support.history.facts import Facts, Fate, of

if TYPE_CHECKING:
    from streamsx.model import TopicPartition

N = TypeVar("N", bound=Hashable)
Graph = dict[N, set[N]]


class Edge(NamedTuple):
    """Dependency: one transaction comes before the other, as these events show."""

    before: str
    after: str
    witnesses: tuple[int, ...]


def components(graph: Graph[N]) -> Iterator[list[N]]:
    """Return the strongly connected components of two nodes or more (Kosaraju, without
    recursion).
    """
    seen: set[N] = set()
    order = [node for root in graph if root not in seen for node in finished(graph, root, seen)]
    back: Graph[N] = defaultdict(set)
    for node, after in graph.items():
        for following in after:
            back[following].add(node)
    seen.clear()
    for root in reversed(order):
        if root not in seen and len(found := finished(back, root, seen)) > 1:
            yield found


def finished(graph: Graph[N], root: N, seen: set[N]) -> list[N]:
    """Return the unseen nodes that a node leads to, each after those that it leads to itself."""
    done: list[N] = []
    seen.add(root)
    work = [(root, iter(sorted(graph.get(root, ()), key=str)))]
    while work:
        node, after = work[-1]
        following = next((each for each in after if each not in seen), None)
        if following is None:
            done.append(node)
            work.pop()
        else:
            seen.add(following)
            work.append((following, iter(sorted(graph.get(following, ()), key=str))))
    return done


def shortest(graph: Graph[N], component: list[N]) -> list[N]:
    """Return the shortest cycle through the first of them, without the way back to the start."""
    start, inside = component[0], set(component)
    came: dict[N, N] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for following in sorted(graph.get(node, set()) & inside, key=str):
            if following == start:
                way = [node]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if following not in came:
                came[following] = node
                waiting.append(following)
    raise AssertionError("a component has a circle through each of its nodes")


def cycles(facts: Facts) -> Iterator[Anomaly]:
    """Yield one cycle for each component: of reads alone, of writes alone, and of both
    otherwise.
    """
    reads, dirty, writes = (
        list(read_edges(facts)),
        list(dirty_edges(facts)),
        list(write_edges(facts)),
    )
    known: list[set[str]] = []
    for kind, edges in (
        (Kind.READ_CYCLE, reads),
        (Kind.WRITE_CYCLE, writes),
        (Kind.MIXED_CYCLE, [*reads, *dirty, *writes]),
    ):
        for way, witnesses in circles(edges):
            if kind is not Kind.MIXED_CYCLE:
                known.append(set(way))
            elif any(each <= set(way) for each in known):
                continue
            yield Anomaly(kind, " -> ".join([*way, way[0]]), witnesses)


def circles(edges: Iterable[Edge]) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    graph: Graph[str] = defaultdict(set)
    shown: dict[tuple[str, str], tuple[int, ...]] = {}
    for edge in edges:
        graph[edge.before].add(edge.after)
        shown.setdefault((edge.before, edge.after), edge.witnesses)
    graph = dict(graph)
    for component in components(graph):
        way = shortest(graph, component)
        pairs = zip(way, [*way[1:], way[0]], strict=True)
        yield way, tuple(at for pair in pairs for at in shown[pair])


def write_edges(facts: Facts) -> Iterator[Edge]:
    """Yield edges by the order of offsets in each partition, from each record to the next."""
    order: dict[TopicPartition, list[tuple[int, str, int]]] = defaultdict(list)
    for send in facts.sends:
        action = of(send, Send)
        if action.txn is not None and facts.fate(send) is Fate.THERE:
            for tp, offset in facts.places(action.value):
                order[tp].append((offset, action.txn, send.began))
    for rows in order.values():
        rows.sort()
        for (_, before, first), (_, after, second) in pairwise(rows):
            if before != after:
                yield Edge(before, after, (first, second))


def read_edges(facts: Facts) -> Iterator[Edge]:
    yield from edges_of_readers(facts, Level.COMMITTED)


def dirty_edges(facts: Facts) -> Iterator[Edge]:
    yield from edges_of_readers(facts, Level.UNCOMMITTED)


def edges_of_readers(facts: Facts, level: Level) -> Iterator[Edge]:
    """Yield edges from the writer of a record to its readers."""
    for each in facts.deliveries:
        reader = of(each.poll, Poll).txn
        send = facts.sender.get(each.row.value)
        if reader is None or send is None or each.level is not level:
            continue
        writer = of(send, Send).txn
        if writer is not None and writer != reader:
            yield Edge(writer, reader, (send.began, each.poll.ended))
