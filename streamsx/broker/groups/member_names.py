"""Names of a group's members in the broker's log.

A member id is made by the broker and says nothing to a person. A worker of streamsx has a name in
its metadata, a static member has its instance id, and any other client its client id and address.
Tools of streamsx are members for a moment, and have no lines.
"""

from collections.abc import Iterable

from streamsx.assignor.claims import read_members
from streamsx.broker.metadata_rows import ConsumerMemberValue, MemberValue

WORKERS = "streamsx"
"""Name of the protocol of workers and their tools."""
NAMES_MAX = 20
ENDED = {
    "session ended": "was removed: no heartbeat came within its session_timeout",
    "did not rejoin": "was removed: it did not rejoin in time",
    "did not sync": "was removed: it did not ask for its assignment in time",
    "did not revoke, or join, in time": "was removed: it did not give up its partitions in time",
    "left": "left",
}
"""Reasons of removals, by their short forms in the events."""


def member_name(about: MemberValue | ConsumerMemberValue) -> str:
    """Return the name of a member; empty for a tool of streamsx."""
    if isinstance(about, MemberValue):
        metadata = [each.metadata for each in about.protocols if each.name == WORKERS]
        if metadata:
            (member,), _ = read_members([("", metadata[0])])
            if member.observer:
                return ""
            if member.instance:
                return f"worker {member.instance}"
    if about.group_instance_id:
        return f"member {about.group_instance_id}"
    return f"client {about.client_id or 'without a name'} at {about.client_host.lstrip('/')}"


def removed(group: str, about: MemberValue | ConsumerMemberValue, why: str) -> str:
    """Return the sentence about a removed member; empty for a tool."""
    name = member_name(about)
    return f"Group {group}: {name} {ENDED[why]}." if name else ""


def settled(group: str, members: Iterable[MemberValue | ConsumerMemberValue]) -> str:
    """Return the sentence about the members of a group that has settled; empty without any."""
    names = sorted(filter(None, map(member_name, members)))
    if not names:
        return ""
    shown = ", ".join(names[:NAMES_MAX])
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    count = f"{len(names)} member{'s' * (len(names) > 1)}"
    return f"Group {group} has {count}: {shown}{more}."
