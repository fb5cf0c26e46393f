"""A pseudo terminal, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

OVER = "\r\x1b[K"
"""Back to the start of the line, and nothing is left of it."""


class Screen:
    """The other end of a pseudo terminal: what a person would have seen so far."""

    PATIENCE_S = 180

    def __init__(self, reader: int, out: TextIO) -> None:
        self.out = out
        self.text = ""
        self._reader = reader

    def until(self, words: str) -> str:
        """Read until this was written."""
        while words not in self.text:
            ready, _, _ = select.select([self._reader], [], [], self.PATIENCE_S)
            assert ready, f"{words!r} was never written"
            self.text += os.read(self._reader, 4096).decode()
        return self.text


@contextmanager
def screen(columns: int = 0) -> Iterator[Screen]:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        with open(writer, "w", encoding="utf-8", closefd=False) as out:
            yield Screen(reader, out)
    finally:
        for end in (reader, writer):
            os.close(end)
