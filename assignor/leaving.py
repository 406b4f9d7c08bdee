"""Leaving members: which members leave the group, and until when.

A leaver keeps processing and receives no tasks. Each plan takes away the tasks that another member
can run by now. After the deadline the remaining tasks go to the member with the nearest copy, ready
or not.
"""

from collections.abc import Mapping, Sequence

from streamsx.assignor.model import LeaveRequest, Mark, MarkState, MemberMetadata, Memory

EVICTED_AFTER_MS = 5_000


def leavers(members: Sequence[MemberMetadata], memory: Memory) -> Mapping[str, LeaveRequest]:
    """Return the leave request of each leaving member, by member id.

    A member leaves by own request, or because a tool has marked the instance.
    """
    words = ((m.id, _word(m, memory.marks.get(m.instance or ""))) for m in members)
    return {member: word for member, word in words if word is not None}


def _word(member: MemberMetadata, mark: Mark | None) -> LeaveRequest | None:
    if mark is None:
        return member.leaving
    if mark.state is MarkState.LEAVING:
        own = member.leaving or LeaveRequest()
        known = [ms for ms in (own.deadline_ms, mark.deadline_ms) if ms is not None]
        return LeaveRequest(min(known, default=None), mark.swap_to or own.swap_to)
    # A leave request from a member that has not read the cancellation is out of date. A member
    # that has read the cancellation and still leaves does so because of a signal.
    read = member.marks.get(member.instance or "")
    return member.leaving if read is not None and read.epoch_ms >= mark.epoch_ms else None


def evictions(members: Sequence[MemberMetadata], memory: Memory, now_ms: int) -> Mapping[str, int]:
    """Return the members to remove if they are still in the group, with the time in unix ms.

    There is one for each marked instance with a deadline. A live member leaves by the local clock;
    eviction is for dead members.

    A member that has just joined is not dead. However long ago its deadline was, the member must
    read the mark first: removed before that, the member would join again and be removed again, for
    ever.
    """
    return {
        member.id: max(mark.deadline_ms, now_ms) + EVICTED_AFTER_MS
        for member in members
        if (mark := memory.marks.get(member.instance or ""))
        and mark.state is MarkState.LEAVING
        and mark.deadline_ms is not None
    }
