"""Records of timers, beside tasks whose changelogs refuse records, and which are lost."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.broker.api.served import answered
from streamsx.errors import NotHere
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import Header, scan
from streamsx.protocol.wire import Api
from tests.unit.conftest import changelog, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx import App
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster

T0 = TaskId(0, 0)
TICKS = TopicPartition("ticks", 0)
EVERY_S = 0.1


def ticking(**settings: Any) -> App:
    """Return an app that counts words and sends a number ten times a second, from 0 on."""
    app = counting(**settings)
    ticks = app.topic("ticks", partitions=1, value_serializer="raw")
    sent: list[int] = []

    @app.timer(EVERY_S)
    async def tick() -> None:
        await ticks.send(value=b"%d" % len(sent))
        sent.append(len(sent))

    return app


def ticked(bench: VirtualCluster) -> list[int]:
    return [int(value or b"") for _, value in bench.read(TICKS)]


def headers(bench: VirtualCluster, tp: TopicPartition) -> list[Header]:
    log = bench.log(tp)
    return [header for _, _, header in scan(bytes(log.read(log.start, 1 << 20)), check=True)]


def epochs(bench: VirtualCluster, tp: TopicPartition) -> list[int]:
    """Return the epochs of the producers of its batches."""
    return [header.producer_epoch for header in headers(bench, tp)]


def refusing_rows(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Make the broker refuse the records of a changelog; other topics take them."""
    if call.api is not Api.PRODUCE or call.body.topic_data[0].name != changelog(0).topic:
        return answered(service, call)
    part = {"index": 0, "error_code": ErrorCode.NOT_ENOUGH_REPLICAS, "base_offset": -1}
    return {"responses": [{"name": changelog(0).topic, "partition_responses": [part]}]}


def test_timer_records_are_independent_of_a_lost_task(bench: VirtualCluster) -> None:
    """The broker takes no rows of the task; then its lease ends; then it is lost, its rows are
    dropped and their epoch ends. Records of the timer arrive all the time, each once, of one epoch.
    """
    station = bench.begun(ticking())
    station.hand.plan(T0)
    bench.until(lambda: ticked(bench))
    bench.answer = refusing_rows
    bench.feed(0, "a")
    bench.run(3)
    assert not bench.read(changelog(0))
    before = len(ticked(bench))
    station.made.session.member.lease.until = bench.scheduler.now
    bench.run(1)
    assert len(ticked(bench)) >= before + 9
    station.hand.lose(T0)
    bench.run(1)
    station.made.session.member.lease.until = bench.scheduler.now + 100
    station.made.rebalance_handler.losses = station.made.session.losses
    bench.answer = answered
    station.hand.plan(T0)
    bench.until(lambda: bench.counted() == {"a": 1})
    ticks = ticked(bench)
    assert ticks == list(range(len(ticks)))
    assert len(ticks) >= before + 20
    assert set(epochs(bench, TICKS)) == {0}
    assert set(epochs(bench, changelog(0))) == {1}


