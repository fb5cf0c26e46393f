"""A table of a lakehouse as a stream: what was added to it, version by version, each row once.

    {"table": id, "version": 7, "stamp": …}                      all that was added up to version 7
    {"table": id, "version": 8, "files": 3}                      … and the first 3 files that version 8 added
    {"table": id, "version": 7, "files": 3, "snapshot": true}    the first 3 of the files that version 7 consists of
    {…, "since": {"version": 7, "files": 0, "snapshot": true}}   in the first offset: where the stream began

A `History` says what each version added; a `TableStream` turns that into offsets and lists of files. Both are plain
Python: `spark/table_source.py` connects them to Spark. The files of a range depend on its two offsets alone, never on
when they are asked for: versions are immutable, and the first offset says which version a stream began with.

Never skips or repeats anything silently. A version that removed or changed rows, a table that was replaced or set back,
and history that was deleted before it was read stop the stream, with words. Never lets a library's error out.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, ClassVar, Self

import pyarrow as pa

from fencepost.connectors.lake.batches import FilePart, FileSlice, Shape
from fencepost.contract import Source
from fencepost.errors import LATER, BadConfig, EpochFailed, FencepostError, OperatorNeeded, Where

Start = int | str | datetime
"""Where a new job begins: a version, a time, "earliest" or "latest". A job with a checkpoint continues from there."""

SPLIT_BYTES = 128 << 20
"""A task reads about this much of a file, at the most."""
OPEN_BYTES = 1 << 20
"""What it costs to open a file, in bytes that could be read meanwhile."""
FIRST: Mapping[str, Any] = {"start": "new"}
"""The offset before the first one. It does not say where the stream begins: Spark does not store it, and would get
another one after a crash. The first offset that is stored says it (`since`)."""
END = 1 << 62
"""Beyond the last byte of any file."""

AS_DECIDED = "Safe: every decided epoch is in the sinks, exactly once; nothing of this range was written."
NEW_CHECKPOINT = "start a new checkpoint, with start=… to say where in the table it begins"


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A Parquet file of the table."""

    path: str
    """A URL, or a path on this machine."""
    bytes: int
    values: Mapping[str, Any]
    """By column: what the log says of all its rows (its partition)."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one version added, or why it cannot be read as an addition."""

    version: int
    files: Sequence[AddedFile]
    stamp: str = ""
    """See `Position`."""
    trouble: FencepostError | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a table has been read."""

    table: str
    """The id that the table was made with."""
    version: int
    """Delta's version, or Iceberg's snapshot; -1 before the first one."""
    files: int | None = None
    """How many files of this version; None: all."""
    snapshot: bool = False
    """Are these the files that the version consists of, rather than those that it added?"""
    stamp: str = ""
    """What tells this version from another one with its number, and where it stands among the others."""
    since: Position | None = None
    """In the first offset: where the stream began."""

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self | None:
        """From what Spark stored; None before the first offset."""
        if "start" in offset:
            return None
        since = offset.get("since")
        return cls(
            offset["table"],
            offset["version"],
            offset.get("files"),
            offset.get("snapshot", False),
            offset.get("stamp", ""),
            None if since is None else cls.of({"table": offset["table"], **since}),
        )

    def offset(self) -> dict[str, Any]:
        """For Spark to store: equal positions are equal texts."""
        found: dict[str, Any] = {"table": self.table, **self._place()}
        if self.since is not None:
            found["since"] = self.since._place()
        return found

    def _place(self) -> dict[str, Any]:
        found: dict[str, Any] = {"version": self.version}
        if self.files is not None:
            found["files"] = self.files
        if self.snapshot:
            found["snapshot"] = True
        if self.stamp:
            found["stamp"] = self.stamp
        return found

    def is_at(self, other: Position) -> bool:
        """The same place in the same table."""
        mine, its = ((one.table, one.version, one.files, one.snapshot) for one in (self, other))
        return mine == its

    def done(self) -> Position:
        """The end of its version."""
        return replace(self, files=None, snapshot=False, since=None)


class History(ABC):
    """What differs between formats: the versions of one table. Nothing is open before the first call."""

    product: ClassVar[str]
    """"Delta", "Iceberg"."""
    spark_name: ClassVar[str]
    """What Spark calls the source."""
    word: ClassVar[str]
    """What the format calls a version."""

    def __init__(self, table: str, secrets: Mapping[str, str], columns: Mapping[str, Any] | None = None) -> None:
        self.table = table
        """As people know it."""
        self._secrets = dict(secrets)
        """How to log in."""
        self._columns = columns
        """Those that the job was started with; None: it is being started."""

    @abstractmethod
    def columns(self) -> tuple[str, dict[str, Any]]:
        """The table's id, and its columns now; refuses a table that cannot be read as a stream."""

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.product} table {self.table!r}"

    @abstractmethod
    def newest(self) -> Position:
        """The table's newest version, asked now."""

    @abstractmethod
    def begin(self, start: Start, newest: Position) -> Position:
        """Where a new stream begins; refuses a start that the table does not have (any more)."""

    @abstractmethod
    def check_same(self, position: Position) -> None:
        """Refuse a table that is not the one, or was set back behind this position, or has unknown columns."""

    @abstractmethod
    def snapshot(self, position: Position) -> Sequence[AddedFile]:
        """All files of a version, always in the same order."""

    @abstractmethod
    def change(self, position: Position) -> Change:
        """What the position's own version added."""

    @abstractmethod
    def changes(self, position: Position) -> Iterator[Change]:
        """What the versions after it added, in order, up to the newest."""

    @abstractmethod
    def shape(self, schema: pa.Schema) -> Shape:
        """How tasks read its files; `schema`: the columns as Spark wants them."""

    # What can be wrong, in the same words for every format.

    def replaced(self) -> OperatorNeeded:
        """Another table has its name."""
        return OperatorNeeded(
            "table_replaced",
            f"{self.title} was dropped and recreated, or replaced by another one: the offsets in the checkpoint "
            "are those of the old table.",
            safe=AS_DECIDED,
            next=f"Bring the old table back; or {NEW_CHECKPOINT}.",
        )

    def set_back(self, version: int) -> OperatorNeeded:
        """It is older than what was read."""
        return OperatorNeeded(
            "table_set_back",
            f"{self.title} was rolled back: {self.word} {version}, up to which it was read, is no longer part of it.",
            safe=f"{AS_DECIDED} The sinks hold rows that the table no longer has.",
            next=f"Undo the rollback; or {NEW_CHECKPOINT}, and correct what the sinks hold.",
        )

    def rewritten(self, version: int, how: str) -> OperatorNeeded:
        """It lost or changed rows."""
        return OperatorNeeded(
            "table_rewritten",
            f"{self.title} is not append-only: {self.word} {version} removed or changed rows ({how}).",
            safe=AS_DECIDED,
            next="Everything before it was read. To continue after it, correct the sinks for what it changed, and "
            f"{NEW_CHECKPOINT}, after {self.word} {version}. Rewrite only tables that no stream reads; compaction is "
            "fine.",
        )

    def history_lost(self, version: int) -> OperatorNeeded:
        """Nobody knows any more what came after what was read."""
        return OperatorNeeded(
            "table_history_lost",
            f"The history of {self.title} does not reach back to {self.word} {version}, up to which it was read: log "
            "entries or snapshots were deleted before the stream read them.",
            safe=AS_DECIDED,
            next=f"Find out what was added meanwhile, and {NEW_CHECKPOINT}. Keep the table's history for longer than "
            "your longest outage (delta.logRetentionDuration; for Iceberg, how old snapshots may get before they are "
            "expired).",
        )

    def columns_changed(self, version: int, why: str) -> OperatorNeeded:
        """The plan was made for other columns."""
        return OperatorNeeded(
            "table_columns_changed",
            f"The columns of {self.title} changed in {self.word} {version}, and the job was started before that: "
            f"{why}.",
            safe=AS_DECIDED,
            next="Start the job again: it then reads the new columns, which are NULL in older rows.",
        )

    def unfit(self, why: str) -> BadConfig:
        """It uses something that cannot be read correctly."""
        return BadConfig(
            "table_unfit",
            f"{self.title} cannot be read as a stream: {why}.",
            next="Read a table without it; or rewrite the table without it, and name the copy.",
        )

    def bad_start(self, why: str) -> BadConfig:
        """The setting names something that is not there."""
        return BadConfig(
            "bad_start",
            f"Cannot start to read {self.title} there: {why}.",
            next="Use a version that the table's history still has, a time in it, 'earliest' (all rows that are in "
            "the table now, then what is added) or 'latest'.",
        )

    def gone(self) -> OperatorNeeded:
        """There is no such table any more."""
        return OperatorNeeded(
            "table_gone",
            f"{self.title} no longer exists.",
            safe=AS_DECIDED,
            next=f"Bring it back; or {NEW_CHECKPOINT} on another table.",
        )

    def silent(self, why: str) -> EpochFailed:
        """A store or a catalog did not answer."""
        return EpochFailed(
            "table_silent",
            f"{self.title} cannot be inspected: {why}.",
            safe=LATER,
            next="Check that the table's store and its catalog answer and that the credentials are right; then start "
            "the job again.",
        )

    def unusable(self, why: str) -> BadConfig:
        """At a start: what a person has to change."""
        return BadConfig(
            "table_unusable",
            f"{self.title} cannot be read: {why}.",
            next="Correct its name or location, the credentials or the permissions; a job does not create the tables "
            "that it reads.",
        )


