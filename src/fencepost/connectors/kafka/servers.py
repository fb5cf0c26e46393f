"""Where a Kafka cluster is and how to log in: given once, and translated for three clients.

Spark's Java client reads, librdkafka writes, kafka-python ends transactions; each has its own names for the same
settings. A secret never gets into a text that this module writes for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost import credential
from fencepost.errors import BadConfig, Where

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""The mechanisms that all three clients support, and Java's class for each."""

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
"""librdkafka's name, which users write, and kafka-python's name."""

REDACTED = "Its password is kept elsewhere, or it has none.\n"
"""Put before a private key. PEM readers skip it, and because it contains the word "password", Spark redacts the option;
without it, Spark would print the key in every plan."""


@dataclass(frozen=True, slots=True)
class Servers:
    """A Kafka cluster.

        Servers("a:9092,b:9092", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", …})

    `security` uses librdkafka's names. A user name and password without `security.protocol` are refused: the clients
    would connect in plain text and send neither.
    """

    bootstrap: str | Sequence[str]
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work, and normalize the rest."""
        given = self.bootstrap.split(",") if isinstance(self.bootstrap, str) else list(self.bootstrap)
        object.__setattr__(self, "bootstrap", ",".join(_server(part) for part in given))
        if not self.bootstrap:
            raise BadConfig("no_servers", "No Kafka server is given.", next="Write servers='host:9092'.")
        object.__setattr__(self, "security", _checked(self.security))

    def login(self) -> dict[str, str]:
        """The settings of a login, with secrets in place of references to them; read at every call."""
        return {name: credential.resolve(value, f"security[{name!r}]") for name, value in self.security.items()}

    def for_writing(self) -> dict[str, str]:
        """Settings for confluent-kafka."""
        return {"bootstrap.servers": str(self.bootstrap), **self.login()}

    def for_asking(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python."""
        found: dict[str, Any] = {NAMES[name]: value for name, value in self.login().items()}
        if "ssl_check_hostname" in found:
            found["ssl_check_hostname"] = found["ssl_check_hostname"] != "none"
        return {"bootstrap_servers": str(self.bootstrap).split(","), **found}

    def for_spark(self) -> dict[str, str]:
        """Options for Spark's source; they contain the certificates, so executors do not need the files."""
        security = self.login()
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
    """One `host:port`; the usual mistakes are a protocol before it and white space around it."""
    if not isinstance(text, str) or not text.strip():
        raise BadConfig(
            "no_servers", "An entry in the list of Kafka servers is empty.", next="Write servers='a:9092,b:9092'."
        )
    text = text.strip()
    found = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(\d{1,5})", text)
    if not found or not 0 < int(found[2]) < 65536:
        shown = "A server" if "@" in text else f"The server {text!r}"  # what is before an @ may be a password
        raise BadConfig(
            "bad_server",
            f"{shown} is not of the form host:port.",
            next="Write servers='a:9092,b:9092'; the protocol belongs in security={'security.protocol': …}.",
        )
    return str(text)


def _checked(given: Mapping[str, Any]) -> dict[str, str]:
    """The settings, each under its one name; refused if one is missing, unknown or unused."""
    found = dict(given)
    for name, value in found.items():
        if name not in NAMES and name != "sasl.mechanism":
            raise BadConfig(
                "unknown_security",
                f"Security setting {name!r} is not supported: not all of our Kafka clients understand it.",
                next=f"Use librdkafka's setting names: {', '.join(NAMES)}.",
            )
        if not isinstance(value, str) or not value:
            raise BadConfig(
                "empty_security",
                f"Security setting {name!r} is empty, or not a string.",
                next=f"Set it: security={{{name!r}: '…'}}.",
            )
    mechanism = found.pop("sasl.mechanism", None)
    if mechanism and found.setdefault("sasl.mechanisms", mechanism) != mechanism:
        raise BadConfig(
            "two_mechanisms",
            "sasl.mechanism and sasl.mechanisms differ.",
            next="Keep one of them; they are two names for the same setting.",
        )
    found = {name: _known(name, value) for name, value in found.items()}
    protocol = found.get("security.protocol", "PLAINTEXT")
    for kind, word in (("sasl.", "SASL"), ("ssl.", "SSL")):
        idle = sorted(name for name in found if name.startswith(kind))
        if idle and word not in protocol:
            raise BadConfig(
                "security_not_used",
                f"{', '.join(idle)} would be ignored with security.protocol {protocol}.",
                next=f"Set 'security.protocol' to {' or '.join(p for p in PROTOCOLS if word in p)}.",
            )
    if "SASL" in protocol:
        _need(found, "sasl.mechanisms", "sasl.username", "sasl.password")
    if found.keys() & {"ssl.key.location", "ssl.certificate.location", "ssl.key.password"}:
        _need(found, "ssl.key.location", "ssl.certificate.location")
    return found


