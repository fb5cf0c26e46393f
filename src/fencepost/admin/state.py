"""Reads the state in a checkpoint through Spark's own reader, whether the job is running or dead.

    look             operators, their views, partitions, bytes: from the files, without Spark
    read_state       the rows of one view after one epoch, as JSON: `key` and `value`
    differences      keys added, removed and changed between two epochs
    export           the rows of one view in one file, never inside the checkpoint, never over an existing file

A *view* is one readable part of an operator's state: a side of a join, a variable or the timers of keyed state; most
operators have one, `state`. Never writes into the checkpoint. The results contain rows: never log them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fencepost.admin.savepoint import is_inside
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, FencepostError, Where
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.spark import backend, spark_session
from fencepost.spark.branches import quoted
from fencepost.store import Place, place, seen, store_at
from fencepost.store.ledger import read
from fencepost.store.parts import snapshots, state_sizes
from fencepost.store.spark_log import SparkLog, state_ids

ONE = "state"
TIMERS = "timers"
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
FORMATS: Mapping[str, Mapping[str, str]] = {
    ".parquet": {},
    ".json": {"ignoreNullFields": "false", **_TIMES},
    ".csv": {"header": "true", "escape": '"', **_TIMES},
}
"""By the file's suffix; `.json` has one object per line."""
_JSON = "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX')"
"""With all fields and full precision, so that equal texts mean equal values."""


@dataclass(frozen=True, slots=True)
class View:
    """One readable part of an operator's state, and the options that Spark's reader needs for it."""

    name: str
    kind: str
    options: Mapping[str, str]
    columns: tuple[tuple[str, ...], tuple[str, ...]] = (("key",), ("value",))
    """The key columns and the value columns."""
    many: bool = False
    """Can a key have several rows?"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator with state."""

    id: int
    name: str
    partitions: int
    views: tuple[View, ...]
    bytes: tuple[int, ...]
    """By partition: the size of the files that the newest done epoch needs."""

    @property
    def skew(self) -> float | None:
        """The largest partition divided by the median one; None if the median is 0."""
        middle = median(self.bytes) if self.bytes else 0
        return round(max(self.bytes) / middle, 2) if middle else None


@dataclass(frozen=True, slots=True)
class Inside:
    """What a checkpoint holds, from its files."""

    path: Place
    ledger: State
    epochs: tuple[int, ...]
    """The epochs whose state can be read: done, and still retained."""
    operators: tuple[Operator, ...]

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.ledger.lineage.job, path=str(self.path))

    def epoch(self, wanted: int | None) -> int:
        """The requested epoch, or the newest; raises `CheckpointRefused` if its state is not available."""
        if not self.epochs:
            raise CheckpointRefused(
                "no_epoch",
                "No epoch is done yet.",
                where=self.where,
                safe=UNCHANGED,
                next="Start the job if it is not running, and wait until its first epoch is done.",
            )
        if wanted is None or wanted in self.epochs:
            return self.epochs[-1] if wanted is None else wanted
        newest = self.ledger.newest
        said = "does not exist yet" if wanted > self.epochs[-1] else "is no longer retained"
        if newest is not None and wanted == newest.epoch:
            said = "is decided, but not yet recorded as done"
        elif wanted in SparkLog(store_at(self.path)).names("offsets") and wanted > self.epochs[-1]:
            said = "is not decided yet: it may rerun with a different result"
        raise CheckpointRefused(
            "epoch_not_readable",
            f"Epoch {wanted} {said}.",
            where=self.where,
            safe=UNCHANGED,
            next=f"Choose one of the epochs {self.epochs[0]} to {self.epochs[-1]}.",
        )

    def operator(self, wanted: int | None) -> Operator:
        """The requested operator, or the only one."""
        if not self.operators:
            raise BadConfig(
                "no_state",
                "The job has no state.",
                where=self.where,
                next="Nothing to do: a job without aggregates, joins or keyed state has none to show.",
            )
        listed = ", ".join(f"{one.id} ({one.name})" for one in self.operators)
        if wanted is None and len(self.operators) > 1:
            raise BadConfig(
                "which_operator",
                f"The job has {len(self.operators)} operators with state: {listed}.",
                where=self.where,
                next="Choose one: --operator N.",
            )
        for one in self.operators:
            if wanted in (None, one.id):
                return one
        raise BadConfig(
            "no_operator", f"There is no operator {wanted}.", where=self.where, next=f"Choose one of: {listed}."
        )

    def views(self, operator: Operator, wanted: str | None) -> tuple[View, ...]:
        """The requested view, or all but the timers: state with a ttl has none, and Spark's reader fails on them."""
        named = tuple(view for view in operator.views if view.name == wanted)
        found = named if wanted is not None else tuple(view for view in operator.views if view.name != TIMERS)
        if not found:
            raise BadConfig(
                "no_view",
                f"Operator {operator.id} ({operator.name}) has no {wanted!r}.",
                where=self.where,
                next=f"Choose one of: {', '.join(view.name for view in operator.views)}.",
            )
        return found

    def one_view(self, operator: Operator, wanted: str | None) -> View:
        """The requested view, or the only one."""
        found = self.views(operator, wanted)
        if len(found) > 1:
            raise BadConfig(
                "which_view",
                f"Operator {operator.id} ({operator.name}) has {len(found)} parts: "
                f"{', '.join(view.name for view in found)}.",
                where=self.where,
                next="Choose one with --side, --var or --store.",
            )
        return found[0]


