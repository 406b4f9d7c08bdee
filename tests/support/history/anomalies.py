"""Kinds of anomalies of a history, by Jepsen's names where there is one, and those that Kafka
allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tests.support.history.events import History


class Kind(StrEnum):
    """Kind of an anomaly. `#`: Jepsen's name."""

    LOST_WRITE = "lost write"
    """It was acknowledged, or read, and is not there for who passes it. # lost-write, unseen"""
    TORN_TRANSACTION = "torn transaction"
    """Some of a transaction is read as committed, and some never."""
    ABORTED_READ = "aborted read"
    """By who reads what is committed; or of what the broker has refused. # G1a"""
    DIRTY_READ = "dirty read"
    """Before anybody asked for the commit. # precommitted-read"""
    UNSENT_READ = "unsent read"
    """Nobody sent it, not there, or not yet."""
    INCONSISTENT_OFFSET = "inconsistent offset"
    """Of two records: their readers see different orders. # inconsistent-offsets"""
    DUPLICATE = "duplicate"
    """It was sent once and stands there twice. # duplicate"""
    POLL_SKIP = "poll skip"
    """A reader passed what another saw there. # poll-skip, int-poll-skip"""
    NONMONOTONIC_POLL = "nonmonotonic poll"
    """A reader went back by itself. # nonmonotonic-poll, int-nonmonotonic-poll"""
    NONMONOTONIC_SEND = "nonmonotonic send"
    """What was sent later stands earlier. # nonmonotonic-send, int-nonmonotonic-send"""
    COMMIT_WENT_BACK = "commit went back"
    """A group is told of less than it had committed."""
    COMMIT_OF_NOBODY = "commit of nobody"
    """A group is told of an offset that it has not committed, or has taken back."""
    REPEATED_EFFECT = "repeated effect"
    """Two committed transactions of a group went on from one record."""
    LOST_EFFECT = "lost effect"
    """A group of transactions has committed a record, and none of them has gone on from it."""
    READ_CYCLE = "read cycle"
    """Each transaction read what the next one wrote, as committed. # G1c"""
    MIXED_CYCLE = "mixed cycle"
    """The same by orders of writes too, or of what was not committed yet. # G1c"""
    WRITE_CYCLE = "write cycle"
    """Each transaction wrote before the next one did, here or there. # G0"""


ALLOWED = frozenset({Kind.MIXED_CYCLE, Kind.WRITE_CYCLE})
"""Transactions of Kafka do not hide from each other where they write."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Anomaly that was found. `witnesses`: places in the history of all events that show it."""

    kind: Kind
    about: str
    witnesses: tuple[int, ...]

    def told(self, history: History) -> str:
        """Return the anomaly as text, with a line for each witness."""
        lines = (f"  {at}: {history[at]}" for at in sorted(set(self.witnesses)))
        return "\n".join([f"{self.kind}: {self.about}", *lines])


def told(anomalies: Iterable[Anomaly], history: History) -> str:
    return "\n".join(anomaly.told(history) for anomaly in anomalies)
