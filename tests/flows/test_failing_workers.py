"""Records that fail, in whole workers over the embedded broker, in virtual time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App
from streamsx.model import TopicPartition
from tests.flows.test_progress import PARTITIONS
from tests.flows.test_progress_workers import append
from tests.unit.conftest import HOST, PORT, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


POISON_EACH = 100


def app_of() -> App:
    """Return an app that changes nested values in place, and fails half-way through some."""
    made = App(
        "poison",
        topic_partitions=PARTITIONS,
        on_error="dlq",
        broker=f"{HOST}:{PORT}",
        session_timeout=10,
        memory_budget="32MiB",
    )
    nested: Any = made.Table("nested", partitions=PARTITIONS)
    out = made.topic("out", partitions=1)

    @made.agent("in", name="count", tables=[nested])
    async def count(stream: AsyncIterator[Any]) -> None:
        async for raw, value in stream.items():  # type: ignore[attr-defined]
            key = str(raw, "utf8")
            row = nested.get(key) or {"a": {"n": 0}}
            row["a"]["n"] += 1
            nested[key] = row
            nested[f"{key} too"] = row
            await out.send(value=value["user"])
            if value["user"].endswith("!"):
                row["a"]["n"] += 1
                raise ValueError(value)

    return made


def changelog(bench: VirtualCluster) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for partition in range(PARTITIONS):
        for key, value in bench.read(TopicPartition("poison-nested-changelog", partition)):
            assert key is not None
            found[json.loads(key)] = json.loads(value or b"null")
    return found


@pytest.mark.parametrize("moves", [False, True])
def test_worker_with_one_poison_record_in_a_hundred(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, moves: bool
) -> None:
    caplog.set_level("DEBUG", "streamsx")
    users = [f"u{n}!" if n % POISON_EACH == 42 else f"u{n}" for n in range(3000)]
    records = [(f"k{n % 30}", {"user": user}, float(n)) for n, user in enumerate(users)]
    good = [each for each in records if not each[1]["user"].endswith("!")]
    bad = [each for each in records if each[1]["user"].endswith("!")]
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1})
    try:
        bench.station(app_of(), "w0", by_hand=False)
        for start in range(0, len(records), 500):
            append(bench, records[start : start + 500])
            bench.run(2)
            if moves and start == 1000:
                bench.station(app_of(), "w1", by_hand=False)
        last = {each[1]["user"] for each in good}
        bench.until(lambda: last <= set(sent(bench, "out")), 60)
        bench.run(8)
        counts: dict[str, int] = {}
        for key, _, _ in good:
            counts[key] = counts.get(key, 0) + 1
        want = {key: {"a": {"n": n}} for key, n in counts.items()}
        assert changelog(bench) == want | {f"{key} too": row for key, row in want.items()}
        letters = [
            json.loads(value or b"")["user"]
            for partition in range(PARTITIONS)
            for _, value in bench.read(TopicPartition("poison-dlq", partition))
        ]
        assert sorted(letters) == sorted(each[1]["user"] for each in bad)
        if not moves:
            assert caplog.text.count("goes back to its last commit") <= PARTITIONS
            twice = [user for user in sent(bench, "out") if not user.endswith("!")]
            assert len(twice) == len(good), "outputs have left once"
            assert sum(user.endswith("!") for user in sent(bench, "out")) <= PARTITIONS
    finally:
        bench.close()


def sent(bench: VirtualCluster, topic: str) -> list[str]:
    return [json.loads(value or b"") for _, value in bench.read(TopicPartition(topic, 0))]
