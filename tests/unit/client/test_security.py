"""Faust's credentials as settings of aiokafka, and the private names of aiokafka that we use."""

import asyncio
import inspect
import ssl
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]  # no types
from aiokafka.conn import create_conn  # type: ignore[import-untyped]  # no types

from streamsx.client.connection import Address, connect, taken_over
from streamsx.client.security import PLAINTEXT, Security, security_of
from streamsx.errors import BrokerUnreachable, Bug, SettingError
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import Asked, ScriptedBroker

TLS = ssl.create_default_context()
OTHER = ssl.create_default_context()


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # has no types
    """Token provider, whose server may be away."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    async def token(self) -> str:
        if self._token is None:
            raise LookupError("the server of tokens is away")
        return self._token


def test_security_is_plaintext_without_credentials_or_ssl_context() -> None:
    assert security_of(None) is PLAINTEXT
    assert security_of(None, TLS) == security_of(TLS) == Security("SSL", TLS)
    assert security_of(faust.SSLCredentials(TLS), OTHER) == Security("SSL", TLS)


def test_sasl_username_and_password_are_passed_on() -> None:
    given = faust.SASLCredentials(username="me", password="secret", mechanism="SCRAM-SHA-256")
    told = Security("SASL_PLAINTEXT", None, "SCRAM-SHA-256", "me", "secret")
    assert security_of(given) == told
    given = faust.SASLCredentials(username="me", password="secret", ssl_context=TLS)
    assert security_of(given, OTHER) == Security("SASL_SSL", TLS, "PLAIN", "me", "secret")


def test_oauth_token_provider_is_passed_on() -> None:
    tokens = Tokens()
    security = security_of(faust.OAuthCredentials(oauth_cb=tokens))
    assert (security.sasl_mechanism, security.sasl_oauth_token_provider) == ("OAUTHBEARER", tokens)
    with pytest.raises(SettingError, match="no token provider: OAUTHBEARER: <function"):
        security_of(faust.OAuthCredentials(oauth_cb=lambda: "token"))


def test_kerberos_credentials_passed_on_if_library_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = faust.GSSAPICredentials(kerberos_service_name="k", kerberos_domain_name="example.com")
    found: list[object] = [None]
    monkeypatch.setattr("streamsx.client.security.find_spec", lambda _: found[0])
    with pytest.raises(SettingError, match="no Kerberos library: GSSAPI: pip install gssapi"):
        security_of(given)
    found = ["there"]
    told = security_of(given)
    assert (told.sasl_mechanism, told.sasl_kerberos_service_name) == ("GSSAPI", "k")
    assert told.sasl_kerberos_domain_name == "example.com"


def authenticated(token: str | None, says: bytes = b"") -> tuple[list[bytes], Exception | None]:
    """Return what a broker with OAUTHBEARER received, and how the login ended."""
    told: list[bytes] = []

    def authenticate(asked: Asked) -> dict[str, Any]:
        told.append(asked.body.auth_bytes)
        return {"auth_bytes": says}

    answers = {
        Api.SASL_HANDSHAKE: lambda _: {"mechanisms": ["OAUTHBEARER"]},
        Api.SASL_AUTHENTICATE: authenticate,
    }

    async def story() -> None:
        security = security_of(faust.OAuthCredentials(oauth_cb=Tokens(token)))
        async with ScriptedBroker(answers) as broker:  # type: ignore[arg-type]  # lambdas
            opened = await connect(Address("127.0.0.1", broker.port), security)
            await opened.close()

    try:
        asyncio.run(story())
    except Exception as error:
        return told, error
    return told, None


def test_oauth_token_sent_to_broker() -> None:
    told, error = authenticated("t0k3n")
    assert error is None
    assert told == [b"n,,\x01auth=Bearer t0k3n\x01\x01"]


def test_missing_oauth_token_raises_retriable_error() -> None:
    told, error = authenticated(None)
    assert isinstance(error, BrokerUnreachable)
    assert "OAUTHBEARER: LookupError: the server of tokens is away" in str(error)
    assert told == []


def test_refused_oauth_token_raises_retriable_error() -> None:
    """Kafka reports a refused token without an error code."""
    told, error = authenticated("old", b'{"status":"invalid_token"}')
    assert isinstance(error, BrokerUnreachable)
    assert str(error).endswith('the token is refused: {"status":"invalid_token"}')
    assert len(told) == 1


def test_aiokafka_accepts_all_security_settings() -> None:
    """A failure means that aiokafka has renamed a setting: adapt `Security`."""
    assert set(Security.__slots__) <= set(inspect.signature(create_conn).parameters)


def test_aiokafka_has_private_attributes_needed_for_takeover() -> None:
    """A failure means that `client.connection.taken_over` has to be adapted, and nothing else."""

    async def story() -> None:
        async with ScriptedBroker() as broker:
            opened = await create_conn("127.0.0.1", broker.port, client_id="canary")
            reads = opened._read_task
            protocol, transport, versions = taken_over(opened)
            assert isinstance(transport, asyncio.Transport), "_writer.transport"
            assert isinstance(protocol, asyncio.Protocol), "_protocol"
            low, high = versions[Api.METADATA]
            assert 0 <= low < high, "_versions"
            await asyncio.wait([reads])
            assert reads.cancelled(), "_read_task"
            assert opened.connected(), "to end its reader ended the connection"
            transport.abort()
            opened.close()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["_protocol", "_writer", "_versions", "_read_task"])
def test_aiokafka_without_needed_attribute_raises_bug(name: str) -> None:
    class Reader:
        def cancel(self) -> None: ...

    names = {"_protocol": 1, "_versions": {}, "_read_task": Reader()}
    writer = SimpleNamespace(transport=2)
    opened = SimpleNamespace(**{**names, "_writer": writer})
    assert tuple(taken_over(opened)) == (1, 2, {})
    delattr(opened, name)
    with pytest.raises(Bug, match=f"does not fit this streamsx: .*{name}"):
        taken_over(opened)