class TableStream:
    """Offsets and files of one stream. Spark keeps one as long as a query runs, in a process beside the driver."""

    def __init__(self, history: History, start: Start = "earliest", parallelism: int = 1) -> None:
        self.history = history
        self._start = start
        self._parallelism = parallelism
        self._target: Position | None = None
        """Nothing beyond it is read."""
        self._planned: tuple[Position, Position, list[list[FileSlice]]] | None = None
        """The range that was planned last: Spark asks several times."""
        self._end: Position | None = None
        """The end of that range, for a Spark that does not say where the next one begins."""

    def first(self) -> Mapping[str, Any]:
        """Spark's first question."""
        return FIRST

    def latest(self, start: Mapping[str, Any] | None, most: int | None = None) -> dict[str, Any]:
        """How far to read now: at most this many files. None: from where the last range ended."""
        return self.reach(self._end if start is None else Position.of(start), most).offset()

    def freeze(self) -> None:
        """Nothing that is added from now on will be read."""
        self._target = self.history.newest()

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any], schema: pa.Schema) -> list[FilePart]:
        """What lies between two offsets; `schema`: the columns as Spark wants them."""
        to = Position.of(end)
        found = [] if to is None else self.slices(Position.of(start), to)
        if not found:
            return []
        shape = self.history.shape(schema)
        return [FilePart(shape, slices) for slices in found]

    def reach(self, start: Position | None, most: int | None = None) -> Position:
        """The same with positions; None: the stream is new."""
        begin = start or self.history.begin(self._start, self._target or self.history.newest())
        self.history.check_same(begin)
        end = self._walk(begin, most, self._target)
        return replace(end, since=begin) if start is None else start if end.is_at(start) else end

    def _walk(self, begin: Position, most: int | None, target: Position | None) -> Position:
        """As far as possible; raises only what stands right at the beginning."""
        left = END if most is None else most
        if begin.files is not None:
            files = len(self.history.snapshot(begin) if begin.snapshot else self._own(begin).files)
            if files - begin.files > left:
                return replace(begin, files=begin.files + left, since=None)
            left -= files - begin.files
        end = begin.done()
        if target is not None and target.version == end.version:
            return end
        for change in self.history.changes(end):
            if change.trouble is not None:
                if end.is_at(begin):
                    raise change.trouble
                return end
            later = Position(begin.table, change.version, stamp=change.stamp)
            if len(change.files) > left:
                return replace(later, files=left) if left else end
            left -= len(change.files)
            end = later
            if target is not None and target.version == end.version:
                return end
        return end

    def _own(self, position: Position) -> Change:
        change = self.history.change(position)
        if change.trouble is not None:
            raise change.trouble
        return change

    def slices(self, start: Position | None, end: Position) -> list[list[FileSlice]]:
        """What lies between two offsets, as one list of slices per task."""
        begin = start or end.since
        self._end = end
        if begin is None or begin.is_at(end):
            return []
        if self._planned is None or not (self._planned[0].is_at(begin) and self._planned[1].is_at(end)):
            self.history.check_same(begin)
            self._planned = begin, end, tasks(self.files(begin, end), self._parallelism)
        return self._planned[2]

    def files(self, begin: Position, end: Position) -> Iterator[AddedFile]:
        """The files between two positions."""
        if begin.snapshot or begin.files is not None:
            files = self.history.snapshot(begin) if begin.snapshot else self._own(begin).files
            is_within = end.version == begin.version and end.files is not None
            yield from files[begin.files or 0 : end.files if is_within else None]
            if end.version == begin.version:
                return
        for change in self.history.changes(begin):
            if change.trouble is not None:
                raise change.trouble
            if change.version == end.version:
                yield from change.files[: end.files]
                return
            yield from change.files
        raise self.history.set_back(end.version)


