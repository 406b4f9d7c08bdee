"""Who reads Kafka for a query: our source (`python`), or Spark's own connector (`jvm`).

Both give the same columns, and only what is committed. Ours is planned by task; the other one needs
jars of exactly this Spark, and leaves the order of several topics to whoever asks. Rows are written
by ours alone: Spark's writes no timestamps.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamsx.errors import UsageError
from streamsx.spark.maven import JarsMissing, jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PYTHON, JVM = "python", "jvm"
POM: Final = Path(__file__).with_name("pom.xml")
TESTED: Final = ("4.2", "4.3")
"""What the jars of the pom were tried with; they are not to be had for each version of Spark."""
FORMATS: Final = {PYTHON: "streamsx-kafka", JVM: "kafka"}
SAME_COLUMNS: Final = (
    "topic", "partition", "offset", "unix_millis(timestamp) timestamp", "key", "value",
    "coalesce(headers, array()) headers",
)  # fmt: skip
INSTEAD: Final = "give --jars DIR or use the default --connector python"


def settings(connector: str, folder: Path | None = None) -> dict[str, str]:
    """What a session must be started with. `folder`: of the jars, copied through Maven without.

    Raises UsageError for a folder without jars, for one that nobody asked for, or a Spark that they
    were not tried with; JarsMissing.
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
    # Spark itself only warns of one that is not there.
    if not (found := sorted(folder.glob("*.jar"))):
        raise UsageError(f"connector jvm: no jars in {folder}: {INSTEAD}")
    return {"spark.jars": ",".join(str(jar.resolve()) for jar in found)}


def frame(
    spark: "SparkSession", connector: str, options: Mapping[str, str], *, stream: bool = False
) -> "DataFrame":
    """The records of the topics that the options of our source name."""
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
    """Into topics, by our source, whoever reads. Spark looks for it in the session that is active
    in a thread of the JVM, and behind a connection that was made anew none is.
    """
    from streamsx.spark.source import NAME, KafkaSource

    spark: Any = rows.sparkSession
    spark.dataSource.register(KafkaSource)
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001  # no name else
    rows.write.format(NAME).options(**options).mode("append").save()
