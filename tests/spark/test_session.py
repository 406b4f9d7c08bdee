"""The session of this process: as it should be set, and what it does not take any more."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import streamsx
from streamsx.errors import SettingError, UsageError
from streamsx.spark.session import accept, probe, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def test_spark_tasks_use_the_same_python_and_chunks_of_ten_thousand(spark: "SparkSession") -> None:
    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sizes = [batch.num_rows for batch in batches]
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "most": [max(sizes)]})

    (row,) = spark.range(0, 25_000, 1, 1).mapInArrow(told, "python string, most long").collect()
    assert tuple(row) == (sys.executable, 10_000)


def test_second_session_reuses_the_first_and_refuses_fixed_settings(
    spark: "SparkSession",
) -> None:
    again = session({"spark.master": "local[2,4]", "spark.sql.shuffle.partitions": "7"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "7"
    with pytest.raises(SettingError, match=r"spark\.driver\.memory is 1g .*, not 3g"):
        session({"spark.driver.memory": "3g"})


def test_session_with_adaptive_execution_is_refused(spark: "SparkSession") -> None:
    theirs = spark.newSession()
    accept(theirs)
    theirs.conf.set("spark.sql.adaptive.enabled", "true")
    with pytest.raises(SettingError, match=r"adaptive\.enabled is on"):
        accept(theirs)


WORDCOUNT = "streamsx.examples.wordcount"


def test_probe_checks_executors_for_version_app_and_files(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(spark, WORDCOUNT, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=r"executor .* cannot import nowhere: no such module"):
        probe(spark, "nowhere", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where executors are not
    with pytest.raises(UsageError, match=r"executor .* cannot see here: .*: use s3://"):
        probe(spark, WORDCOUNT, "here")
    monkeypatch.setattr(streamsx, "__version__", "9.9")
    with pytest.raises(UsageError, match=r"executor .*, driver 9\.9: install the same"):
        probe(spark, WORDCOUNT, str(tmp_path))
