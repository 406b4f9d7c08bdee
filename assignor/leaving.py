"""Members on their way out: who leaves, and until when.

A leaver keeps processing and receives nothing; each plan takes away what somebody else can run by
now. Once its deadline has passed the rest goes to whoever is nearest, ready or not.
"""

from collections.abc import Mapping, Sequence

from streamsx.assignor.model import LeaveRequest, Mark, MarkState, MemberMetadata, Memory

EVICTED_AFTER_MS = 5_000


def leavers(members: Sequence[MemberMetadata], memory: Memory) -> Mapping[str, LeaveRequest]:
    """Who leaves, by member id: by its own word, or because a tool has marked its instance."""
    words = ((m.id, _word(m, memory.marks.get(m.instance or ""))) for m in members)
    return {member: word for member, word in words if word is not None}


def _word(member: MemberMetadata, mark: Mark | None) -> LeaveRequest | None:
    if mark is None:
        return member.leaving
    if mark.state is MarkState.LEAVING:
        own = member.leaving or LeaveRequest()
        known = [ms for ms in (own.deadline_ms, mark.deadline_ms) if ms is not None]
        return LeaveRequest(min(known, default=None), mark.swap_to or own.swap_to)
    # "Leaving" from a member that has not read the cancellation is out of date. One that has read
    # it and leaves all the same was told so by a signal.
    read = member.marks.get(member.instance or "")
    return member.leaving if read is not None and read.epoch_ms >= mark.epoch_ms else None


def evictions(members: Sequence[MemberMetadata], memory: Memory, now_ms: int) -> Mapping[str, int]:
    """Which members to remove, and when (unix ms), if they are still in the group: one per marked
    instance with a deadline. It acts on its own clock; this is for the dead.

    Who has just joined is not dead: however long ago its deadline was, it is to hear of the mark
    first. Removed before it had heard, it would join again, and be removed, for ever.
    """
    return {
        member.id: max(mark.deadline_ms, now_ms) + EVICTED_AFTER_MS
        for member in members
        if (mark := memory.marks.get(member.instance or ""))
        and mark.state is MarkState.LEAVING
        and mark.deadline_ms is not None
    }