def tasks(files: Iterable[AddedFile], parallelism: int) -> list[list[FileSlice]]:
    """The files in as many parts of about the same size as there are cores, or more if there is much to read."""
    found = list(files)
    total = sum(one.bytes + OPEN_BYTES for one in found)
    most = min(SPLIT_BYTES, max(OPEN_BYTES * 4, -(-total // max(parallelism, 1))))
    slices = [one for file in found for one in _slices(file, most)]
    parts: list[list[FileSlice]] = []
    room = 0
    for one in slices:
        cost = min(one.end, one.bytes) - one.first + OPEN_BYTES
        if not parts or room < cost:
            parts.append([])
            room = most + OPEN_BYTES
        parts[-1].append(one)
        room -= cost
    return parts


def _slices(file: AddedFile, most: int) -> Iterator[FileSlice]:
    for first in range(0, max(file.bytes, 1), most):
        end = first + most
        yield FileSlice(file.path, file.bytes, first, end if end < file.bytes else END, file.values)


# --- settings, as users write them


@dataclass(frozen=True)
class Reading:
    """What a user said about a table to read."""

    location: str
    """A folder, or a table's name in its catalog."""
    secrets: Mapping[str, str] = field(repr=False)
    """How to log in to its store, or to its catalog."""
    start: Any
    most: Any
    """Files per epoch."""

    def load(self, history: type[History], reader: Any) -> Any:
        """A streaming DataFrame with the columns that the table has now."""
        self._check(history.product)
        table, columns = history(self.location, self.secrets).columns()
        options = {"location": self.location, "table": table, "start": _text(self.start)}
        if self.most is not None:
            options["maxfilespertrigger"] = str(self.most)
        parallelism = int(reader._spark.sparkContext.defaultParallelism)
        make = Opening(history, self, columns, parallelism)
        # Not an import: workers get what a sink imports, and this is the driver's.
        return import_module("fencepost.spark.registration").load(reader, history.spark_name, columns, options, make)

    def _check(self, product: str) -> None:
        """Refuse settings that cannot work."""
        if self.most is not None and (type(self.most) is not int or self.most < 1):
            raise BadConfig(
                "bad_rate", "max_files_per_epoch must be a positive integer.", next="Use 1 or more, or leave it out."
            )
        start = self.start
        if start in ("earliest", "latest") or (type(start) is int and start >= 0):
            return
        time = _time(start) if isinstance(start, str) else start
        if not isinstance(time, datetime):
            raise BadConfig(
                "bad_start",
                f"{product}: invalid `start`.",
                next="Use 'earliest', 'latest', a version or snapshot id, or a time: a datetime with a time zone, or "
                "'2026-01-31T00:00:00Z'.",
            )
        if time.tzinfo is None:
            raise BadConfig(
                "naive_time",
                "The time in `start` has no time zone: it would mean a different time on another machine.",
                next="Add one: datetime(2026, 1, 31, tzinfo=UTC), or '2026-01-31T00:00:00Z'.",
            )


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Opening:
    """Makes the stream, in the process beside the driver."""

    history: type[History]
    told: Reading
    columns: Mapping[str, Any]
    parallelism: int

    def __call__(self) -> TableStream:
        told, start = self.told, self.told.start
        if isinstance(start, str) and start not in ("earliest", "latest"):
            start = _time(start)
        return TableStream(self.history(told.location, told.secrets, self.columns), start, self.parallelism)


def _text(start: Start) -> str:
    """For Spark's plans, which people read."""
    return start.isoformat() if isinstance(start, datetime) else str(start)


def milliseconds(start: datetime) -> int:
    """Since 1970, rounded up: what was committed in this millisecond may be before the time."""
    micros = (start - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    return -(-micros // 1000)


# --- columns, in the JSON of Spark's own schemas; a field's id is in its metadata

PLAIN = ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp")
KNOWN = re.compile(rf"{'|'.join(PLAIN)}|timestamp_ntz|decimal\(\d+,\s*\d+\)")


def strange(kind: Any) -> str | None:
    """A type in this schema that cannot be read; None if there is none."""
    if isinstance(kind, str):
        return None if KNOWN.fullmatch(kind) else kind
    if kind["type"] == "struct":
        return next((found for one in kind["fields"] if (found := strange(one["type"])) is not None), None)
    parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(kind["type"])
    if parts is None:
        return str(kind["type"])
    return next((found for part in parts if (found := strange(kind[part])) is not None), None)


def extends(new: Any, old: Any) -> bool:
    """Has a schema all columns of another one, with their types? More columns are fine."""
    if isinstance(new, str) or isinstance(old, str):
        return bool(new == old)
    if new["type"] != old["type"]:
        return False
    if new["type"] == "struct":
        types = {one["name"].lower(): one["type"] for one in new["fields"]}
        return all(
            one["name"].lower() in types and extends(types[one["name"].lower()], one["type"]) for one in old["fields"]
        )
    parts = ("elementType",) if new["type"] == "array" else ("keyType", "valueType")
    return all(extends(new[part], old[part]) for part in parts)


def new_names(new: Any, old: Any) -> list[str]:
    """Columns at the top that one schema has and another does not, or with another type."""
    types = {one["name"].lower(): one["type"] for one in old["fields"]}
    return [
        one["name"]
        for one in new["fields"]
        if one["name"].lower() not in types or not extends(types[one["name"].lower()], one["type"])
    ]


# --- what else a job needs of a source


@dataclass(frozen=True)
class Newest(Source):
    """What arrives from now on, as one column of text: to warm up a standby, whose queries count words."""

    source: Source
    name: str = ""

    def load(self, reader: Any) -> Any:
        return self.source.load(reader).selectExpr("to_json(struct(*)) AS value")


OURS: Mapping[str, type[FencepostError]] = {
    "OperatorNeeded": OperatorNeeded,
    "EpochFailed": EpochFailed,
    "BadConfig": BadConfig,
}
RAISED = re.compile(
    r"fencepost\.errors\.(OperatorNeeded|EpochFailed|BadConfig): \[(table_\w+|bad_start)\] (.*)\n"
    r"(?:  where: .*\n)?  data:  (.*)\n  next:  (.*)"
)


def explain(text: str, job: str) -> FencepostError | None:
    """Our own error, raised in a process of Spark's, taken out of what Spark says about it; nothing else is taken."""
    found = RAISED.search(text)
    if found is None:
        return None
    kind, code, what, safe, next_ = found.groups()
    return OURS[kind](code, what, where=Where(job=job), safe=safe, next=next_)
