"""Topics of an app: what each is for, how it is created, and the names of those that we make.

Changelogs and topics of agents are named as Faust names them. Repartition topics bear the app's id
too, as in Kafka Streams: Faust's bear only the agent's module and name, and so two apps of one
file, or two versions of one app, would share them: each counts what both have sent, and purges it.
Faust's names are there for an app of Faust's that was stopped and goes on here.

A changelog is compacted, and never has a time retention: the broker compares the records' time
with its own clock, so with event times of the past it would delete live rows. A repartition topic
keeps everything; records that are committed are deleted by whoever committed them.

Not here: how many partitions (`partitions`), who creates them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from streamsx.config import LEGAL
from streamsx.errors import TopologyError

REPARTITION_SEGMENT_BYTES: Final = 50 << 20
NAME_LENGTH_MAX: Final = 249
BROKER_DEFAULT: Final = -1


class TopicKind(Enum):
    """What a topic is to the app: `repartition` and `changelog` are ours, the others the user's."""

    SOURCE = "source"
    OUTPUT = "output"
    REPARTITION = "repartition"
    CHANGELOG = "changelog"


CONFIGS: Final[Mapping[TopicKind, Mapping[str, str]]] = {
    TopicKind.SOURCE: {},
    TopicKind.OUTPUT: {},
    TopicKind.REPARTITION: {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": str(REPARTITION_SEGMENT_BYTES),
    },
    TopicKind.CHANGELOG: {"cleanup.policy": "compact"},
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How a topic is created if it is not there. `partitions` None: by rule. `replication`: copies;
    BROKER_DEFAULT leaves it to the cluster, which knows how many brokers it has.
    """

    name: str
    kind: TopicKind
    partitions: int | None = None
    replication: int = BROKER_DEFAULT
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.name) > NAME_LENGTH_MAX or not LEGAL.fullmatch(self.name):
            raise TopologyError(
                f"not a name of a topic: {self.name!r}: use letters, digits, dots, dashes and "
                f"underscores, at most {NAME_LENGTH_MAX}; name agents with @app.agent(name=...)"
            )
        for what, count, unset in (
            ("partitions", self.partitions, None),
            ("replicas", self.replication, BROKER_DEFAULT),
        ):
            if count != unset and not (isinstance(count, int) and count > 0):
                raise TopologyError(
                    f"not a number of {what}: {count!r}: topic {self.name}: write 1, 2, ..."
                )


def changelog_name(app_id: str, table: str) -> str:
    return f"{app_id}-{table}-changelog"


def agent_topic_name(app_id: str, agent: str) -> str:
    """Of an agent that was given no topic."""
    return f"{app_id}-{agent}"


def repartition_names(
    app_id: str, agent: str, topic: str, suffix: str, *, has_prefix: bool
) -> dict[str, str]:
    """By the setting `repartition_names`. `has_prefix`: of a topic that bears its agent already."""
    rest = f"{topic}-{suffix}-repartition"
    if has_prefix and topic.startswith(f"{app_id}-"):
        return {"app": rest, "faust": rest}
    return {"app": f"{app_id}-{agent}-{rest}", "faust": rest if has_prefix else f"{agent}-{rest}"}
