"""Log of rebalances: a summary of each, gaps of tasks that stay and of the calm before, metrics.

The summary covers all rounds since the last one. It comes when no round has begun for a while.

Not here: the measurement of a gap (`processing_gap`), the metrics (`group/rebalance_metrics`).
"""

import asyncio
from dataclasses import dataclass

from streamsx.assignor.wire import AssignmentView
from streamsx.clock import Clock
from streamsx.group.rebalance_metrics import RebalanceMetrics
from streamsx.journal import Journal
from streamsx.model import TaskId
from streamsx.tasks.active_tasks import ActiveTasks
from streamsx.tasks.idle_log import IdleLog

GAP_AFTER_S = 0.5
"""Time after an assignment at which gaps are logged: opening stores for the assignment holds up the
tasks that stay, and counts."""
MORE_AFTER_S = 3.0
"""Time after an assignment at which the summary is logged although another round is to come: some
tasks are being learned for long."""


@dataclass(frozen=True, slots=True)
class AssignedTasks:
    """Tasks of a worker, by their roles in its newest assignment."""

    runs: frozenset[TaskId] = frozenset()
    learns: frozenset[TaskId] = frozenset()
    standbys: frozenset[TaskId] = frozenset()


class RebalanceLog:
    """Log of one worker's rebalances, in the journal."""

    def __init__(
        self,
        *,
        actives: ActiveTasks,
        metrics: RebalanceMetrics,
        idle: IdleLog,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._actives = actives
        self._metrics = metrics
        self._idle = idle
        self._journal = journal
        self._clock = clock
        self._stayed: frozenset[TaskId] | None = None
        """Tasks that ran when the rebalance under way began; None between rebalances."""
        self._gap_timer: asyncio.TimerHandle | None = None
        self._calm_since = 0.0
        self._summary_timer: asyncio.TimerHandle | None = None
        self._began = self._ended = 0.0
        self._rounds = 0
        """Rounds since the last summary; the first of them began at `_began`."""
        self._longest_s: float | None = None
        """Longest gap since the last summary of a task that stayed."""
        self._more = False
        self._assigned = self._told = AssignedTasks()
        """Tasks of the newest assignment, and those of the newest summary."""

    def joining(self) -> None:
        """Note that a round begins; the gaps of the calm before the rebalance are logged."""
        self._cancel()
        if self._stayed is None:
            self._log_gaps("calm_gap", seconds=round(self._clock.now() - self._calm_since, 3))
            self._stayed = frozenset(self._actives.running)
        if not self._rounds:
            self._began = self._clock.now()

    def planned(self, tasks: AssignedTasks, view: AssignmentView) -> None:
        """Note an assignment and the leader's message; `assigned` follows when it has begun."""
        self._assigned = tasks
        self._more = view.more
        self._idle.assigned(view)

    def lost(self) -> None:
        """Note that all tasks are lost, which has an event of its own."""
        self._told = AssignedTasks()

    def assigned(self) -> None:
        """Note an assignment; the gaps of the rebalance are logged after `GAP_AFTER_S`."""
        self._cancel()
        self._ended = self._clock.now()
        self._rounds += 1
        loop = asyncio.get_running_loop()
        self._gap_timer = loop.call_later(GAP_AFTER_S, self._rebalanced)
        if self._more:
            self._summary_timer = loop.call_later(MORE_AFTER_S, self._summarize)

    def listeners_returned(self, took_s: float) -> None:
        """Note the duration of an assignment, with the app's listeners."""
        self._metrics.assigned(self._clock.now(), took_s)
        if self._gap_timer is None:  # the metrics were logged without this time
            self._log_metrics()

    def _cancel(self) -> None:
        """Cancel the reports: a follow-up round belongs to the same rebalance."""
        for timer in filter(None, (self._gap_timer, self._summary_timer)):
            timer.cancel()
        self._gap_timer = self._summary_timer = None

    def _rebalanced(self) -> None:
        self._gap_timer = None
        longest_s = self._log_gaps("gap")
        if longest_s is not None:
            self._longest_s = max(longest_s, self._longest_s or 0.0)
        if self._summary_timer is None:
            self._summarize()
        self._log_metrics()
        self._stayed = None
        self._calm_since = self._clock.now()

    def _summarize(self) -> None:
        """Log the changes since the last summary; a rebalance without any has none."""
        rounds, gap_s = self._rounds, self._longest_s
        now, before = self._assigned, self._told
        self._rounds = 0
        self._longest_s = self._summary_timer = None
        self._idle.settled()
        if now == before:
            return
        self._told = now
        self._journal(
            "rebalanced",
            runs=sorted_text(now.runs),
            gained=sorted_text(now.runs - before.runs),
            lost=sorted_text(before.runs - now.runs),
            learns=sorted_text(now.learns),
            standbys=sorted_text(now.standbys),
            rounds=rounds,
            ms=round((self._ended - self._began) * 1000, 1),
            gap_ms=None if gap_s is None else round(gap_s * 1000, 1),
        )

    def _log_metrics(self) -> None:
        values = self._metrics.values(self._clock.now())
        self._journal("metrics", **{name: round(value, 3) for name, value in values.items()})

    def _log_gaps(self, event: str, **more: float) -> float | None:
        """Log the longest gap of each running task; in a rebalance, only of tasks that stay.

        Returns:
            The longest gap of all in seconds; None without tasks.
        """
        longest_s: float | None = None
        for task, gap_s in self._actives.gaps(self._clock.now()).items():
            if self._stayed is None or task in self._stayed:
                self._journal(event, task=str(task), ms=round(gap_s * 1000, 1), **more)
                longest_s = max(gap_s, longest_s or 0.0)
        return longest_s


def sorted_text(tasks: frozenset[TaskId]) -> list[str]:
    """Return tasks in their order, as the events have them."""
    return [str(task) for task in sorted(tasks)]
