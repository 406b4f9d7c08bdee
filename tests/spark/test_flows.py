"""Flows by `spark run`: windows, sessions and joins give what a TestDriver gives."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from streamsx.app.lookup import app_named
from streamsx.model import TopicPartition
from streamsx.spark.checkout import discard_all
from streamsx.spark.runner import Committed, run
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.client import Client
from tests.unit.spark.conftest import stored
from tests.unit.spark.test_flows import APP, OUTS, Sent, driven, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def test_windows_sessions_and_joins_equal_those_of_a_test_driver(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Two queries, one after the other: the second goes on where the first has closed."""
    given = records(240)
    app, uri = app_named(APP), str(tmp_path / "state")
    heard: list[Committed] = []
    cuts = [given[:120], given[120:]]
    with Broker(topics={"orders": 2, "clicks": 2}) as broker:
        app.override(bootstrap=broker.bootstrap)
        client = Client(broker.bootstrap)
        for topic in OUTS:  # results of 1970 outlive no other retention
            client.create(topic, 2, {"retention.ms": "-1"})
        for cut in cuts:
            for each in cut:
                tp = TopicPartition(each.topic, each.partition)
                client.send(tp, [(each.key, each.value)], at_ms=each.timestamp)
            run(
                spark,
                APP,
                uri,
                available_now=True,
                publishes=False,
                scratch=str(tmp_path),
                heard=heard.append,
            ).wait()
        sent: Sent = defaultdict(list)
        for tp in (TopicPartition(topic, n) for topic in OUTS for n in range(2)):
            for record in client.read(tp):
                value = None if record.value is None else orjson.loads(record.value)
                sent[(*tp, record.key)].append((value, record.timestamp))
        client.close()
    rows, results = driven(app, cuts)
    assert heard[0].records > 120  # the hop counts too
    assert stored(open_files(uri), str(tmp_path)) == rows
    assert sent == results
    discard_all()
