"""Security settings in the files of other Kafka tools."""

from pathlib import Path

import pytest

from streamsx.client.security import PLAINTEXT, Security
from streamsx.errors import SettingError, StreamsxError, UsageError
from streamsx.tools.cli.properties import properties, security_in

PEM = Path(__file__).parents[2] / "support" / "localhost.pem"


def settled(folder: Path, text: str) -> Security:
    path = folder / "client.properties"
    path.write_text(text)
    return security_in(properties(path))


@pytest.mark.parametrize(
    "text",
    [
        'sasl.jaas.config=org.apache.PlainLoginModule required username="me" password="a b;=\\"";',
        "sasl.jaas.config = x required \\\n   username='me' \\\n  password='a b;=\"' ;  ",
        'sasl.username=me\nsasl.password=a b;="',
    ],
    ids=["Java", "Java in several lines", "librdkafka"],
)
def test_user_and_password_are_read_in_each_form(tmp_path: Path, text: str) -> None:
    told = f"# of mine\n\nsecurity.protocol=sasl_plaintext\nsasl.mechanisms=SCRAM-SHA-512\n{text}\n"
    assert settled(tmp_path, told) == Security(
        "SASL_PLAINTEXT", None, "SCRAM-SHA-512", "me", 'a b;="'
    )


def test_properties_not_about_security_are_ignored(tmp_path: Path) -> None:
    assert settled(tmp_path, "client.id=me\nbootstrap.servers=a:1\n") is PLAINTEXT


@pytest.mark.parametrize(
    "text",
    [
        f"ssl.ca.location={PEM}",
        f"""ssl.truststore.type=PEM\nssl.truststore.location={PEM}
        ssl.endpoint.identification.algorithm=""",
        f"ssl.ca.location={PEM}\nssl.certificate.location={PEM}\nssl.key.location={PEM}",
    ],
)
def test_certificates_are_read(tmp_path: Path, text: str) -> None:
    context = settled(tmp_path, f"security.protocol=SSL\n{text}\n").ssl_context
    assert context is not None
    assert [each["subject"] for each in context.get_ca_certs()]
    assert context.check_hostname == ("identification" not in text)


@pytest.mark.parametrize(
    ("text", "kind", "complaint"),
    [
        ("security.protocol", SettingError, "not a setting: .*write name=value"),
        (
            "sasl.username=me\nsasl.password=x",
            SettingError,
            "security.protocol is missing: other settings",
        ),
        ("security.protocol=TLS", SettingError, "unknown security_protocol: 'TLS'"),
        ("sasl.login.class=x", SettingError, "unknown setting: .*sasl.login.class: there are"),
        (
            f"security.protocol=SSL\nssl.truststore.location={__file__}",
            UsageError,
            "no certificates: .*give PEM files, not a Java key store",
        ),
        ("security.protocol=SSL\nssl.ca.location=none.pem", UsageError, "no certificates: none"),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN",
            SettingError,
            "user or password is missing",
        ),
        (
            'security.protocol=SASL_PLAINTEXT\nsasl.jaas.config=x required username="me',
            SettingError,
            "sasl.jaas.config cannot be read",
        ),
        (
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER",
            SettingError,
            "no token provider",
        ),
    ],
)
def test_unusable_security_properties_are_refused(
    tmp_path: Path, text: str, kind: type[StreamsxError], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        settled(tmp_path, text)


def test_missing_properties_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no settings: .*nowhere: .*No such file"):
        properties(tmp_path / "nowhere")
