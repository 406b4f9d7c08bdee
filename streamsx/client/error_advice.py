"""What Kafka refuses for good, in words: a commit of a task, and a whole worker.

"For good" is until people have changed something at the brokers. A task does not run on without
its commits: what it holds in memory, and what somebody else would have to do again, would grow
without end. It waits, and each commit cycle tries again.

Not here: which codes are for good (`group/error_table`), the cycle (`commit`).
"""

from typing import NamedTuple

from streamsx.client.security import UNNAMED
from streamsx.errors import Fenced, StreamsxError
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.commit_metadata import TEXT_BYTES_MAX
from streamsx.protocol.error_codes import ErrorCode, failure, name_of

REMEDIES: dict[int, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "let {principal} read the topic",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (
        f"raise offset.metadata.max.bytes of the brokers to {TEXT_BYTES_MAX}"
    ),
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "raise max.message.bytes of __consumer_offsets",
}
ADVICE: dict[int, str] = {
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "set session_timeout within the brokers' group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "let {principal} read the group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "let {principal} read its topics",
    ErrorCode.FENCED_INSTANCE_ID: (
        "another worker with static_membership has the same instance id: give each an "
        "--instance-id of its own"
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "a group of this id is of another program, or of workers with another protocol_type: "
        "choose another id, or stop that group first"
    ),
}


class Denial(NamedTuple):
    """`pauses`: its task is fed nothing until a commit is taken."""

    what: str
    pauses: bool


def remedy(code: int, principal: str = UNNAMED) -> str:
    """Return what a person can do about a refusal of a topic; nothing where that is not known."""
    return REMEDIES.get(code, "").format(principal=principal)


def commit_error(task: TaskId, tp: TopicPartition, code: int, principal: str = UNNAMED) -> Denial:
    """Of a commit. A broker that has just begun does not know each topic, and one that is gone has
    no records: for neither anybody need wait.
    """
    what = f"commit refused: {name_of(code)}: task {task}, {tp}"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Denial(f"{what}: tried again with each commit; nothing to do if it is gone", False)
    advice = remedy(code, principal) or "see what the broker's log says of it"
    return Denial(f"{what}: the task waits, and each commit interval tries again: {advice}", True)


def fatal_group_error(why: str, code: int, principal: str = UNNAMED) -> StreamsxError:
    """Of a member: `why` in our words, Kafka's code or 0."""
    if not code:
        return Fenced(f"the group refuses this worker: {why}")
    advice = ADVICE.get(code, "").format(principal=principal)
    return failure(code, "the group refuses this worker", advice)
