"""Records docs/run.svg from a real run: a job under `fencepost run --standby` is killed with SIGKILL, then looked at.

    python docs/recording.py

Lines of Spark's own log are left out of the picture; all else is as the terminal had it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fencepost.observe.pulse import beats

WIDTH = 110
PATIENCE_S = 120
JOB = """\
import fencepost as fp

job = fp.Job("orders", checkpoint="checkpoints/orders")
lines = job.read(fp.Files("in", format="text", max_files_per_epoch=1))
job.write(lines, fp.SQLite("orders.db", table="orders"))

if __name__ == "__main__":
    job.run()
"""
SPARKS = re.compile(r"WARN |^WARNING: |^Using Spark's|^Setting default log level|^To adjust logging level")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.command = "fencepost " + " ".join(arguments)
        self.read = b""
        self._mine, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", *arguments],
            cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)

    def until(self, true: Callable[[], object]) -> None:
        """Read on until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(self.text)
            if select.select([self._mine], [], [], 0.05)[0]:
                try:
                    self.read += os.read(self._mine, 65536)
                except OSError:  # the other side is closed
                    return

    @property
    def text(self) -> str:
        """What it showed."""
        lines = self.read.decode().replace("\r", "").splitlines()
        return "\n".join(line for line in lines if not SPARKS.search(line))


def main() -> None:
    """Run, kill, look, stop; draw."""
    folder = Path(tempfile.mkdtemp(prefix="fencepost-recording-"))
    os.environ["FENCEPOST_HOME"] = str(folder / "home")
    (folder / "in").mkdir()
    (folder / "job.py").write_text(JOB)
    run = Terminal(folder, "run", "job.py", "--standby")
    for number in range(6):
        (folder / "in" / f"{number}.txt").write_text(f"order {number}\n")
    run.until(lambda: "is warm" in run.text)
    checkpoint = folder / "checkpoints" / "orders"
    os.kill(next(beat.pid for beat in beats(checkpoint) if beat.lives), signal.SIGKILL)
    (folder / "in" / "9.txt").write_text("order 9\n")
    run.until(lambda: any(beat.lives and beat.epoch == 6 for beat in beats(checkpoint)))
    run.until(lambda: run.text.count("is warm") == 2)
    status = Terminal(folder, "status", "orders")
    status.until(lambda: status.process.poll() is not None)
    stop = Terminal(folder, "stop", "orders")
    stop.until(lambda: stop.process.poll() is not None)
    run.until(lambda: run.process.poll() is not None)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for terminal in (run, status, stop):
        console.print(Text(f"$ {terminal.command}", style="bold"))
        console.print(Text.from_ansi(terminal.text))
        console.print()
    drawn = console.export_svg(title="fencepost run --standby; kill -9 of the driver; fencepost status")
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # whoever looks at it has a font
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    Path(__file__).with_name("run.svg").write_text(drawn)


if __name__ == "__main__":
    main()
