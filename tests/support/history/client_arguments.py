"""Arguments of a client of a recording, in one command-line argument."""

import json
from dataclasses import asdict, dataclass

from streamsx.model import TopicPartition


@dataclass(frozen=True)
class ClientArguments:
    """Arguments of a client process.

    Args:
        name: Name of this process alone.
        identity: Name that its successor takes over, as the id of its transactions.
        made: Topic to which records are copied.
        transaction_ms: How long a transaction may be open.
    """

    kind: str
    name: str
    identity: str
    bootstrap: str
    seed: str
    journal: str
    topic: str
    made: str
    partitions: int
    transaction_ms: int

    def argument(self) -> str:
        return json.dumps(asdict(self))

    def tps(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.partitions)]
