"""Tables of flows on whole workers in virtual time: joins and groups over a kill and a move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.serde.codec import to_json
from tests.unit.conftest import app_of

if TYPE_CHECKING:
    from streamsx import App
    from tests.unit.conftest import VirtualCluster

PARTITIONS = 3
ORDERS = 60
TOWNS = 7


def tables() -> App:
    """Join orders with their towns, group the pairs by country, and send both on."""
    app = app_of(commit_interval=0.2)
    orders, towns = app.table("orders"), app.table("towns")
    joined = orders.join(
        towns,
        lambda n, country: {"n": n, "in": country},
        key=lambda n: f"town{n % TOWNS}",
        name="j",
    )
    joined.to("joined")
    joined.group_by(lambda pair: pair["in"]).sum(lambda pair: pair["n"], "sums").to("summed")
    return app


def write(bench: VirtualCluster, topic: str, rows: dict[str, Any]) -> None:
    for key, value in rows.items():
        tp = TopicPartition(topic, partition_of(key.encode(), PARTITIONS))
        bench.append(tp, [(key.encode(), None if value is None else to_json(value))])


def newest(bench: VirtualCluster, topic: str) -> dict[str, Any]:
    """Return the newest value of each key of a topic, as bytes, without deleted ones."""
    rows = [row for n in range(PARTITIONS) for row in bench.read(TopicPartition(topic, n))]
    found = {key.decode(): value for key, value in rows if key is not None}
    return {key: value for key, value in found.items() if value is not None}


def test_joins_by_foreign_key_and_groups_are_right_over_a_kill(bench: VirtualCluster) -> None:
    for topic in ("orders", "towns", "joined", "summed"):
        bench.create(topic, PARTITIONS)
    orders: dict[str, int | None] = {f"order{n}": n for n in range(ORDERS)}
    towns: dict[str, str | None] = {f"town{n}": f"land{n % 2}" for n in range(TOWNS)}
    write(bench, "orders", orders)
    write(bench, "towns", towns)
    first = bench.station(tables(), "w1", by_hand=False)
    second = bench.station(tables(), "w2", by_hand=False)
    bench.until(lambda: len(newest(bench, "joined")) == ORDERS, 60)
    bench.run(3)  # all is committed: work beside a kill counts twice
    first.process.kill()
    changed = {f"order{n}": None if n % 3 else n + 1 for n in range(0, ORDERS, 2)}
    write(bench, "orders", changed)
    write(bench, "towns", {"town0": None, "town1": "land9"})
    orders |= changed
    towns |= {"town0": None, "town1": "land9"}
    expected = {
        key: to_json({"n": n, "in": land})
        for key, n in orders.items()
        if n is not None and (land := towns[f"town{n % TOWNS}"]) is not None
    }
    bench.until(lambda: newest(bench, "joined") == expected, 90)
    sums: dict[str, int] = {"land0": 0, "land1": 0, "land9": 0}
    for n in orders.values():
        if n is not None and (land := towns[f"town{n % TOWNS}"]) is not None:
            sums[land] += n
    bench.until(lambda: newest(bench, "summed") == {k: to_json(n) for k, n in sums.items()}, 60)
    assert second.process.alive