def test_timer_records_have_their_own_producer_and_sequence(bench: VirtualCluster) -> None:
    """Without them records that are sent again would be stored twice."""
    station = bench.begun(ticking())
    station.hand.plan(T0)
    bench.feed(0, "a")
    bench.until(lambda: len(ticked(bench)) > 2 and bench.counted() == {"a": 1})
    (timers,) = {header.producer_id for header in headers(bench, TICKS)}
    (tasks,) = {header.producer_id for header in headers(bench, changelog(0))}
    assert timers >= 0
    assert timers != tasks
    numbers = [header.base_sequence for header in headers(bench, TICKS)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0


def test_topic_refusing_timer_records_delays_no_commit(bench: VirtualCluster) -> None:
    def refusing_ticks(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is not Api.PRODUCE or call.body.topic_data[0].name != TICKS.topic:
            return answered(service, call)
        part = {"index": 0, "error_code": ErrorCode.NOT_ENOUGH_REPLICAS, "base_offset": -1}
        return {"responses": [{"name": TICKS.topic, "partition_responses": [part]}]}

    station = bench.begun(ticking())
    station.hand.plan(T0)
    bench.until(lambda: ticked(bench))
    bench.answer = refusing_ticks
    before = len(ticked(bench))
    bench.feed(0, "a")
    bench.until(lambda: bench.counted() == {"a": 1}, 3)
    station.hand.revoke(T0)
    bench.until(station.hand.released, 1)
    assert len(ticked(bench)) == before


def test_timer_records_are_flushed_when_the_worker_ends(bench: VirtualCluster) -> None:
    """All of them are in a batch that waits for its linger."""
    station = bench.station(ticking(producer_linger=10.0), by_hand=False)
    bench.until(lambda: len(station.made.tasks.actives) == 3 if station.begun else False)
    bench.run(1)
    assert ticked(bench) == []
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 20)
    assert station.main.result == 0
    ticks = ticked(bench)
    assert ticks == list(range(len(ticks)))
    assert len(ticks) >= 9


# -- tables of which a part is here

OF_0, OF_1, OTHER_OF_1 = "f", "a", "c"
"""Keys, by the partition of three that their bytes belong to; those of the records."""


def parted(bench: VirtualCluster, *here: TaskId) -> Any:
    """Return the table of a worker that has some of three partitions; all keys are counted."""
    app = counting()
    station = bench.begun(app)
    station.hand.plan(*here)
    for key in (OF_0, OF_1):
        place = partition_of(key.encode(), 3)
        bench.append(TopicPartition("words", place), [(key.encode(), key.encode())])
    bench.run(2)
    return app.tables["counts"]


LOOKS: dict[str, Callable[[Any, str], object]] = {
    "[]": lambda table, key: table[key],
    "get": lambda table, key: table.get(key, 7),
    "in": lambda table, key: key in table,
}


def test_keys_of_these_tests_map_to_the_expected_partitions() -> None:
    places = [partition_of(key.encode(), 3) for key in (OF_0, OF_1, OTHER_OF_1)]
    assert places == [0, 1, 1]


@pytest.mark.parametrize("look", LOOKS)
def test_key_of_another_worker_raises_not_here_with_local_partitions(
    bench: VirtualCluster, look: str
) -> None:
    table = parted(bench, T0, TaskId(0, 2))
    with pytest.raises(NotHere) as raised:
        LOOKS[look](table, OF_1)
    assert str(raised.value).startswith(
        f"not on this worker: table counts, key {OF_1!r}: this worker has partitions 0, 2 of 3: "
    )
    found = raised.value
    assert (found.table, found.key, found.partitions) == ("counts", OF_1, frozenset({0, 2}))
    assert (table[OF_0], table.get(OF_0), OF_0 in table) == (1, 1, True)


def test_missing_local_key_gives_the_default(bench: VirtualCluster) -> None:
    table = parted(bench, TaskId(0, 1))
    assert (table[OTHER_OF_1], table.get(OTHER_OF_1, 7), OTHER_OF_1 in table) == (0, 0, False)


def test_worker_with_all_partitions_gives_the_default(bench: VirtualCluster) -> None:
    table = parted(bench, T0, TaskId(0, 1), TaskId(0, 2))
    assert (table["nobody's"], dict(table)) == (0, {OF_0: 1, OF_1: 1})


def test_worker_without_a_partition_raises_not_here(bench: VirtualCluster) -> None:
    table = parted(bench)
    with pytest.raises(NotHere, match="this worker has none of its 3 partitions"):
        _ = table[OF_0]


def test_missing_key_is_not_assumed_local_if_table_keys_differ_from_records(
    bench: VirtualCluster,
) -> None:
    """The key is in partition 0, and its bytes mean 1: a body writes keys of its own choice."""
    app = counting()
    station = bench.begun(app)
    station.hand.plan(T0, TaskId(0, 1))
    bench.feed(0, OF_1)
    bench.run(2)
    table = app.tables["counts"]
    assert (table[OTHER_OF_1], table[OF_1]) == (0, 1)
    with pytest.raises(NotHere):
        _ = table[OTHER_OF_1]


def test_iteration_over_part_of_a_table_warns_once(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    table = parted(bench, T0, TaskId(0, 2))
    assert (len(table), list(table), dict(table.items()), list(table.values())) == (
        1, [OF_0], {OF_0: 1}, [1],
    )  # fmt: skip
    told = [each.getMessage() for each in caplog.records if "Only a part" in each.getMessage()]
    part = "this worker has partitions 0, 2 of 3"
    rest = (
        "Other workers have the rest, or it is being restored; no action needed if the part is "
        "what you want."
    )
    assert told == [f"Only a part of table counts is read: {part}. {rest}"]


def test_iteration_over_a_whole_table_does_not_warn(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    table = parted(bench, T0, TaskId(0, 1), TaskId(0, 2))
    assert len(table) == 2
    assert not [each for each in caplog.records if "Only a part" in each.getMessage()]
