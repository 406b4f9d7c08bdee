"""Log of what a worker does not run, and why: it has no tasks, or its code is not the leader's.

The leader sends the reasons with each assignment (`assignor/membership`). Each is logged once, when
the round that brings it is the last for a moment: a rebalance under way may still bring tasks.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from streamsx.assignor.wire import AssignmentView
from streamsx.journal import Journal

NUMBERS: Final = re.compile(r"\d+")
"""Part of a reason that may change without another line."""


class IdleLog:
    """Log of one worker.

    Args:
        readers: names of the agents and flows of each sub-topology.
        journal: receives the reasons.
    """

    def __init__(self, readers: Mapping[int, Sequence[str]], journal: Journal) -> None:
        self._readers = readers
        self._journal = journal
        self._view = AssignmentView()
        self._idle = ""
        self._differs: frozenset[int] = frozenset()

    def assigned(self, view: AssignmentView) -> None:
        """Note the leader's message of a round."""
        self._view = view

    def settled(self) -> None:
        """Log the reasons in the newest message that are new."""
        view = self._view
        if view.differs != self._differs:
            self._differs = view.differs
            numbers = sorted(view.differs & self._readers.keys())
            names = sorted({name for number in numbers for name in self._readers[number]})
            if names:
                self._journal("code_differs", readers=names, leader=view.led_by)
        if (kind := NUMBERS.sub("", view.idle)) != self._idle:
            self._idle = kind
            if view.idle:
                self._journal("idle", why=view.idle)