def look(path: str | Place, state: State | None = None) -> Inside:
    """What a checkpoint holds now; passing `state` avoids reading the ledger again."""
    root = place(path).absolute()
    ledger = state or read(root)
    log = SparkLog(store_at(root))
    complete = set(log.names("commits")) & set(log.names("offsets"))
    if ledger.lineage.guarantee == "exactly_once":
        complete = {epoch for epoch in complete if epoch <= ledger.done_through}
    epochs = tuple(sorted(complete))
    there = seen(root)
    found: dict[tuple[str, int], int] = state_sizes(there, epochs[-1], ledger) if epochs else {}
    ids = state_ids(snapshots(there, ledger)[epochs[-1]]) if epochs else {}
    return Inside(root, ledger, epochs, tuple(_operators(there / "state", found, ids)))


def _operators(
    state: Place, found: Mapping[tuple[str, int], int], ids: Mapping[str, list[list[str]]]
) -> Iterator[Operator]:
    folders = [entry for entry in state.iterdir() if entry.name.isdigit()] if state.is_dir() else []
    for folder in sorted(folders, key=lambda entry: int(entry.name)):
        said = _metadata(folder)
        stores = said.get("stateStoreInfo") or []
        # After a rescale, the metadata of some operators still has the old number.
        partitions = len(ids.get(folder.name, ())) or max((int(s["numPartitions"]) for s in stores), default=0)
        name = str(said.get("operatorInfo", {}).get("operatorName", "unknown"))
        views = tuple(_views(said, [str(store["storeName"]) for store in stores]))
        by_partition = tuple(found.get((folder.name, number), 0) for number in range(partitions))
        yield Operator(int(folder.name), name, partitions, views, by_partition)


def _metadata(folder: Place) -> dict[str, Any]:
    """Spark's metadata of an operator; keyed state gets a new file whenever its variables change."""
    numbered: Iterator[Place] = (folder / "_metadata" / "v2").glob("[0-9]*")
    newer = [file for file in numbered if file.name.isdigit()]
    file = max(newer, key=lambda each: int(each.name)) if newer else folder / "_metadata" / "metadata"
    try:
        _, _, text = file.read_text().partition("\n")
        return dict(json.loads(text))
    except (OSError, ValueError):
        return {}


def _views(said: Mapping[str, Any], stores: Sequence[str]) -> Iterator[View]:
    properties = json.loads(said.get("operatorPropertiesJson") or "{}")
    for variable in properties.get("stateVariables", ()):
        name, kind = str(variable["stateName"]), str(variable["stateVariableType"])
        options = {"stateVarName": name}
        if kind == "ListState":
            options["flattenCollectionTypes"] = "false"  # a list element is useless without its place in the list
            yield View(name, kind, options, (("key",), ("list_value",)))
        elif kind == "MapState":
            yield View(name, kind, options, (("key", "user_map_key"), ("user_map_value",)))
        else:
            yield View(name, kind, options)
    if properties.get("timeMode", "NoTime") != "NoTime":
        yield View(TIMERS, "timers", {"readRegisteredTimers": "true"}, (("key", "expiration_timestamp_ms"), ()))
    sides = [side for side in ("left", "right") if any(store.startswith(f"{side}-") for store in stores)]
    for side in sides or (["left", "right"] if "Join" in str(said.get("operatorInfo")) else []):
        yield View(side, "side of a join", {"joinSide": side}, many=True)
    if not properties and not sides and "Join" not in str(said.get("operatorInfo")):
        yield View(ONE, "state", {})


