"""The driver's side of a folder: one data file per epoch, made visible by a rename or by a manifest.

`layout.py` draws the folder. Never deletes or overwrites a data file that a decision may name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from fencepost import faults
from fencepost.connectors.files.layout import (
    IDENTITY,
    MANIFEST,
    MANIFESTS,
    OWNED,
    OWNER,
    STAGED,
    WRITE,
    FolderOwner,
    Manifest,
    examined,
    ids_of,
    instant,
    manifest_names,
    misfit,
    read_manifest,
    read_owner,
    rehearsed,
    stem,
    version_of,
)
from fencepost.connectors.files.sink import Files
from fencepost.contract import Asked, Examined, Instant, OutputMode, Owner, Rehearsal, Session, Territory
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.store import LocalStore
from fencepost.store.local import make_folder, sync_folder
from fencepost.store.path import is_remote
from fencepost.store.staging import Rows

KEEP = 2
"""How many manifests before the newest are kept; with visible="rename" they only serve recovery."""


class FilesSession(Session):
    """The driver's side of one folder."""

    def __init__(self, sink: Files, job: str) -> None:
        self._sink = sink
        self._job = job
        self._folder = Path(sink.path).absolute()
        self._store = LocalStore(self._folder)
        self._identity = ""
        self._newest = (-1, -1)

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Create the folder, try the format with zero rows, return the id stored in the folder."""
        self._check_request(schema, mode)
        with self._usable():
            make_folder(self._folder / STAGED)
            make_folder(self._folder / MANIFESTS)
            if self._store.read(IDENTITY) is None:
                self._store.create(IDENTITY, uuid.uuid4().hex.encode())
            self._identity = (self._store.read(IDENTITY) or b"").decode()
        return self._identity

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same checks, without creating anything."""
        self._check_request(schema, mode)
        with self._usable():
            return rehearsed(self._folder)

    def territory(self) -> Territory:
        """The whole folder: manifests are numbered by epoch."""
        return Territory(os.path.realpath(self._folder), "all")

    def _check_request(self, schema: pa.Schema, mode: OutputMode) -> None:
        if mode not in self._sink.capabilities.modes:
            what = "A Files sink only appends, but output mode update replaces rows."
            error = BadConfig("mode_needs_key", what, next="Use output mode append.")
            raise error.at(job=self._job, sink=self._sink.name)
        if is_remote(str(self._sink.path)):
            what = "A Files sink writes to a folder on the driver's machine, but this path is on a remote store."
            next_ = "Use a local or mounted folder, or write to Kafka or a database."
            raise self._refused("target_unusable", what, next_)
        if problem := misfit(self._sink.format, schema):
            what = f"The DataFrame cannot be written: {problem}."
            raise self._refused("schema_does_not_fit", what, "Select, cast or rename columns.")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            next_ = "Use a folder that this user can write to, on a disk with free space."
            what = f"The folder {self._folder} cannot be used: {_reason(error)}."
            raise self._refused("target_unusable", what, next_) from None

    def open(self, owner: Owner) -> None:
        """Mark the folder as ours; refuse one that another lineage, or another sink of this job, writes to."""
        super().open(owner)
        mine = FolderOwner(self._job, self._sink.name, owner.lineage, self._sink.visible)
        try:
            newest = max(manifest_names(self._folder), key=version_of, default=None)
            if newest is not None:  # one of a newer fencepost is refused before anything is written
                self._newest = version_of(newest)
                read_manifest(self._folder, newest)
            found = read_owner(self._folder)
            if found is None:
                self._store.create(OWNER, OWNED.encode(mine))
                found = read_owner(self._folder)
            if found is not None and found.lineage in owner.ancestors and replace(found, lineage=mine.lineage) == mine:
                self._store.replace(OWNER, OWNED.encode(mine))
                found = mine
        except (OSError, ValueError) as error:
            raise self._silent(Retryable, None, error, safe="Safe: nothing was written.") from None
        except FencepostError as error:
            raise error.at(job=self._job, sink=self._sink.name) from None
        if found != mine:
            self._refuse_owner(found, mine)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Write the data file durably under its final, random name; it does not count yet."""
        if not rows.count:
            return None
        handle_id = self.owner.handle_id(epoch)
        name = f"{handle_id}.{self._sink.format}"
        folder = self._folder / STAGED if self._sink.visible == "rename" else self._folder
        count, size, total = self._write_file(epoch, folder / name, rows)
        return Handle(id=handle_id, sink=self._sink.name, rows=count, body={"file": name, "bytes": size, "sum": total})

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Check that every file is complete, and that the folder does not already have this epoch."""
        try:
            self._check_place()
            there = self._manifest(epoch)
            dead = tuple(h.id for h in handles if _size(self._waiting(h)) != h.body["bytes"])
        except OSError as error:
            raise self._silent(EpochFailed, epoch, error) from None
        if there is not None or self._newest >= self._version(epoch):
            raise self._ahead(epoch)
        return dead

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Move the files to where readers look, then write the manifest; only the first writer creates it."""
        try:
            self._check_place()
            self._publish(epoch, handles)
        except OSError:
            return {handle.id: Outcome.IN_DOUBT for handle in handles}
        return {handle.id: Outcome.DONE for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Publish immediately; a replayed epoch publishes another file."""
        handle = self.pre_commit(epoch, rows)
        if handle is None:
            return
        try:
            self._move((handle,))
            if self._sink.visible == "manifest":
                name = f"{MANIFESTS}/{stem(self._version(epoch))}-{uuid.uuid4().hex[:12]}.json"
                self._store.create(name, self._content(epoch, (handle,)))
        except OSError as error:
            safe = "The epoch's rows may or may not be visible."
            raise self._silent(EpochFailed, epoch, error, safe=safe) from None

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Data files of older writers that no manifest names; the manifests are listed only once."""
        older = list(self._files_of_older(before))
        known = set(manifest_names(self._folder)) if older else set()
        committed = self._committed({epoch for _, epoch, _ in older}, known)
        return tuple(
            Handle(id=handle_id, sink=self._sink.name, rows=0, body={"file": name})
            for handle_id, _, name in older
            if handle_id not in committed
        )

    def _committed(self, epochs: set[Epoch], manifests: set[str]) -> set[str]:
        """Handles in the manifests of these epochs, of any generation; with the weaker guarantees there are several."""
        mine = [name for name in manifests if version_of(name)[1] in epochs]
        found = (read_manifest(self._folder, name) for name in mine)
        return {handle for manifest in found if manifest is not None for handle in manifest.handle.split()}

    def abort(self, handle: Handle) -> None:
        """Delete an orphan's file. A file that was renamed into the folder was decided, and is never touched."""
        self._waiting(handle).unlink(missing_ok=True)

    def examine(self, asked: Asked) -> Examined:
        """By the manifests; with visible="rename" a reader may since have moved or deleted the files."""
        return examined(self._folder, asked, KEEP if self._sink.visible == "rename" else None)

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """The data files up to the epoch; the same caveat."""
        return instant(self._folder, asked, epoch, by_manifest=self._sink.visible == "manifest")

    def _check_place(self) -> None:
        """An unmounted disk leaves an empty folder: its files are not lost, and nothing may be written there."""
        if (self._store.read(IDENTITY) or b"").decode() != self._identity:
            raise FileNotFoundError(errno.ENOENT, "another folder has taken its place since the job started")

    def _publish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        there = self._manifest(epoch)
        if there is None and self._newest > self._version(epoch):
            return  # an old driver repeats a commit from long ago, whose manifest was pruned
        if there is None:
            self._move(handles)
            faults.reach("publish.renamed")
            self._store.create(f"{MANIFESTS}/{self._manifest_name(epoch)}", self._content(epoch, handles))
            there = self._manifest(epoch)
        if there is None or there.handle != ids_of(handles):
            raise self._ahead(epoch)
        self._newest = max(self._newest, self._version(epoch))
        self._prune()

    def _move(self, handles: tuple[Handle, ...]) -> None:
        """Rename into the folder. A rename happens once: a second driver, or a retry, finds nothing to move.

        A file that is no longer there has been moved: the vote saw it, and nobody else touches that folder. Whether it
        is still where it was moved to is up to the consumer. (With link and unlink, a crash in between would bring back
        a file that the consumer had already read and deleted.) Its time is that of the move: recovery may be days late,
        and there are readers, Spark's own among them, that ignore old files.
        """
        if self._sink.visible == "manifest":
            self._check_files(handles)
            return
        for handle in handles:
            try:
                os.utime(self._waiting(handle))
                self._waiting(handle).rename(self._folder / handle.body["file"])
            except FileNotFoundError:
                continue
        sync_folder(self._folder)
        sync_folder(self._folder / STAGED)

    def _check_files(self, handles: tuple[Handle, ...]) -> None:
        lost = [h.body["file"] for h in handles if _size(self._waiting(h)) != h.body["bytes"]]
        if lost:
            raise OperatorNeeded(
                "data_file_lost",
                f"Data files of a decided epoch are missing or changed in {self._folder}: {', '.join(lost)}.",
                next="Restore them from a backup of the folder, then start the job again.",
            ).at(job=self._job, sink=self._sink.name)

    def _prune(self) -> None:
        if self._sink.visible == "rename":
            generation, epoch = self._newest
            for name in manifest_names(self._folder):
                if version_of(name) < (generation, epoch - KEEP):
                    self._store.delete(f"{MANIFESTS}/{name}")

    def _write_file(self, epoch: Epoch, path: Path, rows: Rows) -> tuple[int, int, str]:
        try:
            self._check_place()
            with open(path, "xb") as file:
                WRITE[self._sink.format](file, rows.schema, rows.batches())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)
            with open(path, "rb") as file:
                total = hashlib.file_digest(file, "sha256").hexdigest()
            return rows.count, path.stat().st_size, total
        except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._silent(EpochFailed, epoch, error) from None
            raise EpochFailed(
                "rows_refused",
                f"Some rows cannot be written as {self._sink.format} ({type(error).__name__}).",
                next="Cast the column that does not fit, or use another format.",
            ).at(job=self._job, epoch=epoch, sink=self._sink.name) from None

    def _waiting(self, handle: Handle) -> Path:
        """Where a file is before its commit."""
        return self._folder / (STAGED if self._sink.visible == "rename" else "") / str(handle.body["file"])

    def _version(self, epoch: Epoch) -> tuple[int, int]:
        return self.owner.generation, epoch

    def _manifest_name(self, epoch: Epoch) -> str:
        return f"{stem(self._version(epoch))}.json"

    def _manifest(self, epoch: Epoch) -> Manifest | None:
        try:
            return read_manifest(self._folder, self._manifest_name(epoch))
        except FencepostError as error:
            raise error.at(job=self._job, epoch=epoch, sink=self._sink.name) from None

    def _content(self, epoch: Epoch, handles: tuple[Handle, ...]) -> bytes:
        """The same bytes, whoever writes them."""
        return MANIFEST.encode(
            Manifest(
                job=self._job,
                sink=self._sink.name,
                lineage=self.owner.lineage,
                generation=self.owner.generation,
                epoch=epoch,
                handle=ids_of(handles),
                files=[
                    {"name": h.body["file"], "rows": h.rows, "bytes": h.body["bytes"], "sum": h.body["sum"]}
                    for h in handles
                ],
            )
        )

    def _files_of_older(self, before: WriterNumber) -> Iterator[tuple[str, Epoch, str]]:
        folder = STAGED if self._sink.visible == "rename" else "."
        for name in self._store.list(folder):
            handle_id = name.partition(".")[0]
            epoch = self.owner.epoch_of_older(handle_id, before)
            if epoch is not None:
                yield handle_id, epoch, name

    def _refuse_owner(self, found: FolderOwner | None, mine: FolderOwner) -> None:
        if found is None or found.lineage != mine.lineage:
            job, lineage = (found.job, found.lineage) if found else ("", "")
            raise self._refused(
                "target_of_another_lineage",
                f"The folder belongs to job {job!r}, lineage {lineage}.",
                f"Use another folder. If the other checkpoint no longer exists: delete {self._folder / OWNER}.",
            )
        raise self._refused(
            "target_of_another_sink",
            f"The folder belongs to sink {found.sink!r} with visible={found.visible!r}.",
            "Give each sink its own folder, and do not change its name or visible=….",
        )

    def _ahead(self, epoch: Epoch) -> FencepostError:
        return OperatorNeeded(
            "target_ahead",
            "The folder has a manifest of this or a later epoch that the ledger does not know: ledger records were "
            "lost, or the checkpoint is an old copy.",
            next="Restore the newest copy of the checkpoint. Continuing would lose or duplicate the rows in between.",
            safe="Safe: the folder was not touched.",
        ).at(job=self._job, epoch=epoch, sink=self._sink.name)

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: nothing was written.").at(
            job=self._job, sink=self._sink.name
        )

    def _silent(
        self, kind: type[Retryable], epoch: Epoch | None, error: Exception, *, safe: str | None = None
    ) -> FencepostError:
        return kind(
            "target_silent",
            f"Cannot read or write the folder {self._folder}: {_reason(error)}.",
            next="Check that the disk works and has free space, then start the job again.",
            safe=safe,
        ).at(job=self._job, epoch=epoch, sink=self._sink.name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _reason(error: Exception) -> str:
    """The system's message without the file name."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
