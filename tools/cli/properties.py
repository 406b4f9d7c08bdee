"""Security settings from a file, under the names of Kafka's own tools or of librdkafka.

Settings for other purposes belong to other programs and are skipped. An unknown security setting is
refused, because a user would believe that the setting has an effect.
"""

import shlex
import ssl
from collections.abc import Mapping
from pathlib import Path

from streamsx.client.security import PLAINTEXT, Security
from streamsx.errors import SettingError, UsageError

OURS = {
    "bootstrap.servers": "bootstrap", "security.protocol": "protocol",
    "sasl.mechanism": "mechanism", "sasl.mechanisms": "mechanism", "sasl.jaas.config": "jaas",
    "sasl.username": "username", "sasl.password": "password",
    "sasl.kerberos.service.name": "service",
    "ssl.ca.location": "ca", "ssl.truststore.location": "ca", "ssl.truststore.type": "ca type",
    "ssl.certificate.location": "certificate", "ssl.keystore.location": "certificate",
    "ssl.keystore.type": "certificate type", "ssl.key.location": "key",
    "ssl.key.password": "key password", "ssl.endpoint.identification.algorithm": "checked",
}  # fmt: skip
SECRET = ("security.", "sasl.", "ssl.")


def properties(path: Path) -> dict[str, str]:
    """Read a file of `name=value` lines; return the values of OURS under their short names.

    A line that begins with `#` or `!` is a comment. A `\\` at the end continues a line.

    Raises:
        UsageError: the file cannot be read.
        SettingError: a line is no setting, or a security setting is unknown.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no settings: {path}: {error}: give a file of name=value lines") from None
    found: dict[str, str] = {}
    for line in map(str.strip, text.replace("\r\n", "\n").replace("\\\n", "").splitlines()):
        name, sign, value = (word.strip() for word in line.partition("="))
        if not line or line[0] in "#!":
            continue
        if not sign:
            raise SettingError(f"not a setting: {path}: {name!r}: write name=value")
        if name.startswith(SECRET) and name not in OURS:
            known = ", ".join(sorted(OURS))
            raise SettingError(f"unknown setting: {path}: {name}: there are {known}; or use -A")
        if name in OURS:
            found[OURS[name]] = value
    return found


def security_in(found: Mapping[str, str]) -> Security:
    """Return the security of the settings that `properties` has found.

    Raises:
        SettingError: the protocol is missing, or a setting is wrong.
        UsageError: a certificate cannot be read.
    """
    if found.keys() - {"bootstrap"} and "protocol" not in found:
        remedy = "other settings have no effect without it: SASL_SSL, SASL_PLAINTEXT or SSL"
        raise SettingError(f"security.protocol is missing: {remedy}")
    protocol = found.get("protocol", "PLAINTEXT").upper()
    if protocol == PLAINTEXT.security_protocol:
        return PLAINTEXT
    try:
        words = shlex.split(found.get("jaas", "").rstrip("; "))
    except ValueError as error:
        raise SettingError(f"sasl.jaas.config cannot be read: {error}: quote its values") from None
    told = dict(word.split("=", 1) for word in words if "=" in word)
    return Security(
        protocol,
        _context(found) if protocol.endswith("SSL") else None,
        found.get("mechanism"),
        found.get("username", told.get("username")),
        found.get("password", told.get("password")),
        found.get("service", "kafka"),
    )


def _context(found: Mapping[str, str]) -> ssl.SSLContext:
    ca = found.get("ca")
    certificate = found.get("certificate")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, found.get("key"), found.get("key password", ""))
    except OSError as error:
        what = f"{ca or 'the default'}, {certificate or 'none of ours'}"
        remedy = "give PEM files, not a Java key store"
        raise UsageError(f"no certificates: {what}: {error}: {remedy}") from None
    context.check_hostname = found.get("checked", "https") not in ("", "none")
    return context
