"""`Broker` as users' tests use it; it leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from streamsx.errors import StoreLocked, UsageError
from streamsx.event_loops import OURS
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.support.apache_kafka import converse

THEIRS = """
import pytest
from confluent_kafka import Producer
from streamsx.testing import Broker

@pytest.fixture
def broker():
    with Broker(topics={"orders": 2}) as broker:
        yield broker

def sent(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"one", partition=1)
    return producer.flush(10) == 0

def test_mine(broker):
    assert sent(broker)

def test_two_at_once(broker):
    with Broker(topics={"orders": 2}) as other:
        assert other.bootstrap != broker.bootstrap
        assert sent(other) and sent(broker)

def test_that_fails(broker):
    raise ValueError("mine")
"""
WAITS = """
from time import sleep
from streamsx.testing import Broker
with Broker() as broker:
    print(broker.bootstrap, flush=True)
    while True:
        sleep(0.05)
"""
"""No wait without end: CPython looks for signals, gives the GIL away and then waits for the lock;
one that comes in between wakes nobody.
"""
FAILS = compile("1 // 0", "planted", "exec")


def environment(folder: Path) -> Mapping[str, str]:
    """Return the environment with a folder for temporary files."""
    folder.mkdir()
    return {**os.environ, "TMPDIR": str(folder), "PYTEST_ADDOPTS": ""}


def dial(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), 5)


def answers(bootstrap: str) -> bool:
    try:
        dial(bootstrap).close()
    except ConnectionRefusedError:
        return False
    return True


def produce(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", value)
    assert producer.flush(10) == 0


def consumed(bootstrap: str) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    try:
        record = consumer.poll(10)
        return None if record is None else record.value()
    finally:
        consumer.close()


def test_broker_in_a_user_test_is_removed_whether_passed_or_failed(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    made = tmp_path / "made"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"],
        check=False, cwd=tmp_path, env=environment(made), capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 2 passed" in done.stdout
    assert "ValueError: mine" in done.stdout
    assert list(made.iterdir()) == []


def test_ctrl_c_ends_the_broker_with_the_test(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env=environment(made), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        bootstrap = process.stdout.readline().strip()
        assert answers(bootstrap)
        assert len(list(made.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
    assert not answers(bootstrap)
    assert list(made.iterdir()) == []


def test_ctrl_c_before_the_broker_serves_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose address is slow to resolve holds up the start; the key is pressed meanwhile."""
    asked, known = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        asked.set()
        assert known.wait(10)
        return real(*args, **options)

    def press() -> None:
        assert asked.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        known.set()

    before = {*threading.enumerate()}
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt), Broker(tmp_path):
        pytest.fail("it has not started")
    pressing.join()
    assert {*threading.enumerate()} <= before
    with Broker(tmp_path):
        pass  # its directory is free


def test_given_data_directory_and_records_are_kept(tmp_path: Path) -> None:
    broker = Broker(tmp_path, topics={"orders": 1})
    with broker:
        produce(broker.bootstrap, b"kept")
        with pytest.raises(StoreLocked, match="in use"), Broker(tmp_path):
            pass
    with broker:
        assert consumed(broker.bootstrap) == b"kept"


def test_bad_topic_is_refused_on_entering_the_broker() -> None:
    with pytest.raises(UsageError, match="bad topic: a b:1"), Broker(topics={"a b": 1}):
        pass


def test_broker_not_entered_has_no_address_and_names_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"does not serve yet: write `with Broker\(\)"):
        _ = Broker().bootstrap


def test_error_inside_the_with_block_ends_the_broker() -> None:
    def body() -> None:
        with broker:
            assert answers(broker.bootstrap)
            raise ValueError("mine")

    broker = Broker()
    with pytest.raises(ValueError, match="mine"):
        body()
    assert not answers(broker.bootstrap)


def test_broker_failure_is_raised_on_exit() -> None:
    def body() -> None:
        with Broker() as broker, dial(broker.bootstrap) as connection:
            assert converse(connection, Api.API_VERSIONS, 0, {}).api_keys
            broker.server._server.get_loop().call_soon_threadsafe(exec, FAILS, {"__name__": OURS})
            assert connection.recv(1) == b"", "it has hung up"

    with pytest.raises(ZeroDivisionError):
        body()


def test_test_broker_topics_keep_records_of_any_timestamp() -> None:
    with Broker(topics={"orders": 1}) as broker:
        assert broker.server.service.topics.by_name["orders"].configs["retention.ms"] == "-1"
