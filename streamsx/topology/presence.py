"""Presence of an app's topics, and their identity with the topics that made the state. Pure.

A store and its changelog belong together. If a changelog is gone, or was deleted and created anew
under its name, the stores on the workers' disks are the last copies of a table, and the new and
empty topic must not count as the contents of the table. A topic's id (KIP-516) distinguishes two
topics of one name. Brokers before Kafka 2.8 have no ids; then only a store whose position is beyond
the new topic's end is noticed (`tasks/store_restore`).

A missing changelog with committed offsets is no fault by itself, because a new table in a running
app begins so. The fault is a store on this disk that has read from a changelog which is missing.

Not here: requests to brokers, partition counts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from streamsx.errors import ChangelogLost
from streamsx.protocol.schema import UUID_ZERO

GONE_AFTER_S: Final = 10.0
"""Time in s before a topic counts as gone: a broker that has just started, or has just learned of a
topic, may know nothing of that topic for a moment."""
TELL_EVERY_S: Final = 30.0
NO_ID: Final = UUID_ZERO
"""Unknown topic id, as brokers without topic ids answer."""


TopicIds = Mapping[str, bytes | None]
"""Ids of topics as brokers report them; None for an unknown topic. Other topics were not asked."""


def refuse_lost(table: str, topic: str, before: bytes, now: bytes | None, folder: str) -> None:
    """Refuse a changelog that is gone or was made anew, if a store on this disk needs that topic.

    `before` is the id of the changelog from which the state in `folder` was made. `now` is the
    current id, None for a missing topic.

    Raises:
        ChangelogLost: the state in the folder may be the last copy of the table.
    """
    if now is None:
        raise ChangelogLost(
            f"changelog is gone: topic {topic}: the state of table {table} in {folder} may be its "
            "last copy, keep it: give the address of the brokers that have the topic; or raise the "
            "app's version to begin without state and from the start of its topics; or move that "
            "folder away, on each machine, to let this table alone begin empty"
        )
    if anew(before, now):
        raise made_anew(topic, table, folder)


def anew(before: bytes, now: bytes) -> bool:
    """Return whether two ids are those of different topics."""
    return NO_ID not in (before, now) and before != now


def made_anew(topic: str, table: str, folder: str) -> ChangelogLost:
    return ChangelogLost(
        f"changelog was deleted and created again: topic {topic}: the state of table {table} in "
        f"{folder} may be its last copy, keep it: raise the app's version to begin without state "
        "and from the start of its topics; or move that folder away, on each machine, to "
        "continue with what the new topic holds"
    )


class Absence(NamedTuple):
    """Report of a topic that is gone, or of another topic with its name (`anew`).

    A topic that is gone is reported once, and then every TELL_EVERY_S.
    """

    topic: str
    anew: bool


class Presence:
    """Watch over topics that all existed at the start. Time is in s of a monotonic clock."""

    def __init__(self, found: TopicIds) -> None:
        self._ids = {topic: topic_id or NO_ID for topic, topic_id in found.items()}
        self._tell_at: dict[str, float] = {}
        """Time of the next report, for each missing topic."""

    def heard(self, now: float, found: TopicIds) -> list[Absence]:
        """Take the newest answer of brokers; return the absences to report."""
        effects = list[Absence]()
        for topic, topic_id in found.items():
            if topic_id is None:
                if now >= self._tell_at.setdefault(topic, now + GONE_AFTER_S):
                    self._tell_at[topic] = now + TELL_EVERY_S
                    effects.append(Absence(topic, anew=False))
                continue
            self._tell_at.pop(topic, None)
            if anew(self._ids.get(topic, NO_ID), topic_id):
                effects.append(Absence(topic, anew=True))
            self._ids[topic] = topic_id
        return effects
