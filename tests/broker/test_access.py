"""A broker with TLS and users, as a process, and common clients."""

import asyncio
import os
import selectors
import socket
import ssl
import subprocess
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # no types
from aiokafka.errors import KafkaConnectionError  # type: ignore[import-untyped]
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from streamsx.broker.net.access import read_users, tls_context
from streamsx.broker.net.sasl import MECHANISMS
from streamsx.client.connection import Address, connect
from streamsx.client.security import Security
from streamsx.errors import SettingError, UsageError
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.tools.cli.processes import OURS
from tests.broker.test_connections import VERSIONS, frame, received
from tests.support.apache_kafka import PEM, converse
from tests.support.command import error_line, streamsx
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

APP = """\
import os, ssl, streamsx

credentials = streamsx.SASLCredentials(
    username="ann", password=os.environ["PASSWORD"], mechanism="SCRAM-SHA-512",
    ssl_context=ssl.create_default_context(cafile=os.environ["CA"]),
)
app = streamsx.App("shop", broker="kafka://" + os.environ["SECURE"], broker_credentials=credentials)
counts = app.Table("counts", default=int)


@app.agent(app.topic("words", value_type=str))
async def count(stream):
    async for word in stream:
        counts[word] += 1
"""
FILE = """\
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.username=ann
sasl.password={password}
ssl.ca.location={ca}
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("# who may\n\nann:pencil\nbob:a:b\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def broker(tmp_path: Path, users: Path) -> Iterator[EmbeddedBroker]:
    options = ("--tls-cert", str(PEM), "--sasl-users", str(users), "--topic", "words:2")
    with EmbeddedBroker(tmp_path / "broker", *options) as broker:
        yield broker
        assert "Traceback" not in broker.told()
        assert "pencil" not in broker.told()


def settings(broker: EmbeddedBroker, mechanism: str, password: str = "pencil") -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(PEM)), "sasl_mechanism": mechanism,
        "sasl_plain_username": "ann", "sasl_plain_password": password,
    }  # fmt: skip


def to_its_end(story: Coroutine[Any, Any, None]) -> None:
    """Close a client, and wait for its connections: aiokafka does not, and TLS takes its time."""
    selector = selectors.DefaultSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        own = len(selector.get_map())

        async def closed() -> None:
            while len(selector.get_map()) > own:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)

        runner.run(story)
        runner.run(closed())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_writes_and_reads_with_each_mechanism(
    broker: EmbeddedBroker, mechanism: str
) -> None:
    big = bytes(900_000)

    async def story() -> None:
        async with AIOKafkaProducer(**settings(broker, mechanism)) as producer:
            await producer.send_and_wait("words", b"small", partition=0)
            await producer.send_and_wait("words", big, partition=0)
        consumer = AIOKafkaConsumer(
            "words", auto_offset_reset="earliest", group_id="g", **settings(broker, mechanism)
        )
        async with consumer:
            assert [(await consumer.getone()).value for _ in range(2)] == [b"small", big]

    to_its_end(story())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_authenticates_and_writes(broker: EmbeddedBroker, mechanism: str) -> None:
    about: dict[str, str | int | float | bool] = {
        "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism, "sasl.username": "bob", "sasl.password": "a:b",
        "ssl.ca.location": str(PEM),
    }  # fmt: skip
    producer, told = Producer(about), list[object]()
    producer.produce("words", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    assert told == [None]
    assert "words" in AdminClient(about).list_topics(timeout=20).topics


def test_client_with_a_wrong_password_is_refused(broker: EmbeddedBroker) -> None:
    async def story(mechanism: str) -> None:
        producer = AIOKafkaProducer(**settings(broker, mechanism, "wrong"))
        try:
            with pytest.raises(KafkaConnectionError):
                await producer.start()
        finally:
            await producer.stop()

    for mechanism in MECHANISMS:
        to_its_end(story(mechanism))
    assert broker.told().count("login refused: user 'ann'") == len(MECHANISMS)


def test_unauthenticated_client_gets_no_other_answer(tmp_path: Path, users: Path) -> None:
    """Only the requests of authentication are answered; a listener with SASL and without TLS."""
    options = ("--sasl-users", str(users))
    with EmbeddedBroker(tmp_path / "broker", *options) as broker:
        host, _, port = broker.bootstrap.rpartition(":")

        def dial() -> socket.socket:
            return socket.create_connection((host, int(port)), timeout=10)

        with dial() as sock:
            sock.sendall(frame(Api.METADATA, 9, topics=None))
            assert received(sock) == b""
        with dial() as sock:
            old = converse(sock, Api.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
            assert (old.error_code, *old.mechanisms) == (ErrorCode.UNSUPPORTED_VERSION, *MECHANISMS)
            other = converse(sock, Api.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
            assert other.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert received(sock) == b""
        with dial() as sock:
            converse(sock, Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            sock.sendall(frame(Api.METADATA, 9, topics=None))
            assert received(sock) == b""
        with dial() as sock:  # nor is it given memory
            sock.sendall((1 << 20).to_bytes(4) + Api.PRODUCE.to_bytes(2))
            assert received(sock) == b""
        with dial() as sock:
            converse(sock, Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            told = converse(sock, Api.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0ann\0pencil"})
            assert told.error_code == ErrorCode.NONE
            found = converse(sock, Api.METADATA, 9, {"topics": None})
            assert [b.port for b in found.brokers] == [int(port)]
            sock.sendall((1 << 20).to_bytes(4) + Api.PRODUCE.to_bytes(2))
            with dial() as other:
                converse(other, Api.API_VERSIONS, 3, VERSIONS)
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)


def test_silent_unauthenticated_connection_yields_to_new_connections(
    tmp_path: Path, users: Path
) -> None:
    """Connections up to the limit that never authenticate kept all other clients out."""
    options = ("--sasl-users", str(users), "--connections-max", "3")
    with EmbeddedBroker(tmp_path / "broker", *options) as broker, ExitStack() as stack:
        host, _, port = broker.bootstrap.rpartition(":")

        def dial(*, known: bool) -> socket.socket:
            sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            converse(sock, Api.API_VERSIONS, 3, VERSIONS)
            if known:
                converse(sock, Api.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                told = converse(sock, Api.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0ann\0pencil"})
                assert told.error_code == ErrorCode.NONE
            return sock

        first, second, silent = dial(known=True), dial(known=False), dial(known=False)
        third = dial(known=True)
        assert received(second) == b""
        fourth = dial(known=True)
        assert received(silent) == b""
        with pytest.raises(OSError):  # noqa: PT011 - reset, or closed
            dial(known=False)
        for sock in (first, third, fourth):
            assert converse(sock, Api.METADATA, 9, {"topics": []}).brokers


def test_worker_and_every_command_reach_a_secured_broker(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "right").write_text(FILE.format(password="pencil", ca=PEM))
    (tmp_path / "wrong").write_text(FILE.format(password="pen", ca=PEM))
    env = {
        "PYTHONPATH": str(tmp_path), "SECURE": broker.bootstrap, "PASSWORD": "pencil",
        "CA": str(PEM), "STREAMSX_HEARTBEAT_INTERVAL": "300ms",
    }  # fmt: skip

    def told(*arguments: str, by: str = "right") -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap", broker.bootstrap, "--command-config", by)
        return subprocess.run(
            [*OURS, *arguments, *where], cwd=tmp_path, env=os.environ | env, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    with Workers(broker.bootstrap, tmp_path / "workers", app="shop", env=env) as workers:
        done = told("send", "words", '"to"')
        assert done.returncode == 0, done.stderr
        workers.start("a")

        def is_counted() -> bool:
            return told("table", "--app", "shop", "counts", "to").stdout == "to\t1\n"

        workers.until(is_counted, "one word")
        done = told("status", "--app", "shop")
        assert ": running, 2 tasks on 1 worker" in done.stdout, done.stderr
        workers.all["a"].expected = True
        done = told("leave", "--app", "shop", "--instances", "a")
        assert (done.returncode, done.stdout.startswith("a: left: ")) == (0, True), done.stderr
    for command in (("send", "words", "x"), ("status", "--app", "shop")):
        done = told(*command, by="wrong")
        assert (done.returncode, done.stdout) == (2, "")
        refused = f"error: refused by the broker: {broker.bootstrap}: "
        assert error_line(done.stderr).startswith(refused)


def test_clients_receive_the_advertised_address(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", "--advertise", "broker.lan:19092") as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            for asked in (
                converse(sock, Api.METADATA, 9, {"topics": None}).brokers[0],
                converse(sock, Api.FIND_COORDINATOR, 3, {"key": "g"}),
                converse(sock, Api.DESCRIBE_CLUSTER, 1, {}).brokers[0],
            ):
                assert (asked.host, asked.port) == ("broker.lan", 19092)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("ann:x\n", 0o604, "anybody can read"), ("", 0o600, "no users"), ("ann\n", 0o600, ":1: "),
        ("ann:x\n:y\n", 0o600, ":2: "), ("ann:x\nann:y\n", 0o600, ":2: "),
    ],
)  # fmt: skip
def test_bad_users_file_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(UsageError, match=why):
        read_users(path)


def test_users_file_splits_at_the_first_colon(users: Path) -> None:
    assert read_users(users) == {"ann": "pencil", "bob": "a:b"}
    with pytest.raises(UsageError, match="No such file"):
        read_users(users.with_name("no"))


def test_unusable_certificate_is_refused(tmp_path: Path) -> None:
    (rubbish := tmp_path / "rubbish.pem").write_text("no certificate")
    for certificate, key in ((rubbish, None), (tmp_path / "no.pem", None), (PEM, rubbish)):
        with pytest.raises(
            UsageError, match=r"cannot use the certificate.*or the key in --tls-key"
        ):
            tls_context(certificate, key)


@pytest.mark.parametrize(
    "options",
    [
        ("--tls-key", str(PEM)), ("--tls-cert", "no.pem"), ("--sasl-users", "no"),
        ("--advertise", "here"), ("--advertise", "here:99999"), ("--advertise", "http://here:1"),
        ("--advertise", "here:1,there:2"), ("--connections-max-idle", "0"), ("--host", "0.0.0.0"),
    ],
)  # fmt: skip
def test_wrong_security_options_are_one_line_and_exit_code_2(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = streamsx("broker", "--data", "data", "--port", "0", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert not (tmp_path / "data").exists()


def test_client_credentials_for_an_open_broker_are_refused(tmp_path: Path) -> None:
    security = Security("SASL_PLAINTEXT", None, "PLAIN", "ann", "pencil")
    says = "it takes no credentials on this port: leave them out"
    with EmbeddedBroker(tmp_path / "broker") as broker, pytest.raises(SettingError, match=says):
        asyncio.run(connect(Address.parse(broker.bootstrap), security))
