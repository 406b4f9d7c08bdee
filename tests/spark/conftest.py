"""The one Spark session of all tests: it takes ten seconds to start, more on a busy machine.

Whoever asks for it is marked `spark` and stands in the group "spark", so that no second worker of
pytest starts another.
"""

import gc
import os
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from streamsx.spark.connector import JVM, settings
from streamsx.spark.maven import JarsMissing
from streamsx.spark.session import session

# Many JVMs, of seconds each: what compiles and collects best is not worth its start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """`local[2,4]`: two cores, four tries of each task."""
    jars: dict[str, str] = {}
    logger = pytest.importorskip(
        "pyspark.logger", reason="needs the extra: pip install -e '.[spark]'"
    )
    with suppress(JarsMissing):  # who needs them skips
        jars = settings(JVM)
    # pytest gives its own handler to each logger that does not propagate, as the one by which
    # PySpark tells of a failed query, and that one sets its format: for all tests that follow.
    delattr(logger.PySparkLogger, "addHandler")
    made = session({"spark.master": "local[2,4]", "spark.driver.memory": "1g", **jars})
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def no_connection_is_left() -> "Iterator[None]":
    """A thread that asked the JVM something leaves its connection to the garbage collector, which
    would find it in the middle of somebody else's test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
