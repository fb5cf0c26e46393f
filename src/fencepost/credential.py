"""Secrets by reference: `env:NAME` or `file:/path` wherever a setting is, or contains, a password.

    fp.Postgres("orders", dsn="env:PG_DSN")                 the environment of the driver
    fp.Redis("file:/run/secrets/redis", key="customer")     a file on the driver's machine, without its last line break

Read when it is used, again at every start; tasks get what the driver read. Never shown: `repr` shows the reference, or
stars instead of a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fencepost.errors import BadConfig

ENVIRONMENT = "env:"
FILE = "file:"


class Secret(str):
    """A string whose `repr` hides it, unless it is a reference."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__repr__(self) if is_reference(self) else "'***'"


def is_reference(text: object) -> bool:
    """Does it say where the secret is, rather than being the secret itself?"""
    return isinstance(text, str) and text.startswith((ENVIRONMENT, FILE))


def hide(sink: object, *names: str) -> None:
    """Hide settings of a frozen dataclass from its `repr`: strings, and mappings of strings."""
    for name in names:
        value = getattr(sink, name)
        if isinstance(value, str):
            object.__setattr__(sink, name, Secret(value))
        elif isinstance(value, Mapping):
            hidden = {key: Secret(one) if isinstance(one, str) else one for key, one in value.items()}
            object.__setattr__(sink, name, hidden)


def resolve(text: str, argument: str) -> str:
    """The secret itself; `argument` names the setting in an error."""
    if text.startswith(ENVIRONMENT):
        return _of_environment(text.removeprefix(ENVIRONMENT), argument)
    if text.startswith(FILE):
        return _of_file(text.removeprefix(FILE), argument)
    return str(text)


def _of_environment(name: str, argument: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise BadConfig(
            "secret_missing",
            f"Cannot read {argument} from the environment variable {name!r}: it is not set, or empty.",
            next="Set it where the driver is started, or refer to another place: env:NAME or file:/path.",
        )
    return found


def _of_file(path: str, argument: str) -> str:
    try:
        found = Path(path).read_text().rstrip("\r\n")
        why = "it is empty"
    except (OSError, ValueError) as error:  # ValueError: not text, or not a path
        found, why = "", getattr(error, "strerror", None) or "it is not a text file"
    if not found:
        raise BadConfig(
            "secret_missing",
            f"Cannot read {argument} from the file {path!r}: {why}.",
            next="Check that the driver's user can read it, or refer to another place: env:NAME or file:/path.",
        )
    return found
