"""Server-side assignors of consumer-protocol groups, from subscriptions to a target. Pure.

An assignor takes the members' subscriptions, the number of partitions of each topic, and the
previous target. Members ask for an assignor by its name.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

TopicIdPartition = tuple[bytes, int]
Subscribed = Mapping[str, frozenset[bytes]]
"""Topic ids by member id."""
Target = dict[str, frozenset[TopicIdPartition]]
"""Partitions by member id; each partition belongs to at most one member."""
Assignor = Callable[[Subscribed, Mapping[bytes, int], Target], Target]


class Shares:
    """Shares of all members, with fast access to the smallest, even among thousands.

    Members with the same subscription share one heap. A member whose load changes is pushed again.
    Outdated entries of a heap are dropped when they reach the top.
    """

    def __init__(self, subscribed: Subscribed) -> None:
        self._subscribed = subscribed
        self._heaps: dict[frozenset[bytes], list[tuple[int, str]]] = {
            topics: [] for topics in subscribed.values()
        }
        self.of: dict[str, dict[bytes, list[int]]] = {m: defaultdict(list) for m in subscribed}
        self.load = dict.fromkeys(subscribed, 0)
        for member in subscribed:
            self._count(member, 0)

    def give(self, member: str, place: TopicIdPartition) -> None:
        """Add a partition to a member's share."""
        self.of[member][place[0]].append(place[1])
        self._count(member, 1)

    def take(self, member: str, topic: bytes) -> TopicIdPartition:
        """Remove and return the partition of this topic that the member was given last."""
        self._count(member, -1)
        return topic, self.of[member][topic].pop()

    def _count(self, member: str, more: int) -> None:
        self.load[member] += more
        heappush(self._heaps[self._subscribed[member]], (self.load[member], member))

    def least(self, topic: bytes) -> str:
        """Return the subscriber of this topic with the fewest partitions; there must be one."""
        return min(self._top(heap) for topics, heap in self._heaps.items() if topic in topics)[1]

    def _top(self, heap: list[tuple[int, str]]) -> tuple[int, str]:
        while self.load[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0]


def all_of(subscribed: Subscribed, partitions: Mapping[bytes, int]) -> set[TopicIdPartition]:
    """Return all partitions of the topics that any member is subscribed to."""
    topics = frozenset[bytes]().union(*subscribed.values())
    return {(topic, p) for topic in topics for p in range(partitions.get(topic, 0))}


def uniform(subscribed: Subscribed, partitions: Mapping[bytes, int], before: Target) -> Target:
    """Assign evenly and stickily.

    A partition moves only to a member that has fewer partitions by two or more.
    """
    shares = Shares(subscribed)
    left = all_of(subscribed, partitions)
    for member, topics in subscribed.items():
        for place in sorted(before.get(member, ())):
            if place[0] in topics and place in left:
                shares.give(member, place)
                left.discard(place)
    for place in sorted(left):
        shares.give(shares.least(place[0]), place)
    moved = True
    while moved:  # one partition per member and pass: no member gets what it must pass on
        moved = False
        for member in sorted(subscribed):
            moved |= _lighten(shares, member)
    return {
        member: frozenset((topic, p) for topic, held in of.items() for p in held)
        for member, of in shares.of.items()
    }


def _lighten(shares: Shares, member: str) -> bool:
    """Move one partition to a member with fewer by two or more; return whether there was one."""
    for topic, held in shares.of[member].items():
        if held and shares.load[other := shares.least(topic)] < shares.load[member] - 1:
            shares.give(other, shares.take(member, topic))
            return True
    return False


def ranges(subscribed: Subscribed, partitions: Mapping[bytes, int], _: Target) -> Target:
    """Assign one range of each topic to each member.

    Members keep their order, so that equal partitions of equally large topics go to the same
    member.
    """
    given: dict[str, set[TopicIdPartition]] = {member: set() for member in subscribed}
    for topic in frozenset[bytes]().union(*subscribed.values()):
        members = [m for m, topics in subscribed.items() if topic in topics]
        size, more = divmod(partitions.get(topic, 0), len(members))
        first = 0
        for i, member in enumerate(members):
            behind = first + size + (i < more)
            given[member] |= {(topic, p) for p in range(first, behind)}
            first = behind
    return {member: frozenset(held) for member, held in given.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": ranges}
"""Assignors by name; the first is the default."""
