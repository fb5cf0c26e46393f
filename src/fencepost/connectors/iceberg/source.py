"""An Iceberg table as a stream: the snapshots of its main branch say what each of them added.

    … ←── 3500… ←── 2614… ←── 8908… (main)      each snapshot names its parent
          append     replace    append
                     moved rows (compaction): nothing new

A snapshot and its manifests never change, as long as they are not expired. The catalog is asked once per epoch; what a
snapshot added is read once. Columns are known by their ids, so a renamed column is found in older files, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fencepost.connectors.lake.batches import Shape, with_ids
from fencepost.connectors.lake.source import AddedFile, Change, History, Position, Start, milliseconds, strange
from fencepost.connectors.table.database import Broken, Denied, RowsRefused, Silent
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

ADDS, MOVES = "append", "replace"
"""Operations of snapshots that do not change what is in the table, except for new rows."""
NONE, EXPIRED = -1, -2
"""In place of a snapshot's id: before the first one, and one that nobody knows any more."""
DELETES = "it has rows that are deleted, and still in the data files (position or equality deletes)"

STORAGE: Mapping[str, tuple[str, ...]] = {
    "access_key": ("s3.access-key-id", "client.access-key-id"),
    "secret_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "region": ("s3.region", "client.region"),
    "endpoint_override": ("s3.endpoint",),
    "role_arn": ("s3.role-arn", "client.role-arn"),
    "force_virtual_addressing": ("s3.force-virtual-addressing",),
    "anonymous": ("s3.anonymous",),
}
"""By argument of pyarrow's `S3FileSystem`: the property that says it."""


def whole(catalog: str | Mapping[str, str]) -> dict[str, str]:
    """All properties of a catalog, its name included: what a process elsewhere has to know."""
    from fencepost.connectors.iceberg.catalog import name_and_properties  # noqa: PLC0415 - pyiceberg is an extra

    name, properties = name_and_properties(catalog)
    return {**properties, "name": name}


def storage_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """A table's properties for its files, for pyarrow."""
    found = {
        ours: str(properties[name])
        for ours, names in STORAGE.items()
        for name in reversed(names)
        if properties.get(name) is not None
    }
    scheme, _, server = found.get("endpoint_override", "").partition("://")
    if server:
        found |= {"endpoint_override": server, "scheme": scheme}
    for name in ("force_virtual_addressing", "anonymous"):
        if name in found:
            found[name] = found[name].lower()
    return found


