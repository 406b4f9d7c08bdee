"""Spark session: requirements, settings, and a check that executors match the driver.

There is one session per process. Settings of the user win over settings made here. A setting that a
running session cannot take any more is refused; Spark would pass it over.

Importing this module costs nothing: the first call imports pyspark, pandas and pyarrow.
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
"""Oldest version of each; pyspark 4.2 is the first in which a Python source gets a read limit."""
JAVA_MIN: Final = 17
JAVA_TIMEOUT_S: Final = 30.0
INSTALL: Final = "pip install -e '.[spark]'"
JDK: Final = "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
MASTER: Final = "local[*,4]"
"""Local master with four tries of each task; with `local[*]` the first failure ends the query."""
SHARED: Final = "s3://, hdfs:// or a shared mount"
"""Storage on which all executors see the same files."""

OURS: Final = re.compile(r"streamsx\.errors\.(\w+): (.+)")
SAID: Final = re.compile(r"\[(?!INTERNAL|STREAM_FAILED|FOREACH)[A-Z_.]+\] .+")
"""Messages of Spark about files, queries and refused rows; none about its internals."""
GONE: Final = re.compile("stopped SparkContext|SparkContext was shut ?down")
KILLED: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
SAYS_NO_MORE: Final = re.compile(r"\s|Error: (A fatal|Could not create the Java)|WARNING|Using ")
"""Lines of a dying JVM that explain nothing."""

PASSED_OVER: Final = re.compile(r"[][{}*?\\]|(^|/)[_.][^/]*$")
"""File paths that Spark takes for a pattern, or for a hidden file."""
ALWAYS: Final = {
    # Both would break the rule of a task: one partition, run once at a time.
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.session.timeZone": "UTC",
}
LOCALLY: Final = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.liveUpdate.period": "0",  # else finished work is reported up to 10 s later
}


# -- what must be there


def require() -> None:
    """Raise UsageError if a requirement is missing or too old; the message has the command to fix
    it.
    """
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
    home = os.environ.get("JAVA_HOME")  # the order of Spark's own scripts
    java = shutil.which(Path(home) / "bin" / "java" if home else "java")
    if java is None:
        where = f" in JAVA_HOME={home}" if home else ""
        raise UsageError(f"spark: no Java found{where}: {JDK} or set JAVA_HOME")
    try:
        said = subprocess.run(  # noqa: S603  # the Java that Spark will start
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
    """Return the Spark session of this process; create the session if there is none.

    `settings` are Spark's own (`spark.master` and so on). With `debug` the output of the JVM goes
    to stderr; without, a part of the output is shown if the JVM dies.

    Raises:
        UsageError: a requirement is missing, the JVM does not start, or a running session cannot
            take
        a setting any more.
    """
    require()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # An active session belongs to a thread, the context to the process.
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
                f"spark: {name} is {found} in the session that runs, not {value}: a process has "
                "one session: stop it, or leave the setting out"
            )
    return running


def accept(spark: "SparkSession") -> None:
    """Raise UsageError if tasks cannot run in a session that a user made."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise NotSupported("spark: a Spark Connect session: jobs run in a classic one only")
    for name in ("spark.sql.adaptive.enabled", "spark.speculation"):
        if spark.conf.get(name, "false") != "false":
            what = "it may merge tasks, or run one twice at once"
            raise SettingError(f"spark: {name} is on in this session: {what}: set it to false")


def translate_error(error: Exception) -> Exception:
    """Return the error of ours on an executor, or of Spark about a query, without traces.

    An error of another kind is returned unchanged.
    """
    if isinstance(error, errors.StreamsxError):
        return error
    lost = isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
    if lost or GONE.search(str(error)):
        return SparkGone(
            "spark: its JVM has ended: find out what stopped it (memory?), then try again"
        )
    if ours := OURS.findall(str(error)):
        name, text = ours[-1]
        kind = getattr(errors, name, errors.StreamsxError)  # an app may have its own classes
        return kind(text)
    if KILLED.search(str(error)):
        what = "processes of a task were killed each time it was tried"
        return SparkGone(f"spark: {what}: find out what killed them (memory?), then try again")
    said = SAID.findall(str(error))
    return UsageError(f"spark: {said[-1]}") if said else error


def is_local(master: str) -> bool:
    """Return whether all executors are on this machine, as with `local` and `local-cluster[…]`."""
    return re.match(r"local\b", master) is not None


def probe_cluster(spark: "SparkSession", app: str, uri: str, remedy: str = SHARED) -> None:
    """Run `probe` if executors are not in the process of the driver."""
    if not is_local(spark.sparkContext.master or ""):
        probe(spark, app, uri, remedy)


def probe(spark: "SparkSession", app: str, uri: str, remedy: str = SHARED) -> None:
    """Check that every executor has this version and the app, and sees the files under the URI.

    Call this before anything is done under the URI. Errors of `open_files` pass through.

    Raises:
        UsageError: an executor differs; the message names its host.
    """
    name = f"probe-{uuid.uuid4().hex}"
    driver = streamsx.__version__
    seen = masked(uri)

    # A nested function is pickled by value; an executor without streamsx could not import it.
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
        except Exception as error:  # the answer is any failure
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
        # A barrier stage runs all tasks at once, one in each slot, so that no executor is missed.
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

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has set a master
    wanted = ALWAYS | ({} if submitted else {"spark.master": MASTER}) | dict(settings)
    if is_local(wanted.get("spark.master", "")):
        wanted = LOCALLY | wanted
        # Else executors take python3 of PATH, and the first job fails for want of pyarrow.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
    conf.setIfMissing("spark.app.name", "streamsx")
    with tempfile.TemporaryFile("w+") as said:
        try:
            # Launch the JVM as Spark would, but keep its warnings away from the user.
            words = {} if debug else {"stdout": said, "stderr": said}
            # The JVM of a stopped session still runs, and Spark uses it again.
            gateway = SparkContext._gateway  # noqa: SLF001  # no public name tells
            # Launch in another thread: an interrupted launch would leave a JVM that never ends.
            with ThreadPoolExecutor(1) as launch:
                gateway = gateway or launch.submit(launch_gateway, conf, words).result()
            context = SparkContext(conf=conf, gateway=gateway)
        except PySparkRuntimeError as error:
            raise UsageError(f"spark: the JVM did not start: {_last(said, error)}") from error
        except Exception as error:  # errors of Java have many classes
            what = str(error).partition("\n\tat ")[0].strip().splitlines()[-1]
            raise UsageError(f"spark: no session: {what}: see --debug") from error
    if not debug:
        context.setLogLevel("ERROR")
        # This logger would log each exception of a query with its trace; it is raised anyway.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    return SparkSession(context)


def _last(said: IO[str], error: Exception) -> str:
    """Return the line in which a dying JVM explains its end: the last useful one of its output."""
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line and not SAYS_NO_MORE.match(line)]
    return f"{lines[-1] if lines else error}: see --debug"
