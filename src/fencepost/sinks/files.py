"""Files in a folder: one data file per epoch, made visible by a rename or by a manifest.

`fencepost.sinks.manifests` draws the folder. Never deletes or overwrites a data file that a decision may name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from fencepost import faults
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Retryable, TargetRefused
from fencepost.ledger import LocalStore
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.ledger.places import is_remote
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows
from fencepost.sinks.contract import Capabilities, OutputMode, Owner, Session, Sink
from fencepost.sinks.formats import WRITE, misfit
from fencepost.sinks.holding import Asked, Examined
from fencepost.sinks.manifests import (
    IDENTITY,
    MANIFESTS,
    OWNER,
    STAGED,
    as_json,
    examined,
    ids_of,
    manifest_names,
    published,
    read_json,
    rehearsed,
    stem,
    version_of,
)
from fencepost.sinks.rehearsal import Rehearsal

__all__ = ["Files", "published"]

KEEP = 2
"""With rename a manifest is only evidence for recovery: so many before the newest are kept."""

Format = Literal["parquet", "json", "csv"]


@dataclass(frozen=True)
class Files(Sink):
    """A folder of Parquet, JSON-lines or CSV files, one per epoch.

    `visible="rename"`: the data file is moved into the folder; for readers that list it (Spark, DuckDB, a spool
    consumer, which may delete what it has read). `visible="manifest"`: the file lies there from the beginning and
    counts only once a manifest names it; for readers that ask `published(path)`.

    The mistake people make: listing the folder with `visible="manifest"`. A listing also shows files of epochs that
    failed.

    A crash is harmless with both. A power cut right after a rename may take the rename back, and it is then done
    again: only a consumer that had read *and deleted* the file within those milliseconds sees it twice.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    format: Format = "parquet"
    visible: Literal["rename", "manifest"] = "rename"
    name: str = ""
    """`files:<folder>` unless told."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        place = os.fspath(self.path)
        object.__setattr__(self, "name", self.name or f"files:{Path(place).name}")
        problems = (
            (not place or "://" in place, "path must be a local folder", "Name a local or mounted folder."),
            (self.format not in WRITE, f"format {self.format!r} is not known", f"Use one of {', '.join(WRITE)}."),
            (
                self.visible not in {"rename", "manifest"},
                f"visible {self.visible!r} is not known",
                'Use "rename" or "manifest".',
            ),
        )
        for wrong, what, cure in problems:
            if wrong:
                raise BadConfig("bad_sink", f"Files: {what}.", next=cure).at(sink=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """One file per epoch is visible at once, either way; the data file itself is the durable copy."""
        return Capabilities(shape="publish", repeatable=True, keeps_rows=False)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        return FilesSession(self, job)


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
        """Make the folder, try the format on no rows, return the id that lies in the folder."""
        self._check_request(schema, mode)
        with self._usable():
            make_folder(self._folder / STAGED)
            make_folder(self._folder / MANIFESTS)
            if self._store.read(IDENTITY) is None:
                self._store.create(IDENTITY, uuid.uuid4().hex.encode())
            self._identity = (self._store.read(IDENTITY) or b"").decode()
        return self._identity

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same, with the folder as it is."""
        self._check_request(schema, mode)
        with self._usable():
            return rehearsed(self._folder)

    def _check_request(self, schema: pa.Schema, mode: OutputMode) -> None:
        if mode not in self._sink.capabilities.modes:
            what = "Files are appended; output mode update replaces rows."
            error = BadConfig("mode_needs_key", what, next="Use output mode append.")
            raise error.at(job=self._job, sink=self._sink.name)
        if is_remote(str(self._sink.path)):
            what = "This sink writes to a folder of the driver's machine, and its path is on another store."
            next_ = "Name a local or mounted folder, or write to Kafka or a database."
            raise self._refused("target_unusable", what, next_)
        if problem := misfit(self._sink.format, schema):
            what = f"The DataFrame cannot be written: {problem}."
            raise self._refused("schema_does_not_fit", what, "Select, cast or rename columns.")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            next_ = "Name a folder that this user may write, on a disk with room."
            raise self._refused("target_unusable", f"The folder cannot be used: {_reason(error)}.", next_) from None

    def open(self, owner: Owner) -> None:
        """Mark the folder as ours; refuse one that another lineage, or another sink of this job, writes."""
        super().open(owner)
        mine = {"job": self._job, "sink": self._sink.name, "lineage": owner.lineage, "visible": self._sink.visible}
        try:
            self._store.create(OWNER, as_json(mine))
            found = json.loads(self._store.read(OWNER) or b"{}")
            if found.get("lineage") in owner.ancestors and found | {"lineage": owner.lineage} == mine:
                self._store.replace(OWNER, as_json(mine))
                found = mine
            self._newest = max(map(version_of, manifest_names(self._folder)), default=(-1, -1))
        except (OSError, ValueError) as error:
            raise self._silent(Retryable, None, error, safe="Safe: nothing was written.") from None
        if found != mine:
            self._refuse_owner(found, mine)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Write the data file under its final random name, durable; nobody counts it yet."""
        if not rows.count:
            return None
        handle_id = self.owner.handle_id(epoch)
        name = f"{handle_id}.{self._sink.format}"
        folder = self._folder / STAGED if self._sink.visible == "rename" else self._folder
        count, size, total = self._write_file(epoch, folder / name, rows)
        return Handle(id=handle_id, sink=self._sink.name, rows=count, body={"file": name, "bytes": size, "sum": total})

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Is every file there, whole? And does the folder not know this epoch already?"""
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
        """Move the files to where readers look, then write the manifest: once, whoever comes first."""
        try:
            self._check_place()
            self._publish(epoch, handles)
        except OSError:
            return {handle.id: Outcome.IN_DOUBT for handle in handles}
        return {handle.id: Outcome.DONE for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Publish at once; a replayed epoch publishes another file."""
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
        """Data files of older writers that no manifest names; the manifests are listed once for all of them."""
        older = list(self._files_of_older(before))
        known = set(manifest_names(self._folder)) if older else set()
        committed = self._committed({epoch for _, epoch, _ in older}, known)
        return tuple(
            Handle(id=handle_id, sink=self._sink.name, rows=0, body={"file": name})
            for handle_id, _, name in older
            if handle_id not in committed
        )

    def _committed(self, epochs: set[Epoch], manifests: set[str]) -> set[str]:
        """Handles in the manifests of these epochs, of any generation: one, or several that were written plainly."""
        mine = [name for name in manifests if version_of(name)[1] in epochs]
        found = (read_json(self._folder / MANIFESTS / name) or {"handle": ""} for name in mine)
        return {handle for manifest in found for handle in manifest["handle"].split()}

    def abort(self, handle: Handle) -> None:
        """Delete the file of an orphan. What has been renamed into the folder was decided, and is never touched."""
        self._waiting(handle).unlink(missing_ok=True)

    def examine(self, asked: Asked) -> Examined:
        """By the manifests; what a reader did with a file that was renamed for it is its own business."""
        return examined(self._folder, asked, KEEP if self._sink.visible == "rename" else None)

    def _check_place(self) -> None:
        """An unmounted disk leaves an empty folder: what is missing there is not gone; nothing may be made there."""
        if (self._store.read(IDENTITY) or b"").decode() != self._identity:
            raise FileNotFoundError(errno.ENOENT, "another folder lies in its place since the job started")

    def _publish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        there = self._manifest(epoch)
        if there is None and self._newest > self._version(epoch):
            return  # an old driver repeats what is long over; its manifest was pruned
        if there is None:
            self._move(handles)
            faults.reach("publish.renamed")
            self._store.create(self._manifest_name(epoch), self._content(epoch, handles))
            there = self._manifest(epoch)
        if there is None or there["handle"] != ids_of(handles):
            raise self._ahead(epoch)
        self._newest = max(self._newest, self._version(epoch))
        self._prune()

    def _move(self, handles: tuple[Handle, ...]) -> None:
        """Rename into the folder. A rename happens once: a second driver, or a second try, finds nothing to move.

        A file that is not there any more was moved: the vote saw it, and nobody else touches that folder. Whether it
        is still where it went is the consumer's business. (With link and unlink a crash in between would show a file
        again that the consumer had already read and deleted.)
        """
        if self._sink.visible == "manifest":
            self._check_files(handles)
            return
        for handle in handles:
            try:
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
                f"The data files {', '.join(lost)} of a decided epoch are missing or changed.",
                next="Restore them from a copy of the folder, then start the job again.",
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
                next="Cast the column that does not fit, or choose another format.",
            ).at(job=self._job, epoch=epoch, sink=self._sink.name) from None

    def _waiting(self, handle: Handle) -> Path:
        """Where a file lies before its commit."""
        return self._folder / (STAGED if self._sink.visible == "rename" else "") / str(handle.body["file"])

    def _version(self, epoch: Epoch) -> tuple[int, int]:
        return self.owner.generation, epoch

    def _manifest_name(self, epoch: Epoch) -> str:
        return f"{MANIFESTS}/{stem(self._version(epoch))}.json"

    def _manifest(self, epoch: Epoch) -> dict[str, Any] | None:
        return read_json(self._folder / self._manifest_name(epoch))

    def _content(self, epoch: Epoch, handles: tuple[Handle, ...]) -> bytes:
        """The same bytes, whoever writes them."""
        return as_json(
            {
                "job": self._job,
                "sink": self._sink.name,
                "lineage": self.owner.lineage,
                "generation": self.owner.generation,
                "epoch": epoch,
                "handle": ids_of(handles),
                "files": [
                    {"name": h.body["file"], "rows": h.rows, "bytes": h.body["bytes"], "sum": h.body["sum"]}
                    for h in handles
                ],
            }
        )

    def _files_of_older(self, before: WriterNumber) -> Iterator[tuple[str, Epoch, str]]:
        folder = STAGED if self._sink.visible == "rename" else "."
        for name in self._store.list(folder):
            handle_id = name.partition(".")[0]
            epoch = self.owner.epoch_of_older(handle_id, before)
            if epoch is not None:
                yield handle_id, epoch, name

    def _refuse_owner(self, found: dict[str, Any], mine: dict[str, Any]) -> None:
        if found.get("lineage") != mine["lineage"]:
            raise self._refused(
                "target_of_another_lineage",
                f"The folder is written by job {found.get('job')!r}, lineage {found.get('lineage')}.",
                f"Name a folder of its own. If the other checkpoint is gone for good: delete {self._folder / OWNER}.",
            )
        raise self._refused(
            "target_of_another_sink",
            f"The folder is written by sink {found.get('sink')!r} with visible={found.get('visible')!r}.",
            "Give each sink a folder of its own, and keep how its files become visible.",
        )

    def _ahead(self, epoch: Epoch) -> FencepostError:
        return OperatorNeeded(
            "target_ahead",
            "The folder has a manifest of this or a later epoch that the ledger does not know: ledger records were "
            "lost, or the checkpoint is an old copy.",
            next="Restore the checkpoint's newest copy. Going on would lose or double the rows in between.",
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
            f"The folder cannot be read or written: {_reason(error)}.",
            next="See that the disk works and has room, then start the job again.",
            safe=safe,
        ).at(job=self._job, epoch=epoch, sink=self._sink.name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _reason(error: Exception) -> str:
    """The system's words without the file name."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
