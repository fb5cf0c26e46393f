"""The next fencepost, planted into this one: what it writes is newer to us, and what we wrote is older to it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.connectors.files import layout
from fencepost.connectors.files import session as files_session
from fencepost.connectors.table import mark
from fencepost.protocol import order, records
from fencepost.protocol.format import StoredFormat, since
from fencepost.protocol.records import Writer
from fencepost.runtime import driver
from fencepost.store import savepoints


@dataclass(frozen=True, slots=True)
class LaterWriter(Writer):
    """With one field more."""

    zone: str = since(2, default="nowhere")


@contextmanager
def next_format() -> Iterator[None]:
    """While the block runs, this is the fencepost after ours."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (records, "LEDGER"),
            (savepoints, "SAVEPOINT"),
            (mark, "MARK"),
            (layout, "MANIFEST"),
            (layout, "OWNED"),
        ):
            later = later_than(getattr(module, name))
            patch.setattr(module, name, later)
            if module is layout:
                patch.setattr(files_session, name, later)
        patch.setitem(records.KINDS, "writer", LaterWriter)  # type: ignore[arg-type]
        patch.setitem(records.KIND_OF, LaterWriter, "writer")  # type: ignore[arg-type]
        patch.setitem(order.ORDER, LaterWriter, order.ORDER[Writer])  # type: ignore[arg-type]
        patch.setattr(driver, "Writer", LaterWriter)
        yield


def later_than(form: StoredFormat) -> StoredFormat:
    """The next format of the same thing."""
    return StoredFormat(form.thing, form.number + 1)


@contextmanager
def versions_ignored() -> Iterator[None]:
    """A sabotaged twin: a reader that takes every format for its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredFormat, "check", lambda self, number, writer, **_: self.number)
        yield


def listing(*roots: Path) -> dict[str, str]:
    """Every file and folder with its sum."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for root in roots
        for path in sorted(root.rglob("*"))
    }