def _known(name: str, value: str) -> str:
    """Normalize a value from a fixed set to the case that all clients accept."""
    words = {
        "security.protocol": PROTOCOLS,
        "sasl.mechanisms": tuple(MODULES),
        "ssl.endpoint.identification.algorithm": ("https", "none"),
    }.get(name)
    if words is None:
        return value
    found = value.lower() if name.startswith("ssl") else value.upper()
    if found not in words:
        raise BadConfig("unknown_security", f"{value!r} is not a valid {name}.", next=f"Use {' or '.join(words)}.")
    return found


def _need(found: Mapping[str, str], *names: str) -> None:
    for name in names:
        if name not in found:
            raise BadConfig(
                "security_missing", f"Security setting {name!r} is missing.", next=f"Add security={{{name!r}: '…'}}."
            )


def _jaas(mechanism: str, username: str, password: str) -> str:
    """Java's login line. In its quoted strings a backslash starts an escape, and a newline ends the string."""

    def quoted(text: str) -> str:
        escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
        return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'

    return f"{MODULES[mechanism]} required username={quoted(username)} password={quoted(password)};"


def _pem(security: Mapping[str, str], name: str) -> str:
    """The text of a PEM file; never quoted in an error."""
    path = security[name]
    wanted = "Give the path of a PEM file that this process can read."
    text = _text("unreadable_pem", Path(path), f"Cannot read the file in {name}", wanted)
    if "-----BEGIN " not in text:
        raise BadConfig(
            "unreadable_pem",
            f"The file in {name} is not in PEM format.",
            where=Where(path=path),
            next="Convert it: openssl x509 (certificates), openssl pkcs8 -topk8 (keys).",
        )
    return text


def _text(code: str, path: Path, what: str, wanted: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadConfig(code, f"{what}: {reason}.", where=Where(path=str(path)), next=wanted) from None


def _pkcs8(text: str, security: Mapping[str, str]) -> str:
    """Java reads keys in one format only."""
    if not re.search(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", text):
        raise BadConfig(
            "key_not_pkcs8",
            "The private key is not in PKCS#8 format, the only one that Java reads.",
            where=Where(path=security["ssl.key.location"]),
            next="Convert it: openssl pkcs8 -topk8 -in old.pem -out key.pem (with -nocrypt if it has no password).",
        )
    return text


def servers_of(servers: str | None, path: Path | None) -> Servers | None:
    """The cluster that an option and a client's properties file describe together; None if neither names one."""
    found = _properties(path) if path else {}
    named = servers or found.get("bootstrap.servers") or found.get("metadata.broker.list")
    if not named:
        return None
    security = {name: value for name, value in found.items() if name.startswith(("security.", "sasl.", "ssl."))}
    return Servers(named, _logged_in(security, path))


def _properties(path: Path) -> dict[str, str]:
    """One `key=value` per line, as Kafka's own tools read it; # and ! start a comment, a backslash joins lines.

    No error quotes a value: half of them are secrets.
    """
    wanted = "Give the path of a text file with key=value lines."
    text = _text("unreadable_config", path, "Cannot read the properties file", wanted)
    found = {}
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    for number, line in enumerate(joined.splitlines(), 1):
        bare = line.strip()
        if not bare or bare[0] in "#!":
            continue
        name, equals, value = bare.partition("=")
        if not equals or not re.fullmatch(r"[\w.-]+", name.strip()):
            raise BadConfig(
                "bad_config_line",
                f"Entry {number} of the properties file is not of the form key=value.",
                where=Where(path=str(path)),
                next="Write one setting per line; # starts a comment.",
            )
        found[name.strip()] = value.strip()
    return found


def _logged_in(security: dict[str, str], path: Path | None) -> dict[str, str]:
    """Java puts user and password into one setting."""
    jaas = security.pop("sasl.jaas.config", None)
    if jaas is None:
        return security
    found = {name: _unquoted(jaas, name) for name in ("username", "password")}
    if not all(found.values()) or "LoginModule" not in jaas:
        raise BadConfig(
            "unknown_jaas",
            'sasl.jaas.config is not of the form `…LoginModule required username="…" password="…";`.',
            where=Where(path=str(path)),
            next="Write sasl.username=… and sasl.password=… instead.",
        )
    return {f"sasl.{name}": value for name, value in found.items() if value} | security


def _unquoted(jaas: str, name: str) -> str | None:
    found = re.search(rf'\b{name}="((?:[^"\\]|\\.)*)"', jaas)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else None
