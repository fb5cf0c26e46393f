"""A Delta table through the `deltalake` library: an epoch is one commit of its log, with `txn` actions as the mark.

    txn  fencepost/<job>/<sink>             whose epochs these are: the first 60 bits of the lineage
    txn  fencepost/<job>/<sink>/<lineage>   the newest of them: generation × 2⁴⁰ + epoch
    txn  fencepost/<job>/<sink>/handle      60 bits of a digest of its handles
    txn  fencepost/<job>/<sink>/format      of these four

One handle (`DeltaTable`) answers the question and takes the commit. The library refuses a commit if another one with
the same `txn` ids came in since the handle was loaded; that, and only that, makes it a compare-and-set. A fresh handle
would duplicate the epoch. Never believes the library about a commit: not that it failed (a checkpoint of the log may
have failed behind it), not that it happened (a merge that changes nothing commits nothing).
"""

from __future__ import annotations

import hashlib
import os
import string
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from fencepost.connectors.delta import trial
from fencepost.connectors.delta.columns import (
    Column,
    cannot_partition,
    columns_of,
    divided,
    fits,
    has_ntz,
    name_problems,
    refuse_nulls,
    schema_of,
    stored,
    stored_type,
    type_problems,
)
from fencepost.connectors.delta.constraints import Constraints
from fencepost.connectors.delta.demands import Demands, demands_of
from fencepost.connectors.delta.files import Addition, Folder, Layout, additions_of, told, write
from fencepost.connectors.delta.log import FOLDER, OURS, Log
from fencepost.connectors.delta.setback import History
from fencepost.connectors.delta.statistics import Skipping
from fencepost.connectors.lake.table import DataFile, LakeTable
from fencepost.connectors.table.database import Broken, Conflict, Denied, RowsRefused, Silent, misfits_of
from fencepost.connectors.table.mark import MARK, Mark
from fencepost.connectors.table.values import as_grouped
from fencepost.contract import Owner
from fencepost.errors import FencepostError, OperatorNeeded
from fencepost.protocol.format import VERSION
from fencepost.store.local import make_folder
from fencepost.store.staging import Rows

DIGITS = 15
"""Hexadecimal digits of a lineage or a digest in a `txn`, whose version is a signed 64-bit integer."""
EPOCHS = 2**40
"""More than a generation can have."""
BY_HAND = "by hand"
REMEMBERED = 20
"""Handles, until their commit: those of one epoch are asked for several times."""
CHECKPOINT = 100
"""Commits from one checkpoint of the log to the next, if the table does not say: the library's own default."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""The library calls a commit failed if the checkpoint of the log behind it fails, so we make that ourselves."""
INVALID = "Invalid data found"
"""What the library says of rows that it checks itself; then it shows them."""
UNKNOWN_SCHEME = "Unknown scheme"
"""What the library says of a location that it has no client for; its error is "not found" all the same."""
ROWS, TABLE = "fencepost_rows", "fencepost_table"
"""In a merge."""


@dataclass(frozen=True, slots=True)
class DeltaFacts:
    """What we need to know about the table, until somebody changes it."""

    source: tuple[Any, ...]
    """What the library says: the same as long as nothing changed."""
    id: str
    columns: Mapping[str, Column]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    demands: Demands
    constraints: Constraints
    unevaluated: tuple[str, ...]
    """CHECK constraints that the library cannot evaluate."""

    @property
    def skipping(self) -> Skipping:
        return Skipping.of(self.properties)


