"""The program whose file operations are recorded: the stand-in job, killed in its second epoch, and its recovery.

    python -m fencepost_proof.power.recorder FOLDER TARGET … [--without file | --without folder]

`--without` is a sabotaged twin: a ledger that does not sync its files, or not its folders.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fencepost import faults
from fencepost.store import local
from fencepost_proof.checkers import exactly
from fencepost_proof.stand_in import StandIn
from fencepost_proof.targets import TARGETS

NUMBERS = (1, 3, 5, 7, 9, 11)
PER_EPOCH = 2
CRASH = "commit.before=kill@{}"


class _OnlyFolders:
    """`os` as the sabotaged ledger sees it."""

    @staticmethod
    def fsync(descriptor: int) -> None:
        """Of a folder only."""
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def job(folder: Path, targets: Sequence[str]) -> StandIn:
    """Made anew for every start, as a new process would."""
    sinks = [TARGETS[name].sink(folder) for name in targets]
    return StandIn(
        checkpoint=folder / "checkpoint",
        numbers=NUMBERS,
        per_epoch=PER_EPOCH,
        sinks={sink.name: sink for sink in sinks},
        keep=2,
    )


def is_exact(folder: Path, targets: Sequence[str]) -> bool:
    """Every record once in every target, as its readers see it."""
    wanted = exactly.expected(list(NUMBERS))
    seen = (exactly.seen(TARGETS[name].place(folder)) for name in targets)
    return all(not any(exactly.compare(wanted, found).values()) for found in seen)


def start(folder: Path, targets: Sequence[str], fault: str) -> int:
    """Run the job in a child; its exit code, or minus the signal that killed it."""
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            faults.arm({faults.ARM: fault})
            job(folder, targets).run()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="A job whose file operations are recorded.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="+", choices=sorted(TARGETS))
    parser.add_argument("--without", choices=["file", "folder"])
    chosen = parser.parse_args(arguments)
    if chosen.without == "folder":
        vars(local)["sync_folder"] = lambda _: None
    elif chosen.without == "file":
        vars(local)["os"] = _OnlyFolders()
    second = CRASH.format(len(chosen.targets) + 1)
    ended = (start(chosen.folder, chosen.targets, second), start(chosen.folder, chosen.targets, ""))
    return 0 if ended == (-signal.SIGKILL, 0) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
