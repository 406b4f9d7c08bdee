"""Cluster that a command asks, and its credentials."""

import argparse
from pathlib import Path

import pytest

from streamsx.client.security import PLAINTEXT, Security
from streamsx.tools.cli.cluster import settle

APP = """\
import streamsx
app = streamsx.App(
    "shop", broker="kafka://far:1",
    broker_credentials=streamsx.SASLCredentials(username="me", password="secret"),
)
"""
OWN = Security("SASL_PLAINTEXT", None, "PLAIN", "me", "secret")
OTHER = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=x\nsasl.password=y\n"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secured_shop.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    for variable in ("STREAMSX_BOOTSTRAP", "STREAMSX_BROKER", "BROKER_URL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("text", "bootstrap", "security"),
    [
        ("", "far:1", OWN),
        ("client.id=me\n", "far:1", OWN),
        ("bootstrap.servers=near:2\n", "near:2", OWN),
        ("security.protocol=PLAINTEXT\n", "far:1", PLAINTEXT),
        (OTHER, "far:1", Security("SASL_PLAINTEXT", None, "PLAIN", "x", "y")),
    ],
    ids=["empty", "not about it", "only brokers", "plain", "another user"],
)
def test_config_file_without_security_keeps_the_security_of_the_app(
    tmp_path: Path, text: str, bootstrap: str, security: Security
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    options = settle(argparse.Namespace(module="secured_shop", bootstrap=None, command_config=path))
    assert (options.app, options.bootstrap, options.security) == ("shop", bootstrap, security)


@pytest.mark.parametrize("variable", ["STREAMSX_BOOTSTRAP", "STREAMSX_BROKER", "BROKER_URL"])
def test_only_the_bootstrap_address_is_read_from_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other variables of workers each command ended with `settings contradict: app
    streamsx`.
    """
    monkeypatch.setenv("STREAMSX_SESSION_TIMEOUT", "6s")
    monkeypatch.setenv("STREAMSX_COMMIT_INTERVAL", "soon")
    monkeypatch.setenv(variable, "near:2")
    options = settle(argparse.Namespace(module=None, bootstrap=None, command_config=None))
    assert (options.bootstrap, options.security) == ("near:2", PLAINTEXT)


def test_bootstrap_defaults_to_the_local_broker() -> None:
    options = settle(argparse.Namespace(module=None, bootstrap=None, command_config=None))
    assert options.bootstrap == "localhost:9092"
