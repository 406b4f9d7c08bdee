"""Authentication: against aiokafka's side of SCRAM, RFC 7677's example, and impostors."""

import hmac
from base64 import b64decode, b64encode
from itertools import count

import pytest
from aiokafka.conn import ScramAuthenticator  # type: ignore[import-untyped]  # has no types

from streamsx.broker.net.sasl import MECHANISMS, SCRAM, Authentication, ScramKeys, Step, Users
from streamsx.protocol.error_codes import ErrorCode as E

PASSWORDS = {"ann": "pencil", "b,o=b": "päss=word,"}
NUMBERS = count(1)


def let_in(mechanism: str) -> Authentication:
    """Return an authentication after its handshake."""
    found = Authentication(Users(PASSWORDS, lambda: next(NUMBERS).to_bytes(16)))
    answer = found.handshake(mechanism)
    assert answer == {"error_code": E.NONE, "mechanisms": list(MECHANISMS)}
    return found


class Client:
    """Client of aiokafka, message by message."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._steps = ScramAuthenticator(
            loop=None, sasl_plain_password=password, sasl_plain_username=user,
            sasl_mechanism=mechanism,
        )._authenticator  # fmt: skip

    def talk(self, broker: Authentication) -> int:
        """Return the code of the last answer. Raises if the client does not trust the broker."""
        message, _ = next(self._steps)
        while True:
            answer = broker.authenticate(message)
            if answer["error_code"]:
                return int(answer["error_code"])
            try:
                found = self._steps.send(answer["auth_bytes"])
            except StopIteration:
                return 0
            if found is None:
                return 0
            message, _ = found


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("user", PASSWORDS)
def test_aiokafka_client_authenticated_by_correct_password_only(mechanism: str, user: str) -> None:
    broker = let_in(mechanism)
    assert Client(mechanism, user, PASSWORDS[user]).talk(broker) == E.NONE
    assert (broker.step, broker.user) == (Step.DONE, user)
    for name, password in ((user, "pencils"), ("nobody", "pencil")):
        broker = let_in(mechanism)
        assert Client(mechanism, name, password).talk(broker) == E.SASL_AUTHENTICATION_FAILED
        assert broker.step is Step.REFUSED


def test_scram_keys_match_rfc_7677_example() -> None:
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    keys = ScramKeys.derived("pencil", "sha256", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    signed = (
        f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        f"c=biws,r={nonce}"
    )
    signature = hmac.digest(keys.server, signed.encode(), "sha256")
    assert b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0ann\0pencil", E.NONE),
        (b"ann\0ann\0pencil", E.NONE),
        (b"bob\0ann\0pencil", E.SASL_AUTHENTICATION_FAILED),  # in another's name
        (b"\0ann\0pencil\0", E.SASL_AUTHENTICATION_FAILED),
        (b"\0ann\0", E.SASL_AUTHENTICATION_FAILED),
        (b"\0\0", E.SASL_AUTHENTICATION_FAILED),
        (b"\0nobody\0", E.SASL_AUTHENTICATION_FAILED),
        (b"", E.SASL_AUTHENTICATION_FAILED),
        (b"\xff\0ann\0pencil", E.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_plain_accepts_only_valid_credentials(data: bytes, code: E) -> None:
    broker = let_in("PLAIN")
    assert broker.authenticate(data)["error_code"] == code
    assert broker.step is (Step.REFUSED if code else Step.DONE)
    if code:
        told = broker.authenticate(b"\0ann\0pencil")  # once refused, for good
        assert told["error_code"] == E.SASL_AUTHENTICATION_FAILED
        assert "pencil" not in str(told)


FIRST = b"n,,n=ann,r=abc"


@pytest.mark.parametrize(
    "messages",
    [
        [b""], [b"n,,"], [b"n,,n=ann"], [b"n,,n=ann,r="], [b"p=tls,,n=ann,r=abc"], [b"\xff"],
        [b"n,a=bob,n=ann,r=abc"], [FIRST, b""], [FIRST, b"c=biws,r=abc"], [FIRST, FIRST],
        [FIRST, b"c=biws,r=abc,p="], [FIRST, b"c=biws,r=abc,p=AAAA"],
        [FIRST, b"c=biws,r=abc,p=" + b64encode(bytes(32))], [FIRST, b"c=!,r=abc,p=!!!"],
    ],
)  # fmt: skip
def test_invalid_scram_proof_refused(messages: list[bytes]) -> None:
    broker = let_in("SCRAM-SHA-256")
    for message in messages[:-1]:
        assert broker.authenticate(message)["error_code"] == E.NONE
    assert broker.authenticate(messages[-1])["error_code"] == E.SASL_AUTHENTICATION_FAILED
    assert broker.step is Step.REFUSED


def test_scram_proof_for_another_nonce_or_channel_refused() -> None:
    """An attacker repeats another client's message; all else in it is right."""
    for field in (b"r=", b"c="):
        broker, client = let_in("SCRAM-SHA-256"), Client("SCRAM-SHA-256", "ann", "pencil")
        first, _ = next(client._steps)
        final, _ = client._steps.send(broker.authenticate(first)["auth_bytes"])
        changed = final.replace(field, field + b"A", 1)
        assert broker.authenticate(changed)["error_code"] == E.SASL_AUTHENTICATION_FAILED


def test_sasl_messages_out_of_order_refused() -> None:
    users = Users(PASSWORDS, lambda: bytes(16))
    assert (
        Authentication(users).authenticate(b"\0ann\0pencil")["error_code"] == E.ILLEGAL_SASL_STATE
    )
    assert Authentication(users).handshake("GSSAPI") == {
        "error_code": E.UNSUPPORTED_SASL_MECHANISM, "mechanisms": list(MECHANISMS),
    }  # fmt: skip
    twice = let_in("PLAIN")
    assert twice.handshake("PLAIN")["error_code"] == E.ILLEGAL_SASL_STATE
    again = let_in("PLAIN")
    again.authenticate(b"\0ann\0pencil")
    assert again.authenticate(b"\0ann\0pencil")["error_code"] == E.ILLEGAL_SASL_STATE
    assert again.step is Step.REFUSED
