"""Partition counts of a group's source topics, from the brokers' answers over time.

Topics grow. Only a topic that was deleted, and perhaps created again, has fewer partitions than
before. A broker that has just started, or has just learned of a topic, may report fewer for a
moment. The race: b1 restarts; the leader asks b1 and sees no topics at all; the leader takes every
task from every member. So a smaller count is accepted only when all answers for `GONE_AFTER_S` have
reported fewer. A topic that was never seen has no count until then.

Not here: the request to the broker, and the use of the counts in a plan.
"""

from collections.abc import Mapping

from streamsx.topology.presence import GONE_AFTER_S


class PartitionCounts:
    """Partition counts by topic.

    `known`: the count of each topic, 0 for a topic that is gone; topics never seen are missing.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._less_since: dict[str, float] = {}

    def update(self, now: float, found: Mapping[str, int]) -> dict[str, int]:
        """Take in an answer and return the topics whose counts changed.

        `found`: partition counts of the topics that a broker knows, 0 for a topic unknown to the
        broker. A topic missing in `found` was not asked for.
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
