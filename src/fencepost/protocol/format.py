"""What our durable bytes say of themselves, and the one rule by which they are read. docs/FORMAT.md lists all of them.

    {"at":…,"body":{…},"fencepost":"0.1.0","format":1,…,"sum":"9f86…"}

    the sum does not match        damage, whatever else the bytes say
    a newer format than ours      refused before anything is written: upgrade
    an older one                  read; a field that it did not have yet gets its default
    a field too many or too few   damage

What only helps people (journal, heartbeat, registry, a wish to stop) is read as far as it is known, and never refused.
A field is never removed and never gets another meaning: it gets another name, and `since` says from which format on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

from fencepost.errors import CheckpointRefused, Refused

VERSION = "0.1.0"
"""Of fencepost; everything that we write says it, for people."""


class Damaged(ValueError):
    """Bytes that are not, or are no longer, exactly what was written."""


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """The format of one kind of durable thing, as this version writes it."""

    thing: str
    """For the sentence that refuses a newer one."""
    number: int

    @property
    def stamp(self) -> dict[str, Any]:
        """What is written beside the fields."""
        return {"format": self.number, "fencepost": VERSION}

    def check(self, number: object, writer: object, *, error: type[Refused] = CheckpointRefused) -> int:
        """The number, if we can read it; `Damaged` if it is not one. For bytes whose sum was checked before."""
        if type(number) is not int or number < 1:
            raise Damaged("its format number is missing or invalid")
        if number > self.number:
            raise error(
                "newer_format",
                f"{self.thing} was written by fencepost {writer} (format {number}); this is fencepost {VERSION} "
                f"(format {self.number}).",
                next=f"Upgrade to fencepost {writer} or later. To go back to this version, restore a savepoint that "
                "was made before the upgrade.",
                safe="Safe: nothing was changed.",
            )
        return number

    def check_stamp(self, plain: Mapping[str, Any], *, error: type[Refused] = CheckpointRefused) -> int:
        """The same, of what `stamp` wrote."""
        return self.check(plain.get("format"), plain.get("fencepost"), error=error)

    def encode(self, value: Any) -> bytes:
        """A dataclass as one line of JSON, with stamp and sum."""
        return seal({**plain_of(value), **self.stamp})

    def decode(self, cls: type[Any], data: bytes, *, error: type[Refused] = CheckpointRefused) -> Any:
        """Read it back; `Damaged`, or refused if it is newer."""
        plain = unseal(data)
        number = self.check_stamp(plain, error=error)
        return read(cls, {name: value for name, value in plain.items() if name not in self.stamp}, number)


# --- the sum: the last field, over all bytes before it, so that it is checked before anything is parsed

COMPACT = (b',"sum":"', b"}")
INDENTED = (b',\n "sum": "', b"\n}")
"""Before the sum and at the very end: of a line of JSON, and of text for people."""


def digest(data: bytes) -> str:
    """SHA-256, the only digest used for anything durable."""
    return hashlib.sha256(data).hexdigest()


def seal(plain: Mapping[str, Any], *, indented: bool = False) -> bytes:
    """Canonical bytes with their sum."""
    content = _canonical(plain, indented=indented)
    return _with_sum(content, digest(content).encode(), indented=indented)


def unseal(data: bytes, *, indented: bool = False) -> dict[str, Any]:
    """What was sealed, without the sum; `Damaged` unless every byte is as it was."""
    before, end = INDENTED if indented else COMPACT
    frame = len(before) + 64 + len(b'"') + len(end) + len(b"\n")
    content, sum_ = data[:-frame] + end, data[-frame + len(before) :][:64]
    if data != _with_sum(content, sum_, indented=indented):
        raise Damaged("it does not end with its checksum")
    if digest(content).encode() != sum_:
        raise Damaged("its checksum does not match its content")
    try:
        plain = json.loads(content)
    except ValueError as error:
        raise Damaged(f"it is not JSON ({type(error).__name__})") from error
    if not isinstance(plain, dict) or _canonical(plain, indented=indented) != content:
        raise Damaged("it is not in canonical form")
    return plain


def _with_sum(content: bytes, total: bytes, *, indented: bool) -> bytes:
    before, end = INDENTED if indented else COMPACT
    return content[: -len(end)] + before + total + b'"' + end + b"\n"


def _canonical(plain: Mapping[str, Any], *, indented: bool) -> bytes:
    return (_INDENTED if indented else _COMPACT).encode(plain).encode()


_COMPACT = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
_INDENTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False, indent=1)


# --- the fields


def since(number: int, **default: Any) -> Any:
    """A field of a dataclass that came with a later format; what is older is read with its default."""
    return field(metadata={"since": number}, **default)


def names_of(cls: type[Any], number: int) -> frozenset[str]:
    """The fields that a thing of this format has."""
    if (cls, number) not in _names:
        _names[cls, number] = frozenset(one.name for one in fields(cls) if _since(one) <= number)
    return _names[cls, number]


_names: dict[tuple[type[Any], int], frozenset[str]] = {}
"""Remembered: every record asks."""


def _since(one: Field[Any]) -> int:
    number: int = one.metadata.get("since", 1)
    assert number == 1 or one.default is not MISSING or one.default_factory is not MISSING, "a later field: a default"
    return number


def read(cls: type[Any], plain: Mapping[str, Any], number: int) -> Any:
    """A dataclass from exactly the fields that it has in this format."""
    if plain.keys() != names_of(cls, number):
        raise Damaged(f"its fields are not those of format {number}")
    return cls(**plain)


def known(cls: type[Any], plain: Mapping[str, Any]) -> Any:
    """A dataclass from what only helps people: what we do not know of it is left out."""
    return cls(**{name: plain[name] for name in names_of(cls, 1 << 30) if name in plain})


def plain_of(value: Any, number: int = 1 << 30) -> Any:
    """For JSON, with the fields of this format; by default those of the newest."""
    if is_dataclass(value):
        return {name: plain_of(getattr(value, name), number) for name in names_of(type(value), number)}
    if isinstance(value, Mapping):
        return {key: plain_of(item, number) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_of(item, number) for item in value]
    return value
