"""An Iceberg table, through `pyiceberg`: one snapshot and one mark per epoch, in one compare-and-set on its catalog.

    columns     which columns fit, and rows in exactly the table's types
    partition   partitions, and the rows of each
    parquet     data files that say themselves what a commit needs to know
    merge       rows that replace others
    mark        the mark, and whether the table was set back behind it
    catalog     connecting, the compare-and-set, errors

Relies on private names of the library, so its version is pinned, and a test names each of them.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from sqlalchemy import exc

from fencepost.connectors.iceberg import columns, merge
from fencepost.connectors.iceberg.catalog import (
    Staged,
    Stamp,
    commit,
    connected,
    create,
    explained,
    has_tables,
    make_tables,
    may_ignore_emptiness,
    name_and_properties,
    stage_append,
    stamp_of,
)
from fencepost.connectors.iceberg.location import DataLocation, at_once
from fencepost.connectors.iceberg.mark import ACCEPT, is_set_back, mark_in, name_of, setback, stored
from fencepost.connectors.iceberg.parquet import DataFileWriter, Layout, NotOurs, WrittenFile, described
from fencepost.connectors.iceberg.partition import Unusable, spec_of, strange
from fencepost.connectors.lake.table import FOLDER, DataFile, LakeTable
from fencepost.connectors.table.database import Conflict, Denied, RowsRefused, Silent
from fencepost.connectors.table.deletion import is_deleted, without
from fencepost.connectors.table.mark import Mark
from fencepost.contract import Owner
from fencepost.store.staging import Rows

FORMAT_VERSION = "2"
DEFAULTS = {
    TableProperties.FORMAT_VERSION: FORMAT_VERSION,
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}
"""Of a table that we create: without these, every commit leaves a metadata file and a manifest forever."""
OF_COMMITS = f"{FOLDER}commit"
"""The folder of data files that a commit itself writes."""
EMPTY = "it has no snapshot yet, and not every REST catalog refuses the second of two first commits"
ENCRYPTION = "encryption.key-id"
WAP = "write.wap.enabled"
OURS = "fencepost."
"""Before what a snapshot of ours says of itself."""


class IcebergLakeTable(LakeTable):
    """One table of one catalog. The loaded `Table` is the handle for both the question and the commit."""

    product = "Iceberg"
    time_travel = "FOR VERSION AS OF"

    def __init__(
        self,
        identifier: str,
        *,
        catalog: Mapping[str, str] | str,
        partition_by: tuple[str, ...],
        properties: Mapping[str, str],
        target_file_bytes: int,
    ) -> None:
        self._identifier = identifier
        self._given = catalog
        self._partition_by = partition_by
        self._properties = properties
        self._target_bytes = target_file_bytes
        self._catalog: Catalog | None = None
        self._stamp: Stamp | None = None
        self._table: Table | None = None
        self._is_spent = False
        """A commit was tried on this look: whatever came of it, the next one needs another look."""
        self._written: dict[str, WrittenFile] = {}
        """Data files that this process wrote or read about, by path."""

    # A look at the table.

    def load(self) -> bool:
        with explained():
            self._table = None
            try:
                self._connect()
                self._table, self._is_spent = self._connected.load_table(self._identifier), False
            except (NoSuchTableError, NoSuchNamespaceError, _NoCatalog):
                return False
            except exc.DBAPIError:
                if self._catalog is None or has_tables(self._catalog):
                    raise
                return False
        return True

    def _connect(self) -> None:
        """Connect again if the catalog is a file and another one has its name: ours would be open and gone."""
        try:
            stamp = stamp_of(name_and_properties(self._given)[1])
        except FileNotFoundError:
            self.close()
            raise _NoCatalog from None
        if self._catalog is None or stamp != self._stamp:
            self.close()
            self._catalog, self._stamp = connected(self._given), stamp

    @property
    def _connected(self) -> Catalog:
        assert self._catalog is not None, "load() comes first"
        return self._catalog

    @property
    def _now(self) -> Table:
        assert self._table is not None, "load() comes first"
        return self._table

    @property
    def id(self) -> str:
        return str(self._now.metadata.table_uuid)

    @property
    def version(self) -> str:
        snapshot = self._now.current_snapshot()
        return "" if snapshot is None else str(snapshot.snapshot_id)

    @property
    def place(self) -> str:
        """By the id that the table was made with, so that no other name hides it."""
        if self._table is not None:
            return f"iceberg:{self.id}"
        name, properties = name_and_properties(self._given)
        where = repr((name, sorted(properties.items()), self._identifier))
        return f"iceberg:{hashlib.sha256(where.encode()).hexdigest()}"

    def mark(self, job: str, sink: str, lineages: Sequence[str]) -> Mark | None:
        found = mark_in(self._now.metadata, job, sink)
        return None if found is None else found.mark

    def setback(self, job: str, sink: str, mark: Mark) -> str | None:
        found = mark_in(self._now.metadata, job, sink)
        return None if found is None else setback(self._now.metadata, found)

    def version_of(self, job: str, sink: str, lineage: str, generation: int, epoch: int) -> str | None:
        wanted = _summary(job, sink, Mark(lineage, generation, epoch, "", 0))
        del wanted[f"{OURS}handle"]
        found = None
        for snapshot in self._now.metadata.snapshots:  # in the order of their commits
            said = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if wanted.items() <= said.items():
                found = snapshot.snapshot_id
        return None if found is None else str(found)

    def unfit(self, *, removes: bool) -> list[str]:
        metadata = self._now.metadata
        properties = metadata.properties
        file_format = properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT)
        wrong = (
            (
                metadata.format_version == 1,
                "it has format version 1, in which a rollback cannot be noticed: set format-version to 2",
            ),
            (
                metadata.format_version > 2,
                f"it has format version {metadata.format_version}, which pyiceberg cannot write",
            ),
            (file_format.lower() != "parquet", f"its data files are to be {file_format}, and we write Parquet"),
            (
                properties.get(WAP, "").lower() == "true",
                f"it has {WAP}, so that what is written has to be published by a person: remove that property",
            ),
            (ENCRYPTION in properties, "it is encrypted"),
            (
                may_ignore_emptiness(self._connected) and MAIN_BRANCH not in metadata.refs,
                f"{EMPTY}: give it one with t = {self._by_hand}; t.append(t.schema().as_arrow().empty_table())",
            ),
        )
        found = [words for is_wrong, words in wrong if is_wrong]
        found += [words for spec in metadata.partition_specs for words in strange(spec, metadata.schema())]
        found += Layout(metadata, self._target_bytes).problems
        if removes and not found:
            with explained():
                found += [merge.EQUALITY_DELETES] if merge.has_equality_deletes(self._now) else []
        return found

    def misfits(self, schema: pa.Schema, *, may_add: bool) -> list[str]:
        return columns.misfits(schema, self._now.schema(), may_add=may_add)

    def new_columns(self, schema: pa.Schema) -> list[str]:
        there = {one.name for one in self._now.schema().fields}
        return [name for name in schema.names if name not in there]

    def uncreatable(self, schema: pa.Schema) -> list[str]:
        found = [words for item in schema for words in columns.undeclarable(item)] + columns.collisions(schema.names)
        properties = {**DEFAULTS, **self._properties}
        if properties[TableProperties.FORMAT_VERSION] != FORMAT_VERSION:
            found.append(f"format-version must be {FORMAT_VERSION}")
        if not len(schema):
            found.append("it has no columns")
        if not found:
            try:
                spec_of(self._partition_by, columns.schema_for(schema))
            except Unusable as error:
                found.append(str(error))
        return found

    def create(self, schema: pa.Schema) -> None:
        with explained():
            catalog = self._catalog or connected(self._given)
            make_tables(catalog, self._given)
            namespace, _, _ = self._identifier.rpartition(".")
            made = columns.schema_for(schema)
            spec = spec_of(self._partition_by, made)
            try:
                catalog.create_namespace_if_not_exists(namespace)
                create(catalog, self._identifier, made, spec, {**DEFAULTS, **self._properties})
            except (TableAlreadyExistsError, exc.IntegrityError):
                if not self.load():
                    raise RowsRefused("something else has its name in the catalog, perhaps a view") from None
                raise Conflict("somebody else has created it") from None
            except ValueError:
                raise Denied("the catalog has no place for a new table: set warehouse in its properties") from None
            finally:
                if self._catalog is None:
                    catalog.close()  # the next look may find a file where there was none

    # Rows.

    def check_rows(self, rows: Rows, *, may_add: bool = False) -> None:
        """`write` does the same, in one pass with the writing."""
        found = rows.schema
        schema = self._extended(found).table_metadata.schema() if may_add else self._fitting(found)
        for batch in rows.batches():
            columns.refuse_nulls(columns.fitted(batch, schema), schema)

    def _extended(self, found: pa.Schema) -> Staged:
        """A transaction in which the table has all columns of the rows."""
        if problems := self.misfits(found, may_add=True):
            raise RowsRefused(f"the rows do not fit: {'; '.join(problems)}")
        staged = Staged(self._now)
        with explained(), staged.update_schema() as update:
            for name in self.new_columns(found):
                update.add_column((name,), columns.declared(found.field(name).type))
        return staged

    def _checked(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        schema = self._now.schema()
        for batch in self._fitted(rows):
            columns.refuse_nulls(batch, schema)
            yield batch

    def _fitted(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """In the table's own types."""
        schema: Schema | None = None
        for batch in rows.batches():
            schema = schema or self._fitting(batch.schema)
            yield columns.fitted(batch, schema)

    def _fitting(self, found: pa.Schema) -> Schema:
        """The table's schema; refuse rows that it has no columns for: somebody may have changed it."""
        if problems := self.misfits(found, may_add=False):
            raise RowsRefused(f"the rows do not fit: {'; '.join(problems)}")
        return self._now.schema()

    def write(self, folder: str, stem: str, rows: Rows) -> list[DataFile]:
        written = self._files(self._layout, self._checked(rows), lambda n: f"{folder}/{stem}-{n}.parquet")
        self._written |= {one.path: one for one in written}
        return [DataFile(one.path, one.bytes, one.rows) for one in written]

    @property
    def _layout(self) -> Layout:
        return Layout(self._now.metadata, self._target_bytes)

    @property
    def _place(self) -> DataLocation:
        metadata = self._now.metadata
        root = metadata.properties.get(TableProperties.WRITE_DATA_PATH) or f"{metadata.location.rstrip('/')}/data"
        return DataLocation(root.rstrip("/"), self._now.io)

    def _files(
        self, layout: Layout, batches: Iterable[pa.RecordBatch], name: Callable[[int], str]
    ) -> list[WrittenFile]:
        with explained():
            return DataFileWriter(layout, self._place, name).add_all(batches)

    def lost(self, files: Iterable[DataFile]) -> list[str]:
        wanted = list(files)
        with explained():
            sizes = self._place.sizes([one.path for one in wanted]) if wanted else []
            is_fine = at_once(self._can_be_committed, wanted, sizes)
        return [one.path for one, fine in zip(wanted, is_fine, strict=True) if not fine]

    def _can_be_committed(self, file: DataFile, size: int | None) -> bool:
        """Is it there as it was written, for partitions that the table still has?"""
        try:
            return size == file.bytes and self._entry(file).spec_id == self._now.metadata.default_spec_id
        except (NotOurs, FileNotFoundError):
            return False

    def _entry(self, file: DataFile) -> IcebergDataFile:
        """As the library has it: known from writing it, or from what the file says."""
        place, found = self._place, self._written.get(file.path)
        if found is None or found.entry.file_path != place.of(file.path):
            found = described(file.path, file.bytes, place, self._now.metadata)
            self._written[file.path] = found
        return found.entry

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with explained():
                self._place.delete([path])
            self._written.pop(path, None)

    def files_in(self, folder: str) -> list[str]:
        with explained():
            return self._place.names_in(folder)

    # Commits.

    def append(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        entries = self._entries(files)
        with explained():
            staged = Staged(self._now)
            stage_append(staged, entries, _summary(job, sink, mark))
        self._commit(staged, job, sink, mark)

    def replace(self, files: Sequence[DataFile], job: str, sink: str, mark: Mark | None) -> None:
        entries = self._entries(files)
        with explained():
            staged = Staged(self._now)
            self._stage_overwrite(staged, merge.live_files(self._now), entries, _summary(job, sink, mark))
        self._commit(staged, job, sink, mark)

    def extend(self, rows: Rows, job: str, sink: str, mark: Mark | None) -> None:
        staged = self._extended(rows.schema)
        schema = staged.table_metadata.schema()
        batches = (columns.fitted(batch, schema) for batch in rows.batches())
        wrote = self._files(Layout(staged.table_metadata, self._target_bytes), batches, _of_commit())
        with self._removed_on_failure(wrote), explained():
            stage_append(staged, [one.entry for one in wrote], _summary(job, sink, mark))
        self._commit(staged, job, sink, mark, wrote)

    def upsert(  # noqa: PLR0917 - as every table has it
        self, rows: Rows, key: Sequence[str], deletes: str | None, job: str, sink: str, mark: Mark | None
    ) -> None:
        schema = self._fitting(without(rows.schema, deletes))
        layout, name = self._layout, _of_commit()
        found: list[list[pa.Array]] = []

        def to_write() -> Iterator[pa.RecordBatch]:
            for batch in rows.batches():
                found.append(merge.key_columns(batch, schema, key))
                there = batch if deletes is None else batch.filter(pc.invert(is_deleted(batch, deletes)))
                yield columns.fitted(there, schema)

        wrote = self._files(layout, to_write(), name)
        removed: list[IcebergDataFile] = []
        with self._removed_on_failure(wrote), explained():
            if any(len(arrays[0]) for arrays in found):
                keys = merge.Keys([pa.chunked_array(list(parts)) for parts in zip(*found, strict=True)])
                for reader in merge.files_to_rewrite(self._now, keys, key):
                    wrote += self._files(layout, _others(reader, schema, keys, key), name)
                    removed.append(reader.file)
            staged = Staged(self._now)
            entries = [one.entry for one in wrote]
            if removed:
                self._stage_overwrite(staged, removed, entries, _summary(job, sink, mark))
            else:
                stage_append(staged, entries, _summary(job, sink, mark))
        self._commit(staged, job, sink, mark, wrote)

    def _entries(self, files: Sequence[DataFile]) -> list[IcebergDataFile]:
        with explained():
            try:
                return at_once(self._entry, files)
            except (NotOurs, FileNotFoundError):
                raise Silent("a data file is gone, or is not as it was written") from None

    def _stage_overwrite(
        self,
        staged: Staged,
        removed: Iterable[IcebergDataFile],
        entries: Iterable[IcebergDataFile],
        summary: dict[str, str],
    ) -> None:
        """One snapshot, with or without files: an epoch that leaves nothing has to move the table, too."""
        operation = Operation.APPEND if self._now.current_snapshot() is None else Operation.OVERWRITE
        with merge.Overwrite(operation, staged, self._now.io, snapshot_properties=summary) as producer:
            for entry in removed:
                producer.delete_data_file(entry)
            for entry in entries:
                producer.append_data_file(entry)

    def _commit(
        self, staged: Staged, job: str, sink: str, mark: Mark | None, wrote: Sequence[WrittenFile] = ()
    ) -> None:
        """The mark with the snapshot that holds its rows, in the same commit."""
        [snapshot] = [one.snapshot for one in staged._updates if isinstance(one, AddSnapshotUpdate)]
        if mark is not None:
            before = mark_in(self._now.metadata, job, sink)
            staged.set_properties({name_of(job, sink): stored(mark, snapshot).text()})
            if before is not None and is_set_back(self._now.metadata, before) and ACCEPT in self._now.properties:
                staged.remove_properties(ACCEPT)  # it was about this one rollback
        assert not self._is_spent, "one look, one commit"
        self._is_spent = True
        with explained():
            self._table = commit(self._connected, self._now, staged, [one.entry.file_path for one in wrote])
        self._written.clear()

    @contextmanager
    def _removed_on_failure(self, wrote: list[WrittenFile]) -> Iterator[None]:
        """Data files that no commit will name."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self._place.delete([one.path for one in wrote])
            raise

    # For people.

    def how_to_mark(self, job: str, sink: str, owner: Owner) -> tuple[str, str]:
        by_hand = stored(Mark(owner.lineage, owner.generation, 0, "by-hand", owner.writer), None)
        text = by_hand.text().replace('"epoch":0', '"epoch":{epoch}')
        begin = f"from pyiceberg.catalog import load_catalog; {self._by_hand}.transaction()"
        key = name_of(job, sink)
        return (
            f"{begin}.remove_properties({key!r}).commit_transaction()",
            f"{begin}.set_properties({{{key!r}: {text!r}}}).commit_transaction()",
        )

    @property
    def _by_hand(self) -> str:
        """The table, in Python."""
        if isinstance(self._given, str):
            catalog = f"load_catalog({self._given!r})"
        else:
            catalog = "load_catalog(**catalog)" if "name" in self._given else "load_catalog('default', **catalog)"
        return f"{catalog}.load_table({self._identifier!r})"

    def close(self) -> None:
        self._table = None
        catalog, self._catalog = self._catalog, None
        with suppress(Exception):
            if catalog is not None:
                catalog.close()


class _NoCatalog(Exception):
    """There is no file of that name."""


def _summary(job: str, sink: str, mark: Mark | None) -> dict[str, str]:
    """What a snapshot says of itself, for people and for `fencepost as-of`."""
    if mark is None:
        return {}
    told = {
        "job": job,
        "sink": sink,
        "lineage": mark.lineage,
        "generation": str(mark.generation),
        "epoch": str(mark.epoch),
        "handle": mark.handle,
    }
    return {f"{OURS}{name}": value for name, value in told.items()}


def _of_commit() -> Callable[[int], str]:
    """Names of data files that a commit itself writes; of all its writers together."""
    stem, numbers = uuid.uuid4().hex, itertools.count()
    return lambda n: f"{OF_COMMITS}/{stem}-{next(numbers)}.parquet"


def _others(reader: merge.DataReader, schema: Schema, keys: merge.Keys, key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file that have none of the keys."""
    places = [[one.name for one in schema.fields].index(name) for name in key]
    for batch in reader.batches(schema):
        yield batch.filter(pc.invert(keys.has([batch.column(place) for place in places])))
