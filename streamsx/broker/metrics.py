"""Counters and gauges of a broker, as rows in Prometheus' terms. Pure.

A name that ends with `_total` is a counter since the start; any other name is a gauge. No endpoint
serves these metrics yet: `streamsx broker` writes them to its log once a minute.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamsx.protocol.wire import Api

PREFIX = "streamsx_broker_"


class Metric(NamedTuple):
    """Metric row; the optional label is a pair of name and value."""

    name: str
    value: int
    label: tuple[str, str] | None = None


@dataclass(slots=True)
class BrokerCounts:
    """Counters of one broker since its start."""

    requests: Counter[Api] = field(default_factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    hung_up: int = 0
    """Connections that the broker closed, each with a line in the log."""

    def rows(self, group_events: Mapping[str, int], **gauges: int) -> list[Metric]:
        """Return all metrics as rows.

        Args:
            group_events: How often the coordinator logged each event, by event name.
            gauges: Current values, by name without the prefix.
        """
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
    """Format metrics for a log line, without the common prefix of all names.

    A metric without a label becomes `name=value`; with a label the label's value replaces the name.
    """
    return " ".join(
        f"{row.label[1] if row.label else row.name.removeprefix(PREFIX)}={row.value}"
        for row in rows
    )
