"""Choice of the source that reads Kafka for a query: ours (`python`) or Spark's own (`jvm`).

Both give the same columns, and only committed records. Our source plans its partitions by task.
Spark's connector needs jars of exactly this version of Spark, and leaves the order among several
topics to the caller. Only our source writes rows, because Spark's connector writes no timestamps.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamsx.errors import UsageError
from streamsx.spark.maven import JarsMissing, jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PYTHON = "python"
JVM = "jvm"
POM: Final = Path(__file__).with_name("pom.xml")
TESTED: Final = ("4.2", "4.3")
"""Versions of Spark tested with the jars of the pom; not every version of Spark has such jars."""
FORMATS: Final = {PYTHON: "streamsx-kafka", JVM: "kafka"}
SAME_COLUMNS: Final = (
    "topic", "partition", "offset", "unix_millis(timestamp) timestamp", "key", "value",
    "coalesce(headers, array()) headers",
)  # fmt: skip
INSTEAD: Final = "give --jars DIR or use the default --connector python"


def settings(connector: str, folder: Path | None = None) -> dict[str, str]:
    """Return the settings that a session must be started with.

    Without a `folder` of jars, copy the jars through Maven.

    Raises:
        UsageError: the folder holds no jars, or the connector needs none, or the jars were not
            tested with this version of Spark.
        JarsMissing: Maven could not copy the jars.
    """
    if connector == PYTHON:
        if folder:
            raise UsageError(f"--jars {folder}: ours needs none: give --connector jvm too")
        return {}
    if folder is None:
        spark = ".".join(version("pyspark").split(".")[:2])
        if spark not in TESTED:
            raise UsageError(f"connector jvm: no tested jars for Spark {spark}: {INSTEAD}")
        try:
            folder = jars(POM)
        except JarsMissing as missing:
            raise JarsMissing(f"connector jvm: {missing}: {INSTEAD}") from missing
    # Spark itself only warns of a jar that does not exist.
    if not (found := sorted(folder.glob("*.jar"))):
        raise UsageError(f"connector jvm: no jars in {folder}: {INSTEAD}")
    return {"spark.jars": ",".join(str(jar.resolve()) for jar in found)}


def frame(
    spark: "SparkSession", connector: str, options: Mapping[str, str], *, stream: bool = False
) -> "DataFrame":
    """Return the records of the topics that the options of our source name."""
    from streamsx.spark.source import KafkaSource, SourceOptions

    reader = (spark.readStream if stream else spark.read).format(FORMATS[connector])
    if connector == PYTHON:
        spark.dataSource.register(KafkaSource)
        return reader.options(**options).load()
    reader = reader.options(
        **{
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "startingOffsets": "earliest",
            **{name: value for name, value in options.items() if name not in ("app", "tasks")},
            "kafka.bootstrap.servers": SourceOptions(options).brokers.bootstrap,
        }
    )
    return reader.load().selectExpr(*SAME_COLUMNS)


def into_topics(rows: "DataFrame", options: Mapping[str, str]) -> None:
    """Write rows to topics by our source, for either connector.

    Spark looks the source up in the active session of a thread in the JVM. After Python has
    connected to the JVM anew, the thread has no active session, so this function sets one.
    """
    from streamsx.spark.source import NAME, KafkaSource

    spark: Any = rows.sparkSession
    spark.dataSource.register(KafkaSource)
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001  # no public name
    rows.write.format(NAME).options(**options).mode("append").save()
