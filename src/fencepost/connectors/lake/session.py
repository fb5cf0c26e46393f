"""The driver's side of a Delta or Iceberg table: an epoch is one version of the table, with rows and mark in it.

                added rows, and mode="replace"               rows with a key
    pre-commit  write Parquet files that nothing names       name the staged rows
    vote        look at the table: is it ours, does it fit, are the files there?
    commit      one compare-and-set: add files · set mark    one compare-and-set: merge · set mark
    recovery    look · mark there? done : the same

The mark is in the table's own log, so nothing beside the table says what it holds. Never commits without having asked
for the mark on the same look at the table: a second look could miss another driver's commit. Never deletes a data file
unless the mark shows that its epoch was not committed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fencepost import faults
from fencepost.connectors.lake.sink import LakeSink
from fencepost.connectors.lake.table import DataFile, folder_of
from fencepost.connectors.table.database import (
    BadValue,
    Broken,
    Conflict,
    Denied,
    NotAllowed,
    RowsRefused,
    Silent,
    refuse_null_keys,
)
from fencepost.connectors.table.deletion import is_deleted, nested_in, newest, without
from fencepost.connectors.table.mark import Mark, MarkChecks, ids_of, judged
from fencepost.connectors.table.sink import columns_to_write, key_of, upserts
from fencepost.connectors.table.values import as_grouped
from fencepost.contract import (
    Asked,
    Examined,
    Holding,
    Instant,
    OutputMode,
    Owner,
    Rehearsal,
    Session,
    SortedRows,
    Territory,
    alike,
    names_of,
    refused_one_by_one,
    unheard,
)
from fencepost.errors import BadConfig, FencepostError, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber
from fencepost.store.staging import Rows

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""How often one commit is tried if others change the table at the same time."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows in memory."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        return self.table.schema

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """None: they are not in a file."""
        return ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        return iter(self.table.to_batches())


class LakeSession(Session, MarkChecks):
    """The driver's side of one table in any format; the differences are in its `LakeTable`."""

    def __init__(self, sink: LakeSink, job: str) -> None:
        self.job = job
        self.sink = sink.name
        self.settings = sink
        self.table = sink.lake_table()
        self.target = f"{self.table.product} table {sink.table!r}"
        self.empties = sink.mode == "replace"
        self._id: str | None = None
        """Of the table that the job started with: from then on no other table may take its place."""
        self._schema: pa.Schema | None = None
        """The columns that are written, as checked by `preflight`."""
        self._written: dict[str, list[str]] = {}
        """By handle, the data files of the epoch that is running."""
        self._voted: tuple[Epoch, str] | None = None
        """The epoch and handles of the last vote, while the look that it took at the table may be used to commit."""

    # Before the first row.

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the table, create it if it is missing, return its id."""
        schema = self._columns(schema, mode)
        with self._usable():
            if not self.table.load():
                self._check_may_make(schema)
                try:
                    self.table.create(schema)
                except Conflict:
                    log.info("sink %s: somebody else has just created the table", self.sink)
                if not self.table.load():
                    raise Silent("it was created, and is not there")
            self._check_fits(schema)
        self._id, self._schema = self.table.id, schema
        return self.table.id

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same checks, without creating anything."""
        schema = self._columns(schema, mode)
        with self._usable():
            self._schema = schema
            if not self.table.load():
                self._check_may_make(schema)
                return Rehearsal("", (f"{self.table.product} table {self.settings.table}",))
            self._check_fits(schema)
        return Rehearsal(self.table.id)

    def _columns(self, schema: pa.Schema, mode: OutputMode) -> pa.Schema:
        """Those that are written. A nested key would fail in the merge, which is after the decision."""
        nested = nested_in(schema, set(key_of(self.settings)) & set(schema.names)) if upserts(self.settings) else None
        if nested is not None:
            raise BadConfig(
                "key_type",
                f"Key column {nested!r} has type {schema.field(nested).type}, by which rows cannot be merged.",
                next="Use columns of a simple type as the key: text, numbers, dates, times.",
            ).at(job=self.job, sink=self.sink)
        return columns_to_write(self.settings, schema, mode, self.job)

    def territory(self) -> Territory:
        """The table, and with a key the other columns."""
        removes = self.empties or self.settings.deletes is not None
        key = frozenset(key_of(self.settings)) if upserts(self.settings) else frozenset()
        way: Literal["append", "key", "all"] = "all" if removes else "key" if key else "append"
        columns = frozenset(self._schema.names if self._schema is not None else ()) - key
        return Territory(self.table.place, way, key, columns)

    def _check_may_make(self, schema: pa.Schema) -> None:
        if not self.settings.create:
            what = f"{self.target} does not exist."
            raise self._refused("target_missing", what, "Create it, or set create=True.")
        if problems := self.table.uncreatable(schema):
            what = f"{self.target} cannot be created for this DataFrame: {'; '.join(problems)}."
            next_ = (
                "Change the DataFrame's columns (select, cast, alias), or partition_by= and properties= of the sink."
            )
            raise self._refused("schema_does_not_fit", what, next_)

    def _check_fits(self, schema: pa.Schema) -> None:
        """Report everything at once: nobody wants to fix a table one error at a time."""
        if problems := self.table.unfit(removes=not self.settings.publishes or self.empties):
            raise self._refused(
                "target_unusable",
                f"{self.target} needs what this sink cannot do: {'; '.join(problems)}.",
                "Change the table, or write to another one.",
            )
        if problems := self.table.misfits(schema, may_add=self._may_add):
            raise self._refused(
                "schema_does_not_fit",
                f"{self.target} does not fit the DataFrame: {'; '.join(problems)}.",
                "Change the table or the DataFrame's columns (select, cast, alias)."
                + (" schema='add_columns' adds columns that are missing." if self.table.new_columns(schema) else ""),
            )

    @property
    def _may_add(self) -> bool:
        return self.settings.schema == "add_columns"

    def open(self, owner: Owner) -> None:
        """Check that the table is ours, and that it was not set back."""
        super().open(owner)
        self._held = owner.held.get(self.sink)
        with self._usable():
            self._look()
            found = self._mark()
            setback = self._setback(found)
        self.check_at_start(found)
        if setback is not None:
            raise setback

    def examine(self, asked: Asked) -> Examined:
        """By the mark, in a look of its own."""
        table = self.settings.lake_table()
        try:
            if not table.load():
                holdings = alike(asked, Holding.MISSING)
                return Examined(holdings=holdings, identity="", why=f"table {self.settings.table!r} does not exist")
            mark = table.mark(self.job, self.sink, (asked.lineage, *asked.ancestors))
            found = judged(mark, asked, lambda handles: table.shown(ids_of(handles)))
            setback = None if mark is None or found.stranger else table.setback(self.job, self.sink, mark)
            if setback is not None:
                found = replace(found, holdings=alike(asked, Holding.UNKNOWN), why=setback)
            if found.strays and mark is not None:
                names = frozenset({mark.handle, table.handle_text(self.job, self.sink, mark)})
                found = replace(found, strays=tuple(replace(stray, names=names) for stray in found.strays))
            return replace(found, identity=table.id)
        except (Silent, RowsRefused) as error:
            return unheard(asked, f"it {'refused us' if isinstance(error, Denied) else 'does not answer'}: {error}")
        except FencepostError as error:  # its mark is of a newer fencepost, or was changed
            return unheard(asked, error.what)
        finally:
            table.close()

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """By the table's own history: each of our commits says which epoch it is."""
        table = self.settings.lake_table()
        try:
            if not table.load():
                return Instant(why=f"table {self.settings.table!r} does not exist", identity="")
            version = table.version_of(self.job, self.sink, asked.lineage, asked.generation, epoch)
            if version is None:
                return Instant(why=f"its history does not have epoch {epoch}, or not any more", identity=table.id)
            return Instant(
                text=f"{table.time_travel} {version}",
                exact=True,
                why="behind the table's name in a query",
                facts={"version": version},
                identity=table.id,
            )
        except (Silent, RowsRefused) as error:
            return Instant.unheard(f"it {'refused us' if isinstance(error, Denied) else 'does not answer'}: {error}")
        except FencepostError as error:
            return Instant.unheard(error.what)
        finally:
            table.close()

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Lines of Python for people to run."""
        return self.table.how_to_mark(self.job, self.sink, self.owner)

    def named(self, handles: tuple[Handle, ...]) -> str:
        """As the table's mark can hold them."""
        return self.table.shown(ids_of(handles))

    # An epoch.

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Write the data files, which nothing names yet; or name the rows, if the commit has to look at others too."""
        self._forget()
        count = rows.count
        if not count and not self.empties:
            return None
        handle_id = self.owner.handle_id(epoch)
        if not self._publishes(rows):
            order, deletes = names_of(self.settings.order_by), self.settings.deletes
            body: dict[str, Any] = {"order_by": list(order)} if order else {}
            body |= {"deletes": deletes} if deletes else {}
            return Handle(id=handle_id, sink=self.sink, rows=count, kept=rows.kept, body=body)
        with self._writable(epoch):
            files = self._write(handle_id, rows) if count else []
        faults.reach("lake.written")
        kept = rows.kept if self.settings.keep_rows and count else ()
        return Handle(id=handle_id, sink=self.sink, rows=count, kept=kept, body={"files": list(map(asdict, files))})

    def _publishes(self, rows: Rows) -> bool:
        """Not with new columns: they are added in the same commit as the rows, which the library does with rows."""
        if not self.settings.publishes:
            return False
        return not (self._may_add and rows.count and self.table.new_columns(rows.schema))

    def _write(self, handle_id: str, rows: Rows) -> list[DataFile]:
        folder = folder_of(self.owner.lineage, self.owner.writer)
        self._written[handle_id] = []
        files = self.table.write(folder, handle_id, rows)
        self._written[handle_id] = [file.path for file in files]
        return files

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Look at the table as the commit will find it: is it ours, does it fit, are the data files there?"""
        self._voted = None
        with self._writable(epoch):
            self._look()
            self._check_still_fits()
            found = self._mark()
            setback = self._setback(found)
            lost = {path for handle in handles for path in self.table.lost(files_of(handle))}
            for handle in handles:
                if "files" not in handle.body:
                    rows = self.owner.staging.rows(handle.kept, self.sink)
                    self._check_size(epoch, rows)
                    self._check_rows(rows)
                    self._check_unique(rows)
        self.check_before_vote(found, epoch)
        if setback is not None:
            raise setback.at(epoch=epoch)
        faults.reach("lake.voted")
        self._voted = (epoch, ids_of(handles))
        return tuple(handle.id for handle in handles if lost & {file.path for file in files_of(handle)})

    def _check_still_fits(self) -> None:
        assert self._schema is not None, "preflight() comes first"
        removes = not self.settings.publishes or self.empties
        if problems := [*self.table.unfit(removes=removes), *self.table.misfits(self._schema, may_add=self._may_add)]:
            raise RowsRefused(f"it has changed since the job started: {'; '.join(problems)}")

    def _check_size(self, epoch: Epoch, rows: Rows) -> None:
        """A merge that the driver has no memory for would kill it after the decision, and again at every start."""
        if not upserts(self.settings):
            return
        size = sum(batch.nbytes for batch in rows.batches())
        if size > self.settings.merge_bytes:
            raise OperatorNeeded(
                "merge_too_large",
                f"The epoch has {rows.count:,} rows ({size:,} bytes) to merge into {self.target} by key, and "
                f"merge_bytes allows {self.settings.merge_bytes:,}: the driver merges them in its own memory.",
                next="Limit what an epoch reads at the source, then start the job again: the epoch begins at the same "
                f"offsets. Or, if the driver has the memory, set merge_bytes={size} or more on the sink; the epoch may "
                "have more rows by then. For larger changes, append the rows and merge them with an engine.",
                safe="Safe: nothing of this epoch is decided or in the table.",
            ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _check_rows(self, rows: Rows) -> None:
        """For rows that the commit will merge: whatever the table refuses, it refuses here, before the decision."""
        key, deletes = key_of(self.settings), self.settings.deletes
        for batch in rows.batches():
            if upserts(self.settings):
                refuse_null_keys(batch, key)
            if deletes is not None:
                is_deleted(batch, deletes)
        written = WrittenRows(rows, deletes) if deletes is not None else rows
        self.table.check_rows(written, may_add=self._may_add)

    def _check_unique(self, rows: Rows) -> None:
        """Which of two rows would stay is not defined, and the user said that there are none."""
        if not self.settings.unique_key:
            return
        key = key_of(self.settings)
        if newest([[as_grouped(batch.column(name)) for name in key] for batch in rows.batches()]) is not None:
            raise RowsRefused(
                f"several rows of the epoch have the same key ({', '.join(key)}), although unique_key=True says that "
                "none do: set order_by= instead, or remove duplicates before"
            )

    def refused(self, epoch: Epoch, batch: pa.RecordBatch) -> dict[int, str]:
        """Check the rows, then halves of what is refused."""
        with self._writable(epoch):
            self._look()
            self._check_still_fits()
            found = dict(refused_one_by_one(batch, self._why_refused))
        return {place: str(error) for place, error in found.items() if isinstance(error, BadValue)}

    def _why_refused(self, batch: pa.RecordBatch) -> RowsRefused | None:
        try:
            self._check_rows(TableRows(pa.Table.from_batches([batch])))
        except RowsRefused as error:
            return error
        return None

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """One compare-and-set; after a crash, a conflict or a lost answer the mark is asked first."""
        outcome = Outcome.IN_DOUBT
        try:
            for attempt in range(ATTEMPTS):
                try:
                    self._finish(epoch, handles)
                except Conflict as error:
                    log.info("sink %s: epoch %d meets another change of the table: %s", self.sink, epoch, error)
                    time.sleep(random.uniform(0, 0.02) * 2 ** min(attempt, 5))  # noqa: S311 - spreads retries
                else:
                    self.note_done(epoch)
                    outcome = Outcome.DONE
                    self._written.clear()
                    break
        except Silent as error:
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
        except RowsRefused as error:
            raise self.apply_refused(epoch, error) from None
        return {handle.id: outcome for handle in handles}

    def _finish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """Commit on the vote's look at the table, if nothing was tried on it yet; else look, and ask for the mark."""
        voted, self._voted = self._voted, None
        if voted != (epoch, ids_of(handles)):
            self._look()
            found = self._mark()
            if self.is_there(found, epoch, handles):
                return
            if (setback := self._setback(found)) is not None:
                raise setback.at(epoch=epoch)
        self._publish(epoch, handles)
        faults.reach("lake.committed")

    def _publish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        """One version of the table: all rows of the epoch, and its mark."""
        mark = self.mark_of(epoch, handles)
        staged = [handle for handle in handles if "files" not in handle.body]
        if upserts(self.settings):
            self._upsert(staged, mark)
        elif staged:
            [handle] = staged
            self.table.extend(self.owner.staging.rows_again(handle), self.job, self.sink, mark)
        else:
            files = [file for handle in handles for file in self._files_again(epoch, handle)]
            put = self.table.replace if self.empties else self.table.append
            put(files, self.job, self.sink, mark)

    def _upsert(self, handles: Iterable[Handle], mark: Mark | None) -> None:
        for handle in handles:
            rows = self.owner.staging.rows_again(handle)
            self._merge(rows, handle.body.get("order_by", ()), handle.body.get("deletes"), mark)

    def _merge(self, rows: Rows, order_by: Iterable[str], deletes: str | None, mark: Mark | None) -> None:
        key = key_of(self.settings)
        last = last_of_each(SortedRows.of(rows, tuple(order_by)), key)
        self.table.upsert(TableRows(last), key, deletes, self.job, self.sink, mark)

    def _files_again(self, epoch: Epoch, handle: Handle) -> list[DataFile]:
        """The decided files; if one of them is gone, the kept rows are written to new ones."""
        files = files_of(handle)
        lost = self.table.lost(files)
        if not lost:
            return files
        if not handle.kept:
            raise OperatorNeeded(
                "data_file_lost",
                f"Data files of a decided epoch were deleted or changed before their commit: {', '.join(lost[:3])}.",
                next="Restore them below the table's folder, then start the job again. With keep_rows=True fencepost "
                "writes them again.",
            ).at(job=self.job, epoch=epoch, sink=self.sink)
        log.warning("sink %s: %d data files of epoch %d are gone; writing them again", self.sink, len(lost), epoch)
        folder = folder_of(self.owner.lineage, self.owner.writer)
        return self.table.write(folder, self.owner.handle_id(epoch), self.owner.staging.rows_again(handle))

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """One version of the table. Sent again, rows are duplicated, or with a key, unchanged.

        Rows that replace others also move the mark, so that an older epoch cannot revert them.
        """
        try:
            for _ in range(ATTEMPTS):
                try:
                    self._write_plainly(epoch, rows)
                except Conflict:
                    continue
                return
            raise Silent("others change the table all the time")
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        except Silent as error:
            safe = "The epoch's rows may or may not be in the target."
            raise self.rows_not_taken(epoch, error, safe) from None

    def _write_plainly(self, epoch: Epoch, rows: Rows) -> None:
        self._look()
        self._check_still_fits()
        guarded = upserts(self.settings) or self.empties
        mark = self.mark_of(epoch, ()) if guarded and self.is_next(self._mark(), epoch) else None
        if not rows.count and not self.empties:
            return
        if upserts(self.settings):
            self._check_size(epoch, rows)
            self._check_rows(rows)
            self._check_unique(rows)
            self._merge(rows, names_of(self.settings.order_by), self.settings.deletes, mark)
        elif not self._publishes(rows):
            self.table.check_rows(rows, may_add=True)
            self.table.extend(rows, self.job, self.sink, mark)
        else:
            files = self._write(self.owner.handle_id(epoch), rows) if rows.count else []
            (self.table.replace if self.empties else self.table.append)(files, self.job, self.sink, mark)
            self._written.clear()

    # What failed attempts left.

    def rollback(self, *, undecided: bool = True) -> None:
        """The files of an epoch that was not decided are of no use to anybody."""
        self._voted = None
        if undecided:
            self._forget()
        self._written.clear()

    def _forget(self) -> None:
        """An earlier attempt of this epoch may have written files, and failed elsewhere."""
        for handle_id in list(self._written):
            self._delete(self._written.pop(handle_id))

    def abort(self, handle: Handle) -> None:
        """Delete an orphan's files."""
        self._delete([file.path for file in files_of(handle)])

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Data files of older writers that cannot have been committed: the mark has not reached their epoch.

        What a driver wrote that slept through this stays until the table's own maintenance removes it (VACUUM, removing
        orphan files): once the mark has passed an epoch, nothing shows which of its files were committed.
        """
        if at_leisure:
            return ()
        try:
            self._look()
            found = self._mark()
        except (Silent, RowsRefused):
            return ()  # whoever needs the table next will report it
        if found is not None and found.lineage != self.owner.lineage:
            return ()
        newest_held = found.epoch if found is not None else -1
        waiting: dict[str, list[str]] = {}
        for writer in (one for one in (*self.owner.older, self.owner.writer) if one < before):
            folder = folder_of(self.owner.lineage, writer)
            for name in self._listed(folder):
                handle_id = name.rpartition("-")[0]
                epoch = self.owner.epoch_of_older(handle_id, before)
                if epoch is not None and epoch > newest_held:
                    waiting.setdefault(handle_id, []).append(f"{folder}/{name}")
        return tuple(
            Handle(handle_id, self.sink, 0, (), {"files": [asdict(DataFile(path, 0, 0)) for path in sorted(paths)]})
            for handle_id, paths in sorted(waiting.items())
        )

    def _listed(self, folder: str) -> list[str]:
        try:
            return self.table.files_in(folder)
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: data files of failed attempts could not be listed: %s", self.sink, error)
            return []

    def _delete(self, paths: list[str]) -> None:
        try:
            self.table.delete(paths)
        except (Silent, RowsRefused) as error:
            log.warning("sink %s: %d data files cannot be deleted yet: %s", self.sink, len(paths), error)

    def close(self) -> None:
        """Let go of the table."""
        self.table.close()

    # A look at the table.

    def _look(self) -> None:
        if not self.table.load():
            raise Silent("it no longer exists")
        if self._id is not None and self.table.id != self._id:
            raise Silent("another table has taken its place since the job started")

    def _mark(self) -> Mark | None:
        try:
            return self.table.mark(self.job, self.sink, (self.owner.lineage, *self.owner.ancestors))
        except FencepostError as error:
            raise error.at(job=self.job, sink=self.sink) from None

    def _setback(self, found: Mark | None) -> FencepostError | None:
        """The mark survives a restore of the table, while the rows do not."""
        if found is None or self._is_foreign(found):
            return None
        how = self.table.setback(self.job, self.sink, found)
        if how is None:
            return None
        return OperatorNeeded(
            "target_behind",
            f"{self.target} was rolled back after this job wrote epoch {found.epoch} to it: {how}.",
            next="Restore the table's newest state, or start a new checkpoint on an emptied table to write everything "
            "again. If the missing rows may stay lost, say so as described above.",
            safe="The table was not touched. What it lost was lost earlier; the ledger knows up to which epoch.",
        ).at(job=self.job, sink=self.sink)

    # Errors.

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """At a start: refuse what a person has to change, retry what may pass by itself."""
        try:
            yield
        except Silent as error:
            if isinstance(error, Denied | Broken):
                next_ = "Correct the location, the credentials or the permissions, then start the job again."
                raise self._refused("target_unusable", f"{self.target} cannot be used: {error}.", next_) from None
            raise self.target_silent(error) from None
        except RowsRefused as error:
            next_ = "Fix it, or name another one."
            if isinstance(error, NotAllowed):
                next_ = "Grant it: the job reads and writes the table's folder and its log."
            raise self._refused("target_unusable", f"{self.target} cannot be used: {error}.", next_) from None

    @contextmanager
    def _writable(self, epoch: Epoch) -> Iterator[None]:
        """Before the decision: the epoch fails, and is tried again."""
        try:
            yield
        except Silent as error:
            raise self.rows_not_taken(epoch, error) from None
        except RowsRefused as error:
            found = self.rows_refused(epoch, error)
            if isinstance(error, BadValue):
                found.next += " To write the other rows: job.write(…, on_bad_record='dead_letter', dead_letters=…)."
            raise found from None

    def _refused(self, code: str, what: str, next_: str) -> FencepostError:
        return TargetRefused(code, what, next=next_, safe="Safe: nothing was written.").at(job=self.job, sink=self.sink)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows that are written: without those that remove, and without the column that says so."""

    all: Rows
    deletes: str

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return without(self.all.schema, self.deletes)

    @property
    def count(self) -> int:
        return sum(batch.num_rows for batch in self.batches())

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The files that hold them, among others."""
        return self.all.kept

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        for batch in self.all.batches():
            yield batch.filter(pc.invert(is_deleted(batch, self.deletes))).select(self.schema.names)


def files_of(handle: Handle) -> list[DataFile]:
    """The data files that a handle names."""
    return [DataFile(**file) for file in handle.body.get("files", ())]


def last_of_each(rows: Rows, key: tuple[str, ...]) -> pa.Table:
    """The last row of each key. The merge needs them all at once, so an epoch has to fit into memory."""
    table = pa.Table.from_batches(rows.batches(), rows.schema).combine_chunks()
    keys = [[as_grouped(table.column(name).combine_chunks()) for name in key]]
    places = newest(keys) if table.num_rows else None
    return table if places is None else table.take(places.sort())
