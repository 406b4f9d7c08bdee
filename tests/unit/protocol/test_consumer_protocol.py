"""Subscription and Assignment: compatible with other clients in both directions."""

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocol  # type: ignore[import-untyped]  # no types
from hypothesis import given
from hypothesis import strategies as st

from streamsx.model import TopicPartition
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.consumer_protocol import NO_GENERATION, Assignment, Subscription

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
FULL = Subscription(("a", "b"), b"data", (A0, A1, B0), 7, "rack-1")
V0 = bytes.fromhex("0000 00000002 0001 61 0001 62 00000004") + b"data"
V1 = b"\0\1" + V0[2:] + bytes.fromhex(
    "00000002 0001 61 00000002 00000000 00000001 0001 62 00000001 00000000"
)  # fmt: skip
V2 = b"\0\2" + V1[2:] + bytes.fromhex("00000007")
V3 = b"\0\3" + V2[2:] + bytes.fromhex("0006") + b"rack-1"


@pytest.mark.parametrize(
    ("data", "subscription"),
    [
        (V0, Subscription(("a", "b"), b"data")),
        (V1, Subscription(("a", "b"), b"data", (A0, A1, B0))),
        (V2, Subscription(("a", "b"), b"data", (A0, A1, B0), 7)),
        (V3, FULL),
        (b"\0\4" + V3[2:] + b"what version 4 adds", FULL),
        (bytes.fromhex("0000 00000000 ffffffff"), Subscription(())),
    ],
)
def test_every_subscription_version_is_read(data: bytes, subscription: Subscription) -> None:
    assert Subscription.read(data) == subscription


def test_subscription_written_as_version_3() -> None:
    assert FULL.write() == V3
    assert Subscription(("b", "a"), b"data", (B0, A1, A0), 7, "rack-1").write() == V3


def test_subscription_readable_by_version_0_client() -> None:
    theirs = ConsumerProtocol.METADATA.decode(FULL.write())
    assert (theirs.subscription, theirs.user_data) == (["a", "b"], b"data")


def test_subscription_of_version_0_client_is_read() -> None:
    theirs = ConsumerProtocol.METADATA(0, ["a"], b"").encode()
    assert Subscription.read(theirs) == Subscription(("a",), b"", (), NO_GENERATION, None)


def test_assignment_readable_by_aiokafka() -> None:
    theirs = ConsumerProtocol.ASSIGNMENT.decode(Assignment((B0, A1, A0), b"x").write())
    assert (theirs.partitions(), theirs.user_data) == ([A0, A1, B0], b"x")


def test_assignment_written_as_version_0() -> None:
    assert Assignment((A1,), b"x").write() == bytes.fromhex(
        "0000 00000001 0001 61 00000001 00000001 00000001 78"
    )


@pytest.mark.parametrize("version", [0, 1])
def test_assignment_of_aiokafka_is_read(version: int) -> None:
    theirs = ConsumerProtocol.ASSIGNMENT(version, [("b", [0]), ("a", [1])], b"x").encode()
    assert Assignment.read(theirs) == Assignment((B0, A1), b"x")


def test_empty_bytes_read_as_empty_assignment() -> None:
    assert Assignment.read(b"") == Assignment()


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_malformed(data: bytes) -> None:
    for read in (Subscription.read, Assignment.read):
        try:
            read(data)
        except Malformed:
            continue


@pytest.mark.parametrize("data", [V3[:-1], V3[:20], b"", b"\0", b"\xff\xff" + V3[2:]])
def test_truncated_or_unversioned_subscription_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Subscription.read(data)


TOPICS = st.text("abc.-", min_size=1, max_size=5)
PARTITIONS = st.sets(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)))


@given(st.sets(TOPICS), st.binary(), PARTITIONS, st.integers(-1, 2**31 - 1), st.none() | st.text())
def test_subscription_and_assignment_read_as_written(
    topics: set[str], user: bytes, owned: set[TopicPartition], generation: int, rack: str | None
) -> None:
    told = Subscription(tuple(sorted(topics)), user, tuple(sorted(owned)), generation, rack)
    assert Subscription.read(told.write()) == told
    given = Assignment(tuple(sorted(owned)), user)
    assert Assignment.read(given.write()) == given
