"""Where a Kafka cluster is and how to prove who we are, told once and said in the words of three clients.

Three programs talk to the cluster: Spark's Java client reads, librdkafka writes, kafka-python ends transactions. Each
has its own names for the same settings. A secret never gets into a text that this module makes for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.errors import BadConfig, Where

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""The mechanisms that all three clients know, and Java's class for each."""

NAMES: Mapping[str, str] = {
    "security.protocol": "security_protocol",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
"""librdkafka's name, which is the user's, and kafka-python's."""

REDACTED = "Its password is kept elsewhere, or it has none.\n"
"""Stands before a private key. A PEM reader skips it; Spark hides an option whose value has the word in it, and would
print the key in every plan without it."""


@dataclass(frozen=True, slots=True)
class Servers:
    """A Kafka cluster.

        Servers("a:9092,b:9092", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", …})

    `security` has librdkafka's names. The mistake people make: a user name and a password without
    `security.protocol`. The clients then speak in clear text and send neither; so it is refused.
    """

    bootstrap: str | Sequence[str]
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work, and keep both in one form."""
        given = self.bootstrap.split(",") if isinstance(self.bootstrap, str) else list(self.bootstrap)
        object.__setattr__(self, "bootstrap", ",".join(_server(part) for part in given))
        if not self.bootstrap:
            raise BadConfig("no_servers", "No Kafka server is named.", next="Give servers='host:9092'.")
        object.__setattr__(self, "security", _checked(self.security))

    def for_writing(self) -> dict[str, str]:
        """Settings of confluent-kafka."""
        return {"bootstrap.servers": str(self.bootstrap), **self.security}

    def for_asking(self) -> dict[str, Any]:
        """Keyword arguments of kafka-python."""
        found: dict[str, Any] = {NAMES[name]: value for name, value in self.security.items()}
        if "ssl_check_hostname" in found:
            found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
        return {"bootstrap_servers": str(self.bootstrap).split(","), **found}

    def for_spark(self) -> dict[str, str]:
        """Options of Spark's source; certificates travel inside them, so no executor needs the files."""
        security = self.security
        found = {"bootstrap.servers": str(self.bootstrap)}
        if "security.protocol" in security:
            found["security.protocol"] = security["security.protocol"]
        if mechanism := security.get("sasl.mechanisms"):
            found["sasl.mechanism"] = mechanism
            found["sasl.jaas.config"] = _jaas(mechanism, security["sasl.username"], security["sasl.password"])
        if "ssl.ca.location" in security:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.certificates"] = _pem(security, "ssl.ca.location")
        if "ssl.key.location" in security:
            found["ssl.keystore.type"] = "PEM"
            found["ssl.keystore.certificate.chain"] = _pem(security, "ssl.certificate.location")
            found["ssl.keystore.key"] = REDACTED + _pkcs8(_pem(security, "ssl.key.location"), security)
        if "ssl.key.password" in security:
            found["ssl.key.password"] = security["ssl.key.password"]
        if checked := security.get("ssl.endpoint.identification.algorithm"):
            found["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
        return {f"kafka.{name}": value for name, value in found.items()}


def _server(text: Any) -> str:
    """One `host:port`; a listener's name before it and white space around it are the usual mistakes."""
    if not isinstance(text, str) or not text.strip():
        raise BadConfig("no_servers", "A Kafka server is empty.", next="Write servers='a:9092,b:9092'.")
    text = text.strip()
    found = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(\d{1,5})", text)
    if not found or not 0 < int(found[2]) < 65536:
        shown = "A server" if "@" in text else f"The server {text!r}"  # what stands before an @ may be a password
        raise BadConfig(
            "bad_server",
            f"{shown} is not of the form host:port.",
            next="Write servers='a:9092,b:9092'; the protocol belongs into security={'security.protocol': …}.",
        )
    return str(text)


def _checked(given: Mapping[str, Any]) -> dict[str, str]:
    """The settings, each under one name, with nothing missing and nothing left over."""
    found = dict(given)
    for name, value in found.items():
        if name not in NAMES and name != "sasl.mechanism":
            raise BadConfig(
                "unknown_security",
                f"security has no {name!r} that all of Kafka's clients understand.",
                next=f"Use librdkafka's names: {', '.join(NAMES)}.",
            )
        if not isinstance(value, str) or not value:
            raise BadConfig(
                "empty_security", f"{name} is empty, or no text.", next=f"Give security={{{name!r}: '…'}} a value."
            )
    mechanism = found.pop("sasl.mechanism", None)
    if mechanism and found.setdefault("sasl.mechanisms", mechanism) != mechanism:
        raise BadConfig(
            "two_mechanisms", "sasl.mechanism and sasl.mechanisms differ.", next="Keep one of the two; they are one."
        )
    found = {name: _known(name, value) for name, value in found.items()}
    protocol = found.get("security.protocol", "PLAINTEXT")
    for kind, word in (("sasl.", "SASL"), ("ssl.", "SSL")):
        idle = sorted(name for name in found if name.startswith(kind))
        if idle and word not in protocol:
            raise BadConfig(
                "security_not_used",
                f"{', '.join(idle)} would not be used with security.protocol {protocol}.",
                next=f"Add 'security.protocol': {' or '.join(p for p in PROTOCOLS if word in p)}.",
            )
    if "SASL" in protocol:
        _need(found, "sasl.mechanisms", "sasl.username", "sasl.password")
    if found.keys() & {"ssl.key.location", "ssl.certificate.location", "ssl.key.password"}:
        _need(found, "ssl.key.location", "ssl.certificate.location")
    return found


def _known(name: str, value: str) -> str:
    """Words of a fixed set, in the case that all clients take."""
    words = {
        "security.protocol": PROTOCOLS,
        "sasl.mechanisms": tuple(MODULES),
        "ssl.endpoint.identification.algorithm": ("https", "none"),
    }.get(name)
    if words is None:
        return value
    found = value.lower() if name.startswith("ssl") else value.upper()
    if found not in words:
        raise BadConfig("unknown_security", f"{name} has no {value!r}.", next=f"Use {' or '.join(words)}.")
    return found


def _need(found: Mapping[str, str], *names: str) -> None:
    for name in names:
        if name not in found:
            raise BadConfig("security_missing", f"{name} is missing.", next=f"Add security={{{name!r}: '…'}}.")


def _jaas(mechanism: str, username: str, password: str) -> str:
    """Java's log-in line. In its quoted strings a backslash begins an escape, and an end of line ends the string."""

    def quoted(text: str) -> str:
        escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
        return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'

    return f"{MODULES[mechanism]} required username={quoted(username)} password={quoted(password)};"


def _pem(security: Mapping[str, str], name: str) -> str:
    """The text of a PEM file; never quoted in an error."""
    path = security[name]
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadConfig(
            "unreadable_pem",
            f"The file of {name} cannot be read: {reason}.",
            where=Where(path=path),
            next="Give the path of a PEM file that this process may read.",
        ) from None
    if "-----BEGIN " not in text:
        raise BadConfig(
            "unreadable_pem",
            f"The file of {name} is not in PEM form.",
            where=Where(path=path),
            next="Convert it: openssl x509 (certificates), openssl pkcs8 -topk8 (keys).",
        )
    return text


def _pkcs8(text: str, security: Mapping[str, str]) -> str:
    """Java reads keys in one form only."""
    if not re.search(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", text):
        raise BadConfig(
            "key_not_pkcs8",
            "Java reads private keys in PKCS#8 form only, and this one has an older form.",
            where=Where(path=security["ssl.key.location"]),
            next="Convert it: openssl pkcs8 -topk8 -in old.pem -out key.pem (with -nocrypt if it has no password).",
        )
    return text


@contextmanager
def clients_needed() -> Iterator[None]:
    """Around an import of Kafka's clients, which are an extra."""
    try:
        yield
    except ImportError as error:
        raise BadConfig(
            "no_kafka_client", "The Kafka clients are not installed.", next="pip install 'fencepost[kafka]'"
        ) from error
