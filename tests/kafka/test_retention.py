"""Offsets of a live group: they outlive the broker's retention of offsets."""

from pathlib import Path

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

KEPT_S = 60.0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("protocol_type", ["consumer", "stream"])
def test_old_offsets_of_a_live_group_are_kept(
    kafka_jars: Path, tmp_path: Path, protocol_type: str
) -> None:
    """R003-33. A group without members has lost its offsets by then."""
    env = {"STREAMSX_PROTOCOL_TYPE": protocol_type}
    retention = {
        "offsets.retention.minutes": 1,
        "offsets.retention.check.interval.ms": 1000,
    }
    with (
        ApacheKafka(kafka_jars, tmp_path / "kafka", settings=retention) as kafka,
        WordCount(kafka.bootstrap) as lives,
        WordCount(kafka.bootstrap) as dies,
        Workers(kafka.bootstrap, tmp_path / "lives", env=env | lives.env) as workers,
        Workers(kafka.bootstrap, tmp_path / "dies", env=env | dies.env) as others,
    ):
        for group, at_work in ((lives, workers), (dies, others)):
            at_work.start("a")
            group.send(200)
        workers.until(lambda: lives.drained and dies.drained, "drained")
        committed = lives.committed()
        assert others.stop("a") == [0]

        def forgotten() -> bool:
            return set(dies.committed().values()) == {-1}

        workers.until(forgotten, "the broker forgets a group of nobody", 4 * KEPT_S)

        assert lives.committed() == committed
        assert workers.stop("a") == [0]
