"""`streamsx broker` as CONTRACTS.md describes it: its output and its end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.net.server import BrokerServer
from streamsx.protocol.wire import Api
from streamsx.tools.broker import LIMITS
from tests.support.apache_kafka import converse
from tests.support.command import streamsx
from tests.support.embedded_broker import EmbeddedBroker


def broker(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to refuse to start."""
    return subprocess.run(
        [sys.executable, "-m", "streamsx", "broker", *options],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def topics(bootstrap: str) -> dict[str, int]:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        found = converse(sock, Api.METADATA, 12, {"topics": None}).topics
    return {topic.name: len(topic.partitions) for topic in found}


def test_connection_limits_match_the_help_text() -> None:
    for name, (what, kind) in LIMITS.items():
        assert kind(what.rpartition("(")[2].rstrip(")")) == getattr(ConnectionLimits(), name)


def test_broker_serves_logs_and_stops_cleanly(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:2", "--topic", "b:1") as process:
        assert topics(process.bootstrap) == {"a": 2, "b": 1}
        assert process.stop() == 0
        assert f"Broker at {process.bootstrap} stopped; " in process.told()
    assert (tmp_path / "data" / "clean").exists()
    with EmbeddedBroker(tmp_path / "data") as process:
        assert topics(process.bootstrap) == {"a": 2, "b": 1}
        assert not (tmp_path / "data" / "clean").exists()


def test_ipv6_bootstrap_address_is_bracketed(tmp_path: Path) -> None:
    assert BrokerServer(tmp_path, host="::1", port=9092).bootstrap == "[::1]:9092"


def test_broker_interrupted_from_the_keyboard_exits_with_130(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as process:
        assert process.pid
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130


def test_partly_copied_directory_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    """The next topic with the same name would delete the records, the second time at the latest."""
    given = "--data", str(tmp_path / "data"), "--port", "0", "--topic", "t:1"
    with EmbeddedBroker(tmp_path / "data", "--topic", "t:1"):
        pass
    left = tmp_path / "data" / "logs" / "t-0" / f"{0:020}.log"
    left.write_bytes(b"records")
    shutil.rmtree(tmp_path / "data" / "meta")
    for _ in range(2):
        told = broker(*given)
        assert told.returncode == 1
        assert "restore a copy of the whole directory" in told.stderr
    assert left.read_bytes() == b"records"


def test_second_broker_on_a_directory_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as process:
        second = broker("--data", str(tmp_path / "data"), "--port", "0")
        assert second.returncode == 1
        assert f"in use by process {process.pid}: {tmp_path / 'data'}: stop" in second.stderr
        process.kill()
        process.start()


def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        done = broker("--data", str(tmp_path), "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot listen: 127.0.0.1:{port}:")


def test_listen_address_of_another_host_is_refused(tmp_path: Path) -> None:
    """The address is one of those reserved for documents: nothing listens there."""
    done = broker("--data", str(tmp_path), "--port", "0", "--host", "192.0.2.1", "--allow-remote")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("choose another --host")


def test_existing_topic_with_another_partition_count_is_logged(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:2"):
        pass
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:4") as process:
        assert topics(process.bootstrap) == {"a": 2}
        assert any(
            "Topic a is there already, with 2 partitions and not 4." in line
            for line in process.told().splitlines()
        )


def rows(folder: Path) -> dict[bytes, bytes]:
    """Return all rows of a broker's RocksDB."""
    db = Rdict(str(folder / "meta"), Options(raw_mode=True))
    try:
        return dict(db.items())  # type: ignore[arg-type]  # it says that it is no mapping
    finally:
        db.close()


def changed(folder: Path, key: bytes, value: bytes) -> None:
    db = Rdict(str(folder / "meta"), Options(raw_mode=True))
    db[key] = value
    db.close()


def overwritten(folder: Path, pattern: str) -> None:
    for file in (folder / "meta").glob(pattern):
        file.write_bytes(b"\xff" * file.stat().st_size)


SPOILT: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "of another version": (
        lambda folder: changed(folder, b"V", b"9"), 2, "data of another format: {}/meta: '9', this",
    ),
    "of no version": (
        lambda folder: changed(folder, b"V", b"?"), 2, "data of another format: {}/meta: '?', this",
    ),
    "with a row that is none": (
        lambda folder: changed(folder, b"T\0t", b"\0\0?"), 1, "row b'T\\x00t' of the",
    ),
    "without a manifest": (
        lambda folder: overwritten(folder, "MANIFEST*"), 1, "{}/meta: Corruption: ",
    ),
    "without rows": (lambda folder: overwritten(folder, "*.sst"), 1, "{}/meta: Corruption: "),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_damaged_directory_is_one_line_and_stays_unchanged(how: str, tmp_path: Path) -> None:
    spoil, code, complaint = SPOILT[how]
    folder = tmp_path / "data"
    with EmbeddedBroker(folder, "--topic", "t:2") as process:
        assert process.stop() == 0
    rows(folder)  # what was in the log is in a file now
    spoil(folder)
    readable = code == 2 or "row" in complaint
    before = rows(folder) if readable else {}
    done = broker("--data", str(folder), "--port", "0", "--topic", "u:1")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: " + complaint.format(folder))
    assert done.stderr.count("\n") == 1
    assert (folder / "clean").exists()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["t-0", "t-1"]
    assert not readable or rows(folder) == before


def test_broker_that_cannot_listen_changes_no_data(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "t:2") as process:
        assert process.stop() == 0
    before = rows(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = str(sock.getsockname()[1])
        done = broker("--data", str(tmp_path / "data"), "--port", port, "--topic", "u:1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "data" / "clean").exists()
    assert rows(tmp_path / "data") == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so of another process")
def test_full_disk_at_start_is_one_line(tmp_path: Path) -> None:
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        f"sys.argv[1:] = ['broker', '--port', '0', '--data', {str(tmp_path / 'data')!r}]\n"
        "runpy.run_module('streamsx', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: disk full or broken: ")
    assert done.stderr.count("\n") == 1


WRONG = {
    "a bad topic": (["--topic", "orders"], "'orders': write NAME:PARTITIONS"),
    "a topic that cannot be": (["--topic", "a/b:1"], "bad topic: a/b:1: "),
    "no partitions": (["--topic", "a:0"], "bad topic: a:0: "),
    "more partitions than there may be": (
        ["--topic", "a:6000", "--topic", "b:6000"], "bad topic: b:6000: ",
    ),
    "topics that Kafka takes for one": (["--topic", "a.b:1", "--topic", "a_b:1"], "a.b and a_b: "),
    "a topic twice": (["--topic", "a:1", "--topic", "a:2"], "--topic a is given twice: "),
    "topics that are larger than all": (["--partitions", "10001"], "the limit is 10000"),
    "an address that others reach": (["--host", "0.0.0.0"], "can reach this address: 0.0.0.0"),
    "a host that is none": (["--host", "no.such.invalid"], "unknown host: no.such.invalid: "),
    "a host that cannot be": (["--host", "a..b"], "unknown host: a..b: "),
    "a limit of nothing": (["--connections-max", "0"], "not a whole number from 1 on: '0'"),
    "a bad duration": (
        ["--connections-max-idle", "3x"],
        "'3x': a duration is written 500ms, 60s or 10m",
    ),
    "a bad size": (["--frame-bytes-max", "3MB"], "'3MB': a size is written 512, 64KiB or 8MiB"),
    "a size of nothing": (["--frame-bytes-max", "0"], "'0': give more than 0, and an end"),
    "a port that cannot be": (["--port", "65536"], "'65536': a port is a number up to 65535"),
    "a word too many": (["please"], "unrecognized arguments: please"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_usage_is_one_line_and_exit_code_2(what: str, tmp_path: Path) -> None:
    options, complaint = WRONG[what]
    done = streamsx("broker", "--data", str(tmp_path / "data"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_unusable_data_directory_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = broker("--data", str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert done.stderr == (
        f"error: cannot use the data directory: {tmp_path}/file/data: Not a directory:"
        " choose another with --data\n"
    )


def test_unexpected_error_has_a_traceback_with_debug(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta").write_text("no database")
    done = broker("--data", str(tmp_path / "data"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    told = broker("--data", str(tmp_path / "data"), "--debug")
    assert "Traceback" in told.stderr


@pytest.mark.perf
def test_broker_help_takes_less_than_a_second_of_cpu() -> None:
    before = os.times()
    assert broker("--help").returncode == 0
    assert os.times().children_user - before.children_user < 1  # 0.1 s of CPU


def test_broker_help_imports_nothing_heavy() -> None:
    done = broker("--help")
    assert done.returncode == 0
    assert "--allow-remote" in done.stdout
    code = "import sys; from streamsx.tools import broker; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"asyncio", "aiokafka", "kio", "rocksdict"} & set(loaded)
