"""Flows on Spark: stores and results equal those of a TestDriver, and the kinds of stores are known
to snapshots, rescaling and queries.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from streamsx.app.app import App
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.spark.compact import compact
from streamsx.spark.plan import LOG, OUT
from streamsx.spark.rescale import rescale
from streamsx.spark.state import StateReader
from streamsx.state.api import INDEX, ROW
from streamsx.state.layout import store_mark
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker, TestDriver
from tests.support.client import Client
from tests.unit.spark.conftest import Batches, Fed, Row, Stored, fed, merged, stored

Make = Callable[..., Batches]
APP = "tests.unit.spark.flows:flowing"
OUTS = ("final-sums", "counts-out", "visits-out", "seen-out", "by-shop-out")
Sent = dict[tuple[str, int, Any], list[tuple[Any, int]]]


def records(count: int) -> list[Fed]:
    """Return records that come late, some of them too late."""
    draw = random.Random(count)
    made = []
    for n in range(count):
        at = 100_000 + n * 700 - draw.choice([0, 0, 0, draw.randrange(9000)])
        value = orjson.dumps({"n": n, "shop": f"s{draw.randrange(5)}"}).decode()
        topic = draw.choice(["orders", "clicks"])
        made.append(fed(topic, 2, f"k{draw.randrange(6)}", value, at))
    return merged(made)


def driven(app: App, cuts: Iterable[list[Fed]], *, ends: bool = False) -> tuple[Stored, Sent]:
    """Return stores and results of a TestDriver that commits after each cut.

    With `ends`, input is idle for an hour after each cut.
    """
    with TestDriver(app, commit=False) as driver:
        for cut in cuts:
            for each in cut:
                driver.to(each.topic, each.partition)(each.key, each.value, each.timestamp, None)
            driver.advance(0)
            driver.commit()
            driver.commit()  # which deletes what has closed
            for _ in range(2 if ends else 0):  # stage after stage
                driver.advance("1h")
                driver.commit()
                driver.commit()
        rows = {
            (name, n): entries
            for name in app.flows.stores
            for n, store in driver.stores(name).items()
            if (entries := list(store.rows.scan(ROW, INDEX)))
        }
        sent = defaultdict(list)
        for topic in OUTS:
            for record in driver.read(topic):
                found = record.value, round(record.timestamp * 1000)
                sent[topic, record.partition, record.key].append(found)
        return rows, dict(sent)


def results(rows: Iterable[Row]) -> Sent:
    sent = defaultdict(list)
    for row in rows:
        if row["kind"] == OUT:
            value = None if row["value"] is None else orjson.loads(row["value"])
            sent[row["topic"], row["partition"], row["key"]].append((value, row["timestamp"]))
    return dict(sent)


@pytest.mark.parametrize("count", [1, 6])
def test_flows_in_batches_give_stores_and_results_of_a_test_driver(
    batches: Make, count: int
) -> None:
    made = batches(APP)
    given = records(240)
    size = len(given) // count
    cuts = [given[at : at + size] for at in range(0, len(given), size)]
    for cut in cuts:
        made.batch(made.rows(cut))
    rows, sent = driven(made.app, cuts)
    assert {topic for topic, _, _ in sent} == set(OUTS)
    assert {name for name, _ in rows} == set(made.app.flows.stores)
    assert made.stored() == rows
    assert results(made.outs) == sent


def test_end_of_input_closes_the_windows_that_idle_input_closes(batches: Make) -> None:
    made = batches(APP)
    given = records(240)
    cuts = [given[:120], given[120:]]
    for cut in cuts:
        made.more = {}
        made.batch(made.rows(cut))
        made.more = {"ended": True}
        made.batch([])
    rows, sent = driven(made.app, cuts, ends=True)
    assert made.stored() == rows
    assert results(made.outs) == sent
    assert "by-shop" not in {name for name, _ in rows}


def test_snapshot_says_how_far_stores_have_closed(batches: Make) -> None:
    made = batches(APP)
    manifest = made.batch(made.rows(records(60)))
    marks = {store_mark(name) for name in made.app.flows.stores} - {
        store_mark("shops"),
        store_mark("by-shop"),
    }
    for at in manifest.positions["orders"].values():
        assert at.closed.keys() == marks
        assert max(at.closed.values()) == at.stream_time
        assert min(at.closed.values()) > 100_000
    assert not any(at.closed for at in manifest.positions["flowing-shop-repartition"].values())


def test_result_of_a_window_lies_in_the_partition_of_the_plain_key(batches: Make) -> None:
    made = batches(APP)
    made.batch(made.rows(records(120)))
    found = [row for row in made.outs if row["topic"] == "counts-out"]
    assert {row["partition"] for row in found} == {0, 1}
    for row in found:
        key, _, _ = orjson.loads(row["key"])
        assert row["partition"] == partition_of(key.encode(), 2)


def asked(uri: str, store: str, **more: str) -> dict[str, Any]:
    """Return a store as a query does, keys and values as JSON."""
    reader = StateReader({"app": APP, "store": store, "path": uri, **more})
    found = {}
    for part in reader.partitions():
        for batch in reader.read(part):
            for row in batch.to_pylist():
                assert row["key"] not in found
                found[row["key"]] = row["value"]
    return found


def test_query_shows_windows_sessions_and_joined_records_one_by_one(batches: Make) -> None:
    made = batches(APP)
    given = records(200)
    made.batch(made.rows(given))
    with TestDriver(made.app, commit=False) as driver:
        for each in given:
            driver.to(each.topic, each.partition)(each.key, each.value, each.timestamp, None)
        driver.advance(0)
        driver.commit()
        driver.commit()
        for name in ("sums", "counts", "visits"):
            rows = [row for store in driver.stores(name).values() for row in store.items()]
            found = asked(made.uri, name)
            assert all(len(orjson.loads(key)) == 3 for key in found)
            shown = {tuple(orjson.loads(key))[: len(rows[0][0])]: found[key] for key in found}
            assert {key: orjson.loads(value) for key, value in shown.items()} == dict(rows)
    assert all(len(orjson.loads(key)) == 2 for key in asked(made.uri, "seen-left"))
    log = {row["key"] for row in made.outs if row["topic"] == "flowing-sums-changelog"}
    assert asked(made.uri, "sums", raw="true").keys() <= log


def test_flows_are_compacted_and_rescaled_by_plain_keys(batches: Make, tmp_path: Path) -> None:
    made = batches(APP)
    made.batch(made.rows(records(200)))
    app = made.app
    topics = dict.fromkeys(made.stages[0].counts, 2)
    before, uri = app.conf.bootstrap, str(tmp_path / "compacted")
    with Broker(topics=topics) as broker:
        app.override(bootstrap=broker.bootstrap)
        client = Client(broker.bootstrap)
        for row in (row for row in made.outs if row["kind"] == LOG):
            tp = TopicPartition(row["topic"], row["partition"])
            client.send(tp, [(row["key"], row["value"])])
        client.close()
        base = made.work().base
        assert base is not None
        compact(APP, uri, positions=base.positions, scratch=str(tmp_path))
    app.override(bootstrap=before)
    assert stored(open_files(uri), str(tmp_path)) == made.stored()

    cut = dict.fromkeys(("orders", "clicks"), 3)
    other = str(tmp_path / "three")
    rescale(APP, uri, other, cut, scratch=str(tmp_path))
    found = stored(open_files(other), str(tmp_path))
    nodes = app.flows.stores
    for name in nodes:
        rows = [row for (store, _), part in made.stored().items() if store == name for row in part]
        many = 2 if name in ("shops", "by-shop") else 3
        for n in range(many):
            mine = [row for row in rows if partition_of(nodes[name].key_of(row[0]), many) == n]
            assert found.get((name, n), []) == sorted(mine)
