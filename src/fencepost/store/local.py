"""A checkpoint on the local disk.

    temp file ─► fsync ─► link (fails if the name is taken) ─► fsync directory ─► unlink temp

Never renames over a ledger record: `rename` overwrites, `link` does not.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from fencepost import faults
from fencepost.store.base import STALE_S, Store, temp_beside


class LocalStore(Store):
    """Files under a local folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self.root = str(self._root)

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        temp = self._write_temp(path, data)
        try:
            faults.reach("store.temp_written")
            try:
                os.link(temp, path)
            except FileExistsError:
                return False
            faults.reach("store.linked")
            sync_folder(path.parent)
        finally:
            temp.unlink(missing_ok=True)
        return True

    def replace(self, name: str, data: bytes) -> None:
        path = self._root / name
        temp = self._write_temp(path, data)
        faults.reach("store.before_rename")
        temp.rename(path)
        sync_folder(path.parent)

    def read(self, name: str) -> bytes | None:
        try:
            with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # a ledger is read record by record
                return file.read()
        except FileNotFoundError:
            return None

    def stamp(self, name: str) -> str | None:
        """Inode and modification time: an inode number may be reused, but not at the same nanosecond."""
        try:
            found = (self._root / name).stat()
        except FileNotFoundError:
            return None
        return f"{found.st_ino}-{found.st_mtime_ns}"

    def list(self, folder: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self._root / folder)))
        except (FileNotFoundError, NotADirectoryError):  # the journal, beside the ledgers, is a file
            return ()

    def delete(self, name: str) -> None:
        path = self._root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def unlink(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def sweep(self, folder: str) -> None:
        """By age, because a live driver may be about to link its own."""
        for temp in (self._root / folder).glob(".*.tmp"):
            with suppress(FileNotFoundError):  # an old driver that just woke up may remove its own
                if time.time() - temp.stat().st_mtime > STALE_S:
                    temp.unlink()

    def _write_temp(self, path: Path, data: bytes) -> Path:
        make_folder(path.parent)
        temp = Path(temp_beside(str(path)))
        try:
            with open(temp, "xb") as file:
                file.write(data)
                file.flush()
                # A failed fsync is never retried on the same file: the kernel may already have dropped the pages.
                os.fsync(file.fileno())
        except OSError:
            temp.unlink(missing_ok=True)
            raise
        return temp


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
