"""Looks into the state that a checkpoint holds, through Spark's own reader, with the job running or dead.

    list_operators   operators, their views, partitions, bytes: from the files, without Spark
    read_state       the rows of one view after one epoch, as JSON: `key` and `value`
    differences      keys added, removed and changed between two epochs

A *view* is what an operator's state is read by: a side of a join, a variable or the timers of keyed state; most
operators have one, `state`. Never writes into the checkpoint. What it returns holds rows: it is for whoever asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from fencepost.checkpoints.keys import matches
from fencepost.checkpoints.parts import parts_of, sizes, snapshots
from fencepost.checkpoints.reader import read
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, FencepostError, Where
from fencepost.ledger import Place, place, seen, store_at
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.spark import session
from fencepost.spark.checkpoint import SparkLog, state_ids

ONE = "state"
TIMERS = "timers"
_JSON = "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX')"
"""Whole, so that equal texts are equal values."""


@dataclass(frozen=True, slots=True)
class View:
    """One way to read an operator's state, and what Spark's reader has to be told for it."""

    name: str
    kind: str
    options: Mapping[str, str]
    columns: tuple[tuple[str, ...], tuple[str, ...]] = (("key",), ("value",))
    """What a row is found by, and what it says."""
    many: bool = False
    """Has a key several rows?"""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator with state."""

    id: int
    name: str
    partitions: int
    views: tuple[View, ...]
    bytes: tuple[int, ...]
    """By partition: the files that the newest done epoch rests on."""

    @property
    def skew(self) -> float | None:
        """The largest partition by the median one; None if there is nothing to divide by."""
        middle = median(self.bytes) if self.bytes else 0
        return round(max(self.bytes) / middle, 2) if middle else None


@dataclass(frozen=True, slots=True)
class Inside:
    """What a checkpoint holds, from its files."""

    path: Place
    ledger: State
    epochs: tuple[int, ...]
    """Those whose state can be read: done, and still retained."""
    operators: tuple[Operator, ...]

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.ledger.lineage.job, path=str(self.path))

    def epoch(self, wanted: int | None) -> int:
        """The epoch asked for, or the newest; `CheckpointRefused` if its state cannot be had."""
        if not self.epochs:
            raise CheckpointRefused(
                "no_epoch", "No epoch is done yet.", where=self.where, safe=UNCHANGED, next="Let the job run."
            )
        if wanted is None or wanted in self.epochs:
            return self.epochs[-1] if wanted is None else wanted
        newest = self.ledger.newest
        said = "is not there yet" if wanted > self.epochs[-1] else "is no longer retained"
        if newest is not None and wanted == newest.epoch:
            said = "is decided, and no record says yet that it is done"
        elif wanted in SparkLog(store_at(self.path)).names("offsets") and wanted > self.epochs[-1]:
            said = "is not decided: it may run again and come to something else"
        raise CheckpointRefused(
            "epoch_not_readable",
            f"Epoch {wanted} {said}.",
            where=self.where,
            safe=UNCHANGED,
            next=f"Epochs {self.epochs[0]} to {self.epochs[-1]} can be read.",
        )

    def operator(self, wanted: int | None) -> Operator:
        """The operator asked for, or the only one."""
        if not self.operators:
            raise BadConfig(
                "no_state",
                "The job keeps no state.",
                where=self.where,
                next="Nothing to do: its rows went to the sinks as they came.",
            )
        listed = ", ".join(f"{one.id} ({one.name})" for one in self.operators)
        if wanted is None and len(self.operators) > 1:
            raise BadConfig(
                "which_operator",
                f"The job has {len(self.operators)} operators with state: {listed}.",
                where=self.where,
                next="Name one: --operator N.",
            )
        for one in self.operators:
            if wanted in (None, one.id):
                return one
        raise BadConfig("no_operator", f"There is no operator {wanted}.", where=self.where, next=f"There is: {listed}.")

    def views(self, operator: Operator, wanted: str | None) -> tuple[View, ...]:
        """The view asked for, or all of them but the timers: of a state with a ttl there are none, and Spark fails."""
        named = tuple(view for view in operator.views if view.name == wanted)
        found = named if wanted is not None else tuple(view for view in operator.views if view.name != TIMERS)
        if not found:
            raise BadConfig(
                "no_view",
                f"Operator {operator.id} ({operator.name}) has no {wanted!r}.",
                where=self.where,
                next=f"It has: {', '.join(view.name for view in operator.views)}.",
            )
        return found

    def one_view(self, operator: Operator, wanted: str | None) -> View:
        """The view asked for, or the only one."""
        found = self.views(operator, wanted)
        if len(found) > 1:
            raise BadConfig(
                "which_view",
                f"Operator {operator.id} ({operator.name}) has {len(found)} parts: "
                f"{', '.join(view.name for view in found)}.",
                where=self.where,
                next="Name one: --side, --var or --store.",
            )
        return found[0]


