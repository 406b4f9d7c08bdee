"""Addresses that cannot be reached: told of soon, and now and then while it lasts.

Whoever asks them tries again, for as long as it takes, and most of them without a word. An address
that is asked seldom is told of by nobody: one of several brokers that is away holds up nothing.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

LOG = logging.getLogger("streamsx")
TELL_AFTER_S = 4.0
"""A restart of a broker is over by then, as a rule."""
TELL_EVERY_S = 30.0
FORGET_AFTER_S = 15.0
"""Without an attempt."""


@dataclass(slots=True)
class _Outage:
    since: float
    failed_at: float
    told_at: float = float("-inf")


class UnreachableReason(NamedTuple):
    """Why an address was not reached, and what to do about it."""

    why: str
    remedy: str


class UnreachableAddresses:
    """Those of one process: its clusters share it. Times are those of the event loops' clock."""

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}
        self._newest = ""

    def reached(self, address: str) -> None:
        """It answers."""
        if self._outages.pop(address, None) is not None:
            self._newest = ""

    def failed(self, address: str, began: float, now: float, trouble: UnreachableReason) -> None:
        """An attempt has failed, which began then."""
        known = self._outages.get(address)
        if known is None or began - known.failed_at > FORGET_AFTER_S:
            known = self._outages[address] = _Outage(began, now)
        known.failed_at = now
        self._newest = f"{trouble.why}: {trouble.remedy}"
        lasts_s = now - known.since
        if lasts_s >= TELL_AFTER_S and now - known.told_at >= TELL_EVERY_S:
            known.told_at = now
            LOG.warning(
                "broker_unreached for %.0f s: %s: trying again until it answers",
                lasts_s, self._newest,
            )  # fmt: skip

    @property
    def newest(self) -> str:
        """The reason of the newest failure, and what to do; empty where none lasts."""
        return self._newest
