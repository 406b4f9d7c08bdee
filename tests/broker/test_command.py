"""`streamsx broker` as CONTRACTS has it: what it says, how it ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.kafka.wire import Api
from tests.support.apache_kafka import converse
from tests.support.embedded_broker import EmbeddedBroker


def broker(*options: str) -> subprocess.CompletedProcess[str]:
    """One that is expected to give up."""
    return subprocess.run(
        [sys.executable, "-m", "streamsx", "broker", *options],
        check=False, capture_output=True, text=True, timeout=20,
    )  # fmt: skip


def topics(bootstrap: str) -> dict[str, int]:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        found = converse(sock, Api.METADATA, 12, {"topics": None}).topics
    return {topic.name: len(topic.partitions) for topic in found}


def test_it_serves_says_so_and_ends_well(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:2", "--topic", "b:1") as process:
        assert topics(process.bootstrap) == {"a": 2, "b": 1}
        assert process.stop() == 0
    assert (tmp_path / "data" / "clean").exists()
    with EmbeddedBroker(tmp_path / "data") as process:
        assert topics(process.bootstrap) == {"a": 2, "b": 1}
        assert not (tmp_path / "data" / "clean").exists()


def test_from_the_keyboard_it_ends_with_130(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as process:
        assert process.pid
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130


def test_a_directory_has_one_broker(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as process:
        second = broker("--data", str(tmp_path / "data"), "--port", "0")
        assert second.returncode == 1
        assert f"in use by process {process.pid}: {tmp_path / 'data'}: stop" in second.stderr
        process.kill()
        process.start()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        done = broker("--data", str(tmp_path), "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot listen: 127.0.0.1:{port}:")


def test_an_address_that_is_not_here_is_named(tmp_path: Path) -> None:
    """One of those that are for documents alone: nothing listens."""
    done = broker("--data", str(tmp_path), "--port", "0", "--host", "192.0.2.1", "--allow-remote")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("choose another --host")


def test_a_topic_that_has_another_number_of_partitions_is_told(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:2"):
        pass
    with EmbeddedBroker(tmp_path / "data", "--topic", "a:4") as process:
        assert topics(process.bootstrap) == {"a": 2}
        assert any(
            "topic_is_there topic=a partitions=2, not 4" in line
            for line in process.told().splitlines()
        )


WRONG = {
    "a bad topic": (["--topic", "orders"], "'orders': NAME:PARTITIONS is wanted"),
    "a topic that cannot be": (["--topic", "a/b:1"], "bad topic: a/b:1: "),
    "no partitions": (["--topic", "a:0"], "bad topic: a:0: "),
    "an address that others reach": (["--host", "0.0.0.0"], "0.0.0.0: anybody who reaches it"),
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
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_usage_is_one_line_and_exit_code_2(what: str, tmp_path: Path) -> None:
    options, complaint = WRONG[what]
    done = broker("--data", str(tmp_path / "data"), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_is_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = broker("--data", str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert done.stderr == (
        f"error: cannot use the data directory: {tmp_path}/file/data: Not a directory:"
        " choose another with --data\n"
    )


def test_what_was_not_expected_has_its_traceback_on_demand(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta").write_text("no database")
    done = broker("--data", str(tmp_path / "data"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    told = broker("--data", str(tmp_path / "data"), "--debug")
    assert "Traceback" in told.stderr


def test_help_is_there_at_once() -> None:
    before = os.times()
    done = broker("--help")
    after = os.times()
    assert done.returncode == 0
    assert "--allow-remote" in done.stdout
    assert after.children_user - before.children_user < 1  # 0.1 s of CPU
    code = "import sys; from streamsx.tools import broker; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"asyncio", "aiokafka", "kio", "rocksdict"} & set(loaded)