def look(path: str | Place) -> Inside:
    """What a checkpoint holds now."""
    root = place(path).absolute()
    ledger = read(root)
    log = SparkLog(store_at(root))
    complete = set(log.names("commits")) & set(log.names("offsets"))
    if ledger.lineage.guarantee == "exactly_once":
        complete = {epoch for epoch in complete if epoch <= ledger.done_through}
    epochs = tuple(sorted(complete))
    there = seen(root)
    found: dict[tuple[str, int], int] = sizes(there, parts_of(there, epochs[-1], ledger)) if epochs else {}
    ids = state_ids(snapshots(there, ledger)[epochs[-1]]) if epochs else {}
    return Inside(root, ledger, epochs, tuple(_operators(there / "state", found, ids)))


def _operators(
    state: Place, found: Mapping[tuple[str, int], int], ids: Mapping[str, list[list[str]]]
) -> Iterator[Operator]:
    folders = [entry for entry in state.iterdir() if entry.name.isdigit()] if state.is_dir() else []
    for folder in sorted(folders, key=lambda entry: int(entry.name)):
        said = _metadata(folder)
        stores = said.get("stateStoreInfo") or []
        # After a rescale the metadata of some operators still say the old number.
        partitions = len(ids.get(folder.name, ())) or max((int(s["numPartitions"]) for s in stores), default=0)
        name = str(said.get("operatorInfo", {}).get("operatorName", "unknown"))
        views = tuple(_views(said, [str(store["storeName"]) for store in stores]))
        by_partition = tuple(found.get((folder.name, number), 0) for number in range(partitions))
        yield Operator(int(folder.name), name, partitions, views, by_partition)


def _metadata(folder: Place) -> dict[str, Any]:
    """What Spark says of an operator; of keyed state there is a new file whenever its variables change."""
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
            options["flattenCollectionTypes"] = "false"  # an element without its place in the list says little
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
    """Settings that Spark's reader does not find in the checkpoint, and its errors in our words.

    It takes provider, partitions and encoding from `offsets/N`, but not whether state files carry ids.
    """
    text = SparkLog(store_at(inside.path)).read("commits", Epoch(epoch)) or ""
    # Times are shown, and read in a KEY, in UTC: the zone of whoever looks is not the job's.
    wanted = {session.STATE_FORMAT: "2" if state_ids(text) else "1", "spark.sql.session.timeZone": "UTC"}
    try:
        with session.settings(spark, wanted):
            yield
    except FencepostError:
        raise
    except Exception as error:
        left = look(inside.path).epochs
        gone = epoch not in left
        names = re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", str(error))[:1]
        raise CheckpointRefused(
            "epoch_retired" if gone else "state_unreadable",
            f"The state of epoch {epoch} was removed while it was read: the job goes on, and keeps only so many."
            if gone
            else f"Spark cannot read the state of epoch {epoch} ({(names or [type(error).__name__])[0]}).",
            where=inside.where,
            safe=UNCHANGED,
            next=f"Read again: epochs {left[0]} to {left[-1]} are there."
            if gone and left
            else "If the job runs, read again, a newer epoch. If it is still so, a file is damaged: restore a copy.",
        ) from error


def frame(spark: Any, inside: Inside, operator: Operator, view: View, epoch: int) -> Any:
    """The rows of one view after one epoch, as Spark gives them."""
    reader = spark.read.format("statestore").option("operatorId", operator.id).option("batchId", epoch)
    for name, value in view.options.items():
        reader = reader.option(name, value)
    return reader.load(str(inside.path))


def as_json(rows: Any, view: View) -> Any:
    """Two columns of text, `key` and `value`; where a key has several rows, `value` is all of them."""

    def one(column: str) -> str:
        # Field by field: the rows of a join have one field more than their schema says, over which to_json stumbles.
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
    """What one epoch has and another has not: how many keys, and the first of them."""

    counts: Mapping[str, int]
    rows: tuple[tuple[str, Any, Any, Any], ...]
    """What happened, the key, the value before, the value after."""


def differences(
    spark: Any, inside: Inside, operator: Operator, view: View, epochs: tuple[int, int], *, limit: int
) -> Differences:
    """Compare two whole readings: Spark's feed of changes does not tell a new key from a changed one, or from one that
    was written with the value it had.
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
