"""Authentication: a worker, and every command that asks a cluster, on brokers that demand it."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.process.conftest import ON_KAFKA
from tests.support.apache_kafka import PASSWORD, PEM, USER, ApacheKafka
from tests.support.command import error_line
from tests.support.command import streamsx as called
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

pytestmark = list(ON_KAFKA)
TIMEOUT_S = 60.0
APP = """\
import base64
import json
import os
import ssl
import time

import streamsx
from aiokafka.abc import AbstractTokenProvider
from streamsx.examples import wordcount


class Unsigned(AbstractTokenProvider):
    async def token(self):
        words = {"alg": "none"}, {"sub": "shop", "iat": int(time.time()), "exp": time.time() + 600}
        head, claims = (base64.urlsafe_b64encode(json.dumps(each).encode()) for each in words)
        return f"{head.decode().rstrip('=')}.{claims.decode().rstrip('=')}."


mechanism, ca = os.environ["MECHANISM"], os.environ.get("CA")
context = ssl.create_default_context(cafile=ca) if ca else None
app = wordcount.app
app.override(
    bootstrap=os.environ["SECURE"],
    broker_credentials=streamsx.OAuthCredentials(oauth_cb=Unsigned(), ssl_context=context)
    if mechanism == "OAUTHBEARER"
    else streamsx.SASLCredentials(
        username="shop", password=os.environ["PASSWORD"], mechanism=mechanism, ssl_context=context
    ),
)
"""
FILE = """\
# as kafka-console-consumer.sh reads it
security.protocol={protocol}
sasl.mechanism={mechanism}
ssl.truststore.type=PEM
ssl.truststore.location={pem}
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="{user}" password="{password}";
client.id=somebody
"""


def streamsx(
    folder: Path, env: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamsx", *arguments], cwd=folder, env=os.environ | env,
        check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secure.py").write_text(APP)
    return tmp_path


def written(folder: Path, mechanism: str, protocol: str, password: str = PASSWORD) -> str:
    """Write a file of settings."""
    about = {"mechanism": mechanism, "protocol": protocol, "pem": PEM}
    path = folder / "client.properties"
    path.write_text(FILE.format(user=USER, password=password, **about))
    return str(path)


@pytest.mark.parametrize(
    ("mechanism", "protocol"),
    [
        ("SCRAM-SHA-512", "SASL_SSL"),
        pytest.param("OAUTHBEARER", "SASL_SSL", marks=pytest.mark.slow),
        pytest.param("PLAIN", "SASL_PLAINTEXT", marks=pytest.mark.slow),
        pytest.param("PLAIN", "SASL_SSL", marks=pytest.mark.slow),
        pytest.param("SCRAM-SHA-256", "SASL_SSL", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_workers_and_commands_authenticate_by_app_or_config_file(
    kafka: ApacheKafka, folder: Path, mechanism: str, protocol: str
) -> None:
    """A file holds users and passwords only: a token comes from an app."""
    bootstrap = kafka.secure_bootstrap if protocol == "SASL_SSL" else kafka.sasl_bootstrap
    with WordCount(kafka.bootstrap) as words:
        env = {
            **words.env, "SECURE": bootstrap, "PASSWORD": PASSWORD, "MECHANISM": mechanism,
            "STREAMSX_HEARTBEAT_INTERVAL": "500ms", "PYTHONPATH": str(folder),
        } | ({"CA": str(PEM)} if protocol == "SASL_SSL" else {})  # fmt: skip
        ways = [(["-A", "secure"], list[str]())]
        if mechanism != "OAUTHBEARER":
            by_file = ["--command-config", written(folder, mechanism, protocol)]
            ways.append(([*by_file, "--bootstrap", bootstrap], ["--app", words.app]))

        def told(*arguments: str) -> str:
            done = streamsx(folder, env, *arguments)
            assert done.returncode == 0, done.stderr  # where it may say that it waits
            return done.stdout

        with Workers(bootstrap, folder / "workers", app="secure", env=env) as workers:
            for who, _ in ways:
                told("send", words.lines[0].topic, "to be", *who)
            workers.start("a")
            for who, app in ways:
                found = partial(streamsx, folder, env, "table", *who, *app, "counts", "to")
                workers.until(lambda: found().stdout == f"to\t{len(ways)}\n", "all")  # noqa: B023
                shown = told("status", *who, *app)
                assert shown.startswith(f"{words.app} at ")
                assert ": running, " in shown
            workers.all["a"].expected = True
            done = streamsx(folder, env, "leave", *who, *app, "--instances", "a")
            assert (done.returncode, "a: left: " in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("send", "anywhere", "x"), ("table", "shop", "totals"), ("status", "--app", "shop"),
        ("leave", "--app", "shop", "--instances", "a"),
    ],
)  # fmt: skip
def test_command_with_a_wrong_password_is_one_line_and_exit_code_2(
    kafka: ApacheKafka, folder: Path, words: tuple[str, ...]
) -> None:
    wrong = written(folder, "PLAIN", "SASL_PLAINTEXT", "wrong")
    where = ("--command-config", wrong, "--bootstrap", kafka.sasl_bootstrap)
    done = called(*words, *where)
    assert (done.returncode, done.stdout) == (2, "")
    refused = f"error: refused by the broker: {kafka.sasl_bootstrap}: "
    assert error_line(done.stderr).startswith(refused)


@pytest.mark.parametrize(
    "mechanism", [pytest.param("PLAIN", marks=pytest.mark.slow), "SCRAM-SHA-512"]
)
def test_worker_with_a_wrong_password_is_one_line_and_exit_code_2(
    kafka: ApacheKafka, folder: Path, mechanism: str
) -> None:
    env = {
        "SECURE": kafka.secure_bootstrap, "PASSWORD": "wrong", "MECHANISM": mechanism,
        "CA": str(PEM),
    }  # fmt: skip
    done = streamsx(folder, env, "worker", "secure")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: refused by the broker: {kafka.secure_bootstrap}: ")
