"""Access to the broker: TLS on the listener, users from a file, and the advertised address.

Everything is off by default. Not here: how a client authenticates (`sasl`), and authorization (an
authenticated client may do everything).
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamsx.errors import UsageError

OTHERS = 0o007


@dataclass(frozen=True, slots=True)
class Access:
    """Access settings of one listener."""

    tls: ssl.SSLContext | None = None
    passwords: Mapping[str, str] | None = None
    """Passwords by user; None admits every client."""
    advertised: tuple[str, int] | None = None
    """Address that the broker advertises to clients; None advertises the address that the client
    connected to.
    """

    @property
    def secured(self) -> bool:
        """Return whether the listener has both encryption and authentication."""
        return self.tls is not None and self.passwords is not None


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Build the TLS context from PEM files: the certificate chain, and the key if the chain's file
    lacks the key.

    Raises:
        UsageError: The files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = f"{certificate} and {key}" if key else str(certificate)
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot use the certificate: {files}: {why}: give a PEM file with the chain and its "
            "key, or the key in --tls-key"
        ) from error
    return context


def no_password() -> str:
    """Refuse an encrypted key, since no user is there to enter the password."""
    raise ValueError("the key is encrypted")


def read_users(path: Path) -> dict[str, str]:
    """Read the users from lines `name:password`; empty lines and lines that begin with # are
    ignored.

    Raises:
        UsageError: The file cannot be read or used.
    """
    try:
        if path.stat().st_mode & OTHERS:
            raise UsageError(f"anybody can read the passwords: {path}: chmod o= {path}")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"cannot read the users: {path}: {why}") from error
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        if not name or not password or name in users or "\0" in line:
            raise UsageError(
                f"bad line in the users: {path}:{number}: write name:password, each name once"
            )
        users[name] = password
    if not users:
        raise UsageError(f"no users: {path}: no client could connect: add lines name:password")
    return users
