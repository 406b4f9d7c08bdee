"""Reports of unreachable addresses: a warning soon, and now and then while an outage lasts.

Callers retry an unreachable address for as long as it takes, mostly without a log line. An address
that is seldom tried is not reported: one missing broker among several holds up nothing.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

LOG = logging.getLogger("streamsx")
WARN_AFTER_S = 4.0
"""Length of an outage before the first warning. As a rule a broker's restart is over by then."""
WARN_EVERY_S = 30.0
FORGET_AFTER_S = 15.0
"""Time without an attempt after which an outage is forgotten."""


@dataclass(slots=True)
class _Outage:
    since: float
    failed_at: float
    warned_at: float = float("-inf")


class UnreachableReason(NamedTuple):
    """Reason for an unreachable address, and the remedy."""

    why: str
    remedy: str


class UnreachableAddresses:
    """Unreachable addresses of one process, shared by its clusters.

    Times are those of the event loops' clock.
    """

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}
        self._newest = ""

    def reached(self, address: str) -> None:
        """Note that an address answers."""
        if self._outages.pop(address, None) is not None:
            self._newest = ""

    def failed(self, address: str, began: float, now: float, trouble: UnreachableReason) -> None:
        """Note a failed attempt that started at `began`, and warn about an outage that lasts."""
        known = self._outages.get(address)
        if known is None or began - known.failed_at > FORGET_AFTER_S:
            known = self._outages[address] = _Outage(began, now)
        known.failed_at = now
        self._newest = f"{trouble.why}: {trouble.remedy}"
        lasts_s = now - known.since
        if lasts_s >= WARN_AFTER_S and now - known.warned_at >= WARN_EVERY_S:
            known.warned_at = now
            LOG.warning(
                "A broker is out of reach for %.0f s: %s. Trying again until it answers.",
                lasts_s, self._newest,
            )  # fmt: skip

    @property
    def newest(self) -> str:
        """Return the reason of the newest failure, and the remedy; empty if no failure lasts."""
        return self._newest
