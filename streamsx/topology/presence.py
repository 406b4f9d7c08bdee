"""Whether an app's topics are there, and still the ones that its state was made from. Pure.

A store and its changelog belong together: a changelog that is gone, or was deleted and made anew
under its name, leaves the stores on the workers' disks as the last copies of a table. Nothing of
what a new and empty topic says may then be taken for what the table is. A topic's id (KIP-516)
tells the two topics of one name apart; brokers before Kafka 2.8 have none, and then only a store
that is beyond the new topic's end is seen (`tasks/store_restore`).

That a changelog is not there, and committed offsets are, is no fault by itself: a table that is new
in a running app begins so. What counts is a store on this disk that says it has read from it.

Not here: asking, partition counts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from streamsx.errors import ChangelogLost
from streamsx.protocol.schema import UUID_ZERO

GONE_AFTER_S: Final = 10.0
"""A broker that has just started, or just heard of a topic, may know nothing of it for a moment."""
TELL_EVERY_S: Final = 30.0
NO_ID: Final = UUID_ZERO
"""Nobody has said which it is: as brokers answer that know no ids."""


TopicIds = Mapping[str, bytes | None]
"""Ids of topics as brokers say; None for one that they do not know. Others were not asked for."""


def refuse_lost(table: str, topic: str, before: bytes, now: bytes | None, folder: str) -> None:
    """Raises ChangelogLost where the state of a table in this folder may be the last copy. The ids
    are those of its changelog: of which the state was made, and now, None if it is not there.
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
    """Two topics of one name."""
    return NO_ID not in (before, now) and before != now


def made_anew(topic: str, table: str, folder: str) -> ChangelogLost:
    return ChangelogLost(
        f"changelog was deleted and made anew: topic {topic}: the state of table {table} in "
        f"{folder} may be its last copy, keep it: raise the app's version to begin without state "
        "and from the start of its topics; or move that folder away, on each machine, to go on "
        "with what the new topic holds"
    )


class Absence(NamedTuple):
    """It is not there any more, which is told once, and then now and again; or another topic has
    its name.
    """

    topic: str
    anew: bool


class Presence:
    """Of topics that were all there when it begins. Time is in seconds of a monotonic clock."""

    def __init__(self, found: TopicIds) -> None:
        self._ids = {topic: topic_id or NO_ID for topic, topic_id in found.items()}
        self._tell_at: dict[str, float] = {}
        """Of topics that are missed."""

    def heard(self, now: float, found: TopicIds) -> list[Absence]:
        """What the newest answer of brokers means."""
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
