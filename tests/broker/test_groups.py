"""Groups over real sockets: a group that fails, or whose members die, does not disturb others."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.groups.classic import ClassicGroup
from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.coordinator_events import Effect, Event, Topics, TopicsChanged
from streamsx.clock import SystemClock
from streamsx.errors import InvalidTransition
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.support.apache_kafka import converse

MINUTE_MS = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", topics={"t": 1}) as broker:
        yield broker


def dial(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def joining(group: str, member_id: str, session_ms: int) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout": session_ms, "rebalance_timeout": MINUTE_MS,
        "protocol_type": "test", "protocols": [{"name": "p", "metadata": b""}],
        "member_id": member_id,
    }  # fmt: skip


def ask(sock: socket.socket, api: Api, version: int, **body: Any) -> None:
    sock.sendall(wire.request_encoder(api, version)(1, body, ""))


def answer(sock: socket.socket, api: Api, version: int) -> Any:
    with sock.makefile("rb", buffering=0) as stream:
        frame = b""
        size = int.from_bytes(stream.read(4) or b"")
        while len(frame) < size:
            frame += stream.read(size - len(frame)) or b""
    return wire.response_decoder(api, version)(frame)[1]


def alone(sock: socket.socket, group: str, session_ms: int = MINUTE_MS) -> str:
    """Join the only member of a stable group, at generation 1."""
    member_id = str(converse(sock, Api.JOIN_GROUP, 3, joining(group, "", session_ms)).member_id)
    assert synced(sock, group, member_id, 1) == E.NONE
    return member_id


def synced(sock: socket.socket, group: str, member_id: str, generation: int) -> int:
    about = {"group_id": group, "member_id": member_id, "generation_id": generation}
    return int(converse(sock, Api.SYNC_GROUP, 3, {**about, "assignments": []}).error_code)


def beat(sock: socket.socket, group: str, member_id: str, generation: int = 1) -> int:
    about = {"group_id": group, "member_id": member_id, "generation_id": generation}
    return int(converse(sock, Api.HEARTBEAT, 3, about).error_code)


def commit(sock: socket.socket, group: str, member_id: str, generation: int, offset: int) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {
        "group_id": group, "member_id": member_id, "generation_id_or_member_epoch": generation,
        "topics": [{"name": "t", "partitions": [partition]}],
    }  # fmt: skip
    told = converse(sock, Api.OFFSET_COMMIT, 3, body)
    return int(told.topics[0].partitions[0].error_code)


def test_dead_member_committing_while_in_join_is_removed_after_session(
    broker: Broker,
) -> None:
    """A JoinGroup of the member waits on one connection, while its worker commits on another."""
    clock = SystemClock()
    with dial(broker) as mine, dial(broker) as other, dial(broker) as third:
        first = str(converse(mine, Api.JOIN_GROUP, 3, joining("g", "", 800)).member_id)
        ask(other, Api.JOIN_GROUP, 3, **joining("g", "", MINUTE_MS))
        while beat(third, "g", first) != E.REBALANCE_IN_PROGRESS:
            pass
        ask(mine, Api.JOIN_GROUP, 3, **joining("g", first, 800))
        second = str(answer(other, Api.JOIN_GROUP, 3).member_id)
        answer(mine, Api.JOIN_GROUP, 3)
        assert synced(mine, "g", first, 2) == synced(other, "g", second, 2) == E.NONE
        ask(mine, Api.JOIN_GROUP, 3, **joining("g", first, 800))  # the leader: a round begins

        alone(third, "h", 1000)
        converse(third, Api.JOIN_GROUP, 3, joining("h", "", MINUTE_MS))  # until 1 s have passed
        assert commit(third, "g", first, 2, 5) == E.NONE
        about = {"group_id": "g", "members": [{"member_id": second}]}
        converse(other, Api.LEAVE_GROUP, 3, about)
        assert answer(mine, Api.JOIN_GROUP, 3).generation_id == 3
        died = clock.now()
        converse(other, Api.JOIN_GROUP, 3, joining("g", "", MINUTE_MS))
        assert 0.5 < clock.now() - died < MINUTE_MS / 2000


def fails(real: Any, group_id: str, times: int) -> Any:
    """Replace a method by one that fails some times for one group, and leaves the group half
    changed.
    """
    left = iter(range(times))

    def step(group: ClassicGroup, *about: Any) -> Any:
        if group.id == group_id and next(left, None) is not None:
            group.round.generation += 100
            raise InvalidTransition(f"group {group.id}: the story of it")
        return real(group, *about)

    return step


def test_failed_group_is_reloaded_without_affecting_other_groups(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        dial(broker) as sock, dial(broker) as parked, dial(broker) as waiting,
        dial(broker) as watched,
    ):  # fmt: skip
        bad, good = alone(sock, "bad"), alone(watched, "good")
        assert commit(sock, "bad", bad, 1, 5) == E.NONE
        ask(parked, Api.JOIN_GROUP, 3, **joining("bad", "", MINUTE_MS))
        ask(waiting, Api.JOIN_GROUP, 3, **joining("good", "", MINUTE_MS))
        for group, member in (("bad", bad), ("good", good)):
            while beat(sock, group, member) != E.REBALANCE_IN_PROGRESS:
                pass

        monkeypatch.setattr(ClassicGroup, "step", fails(ClassicGroup.step, "bad", 2))
        assert beat(sock, "bad", bad) == E.COORDINATOR_NOT_AVAILABLE
        assert answer(parked, Api.JOIN_GROUP, 3).error_code == E.COORDINATOR_NOT_AVAILABLE
        assert beat(sock, "bad", bad) == E.COORDINATOR_NOT_AVAILABLE

        assert beat(sock, "bad", bad) == E.NONE  # as it is on disk: stable, at generation 1
        assert commit(sock, "bad", bad, 1, 6) == E.NONE
        assert beat(watched, "good", good) == E.REBALANCE_IN_PROGRESS
        ask(watched, Api.JOIN_GROUP, 3, **joining("good", good, MINUTE_MS))
        assert answer(waiting, Api.JOIN_GROUP, 3).generation_id == 2
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    story = "group bad: the story of it. It is loaded again."
    assert [record.getMessage() for record in told] == [
        f"Group bad failed ({times} times so far): {story}" for times in (1, 2)
    ]  # fmt: skip
    assert [bool(record.exc_info) for record in told] == [True, False]


def test_group_failing_in_a_timer_is_reloaded_with_sessions_running(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request comes in: a timer of the group fails."""
    with dial(broker) as sock, dial(broker) as parked:
        member = alone(sock, "g", 1000)
        assert beat(sock, "g", member) == E.NONE  # behind the tick that the first join has set
        monkeypatch.setattr(ClassicGroup, "_tick", fails(ClassicGroup._tick, "g", 1))
        joined = converse(parked, Api.JOIN_GROUP, 3, joining("g", "", MINUTE_MS))
        assert joined.error_code == E.COORDINATOR_NOT_AVAILABLE
        joined = converse(parked, Api.JOIN_GROUP, 3, joining("g", "", MINUTE_MS))
        assert (joined.error_code, joined.generation_id) == (E.NONE, 2)