@contextmanager
def reading(spark: Any, inside: Inside, epoch: int) -> Iterator[None]:
    """Set what Spark's reader does not find in the checkpoint, and turn its errors into ours.

    It takes provider, partitions and encoding from `offsets/N`, but not whether state files carry attempt ids.
    """
    text = SparkLog(store_at(inside.path)).read("commits", Epoch(epoch)) or ""
    if state_ids(text):
        spark_session.need(spark.version, (4, 1), "reading state whose files carry ids needs", where=inside.where)
    # Times are shown, and read in a KEY, in UTC: the zone of whoever looks is not the job's.
    wanted = {spark_session.STATE_FORMAT: "2" if state_ids(text) else "1", "spark.sql.session.timeZone": "UTC"}
    if backend.is_owned(formats := inside.ledger.lineage.settings):
        if not spark_session.bring_jar(spark):
            raise spark_session.no_jar("reading state on the heap of a remote checkpoint")
        wanted |= backend.owning(formats, "", epoch + 1)
    try:
        with spark_session.settings(spark, wanted):
            yield
    except FencepostError:
        raise
    except Exception as error:
        left = look(inside.path).epochs
        gone = epoch not in left
        names = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", str(error))[:1]
        raise CheckpointRefused(
            "epoch_retired" if gone else "state_unreadable",
            f"The running job deleted the state of epoch {epoch} while it was being read (it is no longer retained)."
            if gone
            else f"Spark cannot read the state of epoch {epoch} ({(names or [type(error).__name__])[0]}).",
            where=inside.where,
            safe=UNCHANGED,
            next=f"Try again with one of the epochs {left[0]} to {left[-1]}."
            if gone and left
            else "If the job is running, try again with a newer epoch. If that fails too, a file is damaged: run "
            "`fencepost doctor CHECKPOINT`.",
        ) from error


def frame(spark: Any, inside: Inside, operator: Operator, view: View, epoch: int) -> Any:
    """The rows of one view after one epoch, as Spark gives them."""
    reader = spark.read.format("statestore").option("operatorId", operator.id).option("batchId", epoch)
    for name, value in view.options.items():
        reader = reader.option(name, value)
    return reader.load(str(inside.path))


def as_json(rows: Any, view: View) -> Any:
    """Two text columns, `key` and `value`; if a key has several rows, `value` has all of them."""

    def one(column: str) -> str:
        # Field by field: the rows of a join have one field more than their schema, and to_json fails on that.
        return f"struct({column}.*)" if hasattr(rows.schema[column].dataType, "fields") else column

    def text(columns: tuple[str, ...]) -> str:
        whole = ", ".join(f"{one(column)} AS {column}" for column in columns)
        whole = one(columns[0]) if len(columns) == 1 else f"struct({whole})"
        return f"to_json({whole}, {_JSON})" if columns else "'null'"

    found = rows.selectExpr(f"{text(view.columns[0])} AS key", f"{text(view.columns[1])} AS value")
    if not view.many:
        return found
    listed = found.groupBy("key").agg({"value": "collect_list"}).toDF("key", "many")
    return listed.selectExpr("key", "concat('[', array_join(array_sort(many), ','), ']') AS value")


def read_state(
    spark: Any, inside: Inside, operator: Operator, view: View, *, epoch: int, key: Sequence[str] = ()
) -> list[tuple[Any, Any]]:
    """Keys and values, as JSON values; with `key`, only those that match."""
    with reading(spark, inside, epoch):
        rows = frame(spark, inside, operator, view, epoch)
        if key:
            rows = rows.where(matches(spark, rows.schema["key"].dataType, key, inside.where))
        found = as_json(rows, view).orderBy("key").collect()
    return [(json.loads(row.key), json.loads(row.value)) for row in found]


def count(spark: Any, inside: Inside, operator: Operator, view: View, epoch: int) -> int:
    """How many keys a view has."""
    with reading(spark, inside, epoch):
        rows = frame(spark, inside, operator, view, epoch)
        return int(rows.select(*view.columns[0]).distinct().count() if view.many else rows.count())


@dataclass(frozen=True, slots=True)
class Differences:
    """What differs between two epochs: how many keys, and the first of them."""

    counts: Mapping[str, int]
    rows: tuple[tuple[str, Any, Any, Any], ...]
    """What happened, the key, the value before, the value after."""


def differences(
    spark: Any, inside: Inside, operator: Operator, view: View, epochs: tuple[int, int], *, limit: int
) -> Differences:
    """Compare the complete state of both epochs: Spark's change feed does not distinguish a new key from a changed one,
    or from one that was rewritten with the same value.
    """
    with reading(spark, inside, min(epochs)):
        before, after = (as_json(frame(spark, inside, operator, view, epoch), view) for epoch in epochs)
        both = before.toDF("key", "before").join(after.toDF("key", "after"), "key", "full")
        what = "CASE WHEN before IS NULL THEN 'added' WHEN after IS NULL THEN 'removed' ELSE 'changed' END AS what"
        changed = both.where("NOT before <=> after")
        changes = changed.selectExpr(what, "key", "before", "after").persist()
        try:
            counts = {row.what: int(row["count"]) for row in changes.groupBy("what").count().collect()}
            rows = changes.orderBy("what", "key").limit(limit).collect() if counts else []
        finally:
            changes.unpersist()

    def value(text: str | None) -> Any:
        return None if text is None else json.loads(text)

    return Differences(
        {what: counts.get(what, 0) for what in ("added", "removed", "changed")},
        tuple((row.what, json.loads(row.key), value(row.before), value(row.after)) for row in rows),
    )


