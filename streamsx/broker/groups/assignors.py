"""Who of a group of the consumer protocol is to get which partition: the broker's assignors. Pure.

Each takes what the members are subscribed to, how many partitions there are, and what the members
were to get before; its name is the one by which they ask for it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

TopicIdPartition = tuple[bytes, int]
Subscribed = Mapping[str, frozenset[bytes]]
"""By member id: topic ids."""
Target = dict[str, frozenset[TopicIdPartition]]
"""By member id; a partition is of one member at most."""
Assignor = Callable[[Subscribed, Mapping[bytes, int], Target], Target]


class Shares:
    """What each member gets; finds the one with the least, fast also among thousands.

    Members with the same subscription stand in one heap. Who gets or loses something is put in
    once more; what a heap says of it from before is thrown away when it comes to the top.
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
        """This too."""
        self.of[member][place[0]].append(place[1])
        self._count(member, 1)

    def take(self, member: str, topic: bytes) -> TopicIdPartition:
        """What it was given last of this topic."""
        self._count(member, -1)
        return topic, self.of[member][topic].pop()

    def _count(self, member: str, more: int) -> None:
        self.load[member] += more
        heappush(self._heaps[self._subscribed[member]], (self.load[member], member))

    def least(self, topic: bytes) -> str:
        """Of those that are subscribed to it, of whom there must be one."""
        return min(self._top(heap) for topics, heap in self._heaps.items() if topic in topics)[1]

    def _top(self, heap: list[tuple[int, str]]) -> tuple[int, str]:
        while self.load[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0]


def all_of(subscribed: Subscribed, partitions: Mapping[bytes, int]) -> set[TopicIdPartition]:
    """What somebody is to get."""
    topics = frozenset[bytes]().union(*subscribed.values())
    return {(topic, p) for topic in topics for p in range(partitions.get(topic, 0))}


def uniform(subscribed: Subscribed, partitions: Mapping[bytes, int], before: Target) -> Target:
    """Balanced, and sticky: nothing moves but to a member that has less by two or more."""
    shares, left = Shares(subscribed), all_of(subscribed, partitions)
    for member, topics in subscribed.items():
        for place in sorted(before.get(member, ())):
            if place[0] in topics and place in left:
                shares.give(member, place)
                left.discard(place)
    for place in sorted(left):
        shares.give(shares.least(place[0]), place)
    moved = True
    while moved:  # by one partition each, so that nobody is given what it will have to give up
        moved = False
        for member in sorted(subscribed):
            moved |= _lighten(shares, member)
    return {
        member: frozenset((topic, p) for topic, held in of.items() for p in held)
        for member, of in shares.of.items()
    }


def _lighten(shares: Shares, member: str) -> bool:
    """Whether it has given one partition to somebody who has less by two or more."""
    for topic, held in shares.of[member].items():
        if held and shares.load[other := shares.least(topic)] < shares.load[member] - 1:
            shares.give(other, shares.take(member, topic))
            return True
    return False


def ranges(subscribed: Subscribed, partitions: Mapping[bytes, int], _: Target) -> Target:
    """Of each topic to each member one range, in their order, so that equal topics go together."""
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
"""The first is the one that is used when nobody asks for another."""
