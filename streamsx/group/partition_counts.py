"""How many partitions the source topics of a group have, from what brokers say now and then.

Topics grow; only one that was deleted, and perhaps made anew, has fewer than before. But a broker
that has just started, or just heard of a topic, may say so too for a moment: "b1 restarts; the
leader asks it, hears of no topic at all, and takes every task from everybody". So less counts when
nothing else has been heard for a while; and a topic of which nothing was ever heard has no count
until then.

Not here: asking, what a plan makes of it.
"""

from collections.abc import Mapping

from streamsx.topology.presence import GONE_AFTER_S


class PartitionCounts:
    """`known`: partitions by topic, 0 for one that is gone; those of which nothing is known are not
    in it.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._less_since: dict[str, float] = {}

    def heard(self, now: float, found: Mapping[str, int]) -> dict[str, int]:
        """What has changed by the newest answer. `found`: partitions of the topics that a broker
        knows, 0 for one that it does not; a topic that is left out was not asked for.
        """
        changed = {}
        for topic, count in found.items():
            if count and count >= self.known.get(topic, 0):
                self._less_since.pop(topic, None)
            elif now - self._less_since.setdefault(topic, now) < GONE_AFTER_S:
                continue
            if self.known.get(topic) != count:
                self.known[topic] = changed[topic] = count
        return changed
