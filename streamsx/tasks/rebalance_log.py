"""Log of rebalances: processing gaps of the tasks that stay, gaps in the calm before, metrics.

Not here: the measurement of a gap (`processing_gap`), the metrics (`group/rebalance_metrics`).
"""

import asyncio
from typing import TYPE_CHECKING

from streamsx.clock import Clock
from streamsx.group.rebalance_metrics import RebalanceMetrics
from streamsx.journal import Journal
from streamsx.tasks.active_tasks import ActiveTasks

if TYPE_CHECKING:
    from streamsx.model import TaskId

GAP_AFTER_S = 0.5
"""Time after an assignment at which gaps are logged: opening stores for the assignment holds up the
tasks that stay, and counts."""


class RebalanceLog:
    """Log of one worker's rebalances, in the journal."""

    def __init__(
        self, *, actives: ActiveTasks, metrics: RebalanceMetrics, journal: Journal, clock: Clock
    ) -> None:
        self._actives = actives
        self._metrics = metrics
        self._journal = journal
        self._clock = clock
        self._stayed: frozenset[TaskId] | None = None
        """Tasks that ran when the rebalance under way began; None between rebalances."""
        self._gap_timer: asyncio.TimerHandle | None = None
        self._calm_since = 0.0

    def joining(self) -> None:
        """Note that a round begins; the gaps of the calm before the rebalance are logged."""
        self._cancel_gaps()
        if self._stayed is None:
            self._log_gaps("calm_gap", seconds=round(self._clock.now() - self._calm_since, 3))
            self._stayed = frozenset(self._actives.running)

    def assigned(self) -> None:
        """Note an assignment; the gaps of the rebalance are logged after `GAP_AFTER_S`."""
        self._cancel_gaps()
        loop = asyncio.get_running_loop()
        self._gap_timer = loop.call_later(GAP_AFTER_S, self._rebalanced)

    def listeners_returned(self, took_s: float) -> None:
        """Note the duration of an assignment, with the app's listeners."""
        self._metrics.assigned(self._clock.now(), took_s)
        if self._gap_timer is None:  # the metrics were logged without this time
            self._log_metrics()

    def _cancel_gaps(self) -> None:
        """Cancel the report of gaps: a follow-up round belongs to the same rebalance."""
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    def _rebalanced(self) -> None:
        self._gap_timer = None
        self._log_gaps("gap")
        self._log_metrics()
        self._stayed = None
        self._calm_since = self._clock.now()

    def _log_metrics(self) -> None:
        values = self._metrics.values(self._clock.now())
        self._journal("metrics", **{name: round(value, 3) for name, value in values.items()})

    def _log_gaps(self, event: str, **more: float) -> None:
        """Log the longest gap of each running task; in a rebalance, only of tasks that stay."""
        for task, gap_s in self._actives.gaps(self._clock.now()).items():
            if self._stayed is None or task in self._stayed:
                self._journal(event, task=str(task), ms=round(gap_s * 1000, 1), **more)
