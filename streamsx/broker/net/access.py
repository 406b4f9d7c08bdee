"""Who reaches the broker, and how: TLS under the listener, users from a file, the address told.

Everything is off by default. Not here: how a client shows who it is (`sasl`), what it may do (all).
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamsx.errors import UsageError

OTHERS = 0o007


@dataclass(frozen=True, slots=True)
class Access:
    """Of one listener."""

    tls: ssl.SSLContext | None = None
    passwords: Mapping[str, str] | None = None
    """By user; None lets in everybody."""
    advertised: tuple[str, int] | None = None
    """Where clients are told that the broker is; None: where they have reached it."""

    @property
    def secured(self) -> bool:
        """Nobody reads along, and nobody comes in who is not known."""
        return self.tls is not None and self.passwords is not None


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Of PEM files: the chain, and its key if that is not with it. Raises UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (OSError, ValueError) as error:  # of SSLError too
        files = f"{certificate} and {key}" if key else str(certificate)
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot use the certificate: {files}: {why}: PEM is wanted, a chain and its key, "
            "there or in --tls-key"
        ) from error
    return context


def no_password() -> str:
    """Nobody is there to be asked."""
    raise ValueError("the key is encrypted")


def read_users(path: Path) -> dict[str, str]:
    """Lines `name:password`; empty ones and those with # count for nothing. Raises UsageError."""
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
                f"bad line in the users: {path}:{number}: name:password is wanted, a name once"
            )
        users[name] = password
    if not users:
        raise UsageError(f"no users: {path}: nobody could come in: add lines name:password")
    return users
