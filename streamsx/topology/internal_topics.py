"""Topics of an app: what each is for, how it is created, and the names of those that we make.

The names are Faust's, so an app of Faust's that was stopped goes on here with its topics.

A changelog is compacted, and never has a time retention: the broker compares the records' time
with its own clock, so with event times of the past it would delete live rows. A repartition topic
keeps everything; records that are committed are deleted by whoever committed them.

Not here: how many partitions (`partitions`), who creates them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from streamsx.errors import TopologyError

REPARTITION_SEGMENT_BYTES: Final = 50 << 20
NAME_LENGTH_MAX: Final = 249
BROKER_DEFAULT: Final = -1
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")


class Kind(Enum):
    """What a topic is to the app: `repartition` and `changelog` are ours, the others the user's."""

    SOURCE = "source"
    OUTPUT = "output"
    REPARTITION = "repartition"
    CHANGELOG = "changelog"


CONFIGS: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.SOURCE: {},
    Kind.OUTPUT: {},
    Kind.REPARTITION: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": str(REPARTITION_SEGMENT_BYTES),
    },
    Kind.CHANGELOG: {"cleanup.policy": "compact"},
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How a topic is created if it is not there. `partitions` None: by rule. `replication`: copies;
    BROKER_DEFAULT leaves it to the cluster, which knows how many brokers it has.
    """

    name: str
    kind: Kind
    partitions: int | None = None
    replication: int = BROKER_DEFAULT
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.name) > NAME_LENGTH_MAX or not _LEGAL.fullmatch(self.name):
            raise TopologyError(
                f"not a name of a topic: {self.name!r}: use letters, digits, dots, dashes and "
                f"underscores, at most {NAME_LENGTH_MAX}; name agents with @app.agent(name=...)"
            )


def changelog_name(app_id: str, table: str) -> str:
    return f"{app_id}-{table}-changelog"


def agent_topic_name(app_id: str, agent: str) -> str:
    """Of an agent that was given no topic."""
    return f"{app_id}-{agent}"


def repartition_name(topic: str, suffix: str, *, agent: str = "") -> str:
    """`agent` is left out where the topic's name has it already."""
    prefix = f"{agent}-" if agent else ""
    return f"{prefix}{topic}-{suffix}-repartition"
