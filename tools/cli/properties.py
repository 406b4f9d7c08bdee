"""Security settings from a file, in the words of Kafka's own tools or of librdkafka's.

What is not about security is for other programs and passed over; what is, and is not known here, is
refused: nobody is to believe that it counts.
"""

import shlex
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from streamsx.errors import SettingError, UsageError
from streamsx.kafka.security import PLAINTEXT, Security

BOOTSTRAP = "bootstrap.servers"
SECRET = ("security.", "sasl.", "ssl.")
CA = ("ssl.ca.location", "ssl.truststore.location")
CERTIFICATE = ("ssl.certificate.location", "ssl.keystore.location")
KEY, KEY_PASSWORD, CHECKED = (
    "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm",
)  # fmt: skip
MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
JAAS, USER, PASSWORD = "sasl.jaas.config", "sasl.username", "sasl.password"
KERBEROS_SERVICE = "sasl.kerberos.service.name"
TYPES = ("ssl.truststore.type", "ssl.keystore.type")
KNOWN = frozenset({
    "security.protocol", *CA, *CERTIFICATE, KEY, KEY_PASSWORD, CHECKED, *MECHANISM, JAAS, USER,
    PASSWORD, KERBEROS_SERVICE, *TYPES,
})  # fmt: skip


def properties(path: Path) -> dict[str, str]:
    """The lines of a file: `name=value`; `#` begins a comment, a `\\` at the end goes on.

    Raises UsageError for a file that cannot be read, SettingError for a line or name of no use.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no settings: {path}: {error}: give a file of name=value lines") from None
    found = {}
    for line in _lines(text):
        name, sign, value = line.partition("=")
        if not sign:
            raise SettingError(f"not a setting: {path}: {name!r}: write name=value")
        found[name.strip()] = value.strip()
    for name in found:
        if name.startswith(SECRET) and name not in KNOWN:
            known = ", ".join(sorted(KNOWN))
            raise SettingError(f"unknown setting: {path}: {name}: there are {known}; or use -A")
    for kind in TYPES:
        location = kind.replace("type", "location")
        if location in found and found.get(kind, "JKS").upper() != "PEM":
            what = f"{location} is a Java key store"
            raise SettingError(f"{what}: {path}: write it as PEM, and {kind}=PEM")
    return found


def _lines(text: str) -> Iterator[str]:
    joined = text.replace("\\\r\n", "").replace("\\\n", "")
    lines = (line.strip() for line in joined.splitlines())
    return (line for line in lines if line and line[0] not in "#!")


def security_in(found: Mapping[str, str]) -> Security:
    """Raises SettingError, UsageError for a certificate that cannot be read."""
    protocol = found.get("security.protocol", "PLAINTEXT").upper()
    if protocol == PLAINTEXT.security_protocol:
        return PLAINTEXT
    try:
        words = shlex.split(found.get(JAAS, "").rstrip("; "))
    except ValueError as error:
        raise SettingError(f"{JAAS} cannot be read: {error}: quote its values") from None
    told = dict(word.split("=", 1) for word in words if "=" in word)
    return Security(
        protocol,
        _context(found) if protocol.endswith("SSL") else None,
        _first(found, MECHANISM),
        found.get(USER, told.get("username")),
        found.get(PASSWORD, told.get("password")),
        found.get(KERBEROS_SERVICE, "kafka"),
    )


def _context(found: Mapping[str, str]) -> ssl.SSLContext:
    ca, certificate = _first(found, CA), _first(found, CERTIFICATE)
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, found.get(KEY), found.get(KEY_PASSWORD, ""))
    except OSError as error:
        what = f"{ca or 'the default'}, {certificate or 'none of ours'}"
        raise UsageError(f"no certificates: {what}: {error}: give PEM files") from None
    if found.get(CHECKED, "https") in ("", "none"):
        context.check_hostname = False
    return context


def _first(found: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((found[name] for name in names if name in found), None)
