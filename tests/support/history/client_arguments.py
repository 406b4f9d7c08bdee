"""What a client of a recording is told, in one argument."""

import json
from dataclasses import asdict, dataclass

from streamsx.model import TopicPartition


@dataclass(frozen=True)
class ClientArguments:
    """`name`: of this process alone. `identity`: what it hands on to who comes in its place, as the
    id of its transactions. `made`: the topic to which records are copied.
    `transaction_ms`: how long a transaction may be open.
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
