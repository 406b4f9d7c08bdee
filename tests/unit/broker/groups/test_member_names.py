"""Names of members in the broker's log."""

import re
from pathlib import Path

import pytest

import streamsx
from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.wire import write_join
from streamsx.broker.groups.member_names import ENDED, member_name, removed, settled
from streamsx.broker.metadata_rows import MemberValue, ProtocolValue
from streamsx.protocol.consumer_protocol import Subscription


def member(
    joined: MemberMetadata | None = None, static: str | None = None, client: str = "c"
) -> MemberValue:
    metadata = Subscription((), write_join(joined)).write() if joined else b"\x00"
    protocol = ProtocolValue("streamsx" if joined else "range", metadata)
    return MemberValue("c-1234", static, client, "/127.0.0.1", 1, 1, b"", b"", (protocol,))


WORKER = member(MemberMetadata("", instance="b", process=bytes(16).hex()))
TOOL = member(MemberMetadata("", observer=True))


@pytest.mark.parametrize(
    ("about", "name"),
    [
        (WORKER, "worker b"),
        (TOOL, ""),
        (member(static="s"), "member s"),
        (member(), "client c at 127.0.0.1"),
        (member(client=""), "client without a name at 127.0.0.1"),
    ],
    ids=["worker", "tool", "static", "client", "nameless"],
)
def test_member_has_this_name(about: MemberValue, name: str) -> None:
    assert member_name(about) == name


def test_removal_says_why() -> None:
    assert removed("shop", WORKER, "session ended") == (
        "Group shop: worker b was removed: no heartbeat came within its session_timeout."
    )
    assert removed("shop", TOOL, "left") == ""


def test_settled_group_is_told_with_its_members() -> None:
    assert settled("shop", [WORKER, TOOL]) == "Group shop has 1 member: worker b."
    assert settled("shop", [TOOL]) == ""
    assert settled("g", [member()] * 22).endswith(" and 2 more.")


def test_each_reason_of_a_removal_has_words() -> None:
    package = Path(streamsx.__file__).parent / "broker" / "groups"
    text = "".join(path.read_text() for path in package.glob("*.py"))
    found = re.findall(r'remove(?:_all)?\(.*, "([a-z ,]+)"\)', text)
    assert set(found) == ENDED.keys()