class IcebergHistory(History):
    """The snapshots of one table's main branch."""

    product = "Iceberg"
    spark_name = "fencepost_iceberg"
    word = "snapshot"

    def __init__(self, table: str, secrets: Mapping[str, str], columns: Mapping[str, Any] | None = None) -> None:
        super().__init__(table, secrets, columns)
        self._catalog: Catalog | None = None
        self._loaded: Table | None = None
        self._main: list[Snapshot] = []
        """Of the table as it was loaded, the newest first, as far back as they are not expired."""
        self._changes: dict[int, Change] = {}
        self._snapshot: tuple[int, list[AddedFile]] | None = None

    def shape(self, schema: pa.Schema) -> Shape:
        assert self._loaded is not None, "check_same() comes first"
        assert self._columns is not None, "a job was started"
        return Shape(
            self.title,
            with_ids(schema, self._columns),
            storage_of(self._loaded.io.properties),
            has_ids=True,
            names=self._names(),
            log_wins=False,
        )

    def _names(self) -> Mapping[int, Sequence[str]]:
        """By the table's name mapping, if it has one, and otherwise the columns' own names."""
        assert self._loaded is not None, "look() comes first"
        mapping = self._loaded.metadata.name_mapping()
        if mapping is None:
            return {one.field_id: (one.name,) for one in self._loaded.schema()._lazy_id_to_field.values()}
        return dict(_mapped(mapping.root))

    # The table as a whole.

    def look(self) -> Table:
        """Ask the catalog for the table as it is now."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        from fencepost.connectors.iceberg.catalog import connected  # noqa: PLC0415 - as above

        with self._told():
            if self._catalog is None:
                self._catalog = connected(self._secrets)
            try:
                table = self._catalog.load_table(self.table)
            except NoSuchTableError:
                raise self.gone() from None
        if self._loaded is None or self._loaded.metadata_location != table.metadata_location:
            self._loaded, self._main = table, list(_main_of(table))
        return self._loaded

    def columns(self) -> tuple[str, dict[str, Any]]:
        try:
            table = self.look()
        except FencepostError as error:
            raise (self.unusable("there is none") if error.code == "table_gone" else error) from None
        found = _columns(table)
        if kind := strange(found):
            raise self.unfit(f"it has a column of type {kind}")
        if defaults := [
            one.name for one in table.schema()._lazy_id_to_field.values() if one.initial_default is not None
        ]:
            raise self.unfit(f"column {defaults[0]} has a default for rows that were written before it was added")
        return str(table.metadata.table_uuid), found

    def newest(self) -> Position:
        table = self.look()
        return self._at(str(table.metadata.table_uuid), self._main[0] if self._main else None)

    def _at(self, table: str, snapshot: Snapshot | None) -> Position:
        """The end of a snapshot; None: before the first one."""
        if snapshot is None:
            return Position(table, NONE)
        return Position(table, snapshot.snapshot_id, stamp=_stamp(snapshot))

    def snapshot(self, position: Position) -> Sequence[AddedFile]:
        if self._snapshot is None or self._snapshot[0] != position.version:
            self._snapshot = position.version, self._files_of(position)
        return self._snapshot[1]

    def _files_of(self, position: Position) -> list[AddedFile]:
        if position.version == NONE:
            return []
        found = next((one for one in self._main if one.snapshot_id == position.version), None)
        if found is None:
            raise self.history_lost(position.version)
        entries, deletes = self._entries(found, added=False)
        if deletes:
            raise self.unfit(DELETES)
        return [self._file(entry) for entry in entries]

    # Where a stream begins.

    def begin(self, start: Start, newest: Position) -> Position:
        if start == "earliest":
            return replace(newest, files=0, snapshot=True)
        if start == "latest":
            return newest
        if isinstance(start, datetime):
            if start > datetime.now(UTC):
                raise self.bad_start("the time is in the future")
            later = [one for one in self._main if one.timestamp_ms >= milliseconds(start)]
            if not later:
                return newest
            first = len(later) - 1
        else:
            first = next((place for place, one in enumerate(self._main) if one.snapshot_id == start), -1)
            if first < 0:
                raise self.bad_start(f"its main branch does not have snapshot {start} (any more)")
        if first + 1 < len(self._main):
            return self._at(newest.table, self._main[first + 1])
        if _is_first(self._main[first]):
            return self._at(newest.table, None)
        if isinstance(start, datetime):
            oldest = self._main[first].snapshot_id
            raise self.bad_start(f"its history reaches back to snapshot {oldest} only, which is later than the time")
        # What was before it is expired: only its number is known.
        number = self._main[first].sequence_number
        parent = self._main[first].parent_snapshot_id
        return Position(newest.table, parent or EXPIRED, stamp=str(number - 1) if number else "")

    # Snapshot by snapshot.

    def check_same(self, position: Position) -> None:
        table = self.look()
        if str(table.metadata.table_uuid) != position.table:
            raise self.replaced()
        columns = _columns(table)
        if self._columns is not None and columns != self._columns:
            newest = self._main[0].snapshot_id if self._main else NONE
            raise self.columns_changed(newest, "columns were added, renamed, moved or removed, or have another type")
        self._after(position)

    def _after(self, position: Position) -> list[Snapshot]:
        """The snapshots of main after a position, the oldest first; refuses one that is not on main."""
        found: list[Snapshot] = []
        for one in self._main:
            if one.snapshot_id == position.version:
                return found[::-1]
            found.append(one)
        oldest = found[-1] if found else None
        if position.version == NONE:
            if oldest is None or _is_first(oldest):
                return found[::-1]
        elif oldest is not None and _follows(oldest, position):
            return found[::-1]
        raise self._off_main(position)

    def _off_main(self, position: Position) -> FencepostError:
        """Was the table set back, or did its snapshots expire?"""
        assert self._loaded is not None, "look() comes first"
        known = {one.snapshot_id for one in self._loaded.metadata.snapshots}
        is_older = any(_stamp(one) and position.stamp and int(_stamp(one)) < int(position.stamp) for one in self._main)
        if position.version != NONE and (not self._main or position.version in known or is_older):
            return self.set_back(position.version)
        return self.history_lost(position.version)

    def change(self, position: Position) -> Change:
        found = next((one for one in self._main if one.snapshot_id == position.version), None)
        if found is None:
            raise self.history_lost(position.version)
        return self._change(found)

    def changes(self, position: Position) -> Iterator[Change]:
        later = self._after(position)
        kept = {position.version, *(one.snapshot_id for one in later)}
        self._changes = {version: one for version, one in self._changes.items() if version in kept}
        return map(self._change, later)

    def _change(self, snapshot: Snapshot) -> Change:
        version = snapshot.snapshot_id
        if version not in self._changes:
            self._changes[version] = self._read(snapshot)
        return self._changes[version]

    def _read(self, snapshot: Snapshot) -> Change:
        version = snapshot.snapshot_id
        operation = snapshot.summary.operation.value if snapshot.summary is not None else "unknown operation"
        stamp = _stamp(snapshot)
        if operation == MOVES:
            return Change(version, [], stamp)
        if operation != ADDS:
            return Change(version, [], stamp, self.rewritten(version, operation))
        entries, deletes = self._entries(snapshot, added=True)
        if deletes:
            return Change(version, [], stamp, self.rewritten(version, f"{operation} with deletes"))
        try:
            return Change(version, [self._file(entry) for entry in entries], stamp)
        except FencepostError as error:
            return Change(version, [], stamp, error)

    def _entries(self, snapshot: Snapshot, *, added: bool) -> tuple[list[ManifestEntry], bool]:
        """The data files that a snapshot has, or those that it added; and whether it has, or added, deletes."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus  # noqa: PLC0415 - an extra

        assert self._loaded is not None, "look() comes first"
        io, found, deletes = self._loaded.io, [], False
        with self._told(snapshot.snapshot_id):
            for manifest in snapshot.manifests(io):
                if added and manifest.added_snapshot_id != snapshot.snapshot_id:
                    continue
                entries = [
                    one
                    for one in manifest.fetch_manifest_entry(io, discard_deleted=True)
                    if not added
                    or (one.status == ManifestEntryStatus.ADDED and one.snapshot_id == snapshot.snapshot_id)
                ]
                if manifest.content == ManifestContent.DATA:
                    found += entries
                else:
                    deletes = deletes or bool(entries)
        return found, deletes

    def _file(self, entry: ManifestEntry) -> AddedFile:
        file = entry.data_file
        if file.file_format.name != "PARQUET":
            raise self.unfit(f"it has data files of format {file.file_format.name}")
        if getattr(file, "key_metadata", None):
            raise self.unfit("its data files are encrypted")
        return AddedFile(file.file_path, file.file_size_in_bytes, self._values(file))

    def _values(self, file: Any) -> dict[str, Any]:
        """Columns by which the table is partitioned as they are: files that were imported may lack them."""
        assert self._loaded is not None, "look() comes first"
        spec = self._loaded.specs().get(file.spec_id)
        schema = self._loaded.schema()
        found: dict[str, Any] = {}
        for place, one in enumerate(spec.fields if spec is not None else ()):
            name = schema.find_column_name(one.source_id)
            if str(one.transform) == "identity" and name is not None and "." not in name:
                found[name] = file.partition[place]
        return found

    @contextmanager
    def _told(self, version: int | None = None) -> Iterator[None]:
        """The library's errors in our words; a file of a snapshot's own metadata that is missing was expired."""
        from fencepost.connectors.iceberg.catalog import explained  # noqa: PLC0415 - pyiceberg is an extra

        try:
            with explained():
                yield
        except Broken as error:
            raise (self.silent(str(error)) if version is None else self.history_lost(version)) from None
        except (Denied, RowsRefused) as error:
            raise (self.silent if self._columns is not None else self.unusable)(str(error)) from None
        except Silent as error:
            raise self.silent(str(error)) from None


