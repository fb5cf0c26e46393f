"""Spreads the state of a stopped job over another number of partitions.

    check ─► savepoint (kept) ─► take over ─► Spark repartitions a work copy ─► its new state files into the checkpoint
          ─► DECIDE: an epoch without input ─► the next start completes it

Spark's own repartition writes into the checkpoint it is given, and leaves it unusable if it fails late; so it is given
a copy. Until the decision the checkpoint has some files more, which nobody names.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fencepost import faults
from fencepost.checkpoints import savepoint as savepoints
from fencepost.checkpoints.hidden import hidden_folder, sweep
from fencepost.checkpoints.manifest import Savepoint
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.relocate import relocate
from fencepost.checkpoints.restore import copy_file
from fencepost.driver import this_process
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where
from fencepost.failures import names_of
from fencepost.ledger import Place, RemotePath, store_at, way
from fencepost.ledger.local import sync_folder
from fencepost.perform import Performer
from fencepost.protocol import effects as e
from fencepost.protocol import lineages
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.spark import session
from fencepost.spark.checkpoint import SparkLog, state_ids
from fencepost.times import now
from fencepost.unusable import unusable


def rescale(checkpoint: Place, partitions: int, spark: Callable[[], Any]) -> tuple[Epoch, Savepoint]:
    """Do it; return the epoch that does, and the savepoint of before. `spark` makes a session, once it is needed."""
    root = checkpoint.absolute()
    if isinstance(root, RemotePath):
        raise _not_there(root)
    state = read(root)
    _check(root, state, partitions)
    kept = savepoints.create(root, name=f"before-rescale-{state.done_through}-{uuid.uuid4().hex[:6]}")
    store = store_at(root)

    def repartition(effect: e.Repartition) -> e.Repartitioned:
        with hidden_folder(root) as work:
            return _in_a_copy(spark(), kept, work, root, effect)

    performer = Performer("", store, SparkLog(store), {}, repartition=repartition)
    step = lineages.rescale(state.lineage.job, state.lineage_id, partitions, this_process(), now)
    try:
        sweep(root.parent)
        return performer.run(step), kept
    except OSError as error:
        raise unusable(error, state.lineage.job, str(root)) from error


def _not_there(root: RemotePath) -> BadConfig:
    return BadConfig(
        "local_only",
        "A state is repartitioned in a copy beside the checkpoint, on a local disk.",
        where=Where(path=str(root)),
        safe=UNCHANGED,
        next="Make a savepoint, restore it into a local folder (--parent this one), rescale that, and bring it back "
        "the same way: fencepost savepoint create … --to, fencepost savepoint restore … --to.",
    )


def _check(root: Path, state: State, partitions: int) -> None:
    """Refuse before anything is changed or copied."""
    where = Where(job=state.lineage.job, path=str(root))
    lineages.check_closed(state.lineage.job, state)
    assert state.newest is not None
    if partitions < 1:
        raise BadConfig("bad_partitions", f"There cannot be {partitions} partitions.", where=where, next="At least 1.")
    ids = state_ids(state.newest.snapshot)
    if not ids:
        on_heap = bool(store_at(root).list("state"))
        raise BadConfig(
            "rescale_needs_rocksdb" if on_heap else "nothing_to_rescale",
            "Its state is of format 1 (the heap's, or an adopted checkpoint's), which Spark cannot repartition."
            if on_heap
            else "The job keeps no state.",
            where=where,
            safe=UNCHANGED,
            next="Begin a new checkpoint with state=fp.RocksDB() and the number of partitions you want."
            if on_heap
            else "Start it with another spark.sql.shuffle.partitions; nothing in the checkpoint is bound to it.",
        )
    if {len(stores) for stores in ids.values()} == {partitions}:
        raise BadConfig(
            "same_partitions",
            f"The state has {partitions} partitions already.",
            where=where,
            safe=UNCHANGED,
            next="Name another number.",
        )


def _in_a_copy(spark: Any, kept: Savepoint, work: Path, root: Path, effect: e.Repartition) -> e.Repartitioned:
    if kept.epoch != effect.epoch:
        raise _failed(root, f"the copy is of epoch {kept.epoch}, and the newest is {effect.epoch}")
    assert isinstance(kept.copy, Path)
    shutil.copytree(kept.copy, work, dirs_exist_ok=True)
    relocate(work)
    before = set(_files(work))
    faults.reach("rescale.copied")
    formats = {**session.FORMATS, **kept.formats}
    files = session.checkpoint_files(spark, str(work)) if session.bring_jar(spark) else {}
    try:
        with session.settings(spark, {**formats, **files}):
            spark._streamingCheckpointManager.repartition(str(work), effect.partitions, True)
    except Exception as error:
        raise _failed(root, f"Spark's repartition ended with {names_of(error)}") from error
    faults.reach("rescale.repartitioned")
    relocate(work, root)
    log = SparkLog(store_at(work))
    number = Epoch(effect.epoch + 1)
    offsets, snapshot = log.read("offsets", number), log.read("commits", number)
    if not offsets or not snapshot or {len(p) for p in state_ids(snapshot).values()} != {effect.partitions}:
        raise _failed(root, "Spark did not write the epoch that it makes of it")
    folders = set()
    for name in sorted(set(_files(work)) - before):
        (root / name).unlink(missing_ok=True)  # only a copy that died before its decision can have left one
        copy_file(work, root, name)
        folders.add((root / name).parent)
        faults.reach("rescale.state_copied")
    for folder in folders:
        sync_folder(folder)
    added = SparkLog(store_at(root))
    return e.Repartitioned(offsets, snapshot, added.sums(added.schema_files()))


def _files(root: Path) -> list[str]:
    return [way(path, root) for path in (root / "state").rglob("*") if path.is_file()]


def _failed(root: Path, what: str) -> CheckpointRefused:
    return CheckpointRefused(
        "rescale_failed",
        f"The state could not be repartitioned: {what}.",
        where=Where(path=str(root)),
        safe="Safe: nothing was decided; the checkpoint is as it was.",
        next="Start the job as it is, or repeat the command; Spark's own error is above.",
    )
