"""Records docs/run.svg from a real run: `python job.py` until Ctrl-C, then `fencepost run` whose driver is killed.

    python docs/recording.py

A line that moves is drawn as it last was, above the summary that took its place; all else is as the terminal had it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fencepost.observe.heartbeat import beats

WIDTH = 110
PATIENCE_S = 300
JOB = """\
import fencepost as fp

job = fp.Job("orders", checkpoint="checkpoints/orders")
lines = job.read(fp.Files("in", format="text", max_files_per_epoch=1))
job.write(lines, fp.SQLite("orders.db", table="orders"))

if __name__ == "__main__":
    job.run()
"""
OVER = "\r\x1b[K"
"""Before what is written over a line."""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        self.command = command
        self.read = b""
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
        environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        name, *arguments = command.split()
        self.process = subprocess.Popen(
            [sys.executable, *(["-m", "fencepost"] if name == "fencepost" else []), *arguments],
            cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C is for who owns it
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        """As a person would."""
        os.write(self._mine, keys)

    def until(self, true: Callable[[], object]) -> None:
        """Read on until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(self.text)
            self._look(0.05)
        while self._look(0):
            pass

    def _look(self, patience_s: float) -> bool:
        try:
            found = os.read(self._mine, 65536) if select.select([self._mine], [], [], patience_s)[0] else b""
        except OSError:  # the other side is closed
            return False
        self.read += found
        return bool(found)

    @property
    def text(self) -> str:
        """What it showed."""
        text = self.read.decode(errors="replace").replace("\r\n", "\n").rstrip()
        return "\n".join(shown for line in text.split("\n") for shown in _last(line.split(OVER)))


def _last(versions: list[str]) -> list[str]:
    """A line that was written over: what is there in the end, and before a summary how the line last was."""
    return [
        text for text in (versions[-2:] if " rows out (" in versions[-1] else versions[-1:]) if text or not versions[1:]
    ]


def main() -> None:
    """Run, kill, look, stop; draw."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-recording-"))
    os.environ["FENCEPOST_HOME"] = str(folder / "home")
    (folder / "in").mkdir()
    (folder / "job.py").write_text(JOB)
    for number in range(6):
        (folder / "in" / f"{number}.txt").write_text(f"order {number}\n")
    script = Terminal(folder, "python job.py")
    script.until(lambda: "epoch 5 · 6 records in" in script.text)
    script.type(b"\x03")  # Ctrl-C
    script.until(lambda: script.process.poll() is not None)
    run = Terminal(folder, "fencepost run job.py --standby")
    (folder / "in" / "6.txt").write_text("order 6\n")
    checkpoint = folder / "checkpoints" / "orders"
    run.until(lambda: "is warm" in run.text)
    run.until(lambda: any(beat.lives and beat.epoch == 6 for beat in beats(checkpoint)))
    os.kill(next(beat.pid for beat in beats(checkpoint) if beat.lives), signal.SIGKILL)
    (folder / "in" / "9.txt").write_text("order 9\n")
    run.until(lambda: any(beat.lives and beat.epoch == 7 for beat in beats(checkpoint)))
    run.until(lambda: run.text.count("is warm") == 2)
    status = Terminal(folder, "fencepost status orders")
    status.until(lambda: status.process.poll() is not None)
    stop = Terminal(folder, "fencepost stop orders")
    stop.until(lambda: stop.process.poll() is not None)
    run.until(lambda: run.process.poll() is not None)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for terminal in (script, run, status, stop):
        console.print(Text(f"$ {terminal.command}", style="bold"))
        console.print(Text.from_ansi(terminal.text))
        console.print()
    drawn = console.export_svg(
        title="python job.py, Ctrl-C; fencepost run --standby, kill -9 of the driver; fencepost status"
    )
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # whoever looks at it has a font
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    Path(__file__).with_name("run.svg").write_text(drawn)


if __name__ == "__main__":
    main()
