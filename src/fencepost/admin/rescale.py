"""Changes the number of partitions of a stopped job's state.

    check ─► savepoint (kept) ─► take over ─► Spark repartitions a work copy ─► its new state files into the checkpoint
          ─► DECIDE: an epoch without input ─► the next start completes it

Spark's own repartition writes into the checkpoint it is given, and leaves it unusable if it fails late; so it gets a
copy. Until the decision the checkpoint just has some extra files that nothing refers to.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fencepost import faults
from fencepost.admin import savepoint
from fencepost.admin.folder import copy_files, hidden_folder, sweep
from fencepost.admin.restore import relocate
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where, now
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol import effects as e
from fencepost.protocol import lineages
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.runtime.driver import this_process
from fencepost.runtime.performer import Performer
from fencepost.spark import spark_session
from fencepost.spark.diagnosis import names_of
from fencepost.store import Place, RemotePath, store_at, way
from fencepost.store.ledger import read
from fencepost.store.local import sync_folder
from fencepost.store.refusal import unusable
from fencepost.store.savepoints import Savepoint
from fencepost.store.spark_log import SparkLog, state_ids


def rescale(
    checkpoint: Place, partitions: int, spark: Callable[[], Any], tell: Tell = nobody
) -> tuple[Epoch, Savepoint]:
    """Rescale; return the epoch that does it, and the savepoint from before. `spark` creates a session if needed."""
    root = checkpoint.absolute()
    if isinstance(root, RemotePath):
        raise _not_there(root)
    state = read(root)
    _check(root, state, partitions)
    where = Where(job=state.lineage.job, path=str(root))
    spark_session.need(spark_session.version(state.lineage.job), (4, 2), "repartitioning a state needs", where=where)
    kept = savepoint.create(root, name=f"before-rescale-{state.done_through}-{uuid.uuid4().hex[:6]}", tell=tell)
    store = store_at(root)

    def repartition(effect: e.Repartition) -> e.Repartitioned:
        with hidden_folder(root) as work:
            tell("Starting Spark", 0, 0)
            return _in_a_copy(spark(), kept, work, root, effect, tell=tell)

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
        "Rescale works only on a local checkpoint, and this one is remote.",
        where=Where(path=str(root)),
        safe=UNCHANGED,
        next="Create a savepoint, restore it into a local folder (with this checkpoint as --parent), rescale that one, "
        "and move it back the same way: fencepost savepoint create … --to, fencepost savepoint restore … --to.",
    )


def _check(root: Path, state: State, partitions: int) -> None:
    """Refuse before anything is changed or copied."""
    where = Where(job=state.lineage.job, path=str(root))
    lineages.check_closed(state.lineage.job, state)
    assert state.newest is not None
    if partitions < 1:
        raise BadConfig(
            "bad_partitions",
            f"Invalid number of partitions: {partitions}.",
            where=where,
            next="Give a number of at least 1.",
        )
    ids = state_ids(state.newest.snapshot)
    if not ids:
        on_heap = bool(store_at(root).list("state"))
        raise BadConfig(
            "rescale_needs_rocksdb" if on_heap else "nothing_to_rescale",
            "The state is in format 1 (on the heap, or from an adopted checkpoint), which Spark cannot repartition."
            if on_heap
            else "The job has no state.",
            where=where,
            safe=UNCHANGED,
            next="Start with a new checkpoint, with state=fp.RocksDBState() and the number of partitions you want."
            if on_heap
            else "Just start it with another spark.sql.shuffle.partitions; nothing in the checkpoint depends on it.",
        )
    if {len(stores) for stores in ids.values()} == {partitions}:
        raise BadConfig(
            "same_partitions",
            f"The state already has {partitions} partitions.",
            where=where,
            safe=UNCHANGED,
            next="Give a different number, or start the job as it is.",
        )


def _in_a_copy(
    spark: Any, kept: Savepoint, work: Path, root: Path, effect: e.Repartition, *, tell: Tell
) -> e.Repartitioned:
    if kept.epoch != effect.epoch:
        raise _failed(root, f"the copy is of epoch {kept.epoch}, but the newest epoch is {effect.epoch}")
    assert isinstance(kept.copy, Path)
    tell("Copying the savepoint", 0, 0)
    shutil.copytree(kept.copy, work, dirs_exist_ok=True)
    relocate(work)
    before = set(_files(work))
    faults.reach("rescale.copied")
    formats = {**spark_session.FORMATS, **kept.settings}
    files = {**spark_session.CHECKPOINT_FILES, **spark_session.STATE_FILES} if spark_session.bring_jar(spark) else {}
    tell(f"Repartitioning the state into {effect.partitions} partitions", 0, 0)
    try:
        with spark_session.settings(spark, {**formats, **files}):
            spark._streamingCheckpointManager.repartition(str(work), effect.partitions, True)
    except Exception as error:
        raise _failed(root, f"Spark's repartition failed with {names_of(error)}") from error
    faults.reach("rescale.repartitioned")
    relocate(work, root)
    log = SparkLog(store_at(work))
    number = Epoch(effect.epoch + 1)
    offsets, snapshot = log.read("offsets", number), log.read("commits", number)
    if not offsets or not snapshot or {len(p) for p in state_ids(snapshot).values()} != {effect.partitions}:
        raise _failed(root, "Spark did not write the epoch with the repartitioned state")
    folders = set()
    new = sorted(set(_files(work)) - before)
    for done, name in enumerate(new):
        tell("Copying the new state", done, len(new))
        (root / name).unlink(missing_ok=True)  # only a rescale that died before its decision can have left it
        copy_files(work, root, [name])
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
        safe="Safe: nothing was decided; the checkpoint is unchanged.",
        next="Start the job as it is, or repeat the command; Spark's own error is above.",
    )
