"""A line on a terminal that is written over again and again, and how far a long command is.

    Copying: 120 of 512 files, 23%, 4 s
    Downloading org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0: 12 s

On stderr: stdout is for results. No colours. Never raises and never waits for the command: a terminal that is gone is
silence, and in a pipe there is no such line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self, TextIO, TypeAlias

EVERY_S: Final = 0.2
"""Between two looks at how far it is; what takes less is not shown."""
PATIENCE_S: Final = 1.0
"""For a terminal that takes no more text (Ctrl-S): the command goes on."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""How a long command says what it is doing, how many files are done, and of how many; 0 if nobody knows."""


def nobody(what: str, done: int, total: int) -> None:
    """Where nobody wants to know."""


class LiveLine:
    """One line that moves, if `out` is a terminal; and lines that stay."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._is_shown = False
        self.is_live = False
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            self.is_live = self._out.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, text: str) -> None:
        """Write over the line."""
        if self.is_live:
            self._write(f"\r\x1b[K{text[: self._width]}")
            self._is_shown = True

    def say(self, text: str) -> None:
        """One line that stays; over the line of another process (a driver, its standby) too, which draws it again."""
        self._is_shown = False
        self._write(("\r\x1b[K" if self.is_live else "") + f"fencepost: {text}\n")

    def clear(self) -> None:
        """Leave nothing of the line behind."""
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    @property
    def _width(self) -> int | None:
        """A line that wraps could not be written over."""
        try:
            columns = os.get_terminal_size(self._out.fileno()).columns
        except (OSError, ValueError, AttributeError):
            return None
        return columns - 1 if columns else None

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError, AttributeError):
            self.is_live = False


class ProgressLine:
    """Shows how far a command is while a `with` block lasts. It is a `Tell`: call it from any thread."""

    def __init__(self, out: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._line = LiveLine(out)
        self._is_shown = self._line.is_live and not is_silent
        self._text = ""
        self._what = ""
        self._since = 0.0
        self._is_over = Event()
        self._thread: Thread | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note it; a thread of our own shows it, so that what waits for an answer moves too."""
        if not self._is_shown or self._is_over.is_set():
            return
        if what != self._what:
            self._what, self._since = what, time.monotonic()
        self._text = f"{what}: {done:,} of {total:,} files, {100 * done // total}%, " if total else f"{what}: "
        if self._thread is None:
            self._thread = Thread(target=self._draw, name="fencepost progress", daemon=True)
            self._thread.start()

    def _draw(self) -> None:
        while not self._is_over.wait(EVERY_S):
            self._line.show(f"{self._text}{time.monotonic() - self._since:.0f} s")
        self._line.clear()

    def __enter__(self) -> Self:
        """Nothing is shown before the first call."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The line is gone before anything else is printed."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