class DeltaLakeTable(LakeTable):
    """One Delta table, by path or URL."""

    product = "Delta"

    def __init__(
        self,
        uri: str,
        *,
        partition_by: tuple[str, ...],
        properties: Mapping[str, str],
        storage_options: Mapping[str, str],
        target_file_bytes: int,
    ) -> None:
        self._folder = Folder(uri, storage_options)
        self._partition_by = partition_by
        self._properties = properties
        self._target_file_bytes = target_file_bytes
        self._log = Log(self._folder)
        self._history = History(self._log)
        self._handle: DeltaTable | None = None
        self._stamp: tuple[int, str | None] = (-1, None)
        """Of the commit that the handle ends with."""
        self._facts: DeltaFacts | None = None
        self._version = -1
        """That the last look saw, or that our last commit became."""
        self._newest: tuple[str, int] | None = None
        """The table's id and version at our newest commit."""
        self._marks: dict[tuple[str, str], tuple[int, Mark]] = {}
        """By job and sink: a mark that is known without asking, and the version at which it is."""
        self._shown: dict[str, str] = {}
        """By digest, the last handles that were asked for."""
        self._added: dict[str, Addition] = {}
        """By path: files that this process wrote, until they are committed."""

    # A look at the table.

    def load(self) -> bool:
        """With the handle that there is, if it still belongs to this table; else with a new one."""
        if self._handle is None or not self._is_refreshed(self._handle):
            self._forget()
            self._handle = self._opened()
        if self._handle is None:
            return False
        self._version = self._handle.version()
        if self._stamp[0] != self._version:
            self._stamp = (self._version, self._log.stamp(self._version))
        self._facts = self._facts_of(self._handle)
        self._log.sync(self._version)
        return True

    def _is_refreshed(self, handle: DeltaTable) -> bool:
        """The library would take the commits of a table that replaced this one for its newest ones."""
        version, stamp = self._stamp
        if stamp is None or version != handle.version() or self._log.stamp(version) != stamp:
            return False
        try:
            with _asking():
                handle.update_incremental()
        except (Silent, TableNotFoundError):
            return False  # a new handle says what is wrong
        return True

    def _opened(self) -> DeltaTable | None:
        self._folder.check()
        try:
            with _asking():
                return DeltaTable(self._folder.uri, storage_options=self._options)
        except TableNotFoundError as error:
            if UNKNOWN_SCHEME in str(error):
                scheme = self._folder.uri.partition("://")[0]
                raise Denied(f"the library does not know locations that begin with {scheme}://") from None
            self._check_absent()
            return None
        except Denied:
            raise
        except Silent as error:
            if self._folder.local is None:
                raise
            raise Broken(f"its log cannot be read: {error}") from None

    def _check_absent(self) -> None:
        """The library says "not found" about a folder that it may not read, too."""
        if self._folder.local is None:
            return
        with told():
            try:
                found = os.listdir(self._folder.local / FOLDER)
            except FileNotFoundError:
                return
            except NotADirectoryError:
                raise Broken("it is not a folder") from None
        if any(name.endswith((".json", ".parquet")) for name in found):
            raise Broken("its log cannot be read")

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self._folder.options) or None

    def _forget(self) -> None:
        """Everything that is known about a table that is not there any more."""
        self._handle = self._facts = None
        self._stamp = (-1, None)
        self._version = -1
        self._marks.clear()
        self._history.forget()
        self._log.forget()

    def _facts_of(self, handle: DeltaTable) -> DeltaFacts:
        with _asking():
            metadata, protocol = handle.metadata(), handle.protocol()
            schema = handle.schema().to_json()
        properties = dict(metadata.configuration)
        id_, partition_by = str(metadata.id), tuple(metadata.partition_columns)
        source = (id_, schema, partition_by, properties, protocol)
        if self._facts is not None and self._facts.source == source:
            return self._facts
        found = columns_of(schema)
        columns = {column.name: column for column in found}
        demands = demands_of(protocol, properties, found)
        constraints = Constraints(columns, demands.checks)
        return DeltaFacts(
            source, id_, columns, partition_by, properties, demands, constraints, tuple(constraints.unknown())
        )

    @property
    def _now(self) -> tuple[DeltaTable, DeltaFacts]:
        assert self._handle is not None, "load() comes first"
        assert self._facts is not None
        return self._handle, self._facts

    @property
    def id(self) -> str:
        return self._now[1].id

    @property
    def version(self) -> str:
        return str(self._version) if self._version >= 0 else ""

    @property
    def place(self) -> str:
        return self._folder.place

    # The mark.

    def mark(self, job: str, sink: str, lineages: Sequence[str]) -> Mark | None:
        """By what our last commit wrote, if nobody committed since; else by the log."""
        handle, _ = self._now
        known, mark = self._marks.get((job, sink), (-1, None))
        if mark is not None and mark.lineage in lineages and handle.version() <= known == self._version:
            return mark
        name = _app(job, sink)
        owner = self._txn(name)
        if not owner:  # also 0: a person removed it, which a log cannot
            return None
        lineage = next((one for one in lineages if _number(one) == owner), None)
        if lineage is None:
            return Mark(f"another, which begins with {owner:0{DIGITS}x}", 0, 0, "", 0)
        newest, handles, format_ = (self._txn(f"{name}/{part}") for part in (lineage, "handle", "format"))
        if newest is None or handles is None or newest < 0:
            raise OperatorNeeded(
                "mark_damaged",
                "The mark in the target cannot be trusted: a part of it is missing or invalid.",
                next="Check whether somebody changed it by hand, and correct it; docs/FORMAT.md says what it holds.",
                safe="Safe: the target was not touched.",
            ).at(job=job, sink=sink)
        text = f"{handles:0{DIGITS}x}" if handles else BY_HAND
        writer = self._writer_of(format_)
        try:
            mark = Mark(lineage, *divmod(newest, EPOCHS), text, 0, format_ or 0, writer)
        except FencepostError as error:
            raise error.at(job=job, sink=sink) from None
        self._marks[job, sink] = (handle.version(), mark)
        return mark

    def _txn(self, app: str) -> int | None:
        with _asking():
            return self._now[0].transaction_version(app)

    def _writer_of(self, format_: int | None) -> str:
        """The fencepost that wrote it, for people: only asked where somebody has to know."""
        if format_ is None or format_ <= MARK.number:
            return VERSION
        found = self._log.infos(range(max(0, self._version - CHECKPOINT), self._version + 1))
        ours = [info[OURS] for _, info in sorted(found.items()) if isinstance(info.get(OURS), dict)]
        return str(ours[-1].get("fencepost", "?")) if ours else "?"

    def shown(self, handles: str) -> str:
        """A `txn` has room for a number only; what a commit says about itself has the text."""
        digest = hashlib.sha256(handles.encode()).hexdigest()[:DIGITS]
        self._shown = {**dict(list(self._shown.items())[-REMEMBERED:]), digest: handles}
        return digest

    def setback(self, job: str, sink: str, mark: Mark) -> str | None:
        """A RESTORE takes rows back but no `txn`; and a folder may be copied back over a newer one."""
        _, facts = self._now
        if self._newest is not None and self._newest[0] == facts.id and self._newest[1] > self._version:
            return f"it is at version {self._version} again, and was at version {self._newest[1]}"
        table = f"DeltaTable({self._folder.uri!r}{', storage_options=…' if self._folder.options else ''})"
        return self._history.setback((job, sink, mark), self._version, facts.properties, table)

    def version_of(self, job: str, sink: str, lineage: str, generation: int, epoch: int) -> str | None:
        found = self._history.version_of((job, sink, lineage, generation, epoch), self._version)
        return None if found is None else str(found)

    def handle_text(self, job: str, sink: str, mark: Mark) -> str:
        """What the commit says about itself: the `txn` has only a digest."""
        version = self.version_of(job, sink, mark.lineage, mark.generation, mark.epoch)
        about = ((self._log.info(int(version)) if version is not None else None) or {}).get(OURS)
        return str(about.get("handle", "")) if isinstance(about, dict) else ""

    # Does it fit?

    def unfit(self, *, removes: bool) -> list[str]:
        _, facts = self._now
        problems = list(facts.demands.unmet(removes=removes))
        problems += [f"CHECK constraint {name!r} cannot be evaluated by this library" for name in facts.unevaluated]
        problems += [why for name in facts.partition_by if (why := cannot_partition(facts.columns[name]))]
        if (why := trial.failed(self._folder)) is not None:
            problems.append(why)
        return problems

    def misfits(self, schema: pa.Schema, *, may_add: bool) -> list[str]:
        _, facts = self._now
        names = schema.names
        known = {name.lower() for name in facts.columns}
        new = [name for name in dict.fromkeys(names) if may_add and name.lower() not in known]
        there = pa.schema([item for item in schema if item.name not in new])
        problems = misfits_of(there, list(facts.columns.values()), fits)
        if new:
            added = pa.schema([schema.field(schema.names.index(name)) for name in new])
            problems += [*name_problems(new), *type_problems(added)]
            problems += [
                f"column {item.name!r} would need the table feature timestampNtz, which the table does not have"
                for item in added
                if not type_problems(pa.schema([item])) and has_ntz(item.type) and not facts.demands.has_ntz
            ]
        problems += [f"partition column {name!r} is missing" for name in facts.partition_by if name not in names]
        if self._partition_by and self._partition_by != facts.partition_by:
            found = f"by {', '.join(map(repr, facts.partition_by))}" if facts.partition_by else "not at all"
            problems.append(f"it is partitioned {found}, not by {', '.join(map(repr, self._partition_by))}")
        if names and set(names) <= set(facts.partition_by):
            problems.append("there is no column beside those that it is partitioned by")
        return problems

    def new_columns(self, schema: pa.Schema) -> list[str]:
        return [name for name in schema.names if name not in self._now[1].columns]

    # A new table.

    def uncreatable(self, schema: pa.Schema) -> list[str]:
        """First by what we know, then by a table in a temporary folder."""
        problems = [*name_problems(schema.names), *type_problems(schema)]
        problems += [f"partition column {name!r} is missing" for name in self._partition_by if name not in schema.names]
        if not schema.names or set(schema.names) == set(self._partition_by):
            problems.append("there is no column beside those that it is partitioned by")
        if len(set(self._partition_by)) != len(self._partition_by):
            problems.append("a partition column is named twice")
        if self._folder.local is not None and _is_taken(self._folder):
            problems.append("there is something else at this path, a file or a folder with files")
        if problems:
            return problems
        found = columns_of(schema_of(schema))
        problems = [why for one in found if one.name in self._partition_by and (why := cannot_partition(one))]
        return problems or list(self._trial_problems(schema))

    def _trial_problems(self, schema: pa.Schema) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
            for key, value in self._properties.items():
                if key.startswith("delta.") and not _is_created(f"{folder}/{uuid.uuid4()}", {key: value}):
                    yield f"the library does not create tables with the property {key!r}, or not with this value"
                    return
            try:
                with _asking():
                    made = self._create(folder, schema, None)
            except (Silent, RowsRefused) as error:
                yield f"the library does not create such a table: {error}"
                return
            yield from self._facts_of(made).demands.unmet(removes=False)

    def create(self, schema: pa.Schema) -> None:
        """Only if there is none: the library's own retry would put our columns over those of another creator."""
        try:
            with _asking():
                if self._folder.local is not None:
                    make_folder(self._folder.local)
                self._create(self._folder.uri, schema, self._options)
        except Denied:
            raise
        except (CommitFailedError, Silent) as error:
            if self.load():
                raise Conflict("somebody else has just created it") from None
            raise Silent(str(error) if isinstance(error, Silent) else "it could not be created") from None
        self._log.sync(0)
        self._folder.sync([FOLDER])

    def _create(self, uri: str, schema: pa.Schema, options: dict[str, str] | None) -> DeltaTable:
        return DeltaTable.create(
            uri,
            Schema.from_json(schema_of(schema)),
            partition_by=list(self._partition_by),
            configuration=dict(self._properties),
            storage_options=options,
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,  # ones of the user's own
        )

    # Rows and files.

    def check_rows(self, rows: Rows, *, may_add: bool = False) -> None:
        """`write` does the same, in one pass with the writing."""
        _, facts = self._now
        for batch in rows.batches():
            kept = stored(batch, facts.columns)
            refuse_nulls(kept, facts.columns)
            for _ in divided(kept, facts.partition_by):
                pass
        facts.constraints.refuse(lambda: (stored(batch, facts.columns) for batch in rows.batches()))

    def write(self, folder: str, stem: str, rows: Rows) -> list[DataFile]:
        """Checked as `check_rows` does."""
        _, facts = self._now
        facts.constraints.refuse(lambda: (stored(batch, facts.columns) for batch in rows.batches()))
        layout = Layout(facts.columns, facts.partition_by, facts.skipping)
        found = write(self._folder, layout, self._target_file_bytes, f"{folder}/{stem}", rows.batches())
        self._added |= {one.file.path: one for one in found}
        return [one.file for one in found]

    def lost(self, files: Iterable[DataFile]) -> list[str]:
        asked = list(files)
        sizes = self._folder.sizes([file.path for file in asked])
        return [file.path for file, size in zip(asked, sizes, strict=True) if size != file.bytes]

    def delete(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        for path in doomed:
            self._added.pop(path, None)
        self._folder.delete(doomed)

    def files_in(self, folder: str) -> list[str]:
        return self._folder.names(folder)

    def _additions(self, files: Sequence[DataFile]) -> list[Addition]:
        """What the log has to say about the files; refuse those that were written for other columns."""
        _, facts = self._now
        unknown = [file for file in files if file.path not in self._added]
        read = {one.file.path: one for one in additions_of(self._folder, unknown, facts.skipping)}
        found = [self._added.get(file.path) or read[file.path] for file in files]
        for one in found:
            columns = [facts.columns.get(item.name) for item in one.schema]
            is_same = tuple(one.partition) == facts.partition_by and all(
                column is not None and column.kind is not None and column.stored == item.type
                for column, item in zip(columns, one.schema, strict=True)
            )
            if not is_same:
                raise RowsRefused("its columns or partitions were changed after data files had been written for them")
        return found

    # Commits.

    def append(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        """A blind append, so that others who change rows at the same time need not start again."""
        adds = self._additions(files)
        self._commit(
            _Commit(job, sink, mark, is_blind=True),
            lambda handle, properties: self._put(handle, adds, "append", properties),
        )

    def replace(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        """Without retries of the library's: rows that others add in the meantime would stay."""
        adds = self._additions(files)
        self._commit(
            _Commit(job, sink, mark, retries=0),
            lambda handle, properties: self._put(handle, adds, "overwrite", properties),
        )

    def _put(self, handle: DeltaTable, adds: Sequence[Addition], mode: str, properties: CommitProperties) -> None:
        actions = [
            AddAction(one.file.path, one.file.bytes, dict(one.partition), one.written_ms, True, one.statistics)
            for one in adds
        ]
        handle.create_write_transaction(
            list(actions),
            mode,
            handle.schema(),
            list(self._now[1].partition_by),
            commit_properties=properties,
            post_commithook_properties=NO_HOOKS,
        )

    def extend(self, rows: Rows, job: str, sink: str, mark: Mark | None) -> None:
        """The library writes the files, because it adds columns only when it writes the rows itself."""
        source = _RowSource(rows, self._now[1].columns)

        def write_rows(handle: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(
                handle,
                source.reader(),
                mode="append",
                schema_mode="merge",
                target_file_size=self._target_file_bytes,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )

        self._commit(_Commit(job, sink, mark, source=source), write_rows)

    def upsert(  # noqa: PLR0917 - as the contract has it
        self, rows: Rows, key: Sequence[str], deletes: str | None, job: str, sink: str, mark: Mark | None
    ) -> None:
        """The library's MERGE, in this process."""
        source = _RowSource(rows, self._now[1].columns, key, deletes)
        names = [name for name in rows.schema.names if name != deletes]
        same = " AND ".join(f"{_of(ROWS, name)} = {_of(TABLE, name)}" for name in key)
        changes = {_quoted(name): _of(ROWS, name) for name in names if name not in key}
        remains = None if deletes is None else f"NOT {_of(ROWS, deletes)}"

        def merge_rows(handle: DeltaTable, properties: CommitProperties) -> None:
            merge = handle.merge(
                source.reader(),
                same,
                source_alias=ROWS,
                target_alias=TABLE,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
            if deletes is not None:
                merge = merge.when_matched_delete(_of(ROWS, deletes))
            if changes:
                merge = merge.when_matched_update(changes)
            merge.when_not_matched_insert({_quoted(name): _of(ROWS, name) for name in names}, remains).execute()

        self._commit(_Commit(job, sink, mark, source=source), merge_rows)

    def _commit(self, commit: _Commit, run: Callable[[DeltaTable, CommitProperties], None]) -> None:
        """One commit, with the mark; afterwards it is durable, and its version known."""
        handle, facts = self._now
        held, mark = self._marks.get((commit.job, commit.sink), (-1, None))[1], commit.mark
        assert held is None or mark is None or held.lineage != mark.lineage or held.version < mark.version, (
            "the table holds this epoch, or a newer one: ask for the mark first"
        )
        before, properties = handle.version(), commit.properties(self._shown)
        try:
            with _asking():
                run(handle, properties)
                if commit.source is not None and handle.version() == before:
                    # A merge that changes nothing commits nothing, but its epoch has to be marked: on this same handle.
                    self._put(handle, (), "append", properties)
        except CommitFailedError:
            raise self._refusal(commit) from None
        except Silent:
            if commit.source is not None and commit.source.failed is not None:
                raise commit.source.failed from None
            raise
        self._note(commit, facts, self._log.find(commit.attempt, before))

    def _refusal(self, commit: _Commit) -> Exception:
        """Why the library refused: mostly somebody else's commit, but the table may also have new demands."""
        if self.load() and (problems := self.unfit(removes=not commit.is_blind)):
            return RowsRefused("; ".join(problems))
        return Conflict("somebody else has changed it")

    def _note(self, commit: _Commit, facts: DeltaFacts, version: int) -> None:
        self._version = version
        self._newest = (facts.id, version)
        self._marks.pop((commit.job, commit.sink), None)
        if commit.mark is not None:
            self._marks[commit.job, commit.sink] = (version, commit.mark)
            self._history.note((commit.job, commit.sink, commit.mark), version)
        self._added.clear()
        assert self._handle is not None
        if self._handle.version() != self._stamp[0]:
            self._stamp = (self._handle.version(), self._log.stamp(self._handle.version()))
        self._log.sync(version)
        self._checkpoint(version, facts)

    def _checkpoint(self, version: int, facts: DeltaFacts) -> None:
        """So that the next look stays fast, however many commits there are; of no concern to the commit behind it.

        With a handle of its own: the one that answers questions must not run ahead of them.
        """
        every = facts.properties.get("delta.checkpointInterval", "")
        if (version + 1) % (int(every) if every.isdigit() and int(every) else CHECKPOINT):
            return
        with suppress(Silent, DeltaError), _asking():
            handle = DeltaTable(self._folder.uri, storage_options=self._options)
            handle.create_checkpoint()
            self._log.sync_checkpoint(handle.version())
            if facts.properties.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
                handle.cleanup_metadata()

    # For people.

    def how_to_mark(self, job: str, sink: str, owner: Owner) -> tuple[str, str]:
        name = _app(job, sink)
        about = {"job": job, "sink": sink, "lineage": owner.lineage, "generation": owner.generation}
        numbers = {
            name: str(_number(owner.lineage)),
            f"{name}/{owner.lineage}": f"{owner.generation} * 2**40 + {{epoch}}",
            f"{name}/handle": "0",
            f"{name}/format": str(MARK.number),
        }
        return self._line({name: "0"}, "{}"), self._line(numbers, f"{about!r} | {{'epoch': {{epoch}}}}")

    def _line(self, numbers: Mapping[str, str], about: str) -> str:
        options = ", storage_options=…" if self._folder.options else ""
        transactions = ", ".join(f"Transaction({app!r}, {number})" for app, number in numbers.items())
        return (
            f"from deltalake import *; t = DeltaTable({self._folder.uri!r}{options}); "
            "t.create_write_transaction([], 'append', t.schema(), commit_properties=CommitProperties("
            f"app_transactions=[{transactions}], custom_metadata={{'{OURS}': {about}}}))"
        )

    def close(self) -> None:
        """There are no connections, but the handle holds what the log says about every file."""
        self._forget()
        self._added.clear()


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit to make."""

    job: str
    sink: str
    mark: Mark | None
    is_blind: bool = False
    """It depends on no rows of the table."""
    retries: int | None = None
    """How often the library may put it behind those of others; by default as often as it likes."""
    source: _RowSource | None = None
    """The rows, if the library writes them."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """By which the commit is found again in the log."""

    def properties(self, shown: Mapping[str, str]) -> CommitProperties:
        about: dict[str, Any] = {"job": self.job, "sink": self.sink, "attempt": self.attempt, "fencepost": VERSION}
        transactions = []
        words = f"fencepost: job {self.job!r}, sink {self.sink!r}"
        if (mark := self.mark) is not None:
            about |= {"lineage": mark.lineage, "generation": mark.generation, "epoch": mark.epoch}
            handle = shown.get(mark.handle, mark.handle)
            about |= {"handle": handle, "writer": mark.writer, "format": mark.format}
            words += f", generation {mark.generation}, epoch {mark.epoch}"
            name, now_ms = _app(self.job, self.sink), time.time_ns() // 1_000_000
            digest = 0 if mark.handle == BY_HAND else int(mark.handle, 16)
            numbers = {
                name: _number(mark.lineage),
                f"{name}/{mark.lineage}": mark.generation * EPOCHS + mark.epoch,
                f"{name}/handle": digest,
                f"{name}/format": mark.format,
            }
            # With their time: Delta's own engines forget those that do not say it, if the table has a retention.
            transactions = [Transaction(app, number, now_ms) for app, number in numbers.items()]
        metadata: dict[str, Any] = {OURS: about, "userMetadata": words}
        if self.is_blind:
            metadata["isBlindAppend"] = True
        return CommitProperties(metadata, self.retries, transactions)


class _RowSource:
    """Rows as the library reads them, in the table's types. Keeps our own error, because the library quotes it."""

    def __init__(
        self, rows: Rows, columns: Mapping[str, Column], key: Sequence[str] = (), deletes: str | None = None
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._key = key
        self._deletes = deletes
        self.failed: Exception | None = None

    def reader(self) -> pa.RecordBatchReader:
        schema = [(item.name, stored_type(item.name, item.type, self._columns)) for item in self._rows.schema]
        return pa.RecordBatchReader.from_batches(pa.schema(schema), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._rows.batches():
                yield stored(self._keyed(batch), self._columns)
        except Exception as error:
            self.failed = error
            raise

    def _keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keys as Spark compares them; of a row that removes another, only its key counts."""
        for place, name in enumerate(batch.schema.names):
            array = batch.column(name)
            if name in self._key:
                array = as_grouped(array)
            elif self._deletes is not None and name != self._deletes:
                array = pc.if_else(batch.column(self._deletes), pa.scalar(None, array.type), array)
            batch = batch.set_column(place, batch.schema.field(place), array)
        return batch


@contextmanager
def _asking() -> Iterator[None]:
    """Turn the library's errors into ours: theirs quote rows and URLs. Two of them mean something to the caller."""
    try:
        yield
    except (CommitFailedError, TableNotFoundError, FencepostError, Silent, RowsRefused):
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except OSError:
        with told():
            raise
    except DeltaError as error:
        if INVALID in str(error):  # before the commit
            raise RowsRefused("rows violate a NOT NULL or CHECK constraint") from None
        raise Silent(f"the library failed ({type(error).__name__})") from None
    except BaseException as error:  # noqa: BLE001 - a panic of the library is not an Exception
        raise Silent(f"the library failed ({type(error).__name__})") from None


def _app(job: str, sink: str) -> str:
    return "/".join(["fencepost", *(part.replace("%", "%25").replace("/", "%2F") for part in (job, sink))])


def _number(lineage: str) -> int:
    digits = lineage.replace("-", "")[:DIGITS]
    if len(digits) < DIGITS or any(digit not in string.hexdigits for digit in digits):
        digits = hashlib.sha256(lineage.encode()).hexdigest()[:DIGITS]
    return int(digits, 16)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _of(row: str, name: str) -> str:
    return f"{row}.{_quoted(name)}"


def _is_taken(folder: Folder) -> bool:
    assert folder.local is not None
    try:
        return bool(os.listdir(folder.local))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    except OSError:
        return False  # whoever writes there will say so


def _is_created(folder: str, properties: Mapping[str, str]) -> bool:
    """Does the library know such a property, and take this value for it?"""
    schema = Schema.from_json(schema_of(pa.schema([("n", pa.int64())])))
    try:
        with _asking():
            DeltaTable.create(folder, schema, configuration=dict(properties))
    except (Silent, DeltaError):
        return False
    return True
