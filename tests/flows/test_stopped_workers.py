"""Records that fail under exactly-once, and tasks that stop ahead of a bad record.

In whole workers over the embedded broker.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest

import streamsx
from streamsx import App
from streamsx.protocol.partitioner import partition_of
from tests.flows.test_progress import PARTITIONS
from tests.flows.test_progress_workers import append
from tests.flows.test_retrying_workers import GUARANTEES, committed, values
from tests.unit.conftest import HOST, PORT, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GOOD = [f"u{n}" for n in range(5)]
BAD = [f"bad{n}" for n in range(12)]
STOPPED = re.compile(r"Task stopped: 0_\d, in-\d offset (\d+): .*records from (\d+) on are not")


def app_of(word: Any, guarantee: str, *, mended: bool, in_a_flow: bool) -> App:
    """Return an app that counts users by key and sends them on; bad users fail until mended."""
    made = App(
        "stops",
        topic_partitions=PARTITIONS,
        on_error=word,
        broker=f"{HOST}:{PORT}",
        session_timeout=10,
        memory_budget="32MiB",
        processing_guarantee=guarantee,
    )
    counts: Any = made.Table("counts", default=dict, partitions=PARTITIONS)
    source = made.topic("in")
    out = made.topic("out", partitions=1)

    def checked(user: str) -> str:
        if user.startswith("bad") and not mended:
            raise ValueError(user)
        return user

    @made.agent(source, name="count", tables=[counts])
    async def count(stream: AsyncIterator[Any]) -> None:
        async for value in stream:
            row = counts["all"]
            row[value["user"]] = row.get(value["user"], 0) + 1
            counts["all"] = row
            if not in_a_flow:
                await out.send(value=checked(value["user"]))

    if in_a_flow:
        made.flow(source).map_values(lambda value: checked(value["user"])).to(out)
    return made


def counted(bench: VirtualCluster) -> Counter[str]:
    """Return how often each user was counted, of the one key that the records have."""
    rows = [row for n in range(PARTITIONS) for row in committed(bench, "stops-counts-changelog", n)]
    return Counter(orjson.loads(rows[-1][1])) if rows else Counter()


def letters(bench: VirtualCluster) -> list[str]:
    rows = [row for n in range(PARTITIONS) for row in committed(bench, "stops-dlq", n)]
    return sorted(orjson.loads(value)["user"] for _, value in rows)


@pytest.mark.parametrize("in_a_flow", [False, True])
@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("word", ["stop_task", "log", "dlq"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_all_ahead_of_the_bad_record_is_committed(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    guarantee: str,
    word: str,
    *,
    slowly: bool,
    in_a_flow: bool,
) -> None:
    caplog.set_level("INFO")
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1})
    exact = guarantee == "exactly_once"
    records = [("k", {"user": user}, float(n)) for n, user in enumerate([*GOOD, *BAD])]
    try:
        made = app_of(word, guarantee, mended=False, in_a_flow=in_a_flow)
        station = bench.station(made, "w0", by_hand=False)
        bench.run(9)
        parts = [[record] for record in records] if slowly else [records]
        for part in parts:
            append(bench, part)
            bench.run(0.4)
        bench.until(lambda: "Task stopped" in caplog.text, 30)
        bench.run(3)

        found = next(filter(None, map(STOPPED.search, caplog.messages)))
        first, again = map(int, found.groups())
        assert first == again
        kept = BAD[: first - len(GOOD)]
        assert first == (len(GOOD) + 9 if exact and word == "dlq" else len(GOOD))
        assert Counter(values(bench, "out")) >= Counter(GOOD), "ahead of the bad record"
        if exact:
            assert Counter(values(bench, "out")) == Counter(GOOD)
            assert letters(bench) == kept
            assert f"{PARTITIONS} tasks go back to the last commit" in caplog.text
            stops = [line for line in caplog.messages if "aborted: task stopped" in line]
            assert not any("no action needed" in line for line in stops)
            if not in_a_flow:
                assert counted(bench) == Counter(GOOD)

        station.process.signal(signal.SIGTERM)
        bench.run(5)
        made = app_of(word, guarantee, mended=True, in_a_flow=in_a_flow)
        bench.station(made, "w1", by_hand=False)
        bench.until(lambda: BAD[-1] in values(bench, "out"), 40)
        bench.run(3)
        rest = Counter([*GOOD, *(user for user in BAD if user not in kept)])
        assert counted(bench) == (rest + Counter(kept) if in_a_flow else rest)
        if exact:
            assert Counter(values(bench, "out")) == rest
            assert letters(bench) == kept
    finally:
        bench.close()


@pytest.mark.parametrize("word", ["stop_task", "dlq"])
def test_tasks_that_stop_at_the_same_time_all_commit_what_came_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, word: str
) -> None:
    """The race: a task stops; before its commit, the first failure of another one aborts all."""
    keys = {partition_of(f"k{n}".encode(), PARTITIONS): f"k{n}" for n in range(40)}
    assert len(keys) == PARTITIONS
    users = [f"u{n}" for n in range(20)] + [f"bad{n}" for n in range(40)]
    records = [
        (keys[n % PARTITIONS], {"user": user}, 1.7e9 + n / 100) for n, user in enumerate(users)
    ]
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1})
    try:
        made = app_of(word, "exactly_once", mended=False, in_a_flow=False)
        bench.station(made, "w0", by_hand=False)
        bench.run(9)
        append(bench, records)
        bench.run(10)
        lines = filter(None, map(STOPPED.search, caplog.messages))
        found = {line.group(0)[:22]: int(line.group(1)) for line in lines}
        firsts = set(found.values())
        assert len(found) == PARTITIONS
        assert firsts == {14 if word == "dlq" else 5}
        assert Counter(values(bench, "out")) == Counter(users[:20])
        assert letters(bench) == sorted(users[20:56] if word == "dlq" else [])
    finally:
        bench.close()


@pytest.mark.parametrize("word", ["log", "dlq", "stop_task", streamsx.retry(2, "1s", "log")])
def test_output_of_a_record_that_fails_while_a_commit_is_due_is_in_no_transaction(
    tmp_path: Path, word: Any
) -> None:
    """The race: a body has sent, and sleeps; a commit is due, and waits for the body; the body
    raises. The task has no tables, and stands where it stood, so it has nothing to commit.
    """
    made = App(
        "stops", topic_partitions=PARTITIONS, on_error=word, broker=f"{HOST}:{PORT}",
        session_timeout=10, memory_budget="32MiB", processing_guarantee="exactly_once",
    )  # fmt: skip
    out = made.topic("out", partitions=1)

    @made.agent(made.topic("in"), name="send")
    async def send(stream: AsyncIterator[Any]) -> None:
        async for value in stream:
            await out.send(value=value["user"])
            if value["user"].startswith("bad"):
                await asyncio.sleep(0.5)
                raise ValueError(value["user"])

    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1})
    good = [(f"k{n % 12}", {"user": f"u{n}"}, float(n)) for n in range(60)]

    try:
        bench.station(made, "w0", by_hand=False)
        bench.run(9)
        append(bench, good[:30])
        bench.run(2)
        append(bench, [("k0", {"user": "bad"}, 30.0), *good[30:]], in_batch=1)
        bench.run(12)
        sent = Counter(values(bench, "out"))
        assert "bad" not in sent
        assert sent <= Counter(f"u{n}" for n in range(60))
    finally:
        bench.close()
