"""A worker and every command that asks a cluster, where the brokers want to know who it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.conftest import ON_KAFKA
from tests.support.apache_kafka import PASSWORD, USER, ApacheKafka
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

pytestmark = list(ON_KAFKA)
TIMEOUT_S = 60.0
APP = """\
import os
import streamsx
from streamsx.examples import wordcount

app = wordcount.app
app.override(
    bootstrap=os.environ["SECURE"],
    broker_credentials=streamsx.SASLCredentials(username="shop", password=os.environ["PASSWORD"]),
)
"""
FILE = """\
# as kafka-console-consumer.sh reads it
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
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
    (tmp_path / "client.properties").write_text(FILE.format(user=USER, password=PASSWORD))
    (tmp_path / "wrong.properties").write_text(FILE.format(user=USER, password="wrong"))
    return tmp_path


def test_commands_are_let_in_as_the_app_or_as_a_file_says(kafka: ApacheKafka, folder: Path) -> None:
    with WordCount(kafka.bootstrap) as words:
        env = {
            **words.env, "SECURE": kafka.sasl_bootstrap, "PASSWORD": PASSWORD,
            "STREAMSX_HEARTBEAT_INTERVAL": "500ms", "PYTHONPATH": str(folder),
        }  # fmt: skip
        topic = words.lines[0].topic
        by_file = (
            "--command-config", "client.properties", "--bootstrap", kafka.sasl_bootstrap,
        )  # fmt: skip
        with Workers(kafka.sasl_bootstrap, folder / "workers", app="secure", env=env) as workers:
            done = streamsx(folder, env, "send", topic, "to be", *by_file)
            assert (done.returncode, done.stderr) == (0, "")
            done = streamsx(folder, env, "send", "-A", "secure", topic, "or not to be")
            assert (done.returncode, done.stderr) == (0, "")
            workers.start("a")
            for named in (("-A", "secure"), ("--app", words.app, *by_file)):

                def counted(named: tuple[str, ...] = named) -> bool:
                    done = streamsx(folder, env, "table", *named, "counts", "to")
                    return (done.stdout, done.stderr) == ("to\t2\n", "")

                workers.until(counted, "two words")
                done = streamsx(folder, env, "status", *named)
                assert (done.returncode, done.stderr) == (0, ""), done.stdout
                assert f"{words.app}: Stable" in done.stdout
            workers.all["a"].expected = True
            done = streamsx(folder, env, "-A", "secure", "leave", "--instances", "a")
            assert done.returncode == 0, done.stderr
            assert "a: left: " in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("send", "anywhere", "x"), ("table", "shop", "totals"), ("status", "--app", "shop"),
        ("leave", "--app", "shop", "--instances", "a"),
    ],
)  # fmt: skip
def test_a_wrong_password_is_one_line_and_2(
    kafka: ApacheKafka, folder: Path, words: tuple[str, ...]
) -> None:
    where = ("--command-config", "wrong.properties", "--bootstrap", kafka.sasl_bootstrap)
    done = streamsx(folder, {}, *words, *where)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: refused by the broker: {kafka.sasl_bootstrap}: ")
    assert done.stderr.count("\n") == 1


def test_a_worker_with_a_wrong_password_ends_with_one_line_and_2(
    kafka: ApacheKafka, folder: Path
) -> None:
    env = {"SECURE": kafka.sasl_bootstrap, "PASSWORD": "wrong"}
    done = streamsx(folder, env, "worker", "secure")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: refused by the broker: {kafka.sasl_bootstrap}: ")
