"""The Spark session: what must be there, how it is set, and whether executors are as the driver is.

One session per process. What the user sets counts more than what is set here; what a running
session cannot take any more is refused, and not passed over as Spark does it.

Importing this module costs nothing: pyspark, pandas and pyarrow come with the first call.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import streamsx
from streamsx import errors
from streamsx.errors import NotSupported, SettingError, SparkGone, UsageError
from streamsx.state.snapshot_files import masked, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = {"pyspark": (4, 2), "pandas": (2, 2), "pyarrow": (18, 0)}
"""The oldest of each: Python sources that are told how much to read came with pyspark 4.2."""
JAVA_MIN: Final = 17
JAVA_TIMEOUT_S: Final = 30.0
INSTALL: Final = "pip install -e '.[spark]'"
JDK: Final = "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
MASTER: Final = "local[*,4]"
"""Four tries of each task: with `local[*]` the first that fails ends the query."""
SHARED: Final = "s3://, hdfs:// or a shared mount"
"""Where all executors see the same files."""

OURS: Final = re.compile(r"streamsx\.errors\.(\w+): (.+)")
SAID: Final = re.compile(r"\[(?!INTERNAL|STREAM_FAILED|FOREACH)[A-Z_.]+\] .+")
"""What Spark says of files, of queries, and of rows that are refused; never how it is made."""
GONE: Final = re.compile("stopped SparkContext|SparkContext was shut ?down")
KILLED: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
SAYS_NO_MORE: Final = re.compile(r"\s|Error: (A fatal|Could not create the Java)|WARNING|Using ")
"""A line of a JVM that dies."""

PASSED_OVER: Final = re.compile(r"[][{}*?\\]|(^|/)[_.][^/]*$")
"""In the path of a file: to Spark a pattern, or a file that is hidden."""
ALWAYS: Final = {
    # Both would break what a task is: one partition, run once at a time.
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.session.timeZone": "UTC",
}
LOCALLY: Final = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.liveUpdate.period": "0",  # else what is done is told up to ten seconds later
}


# -- what must be there


def require() -> None:
    """Raises UsageError, with the command that mends it, for what is missing or too old."""
    for name, least in PACKAGES.items():
        wanted = ".".join(map(str, least))
        try:
            version: str = import_module(name).__version__
        except ImportError as error:
            gone = isinstance(error, ModuleNotFoundError) and error.name == name
            what = "is not installed" if gone else f"cannot be imported ({error})"
            raise UsageError(f"spark: {name} {what}: {INSTALL}") from error
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < least:
            raise UsageError(f"spark: {name} {version} is too old, {wanted} is needed: {INSTALL}")
    _require_java()


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")  # as Spark's own scripts look for it
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if java is None:
        where = f" in JAVA_HOME={home}" if home else ""
        raise UsageError(f"spark: no Java found{where}: {JDK} or set JAVA_HOME")
    try:
        said = subprocess.run(  # noqa: S603  # what Spark is going to start
            [java, "-version"], check=False, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"spark: Java at {java} does not run: {error}: {JDK}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # "1.8.0_292", "17.0.15", "25"
    if found is None:
        raise UsageError(f"spark: Java at {java} does not say its version: {said[:80]!r}: {JDK}")
    if int(found[1]) < JAVA_MIN:
        raise UsageError(
            f"spark: Java {found[1]} at {java} is too old: {JAVA_MIN} or newer is needed: {JDK}"
        )


# -- the session


def session(settings: Mapping[str, str], *, debug: bool = False) -> "SparkSession":
    """The one of this process, with these of Spark's own settings (`spark.master` and so on); made,
    if there is none. `debug`: the JVM's words go to stderr, else they are shown if it dies.

    Raises UsageError for what is missing, for a JVM that does not start and for settings that a
    running session cannot take any more.
    """
    require()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # An active session is a thread's own; the context is the process's.
    if SparkContext._active_spark_context is None:  # noqa: SLF001  # no public name tells
        return _begin(settings, debug=debug)
    running = SparkSession.builder.getOrCreate()
    accept(running)
    fixed = running.sparkContext.getConf()
    for name, value in settings.items():
        if running.conf.isModifiable(name):
            running.conf.set(name, value)
        elif (found := fixed.get(name)) != value:
            raise SettingError(
                f"spark: {name} is {found} in the session that runs, not {value}: a second one "
                "cannot be had: stop it, or leave the setting out"
            )
    return running


def accept(spark: "SparkSession") -> None:
    """Whether tasks can run in a session that a user made. Raises UsageError."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise NotSupported("spark: a Spark Connect session: jobs run in a classic one only")
    for name in ("spark.sql.adaptive.enabled", "spark.speculation"):
        if spark.conf.get(name, "false") != "false":
            what = "it may merge tasks, or run one twice at once"
            raise SettingError(f"spark: {name} is on in this session: {what}: set it to false")


