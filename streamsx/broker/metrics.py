"""What a broker has done and what it has, as rows that Prometheus understands. Pure.

Names are Prometheus's: what ends with `_total` only grows since the start, the rest is as it is
now. Nobody serves them yet; `streamsx broker` writes them into its log once a minute.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.protocol.wire import Api

PREFIX = "streamsx_broker_"


class Metric(NamedTuple):
    """One row; its label, if it has one, is a name and a value."""

    name: str
    value: int
    label: tuple[str, str] | None = None


@dataclass(slots=True)
class BrokerCounts:
    """Of one broker since its start."""

    requests: Counter[Api] = field(default_factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    hung_up: int = 0
    """Connections that the broker has closed, each with a line in the log."""

    def rows(self, group_events: Mapping[str, int], **gauges: int) -> list[Metric]:
        """With how often the coordinator told of what, and what there is now, by name."""
        requests = sorted((api.name.lower(), times) for api, times in self.requests.items())
        return [
            *(Metric(f"{PREFIX}requests_total", n, ("api", api)) for api, n in requests),
            Metric(f"{PREFIX}received_bytes_total", self.received_bytes),
            Metric(f"{PREFIX}sent_bytes_total", self.sent_bytes),
            Metric(f"{PREFIX}connections_hung_up_total", self.hung_up),
            *(
                Metric(f"{PREFIX}group_events_total", n, ("event", event))
                for event, n in sorted(group_events.items())
            ),
            *(Metric(f"{PREFIX}{name}", value) for name, value in gauges.items()),
        ]


def in_a_line(rows: Iterable[Metric]) -> str:
    """For a log: `name=value`, or `value of the label=value`, without what all names begin with."""
    return " ".join(
        f"{row.label[1] if row.label else row.name.removeprefix(PREFIX)}={row.value}"
        for row in rows
    )
