"""The one Spark session of a test process: it takes ten seconds to start, more on a busy machine.

Tests that ask for it are marked `spark` and stand in the group "spark", so that one of pytest's
processes starts it, once.
"""

import gc
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamsx.spark.session import session

# Many JVMs, of seconds each: what compiles and collects best, or verifies jars that are Spark's
# own, is not worth its start (a third of a driver's CPU).
QUICK = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK)
INSTALL = "needs the extra: pip install -e '.[spark]'"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark as it is installed, but for a zip of its Python half: out of that each of its many
    processes compiles what it imports (a third of a second each, and a fifth of all of this).
    """
    pyspark = pytest.importorskip("pyspark", reason=INSTALL)
    made = tmp_path_factory.mktemp("spark")
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name not in ("python", "work"):  # a cluster leaves its logs in the latter
            (made / each.name).symlink_to(each)
    os.environ["SPARK_HOME"] = str(made)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """`local[2,4]`: two cores, four tries of each task."""
    logger = pytest.importorskip("pyspark.logger", reason=INSTALL)
    # pytest gives its own handler to each logger that does not propagate, as the one by which
    # PySpark tells of a failed query, and that one sets its format: for all tests that follow.
    delattr(logger.PySparkLogger, "addHandler")
    made = session(
        {
            "spark.master": "local[2,4]",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "4",  # for a handful of rows; by default 200
        }
    )
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