@pytest.mark.parametrize(
    ("failures", "told"), [(1, E.NONE), (3, E.COORDINATOR_NOT_AVAILABLE)], ids=["once", "and again"]
)
def test_request_during_reload_of_all_groups_is_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, failures: int, told: E
) -> None:
    """The request waits behind a parked one, which is refused; or the groups cannot be loaded at
    once.
    """
    left, real = iter(range(failures)), Coordinator.step

    def failing(machine: Coordinator, now: float, event: Event) -> list[Effect]:
        if isinstance(event, TopicsChanged | Topics) and next(left, None) is not None:
            raise ZeroDivisionError
        return real(machine, now, event)

    with dial(broker) as sock, dial(broker) as parked, dial(broker) as lists:
        member = alone(sock, "g")
        ask(parked, Api.JOIN_GROUP, 3, **joining("g", "", MINUTE_MS))
        while beat(sock, "g", member) != E.REBALANCE_IN_PROGRESS:
            pass
        ask(parked, Api.HEARTBEAT, 3, group_id="g", member_id=member, generation_id=1)
        monkeypatch.setattr(Coordinator, "step", failing)
        topic = {"name": "new", "num_partitions": 1, "replication_factor": 1}
        ask(lists, Api.CREATE_TOPICS, 4, topics=[topic], timeout=1000)
        assert answer(parked, Api.JOIN_GROUP, 3).error_code == E.COORDINATOR_NOT_AVAILABLE
        assert answer(parked, Api.HEARTBEAT, 3).error_code == told
        assert beat(sock, "g", member) == E.NONE
