"""SASL authentication, the broker's side: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677). Pure.

Passwords are never disclosed, and are compared in constant time only. Not here: which requests are
allowed before authentication (`server`), where users come from (`access`), and authorization (an
authenticated client may do everything).
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import new, pbkdf2_hmac

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.protocol.error_codes import ErrorCode

PLAIN = "PLAIN"
SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM)
ITERATIONS = 4096
"""Smallest number that RFC 7677 allows, and the number that Kafka uses."""
SALT_BYTES = 16
Exchange = Generator[bytes, bytes, bytes | None]
"""Dialogue of one mechanism: takes the client's messages and yields the server's messages.

The last message is the return value; None refuses the client. The first yielded value only starts
the generator and is sent to no client.
"""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Keys that a server keeps of one password for one hash function."""

    salt: bytes
    stored: bytes
    server: bytes

    @classmethod
    def derived(cls, password: str, algorithm: str, salt: bytes) -> "ScramKeys":
        """Derive the keys of a password; takes some milliseconds."""
        salted = pbkdf2_hmac(algorithm, password.encode(), salt, ITERATIONS)
        client = hmac.digest(salted, b"Client Key", algorithm)
        stored = hash_of(algorithm, client)
        return cls(salt, stored, hmac.digest(salted, b"Server Key", algorithm))


class Users:
    """Names and passwords of users; the SCRAM keys of a user are derived on first use."""

    def __init__(self, passwords: Mapping[str, str], fresh: Callable[[], bytes]) -> None:
        """Copy the passwords.

        Args:
            fresh: Returns unpredictable bytes, for salts and nonces.
        """
        self._passwords = dict(passwords)
        self.fresh = fresh
        self._keys: dict[tuple[str, str], ScramKeys] = {}

    def knows(self, name: str, password: str) -> bool:
        """Return whether name and password match, in the same time for an unknown name."""
        expected = self._passwords.get(name)
        same = hmac.compare_digest((expected or "").encode(), password.encode())
        return same and expected is not None

    def keys(self, name: str, algorithm: str) -> ScramKeys | None:
        """Return the SCRAM keys of a user; None for an unknown name."""
        if (password := self._passwords.get(name)) is None:
            return None
        kept = self._keys.get((name, algorithm))
        if kept is None:
            salt = self.fresh()[:SALT_BYTES]
            kept = self._keys[name, algorithm] = ScramKeys.derived(password, algorithm, salt)
        return kept


class Step(Enum):
    """Progress of one client's authentication."""

    NEW = "it has not said how"
    CHOSEN = "it has said how, and proves it"
    DONE = "it is who it says"
    REFUSED = "it is not; its connection is over"


class Authentication:
    """Authentication of one connection: `handshake`, then `authenticate` once or twice, until
    `step` is DONE.
    """

    def __init__(self, users: Users) -> None:
        self.step = Step.NEW
        self.user = ""
        """Name that the client claims, authenticated or not."""
        self._users = users
        self._exchange: Exchange | None = None

    @property
    def done(self) -> bool:
        """Return whether the client is authenticated."""
        return self.step is Step.DONE

    def handshake(self, mechanism: str) -> ReplyBody:
        """Return the response to SaslHandshake."""
        code = ErrorCode.NONE
        if self.step is not Step.NEW:
            code = self._refuse(ErrorCode.ILLEGAL_SASL_STATE)
        elif mechanism not in MECHANISMS:
            code = self._refuse(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        else:
            self.step = Step.CHOSEN
            self._exchange = self._plain() if mechanism == PLAIN else self._scram(SCRAM[mechanism])
            next(self._exchange)
        return {"error_code": code, "mechanisms": list(MECHANISMS)}

    def authenticate(self, data: bytes) -> ReplyBody:
        """Return the response to SaslAuthenticate."""
        try:
            reply = None if self._exchange is None else self._exchange.send(data)
        except StopIteration as end:
            reply = end.value
        except (ValueError, KeyError, Error):  # UnicodeDecodeError is a ValueError
            reply = None
        if reply is not None:
            return {"error_code": ErrorCode.NONE, "auth_bytes": reply}
        illegal = self.step in (Step.NEW, Step.DONE)
        code = ErrorCode.ILLEGAL_SASL_STATE if illegal else ErrorCode.SASL_AUTHENTICATION_FAILED
        why = "wrong user or password, or a malformed message"
        return {"error_code": self._refuse(code), "error_message": why, "auth_bytes": b""}

    def _refuse(self, code: ErrorCode) -> ErrorCode:
        self.step = Step.REFUSED
        self._exchange = None
        return code

    def _plain(self) -> Exchange:
        acts_for, self.user, password = (yield b"").decode().split("\0")
        if acts_for not in ("", self.user) or not self._users.knows(self.user, password):
            return None
        self.step = Step.DONE
        return b""

    def _scram(self, algorithm: str) -> Exchange:
        # client-first-message: no channel binding, no authorization as another user.
        flag, acts_for, bare = (yield b"").decode().split(",", 2)
        given = attributes(bare)
        self.user = given["n"].replace("=2C", ",").replace("=3D", "=")
        if flag not in ("n", "y") or acts_for or not given["r"]:
            return None
        if (keys := self._users.keys(self.user, algorithm)) is None:
            return None
        nonce = given["r"] + self._users.fresh().hex()
        server_first = f"r={nonce},s={b64encode(keys.salt).decode()},i={ITERATIONS}"
        # client-final-message: the client proves that it knows the password; the reply proves that
        # the server does.
        final, _, proof = (yield server_first.encode()).decode().rpartition(",p=")
        given = attributes(final)
        signed = f"{bare},{server_first},{final}".encode()
        mask = hmac.digest(keys.stored, signed, algorithm)
        client = bytes(a ^ b for a, b in zip(b64decode(proof, validate=True), mask, strict=True))
        known = hmac.compare_digest(hash_of(algorithm, client), keys.stored)
        if not known or given["r"] != nonce or b64decode(given["c"]) not in (b"n,,", b"y,,"):
            return None
        self.step = Step.DONE
        return b"v=" + b64encode(hmac.digest(keys.server, signed, algorithm))


def attributes(message: str) -> dict[str, str]:
    """Return the attributes of a SCRAM message by their letters.

    Raises:
        ValueError: An attribute has no value.
    """
    return dict(part.split("=", 1) for part in message.split(",") if part)


def hash_of(algorithm: str, data: bytes) -> bytes:
    """Return the digest of the data."""
    return new(algorithm, data).digest()