def _main_of(table: Table) -> Iterator[Snapshot]:
    """The newest first, up to one whose parent is expired, or that has none."""
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    current = table.metadata.current_snapshot_id
    while current is not None and (found := by_id.get(current)) is not None:
        yield found
        current = found.parent_snapshot_id


def _stamp(snapshot: Snapshot) -> str:
    """Its sequence number, which counts all snapshots of a table; "" in tables of format 1, which have none."""
    return str(snapshot.sequence_number) if snapshot.sequence_number else ""


def _is_first(snapshot: Snapshot) -> bool:
    """Was there none before it? A snapshot without a parent may have lost it: so the library expires."""
    if snapshot.parent_snapshot_id is not None:
        return False
    if snapshot.sequence_number:
        return snapshot.sequence_number == 1
    told = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return "total-data-files" in told and told["total-data-files"] == told.get("added-data-files")


def _follows(snapshot: Snapshot, position: Position) -> bool:
    """Is there nothing between the two, although the first one is expired?"""
    if snapshot.parent_snapshot_id is not None:
        return snapshot.parent_snapshot_id == position.version
    return bool(position.stamp) and snapshot.sequence_number == int(position.stamp) + 1


def _mapped(fields: Any) -> Iterator[tuple[int, Sequence[str]]]:
    for one in fields:
        if one.field_id is not None:
            yield one.field_id, tuple(one.names)
        yield from _mapped(one.fields)


# --- columns: Spark's types for Iceberg's, as Iceberg's own connector has them


def _columns(table: Table) -> dict[str, Any]:
    """Names, types and ids, in the JSON of Spark's schemas."""
    found: dict[str, Any] = _type(json.loads(table.schema().model_dump_json()))
    return found


PLAIN: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "uuid": "string",
    "binary": "binary",
}


def _type(told: Any) -> Any:
    if isinstance(told, str):
        return (
            "binary"
            if told.startswith("fixed")
            else told.replace(" ", "")
            if "decimal" in told
            else PLAIN.get(told, told)
        )
    if told["type"] == "list":
        return {"type": "array", "elementType": _type(told["element"]), "containsNull": True}
    if told["type"] == "map":
        key, value = _type(told["key"]), _type(told["value"])
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    fields = [
        {"name": one["name"], "type": _type(one["type"]), "nullable": True, "metadata": {"id": one["id"]}}
        for one in told["fields"]
    ]
    return {"type": "struct", "fields": fields}
