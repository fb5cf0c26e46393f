"""A client's properties file as the arguments of `Servers`. Never quotes a value: half of them are secrets."""

from __future__ import annotations

import re
from pathlib import Path

from fencepost.errors import BadConfig, Where
from fencepost.kafka_servers import Servers


def servers_of(servers: str | None, path: Path | None) -> Servers | None:
    """The cluster that options and file name together; None if neither names one."""
    found = read(path) if path else {}
    named = servers or found.get("bootstrap.servers") or found.get("metadata.broker.list")
    if not named:
        return None
    security = {name: value for name, value in found.items() if name.startswith(("security.", "sasl.", "ssl."))}
    return Servers(named, _logged_in(security, path))


def read(path: Path) -> dict[str, str]:
    """`key=value` a line, as tools for Kafka take it; # and ! begin a comment, a backslash joins lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadConfig(
            "unreadable_config",
            f"The properties file cannot be read: {reason}.",
            where=Where(path=str(path)),
            next="Give the path of a text file with lines of the form key=value.",
        ) from None
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
                next="Write one setting a line; # begins a comment.",
            )
        found[name.strip()] = value.strip()
    return found


def _logged_in(security: dict[str, str], path: Path | None) -> dict[str, str]:
    """Java keeps user and password in one setting of their own."""
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
