"""Metrics that a broker feeds per request and per log line of its groups. Pure.

No endpoint serves these metrics yet: `streamsx broker` writes them to its log once a minute. Not
here: the gauges, which ask the server's parts (`net/server`).
"""

from collections.abc import Iterable

from streamsx.metrics import MetricRegistry, Sample
from streamsx.protocol.wire import Api

PREFIX = "streamsx_broker_"
API_LABELS = {api: api.name.lower() for api in Api}
"""Values of the label `api`."""


class BrokerCounts:
    """Counters of one broker since its start."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.requests = registry.counter(
            "requests_total", "Requests that were decoded.", labels=("api",)
        )
        self.received_bytes = registry.counter(
            "received_bytes_total", "Bytes read from clients.", unit="bytes"
        )
        self.sent_bytes = registry.counter(
            "sent_bytes_total", "Bytes of answers to clients.", unit="bytes"
        )
        self.hung_up = registry.counter(
            "connections_hung_up_total",
            "Connections that the broker closed, each with a line in the log.",
        )
        self.group_events = registry.counter(
            "group_events_total",
            "Log lines about groups and transactions, by their first word.",
            labels=("event",),
        )


def in_a_line(samples: Iterable[Sample]) -> str:
    """Format samples for a log line, without the common prefix of all names.

    A sample without labels becomes `name=value`; the value of a label replaces the name.
    """
    return " ".join(
        f"{sample.labels[0][1] if sample.labels else sample.name.removeprefix(PREFIX)}"
        f"={sample.value}"
        for sample in samples
    )
