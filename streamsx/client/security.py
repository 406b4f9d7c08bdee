"""Security settings of connections: Faust's credentials as aiokafka's settings.

Not here: reading such settings from a file (`tools.cli.properties`), using them (`connection`).
"""

from dataclasses import dataclass
from importlib.util import find_spec
from ssl import SSLContext
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]  # has no types

from streamsx.errors import SettingError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
KERBEROS = "GSSAPI"
OAUTH = "OAUTHBEARER"
UNNAMED: Final = "the user of this worker"
MECHANISMS: Final = (*WITH_PASSWORD, KERBEROS, OAUTH)


@dataclass(frozen=True, slots=True)
class Security:
    """Settings of aiokafka for encryption and authentication, passed on unchanged.

    Raises:
        SettingError: the settings do not fit each other.
    """

    security_protocol: str = "PLAINTEXT"
    ssl_context: SSLContext | None = None
    sasl_mechanism: str | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: str | None = None
    sasl_oauth_token_provider: object = None

    @property
    def principal(self) -> str:
        """Return the user that brokers know this client as, for messages."""
        name = self.sasl_plain_username
        return UNNAMED if name is None else f"user {name}"

    def __post_init__(self) -> None:
        protocol = self.security_protocol
        mechanism = self.sasl_mechanism
        if protocol not in PROTOCOLS:
            raise SettingError(f"unknown security_protocol: {protocol!r}: use {_any(PROTOCOLS)}")
        if protocol.endswith("SSL") and self.ssl_context is None:
            raise SettingError(
                f"ssl_context is missing: {protocol} needs one: ssl.create_default_context()"
            )
        if not protocol.startswith("SASL"):
            return
        if mechanism is None:
            raise SettingError(f"sasl_mechanism is missing: {protocol}: use {_any(MECHANISMS)}")
        if mechanism not in MECHANISMS:
            raise SettingError(f"unknown sasl_mechanism: {mechanism!r}: use {_any(MECHANISMS)}")
        user = (self.sasl_plain_username, self.sasl_plain_password)
        if mechanism in WITH_PASSWORD and None in user:
            raise SettingError(f"user or password is missing: {mechanism}: set both")
        if mechanism == KERBEROS and find_spec("gssapi") is None:
            raise SettingError(f"no Kerberos library: {mechanism}: pip install gssapi")
        if mechanism == OAUTH and not isinstance(
            self.sasl_oauth_token_provider, AbstractTokenProvider
        ):
            raise SettingError(
                f"no token provider: {mechanism}: {self.sasl_oauth_token_provider!r}: give "
                "oauth_cb an object whose class derives from aiokafka.abc.AbstractTokenProvider"
            )

    @property
    def shows_password(self) -> bool:
        return (self.security_protocol, self.sasl_mechanism) == ("SASL_PLAINTEXT", "PLAIN")


PLAINTEXT: Final = Security()


def security_of(credentials: Any, context: Any = None) -> Security:
    """Return the settings for Faust's credentials, an SSLContext, or None.

    `context` is used if the credentials have none of their own. Credentials are recognised by their
    attributes, since importing Faust's classes takes 0.2 s.

    Raises:
        SettingError: the settings do not fit each other.
    """
    if credentials is None or isinstance(credentials, SSLContext):
        context = credentials or context
        return PLAINTEXT if context is None else Security("SSL", ssl_context=context)
    own = getattr(credentials, "context", None) or getattr(credentials, "ssl_context", None)
    mechanism = getattr(credentials, "mechanism", None)
    return Security(
        credentials.protocol.value,
        ssl_context=own or context,
        sasl_mechanism=getattr(mechanism, "value", mechanism),
        sasl_plain_username=getattr(credentials, "username", None),
        sasl_plain_password=getattr(credentials, "password", None),
        sasl_kerberos_service_name=getattr(credentials, "kerberos_service_name", "kafka"),
        sasl_kerberos_domain_name=getattr(credentials, "kerberos_domain_name", None),
        sasl_oauth_token_provider=getattr(credentials, "oauth_cb", None),
    )


def _any(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
