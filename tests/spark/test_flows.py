"""Flows by `spark run`: windows, sessions and joins give what a TestDriver gives."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from streamsx.app.lookup import app_named
from streamsx.model import TopicPartition
from streamsx.spark.checkout import discard_all
from streamsx.spark.runner import Committed, run
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.client import Client
from tests.unit.spark.conftest import Fed, stored
from tests.unit.spark.test_flows import APP, OUTS, Sent, driven, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def filled(broker: Broker, given: list[Fed]) -> Client:
    client = Client(broker.bootstrap)
    for topic in OUTS:  # results of 1970 outlive no other retention
        client.create(topic, 2, {"retention.ms": "-1"})
    for each in given:
        tp = TopicPartition(each.topic, each.partition)
        client.send(tp, [(each.key, each.value)], [each.timestamp])
    return client


def outputs(client: Client) -> Sent:
    sent: Sent = defaultdict(list)
    for tp in (TopicPartition(topic, n) for topic in OUTS for n in range(2)):
        for record in client.read(tp):
            value = None if record.value is None else orjson.loads(record.value)
            sent[(*tp, record.key)].append((value, record.timestamp))
    return sent


def test_windows_sessions_and_joins_equal_those_of_a_test_driver(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The end of the input closes all that is open where `idle=` is given, in a batch of its own,
    which goes on where the first one has closed.
    """
    given = records(120)
    app, uri = app_named(APP), str(tmp_path / "state")
    heard: list[Committed] = []
    with Broker(topics={"orders": 2, "clicks": 2}) as broker:
        app.override(bootstrap=broker.bootstrap)
        client = filled(broker, given)
        more: dict[str, Any] = {"publishes": False, "scratch": str(tmp_path), "heard": heard.append}
        run(spark, APP, uri, available_now=True, **more).wait()
        sent = outputs(client)
        client.close()
    rows, results = driven(app, [given], ends=True)
    assert heard[0].records > 120  # the hop counts too
    assert stored(open_files(uri), str(tmp_path)) == rows
    assert sent == results
    discard_all()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["before_manifest:3", "after_manifest:2"])
def test_flows_of_a_killed_query_equal_those_of_a_test_driver(tmp_path: Path, fault: str) -> None:
    """The first query is killed in its second or third batch, and the next one goes on."""
    given = records(120)
    app, uri = app_named(APP), str(tmp_path / "state")
    with Broker(topics={"orders": 2, "clicks": 2}) as broker:
        client = filled(broker, given)
        command = [
            sys.executable, "-m", "streamsx", "spark", "run", APP, "--state", uri, "--no-publish",
            "--available-now", "--max-records", "30", "--master", "local[2,4]",
            "--conf", "spark.driver.memory=1g", "--scratch", str(tmp_path),
        ]  # fmt: skip
        for killed in (True, False):
            env = {"STREAMSX_FAULT": fault if killed else "", "BROKER_URL": broker.bootstrap}
            ended = subprocess.run(
                command, env=os.environ | env, check=False, capture_output=True, text=True
            )
            assert ended.returncode == (-signal.SIGKILL if killed else 0), ended.stderr
        sent = outputs(client)
        client.close()
    rows, results = driven(app, [given], ends=True)
    assert stored(open_files(uri), str(tmp_path)) == rows
    assert newest(sent) == newest(results)


def newest(sent: Sent) -> dict[Any, Any]:
    """A batch that is killed may have sent: its results come again."""
    return {key: values[-1] for key, values in sent.items()}
