"""Messages about Kafka's permanent refusals: of a task's commit, and of a whole worker.

A refusal is permanent until people change something at the brokers. A task does not run on without
its commits: the rows in its memory, and the work that another worker would have to repeat, would
grow without end. The task waits, and each commit cycle tries again.

Not here: the list of permanent codes (`group/error_table`), the cycle (`tasks/commit_cycle`).
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
    """Refused commit. If `pauses`, the task gets no records until a commit succeeds."""

    what: str
    pauses: bool


def remedy(code: int, principal: str = UNNAMED) -> str:
    """Return advice about a refused topic; empty if none is known."""
    return REMEDIES.get(code, "").format(principal=principal)


def commit_error(task: TaskId, tp: TopicPartition, code: int, principal: str = UNNAMED) -> Denial:
    """Return the refusal of a task's commit.

    UNKNOWN_TOPIC_OR_PARTITION does not pause the task. A broker that has just started does not know
    every topic yet, and a deleted topic has no records: neither is worth waiting for.
    """
    what = f"commit refused: {name_of(code)}: task {task}, {tp}"
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Denial(
            f"{what}: tried again with each commit; no action needed if it is gone", False
        )
    advice = remedy(code, principal) or "see the log of the broker"
    return Denial(f"{what}: the task waits, and each commit interval tries again: {advice}", True)


def fatal_group_error(why: str, code: int, principal: str = UNNAMED) -> StreamsxError:
    """Return the error that ends a refused member.

    Args:
        why: Reason in our own words, used if `code` is 0.
        code: Kafka's error code, or 0.
        principal: User that the brokers know this worker as.
    """
    if not code:
        return Fenced(f"the group refuses this worker: {why}")
    advice = ADVICE.get(code, "").format(principal=principal)
    return failure(code, "the group refuses this worker", advice)
