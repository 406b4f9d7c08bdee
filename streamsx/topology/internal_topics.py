"""Topics of an app: their kinds and configs, and the names of the internal ones.

Changelogs and topics of agents have the names that Faust gives them. Names of repartition topics
begin with the app's id, as in Kafka Streams. Faust's names contain only the agent's module and
name, so two apps of one file, or two versions of one app, would share the topics: each app would
count and purge the records of both. Faust's names remain available for a stopped Faust app that
continues here.

A changelog is compacted, and never has a time retention: the broker compares the timestamps of
records with its own clock, so with event times of the past a retention would delete live rows. A
repartition topic keeps everything; the worker that committed records deletes them.

Not here: the number of partitions (`partitions`), the creation of topics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from streamsx.config import LEGAL, Config
from streamsx.errors import TopologyError

REPARTITION_SEGMENT_BYTES: Final = 50 << 20
NAME_LENGTH_MAX: Final = 249
BROKER_DEFAULT: Final = -1


class TopicKind(Enum):
    """Use of a topic. `repartition` and `changelog` are internal, the others belong to the user."""

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


DEAD_LETTERS_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Config of the dead-letter topic. Its records have the times of the records that failed, so a
retention would delete those of old records at once."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Specification by which a missing topic is created.

    With `partitions` None, the count follows from the rules in `partitions`. `replication` is the
    number of copies. BROKER_DEFAULT leaves that number to the cluster, which knows how many brokers
    there are. `made_at` is the file and line of the user's code, for errors.
    """

    name: str
    kind: TopicKind
    partitions: int | None = None
    replication: int = BROKER_DEFAULT
    config: Mapping[str, str] = field(default_factory=dict)
    made_at: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if len(self.name) > NAME_LENGTH_MAX or not LEGAL.fullmatch(self.name):
            raise TopologyError(
                f"not a name of a topic: {self.name!r}{self.place}: use letters, digits, dots, "
                f"dashes and underscores, at most {NAME_LENGTH_MAX}; name agents with "
                "@app.agent(name=...)"
            )
        for what, count, unset in (
            ("partitions", self.partitions, None),
            ("replicas", self.replication, BROKER_DEFAULT),
        ):
            if count != unset and not (isinstance(count, int) and count > 0):
                raise TopologyError(
                    f"not a number of {what}: {count!r}: topic {self.name}{self.place}: write 1, "
                    "2, ..."
                )

    @property
    def place(self) -> str:
        """Return the place in the user's code in brackets, behind a blank; empty if unknown."""
        return f" ({self.made_at})" if self.made_at else ""


def changelog_name(app_id: str, table: str) -> str:
    return f"{app_id}-{table}-changelog"


def dead_letters_name(config: Config) -> str:
    """Return the name of the dead-letter topic, which is there if a reaction may be `dlq`."""
    return config.dlq_topic or f"{config.id}-dlq"


def agent_topic_name(app_id: str, agent: str) -> str:
    """Return the topic of an agent that was given none."""
    return f"{app_id}-{agent}"


def repartition_names(
    app_id: str, agent: str, topic: str, suffix: str, *, has_prefix: bool
) -> dict[str, str]:
    """Return the repartition topic's name for each value of the setting `repartition_names`.

    `has_prefix` means that the name of `topic` contains the agent's name already.
    """
    rest = f"{topic}-{suffix}-repartition"
    if has_prefix and topic.startswith(f"{app_id}-"):
        return {"app": rest, "faust": rest}
    return {"app": f"{app_id}-{agent}-{rest}", "faust": rest if has_prefix else f"{agent}-{rest}"}