def matches(spark: Any, key: Any, typed: Sequence[str], where: Where) -> str:
    """A condition on the column `key`, a struct of this type; each value is parsed as its column's type.

    `user=anna`, `window.end=2026-01-01T00:01`, or in the order of the columns: `anna 2026-01-01`. Columns that are not
    named match anything. A window may be given by its start.
    """
    columns = dict(_columns(key, ()))
    conditions = []
    for position, text in enumerate(typed):
        path, value = _column(columns, key, position, text, where)
        kind = columns[path]
        parsed = f"try_cast({_literal(value)} AS {kind.simpleString()})"
        # Parse it once by itself: an invalid value would match nothing, and the user would not know why.
        if spark.range(1).selectExpr(f"{parsed} IS NULL AS bad").first().bad:
            raise BadConfig(
                "bad_key",
                f"The value for key column {'.'.join(path)!r} is not a valid {kind.simpleString()}.",
                where=where,
                next=_said(columns),
            )
        conditions.append(f"{'.'.join(map(quoted, ('key', *path)))} <=> {parsed}")
    return " AND ".join(conditions)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _columns(key: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in key.fields:
        path = (*above, field.name)
        if hasattr(field.dataType, "fields"):
            yield from _columns(field.dataType, path)
        else:
            yield path, field.dataType


def _column(
    columns: dict[tuple[str, ...], Any], key: Any, place: int, text: str, where: Where
) -> tuple[tuple[str, ...], str]:
    """Which column an argument is for, and its value."""
    name, equals, value = text.partition("=")
    named = [path for path in columns if equals and (".".join(path) == name or path[0] == name)]
    if named:
        return named[0], value
    if place < len(key.fields):
        first = key.fields[place].name
        return next(path for path in columns if path[0] == first), text
    raise BadConfig(
        "bad_key", f"Too many values: the key has {len(key.fields)} columns.", where=where, next=_said(columns)
    )


def _said(columns: dict[tuple[str, ...], Any]) -> str:
    listed = ", ".join(f"{'.'.join(path)} ({kind.simpleString()})" for path, kind in columns.items())
    return f"Write COLUMN=VALUE, or the values in this order: {listed}."


def check_target(inside: Inside, to: Path) -> None:
    """Refuse a file that must not be written, before reading anything."""
    where = Where(path=str(to))
    if to.suffix not in FORMATS:
        raise BadConfig(
            "unknown_format",
            "The file name has no known suffix.",
            where=where,
            next=f"Use one of {', '.join(FORMATS)}.",
        )
    if is_inside(to, inside.path):
        raise BadConfig(
            "inside_the_checkpoint",
            "The file would be inside the checkpoint, which is only read.",
            where=where,
            next="Choose a file outside the checkpoint.",
        )
    if to.exists():
        raise BadConfig("file_exists", "The file already exists.", where=where, next="Choose a new one, or remove it.")
    if not to.parent.is_dir():
        raise BadConfig("no_folder", "The file's folder does not exist.", where=where, next="Create the folder first.")


def export(spark: Any, inside: Inside, operator: Operator, view: View, *, epoch: int, to: Path) -> None:
    """Write one file, whole or not at all."""
    check_target(inside, to)
    folder = to.parent / f".{to.name}.{uuid.uuid4().hex[:8]}.tmp"  # Spark writes folders
    try:
        with reading(spark, inside, epoch):
            rows = frame(spark, inside, operator, view, epoch)
            columns = [name for part in view.columns for name in part]
            # The state of dropDuplicates has no value, and no file format has a type for that.
            rows = rows.select(*[name for name in columns if "void" not in rows.schema[name].dataType.simpleString()])
            if to.suffix == ".csv":
                rows = rows.selectExpr(*_flat(rows.schema))
            rows.coalesce(1).write.format(to.suffix[1:]).options(**FORMATS[to.suffix]).save(str(folder.absolute()))
        os.link(next(folder.glob("part-*")), to)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _flat(schema: Any, above: str = "", title: str = "") -> Iterator[str]:
    """Every leaf field as its own column; lists and maps as JSON."""
    for field in schema.fields:
        path, name = f"{above}{quoted(field.name)}", f"{title}{field.name}"
        if hasattr(field.dataType, "fields"):
            yield from _flat(field.dataType, f"{path}.", f"{name}.")
        elif field.dataType.typeName() in ("array", "map"):
            yield f"to_json({path}) AS {quoted(name)}"
        else:
            yield f"{path} AS {quoted(name)}"