def translate_error(error: Exception) -> Exception:
    """What one of ours said on an executor, or what Spark says of a query, without their traces."""
    if isinstance(error, errors.StreamsxError):
        return error
    lost = isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
    if lost or GONE.search(str(error)):
        return SparkGone(
            "spark: its JVM has ended: see who has stopped it, or its memory; try again"
        )
    if ours := OURS.findall(str(error)):
        name, text = ours[-1]
        kind = getattr(errors, name, errors.StreamsxError)  # an app may have its own
        return kind(text)
    if KILLED.search(str(error)):
        what = "processes of a task were killed each time it was tried"
        return SparkGone(f"spark: {what}: see who does it, or their memory; try again")
    said = SAID.findall(str(error))
    return UsageError(f"spark: {said[-1]}") if said else error


def is_local(master: str) -> bool:
    """Executors are this machine's, also those of `local-cluster[…]`."""
    return re.match(r"local\b", master) is not None


def probe_cluster(spark: "SparkSession", app: str, uri: str, remedy: str = SHARED) -> None:
    """`probe`, where executors are not the driver's own process."""
    if not is_local(spark.sparkContext.master or ""):
        probe(spark, app, uri, remedy)


def probe(spark: "SparkSession", app: str, uri: str, remedy: str = SHARED) -> None:
    """Whether every executor has this version and the app, and sees the files under the URI: to
    be asked before anything is done there.

    Raises UsageError that names a host, and what `open_files` does.
    """
    name, driver, seen = f"probe-{uuid.uuid4().hex}", streamsx.__version__, masked(uri)

    # Within, so that it travels as it is: an executor without streamsx could not find it.
    def look(_: Iterable[int]) -> Iterator[str]:
        import platform

        where = f"spark: executor {platform.node()}"
        try:
            import streamsx
            from streamsx.app.lookup import app_named
            from streamsx.state.snapshot_files import open_files

            if streamsx.__version__ != driver:
                yield f"{where}: streamsx {streamsx.__version__}, driver {driver}: install the same"
            app_named(app)
        except Exception as error:  # whatever is wrong there is what is asked for
            yield f"{where} cannot import {app}: {error}"
            return
        try:
            open_files(uri).read(name)
        except Exception as error:
            what = f"{type(error).__name__}: use {remedy}"
            yield f"{where} cannot see {seen}: {what}"

    files = open_files(uri)
    files.create(name, b"seen")
    try:
        slots = spark.sparkContext.defaultParallelism
        # All at once, one in each slot, so that none is passed over.
        alone = spark.conf.get("spark.dynamicAllocation.enabled", "false") == "false"
        asked = spark.sparkContext.parallelize(range(slots), slots)
        answers = sorted({*(asked.barrier() if alone else asked).mapPartitions(look).collect()})
    finally:
        files.delete(name)
    if answers:
        raise UsageError("; ".join(answers))


def _begin(settings: Mapping[str, str], *, debug: bool) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has set a master
    wanted = ALWAYS | ({} if submitted else {"spark.master": MASTER}) | dict(settings)
    if is_local(wanted.get("spark.master", "")):
        wanted = LOCALLY | wanted
        # Else executors take python3 of PATH, and the first job says that it has no pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
    conf.setIfMissing("spark.app.name", "streamsx")
    with tempfile.TemporaryFile("w+") as said:
        try:
            # What Spark would do by itself, but with its warnings out of the user's sight.
            words = {} if debug else {"stdout": said, "stderr": said}
            # The JVM of a session that was stopped is there still, and is what Spark takes.
            gateway = SparkContext._gateway  # noqa: SLF001  # no public name tells
            # Waited for in another thread: a launch that is interrupted leaves a JVM without end.
            with ThreadPoolExecutor(1) as launch:
                gateway = gateway or launch.submit(launch_gateway, conf, words).result()
            context = SparkContext(conf=conf, gateway=gateway)
        except PySparkRuntimeError as error:
            raise UsageError(f"spark: the JVM did not start: {_last(said, error)}") from error
        except Exception as error:  # Java's, of any kind
            what = str(error).partition("\n\tat ")[0].strip().splitlines()[-1]
            raise UsageError(f"spark: no session: {what}: see --debug") from error
    if not debug:
        context.setLogLevel("ERROR")
        # It would log each exception of a query, with its trace, beside raising it.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    return SparkSession(context)


def _last(said: IO[str], error: Exception) -> str:
    """Of the JVM's words, which a program that ends says last."""
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line and not SAYS_NO_MORE.match(line)]
    return f"{lines[-1] if lines else error}: see --debug"
