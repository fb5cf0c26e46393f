"""A request to stop or cancel a job, left for its driver: `fencepost/request.json`.

A file needs no signal, works from any machine that can write the folder, and cannot hit the wrong driver: it names the
writer that it is meant for, and later writers ignore it. A remote store is polled every five seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Final, Literal

from fencepost.observe.journal import newest_writer
from fencepost.protocol.format import StoredFormat
from fencepost.store import RemotePath, place, store_at
from fencepost.store.retry import Aside

Wish = Literal["stop", "cancel"]

NAME: Final = "fencepost/request.json"
REQUEST: Final = StoredFormat("The request", 1)
"""One of a newer fencepost is carried out if its word is known."""
EVERY_S: Final = 5.0
"""How often a remote store is polled: each look is a request that costs money."""
WAIT_S: Final = 2.0
"""How long a driver, which has other things to do, waits for a remote store to answer."""


def leave(checkpoint: str | os.PathLike[str] | RemotePath, wish: Wish, writer: int) -> None:
    """Ask the driver with this number."""
    text = json.dumps({"wish": wish, "writer": writer, **REQUEST.stamp})
    where = place(checkpoint)
    if isinstance(where, RemotePath):
        store_at(where).replace(NAME, text.encode())
        _LOOKS.forget(where)
        return
    path = where / NAME
    temp = path.with_suffix(f".{os.getpid()}.tmp")
    temp.write_text(text)
    temp.replace(path)


def find(checkpoint: str | os.PathLike[str] | RemotePath, writer: int) -> Wish | None:
    """What this driver is asked to do."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if (data := _read(checkpoint)) is not None:
            left = json.loads(data)
            wish: Wish = left["wish"]
            return wish if left["writer"] == writer and wish in ("stop", "cancel") else None
    return None


def find_between(checkpoint: str | os.PathLike[str] | RemotePath) -> Wish | None:
    """Between two drivers: what the last one was asked to do."""
    with contextlib.suppress(OSError):
        last = newest_writer(checkpoint) if _read(checkpoint) is not None else None
        return None if last is None else find(checkpoint, last)
    return None


def take_back(checkpoint: str | os.PathLike[str] | RemotePath, writer: int) -> None:
    """Remove a request that was carried out."""
    if find(checkpoint, writer) is not None:
        clear(checkpoint)


def clear(checkpoint: str | os.PathLike[str] | RemotePath) -> None:
    """Somebody starts the job: requests to earlier drivers no longer count."""
    where = place(checkpoint)
    if isinstance(where, RemotePath):
        _LOOKS.clear(where)
        return
    with contextlib.suppress(OSError):
        (where / NAME).unlink(missing_ok=True)


def _read(checkpoint: str | os.PathLike[str] | RemotePath) -> bytes | None:
    where = place(checkpoint)
    if isinstance(where, RemotePath):
        return _LOOKS.read(where)
    return (where / NAME).read_bytes() if (where / NAME).exists() else None


class _Looks:
    """What remote stores last answered."""

    def __init__(self) -> None:
        self._aside = Aside("requests")
        self._change = threading.Lock()
        self._known: dict[str, tuple[float, bytes | None]] = {}

    def read(self, checkpoint: RemotePath) -> bytes | None:
        """The request, as of at most a few seconds ago; None while the store does not answer."""
        with self._change:
            looked, data = self._known.get(checkpoint.url, (float("-inf"), None))
            if time.monotonic() - looked < EVERY_S:
                return data
            found = self._aside.ask(lambda: store_at(checkpoint).read(NAME), WAIT_S)
            self._known[checkpoint.url] = time.monotonic(), found
            return found

    def clear(self, checkpoint: RemotePath) -> None:
        """Remove the request."""
        self._aside.ask(lambda: store_at(checkpoint).delete(NAME), WAIT_S, after=True)
        self.forget(checkpoint)

    def forget(self, checkpoint: RemotePath) -> None:
        """There is a new request: look again."""
        with self._change:
            self._known.pop(checkpoint.url, None)


_LOOKS = _Looks()
"""Of this process."""
