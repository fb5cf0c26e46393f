"""A disk whose power can be cut: ext4 on a loop image, and the kernel's own shutdown call.

    make ─► mount ─► cut (whatever was not synced is gone) ─► mount again (the journal is replayed) ─► … ─► removed

Mounted so that nothing is saved by luck: no journal commit every five seconds, no flush of a file that is renamed over
another. It does not tear sectors and does not reorder what was synced. Never leaves a mount behind, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SIZE = 1 << 30
OPTIONS = "loop,commit=300,noauto_da_alloc"
SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
"""The number of EXT4_IOC_SHUTDOWN."""
DROP_THE_LOG = struct.pack("I", 2)
"""Go down without a last flush of the journal."""
PATIENCE_S = 10


class DiskFailed(Exception):
    """The kernel refused something, or somebody still uses the disk."""


class Disk:
    """One disk, mounted while the block runs."""

    def __init__(self, image: Path, place: Path) -> None:
        self._image = image
        self.place = place

    def __enter__(self) -> Self:
        """Make it, empty."""
        self._image.parent.mkdir(parents=True, exist_ok=True)
        self.place.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(self._image))
        self._mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, whoever still has a file of it open: the mount goes now, the loop device with its last user."""
        if os.path.ismount(self.place):
            try:
                self._unmount()
            except DiskFailed:
                _run("umount", "--lazy", str(self.place))
        self._image.unlink(missing_ok=True)

    def cut(self) -> None:
        """Cut the power. From here on every call on it fails, and what was not synced is lost."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, DROP_THE_LOG)
        except OSError as error:
            raise DiskFailed(f"the kernel cannot cut an ext4 disk: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def remount(self) -> None:
        """Power comes back. Everybody who had a file of it open must have let go."""
        self._unmount()
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", OPTIONS, str(self._image), str(self.place))

    def _unmount(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                _run("umount", str(self.place))
            except DiskFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return


def why_not() -> str | None:
    """What this machine lacks for it, found by trying; None if nothing."""
    if os.geteuid() != 0:
        return "only root may mount a disk"
    for program in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(program) is None:
            return f"there is no {program} on the PATH (Debian: e2fsprogs and mount)"
    try:
        with tempfile.TemporaryDirectory() as folder, Disk(Path(folder) / "image", Path(folder) / "disk") as disk:
            (disk.place / "unsynced").write_text("gone")
            disk.cut()
            disk.remount()
            return "a cut loses nothing here" if (disk.place / "unsynced").exists() else None
    except DiskFailed as error:
        return str(error)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise DiskFailed(f"{command[0]}: {' '.join(done.stderr.split()) or done.returncode}")
