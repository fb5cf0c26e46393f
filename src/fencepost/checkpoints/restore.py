"""Goes on from an earlier epoch: of the checkpoint itself (rewind), or of a savepoint, at another place.

    rewind     seal ─► found ─► switch, all in the checkpoint; its state files stay, the next start cuts Spark's log
    restore    verify ─► seal the parent ─► copy into a hidden folder, found there ─► the folder gets its name
    fork       the same without the seal, under another job's name

On a remote store the new checkpoint is built at its place, under a claim, and `metadata` is created exclusively, last.
What is interrupted is repeated with the same command. Never makes two checkpoints of one lineage, and never leaves a
parent able to decide whose rows a child counts on.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fencepost import faults
from fencepost.checkpoints import savepoint as savepoints
from fencepost.checkpoints.claimed import claimed, half_made, is_half
from fencepost.checkpoints.copying import copy_part
from fencepost.checkpoints.hidden import hidden_folder, sweep
from fencepost.checkpoints.manifest import Savepoint
from fencepost.checkpoints.parts import Part, not_whole, parts_of
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.relocate import relocate
from fencepost.checkpoints.sums import HADOOP_EVERY, HADOOP_MAGIC, measure
from fencepost.driver import this_process
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where
from fencepost.ledger import Place, RemotePath, each, seen, store_at
from fencepost.ledger.local import make_folder, sync_folder
from fencepost.ledger.names import ledger_folder
from fencepost.perform import Performer
from fencepost.protocol import lineages
from fencepost.protocol.lineages import Anew, Fate
from fencepost.protocol.order import State
from fencepost.protocol.records import Epoch
from fencepost.spark.checkpoint import SparkLog
from fencepost.times import now
from fencepost.unusable import unusable

METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Begun:
    """What goes on, and how much it does in silence first."""

    path: Place
    job: str
    lineage: str
    epoch: int
    quiet: int


def rewind(checkpoint: Place, epoch: int, fate: Fate) -> Begun:
    """Let a checkpoint go on after an earlier epoch of its own; its job must be stopped."""
    root = checkpoint.absolute()
    state = read(root)
    plan = Anew(state.lineage.job, Epoch(epoch), fate, this_process(), str(uuid.uuid4()), now)
    if state.sealed is None and not lineages.was_begun_by(plan, state):
        _check_whole(root, plan, state)
    try:
        _performer(root).run(lineages.rewind(plan, state.lineage_id))
    except OSError as error:
        raise unusable(error, state.lineage.job, str(root)) from error
    return _begun(root)


def restore(
    savepoint: Savepoint,
    to: Place,
    *,
    fate: Fate | None = None,
    parent: Place | None = None,
    fork: str | None = None,
) -> Begun:
    """Make a new checkpoint of a savepoint.

    Args:
        savepoint: The copy to begin from.
        to: The new checkpoint's folder; it must not exist.
        fate: What becomes of rows that the targets hold of later epochs; not for a fork, which has its own targets.
        parent: The checkpoint that the savepoint was made of: it is sealed. None: it is lost, or goes on beside a fork.
        fork: The name of the second job.
    """
    place = to.absolute()
    origin = _trusted(savepoint)
    if fork is not None:
        fate = "again"
    assert fate is not None
    plan = Anew(
        fork or savepoint.job,
        Epoch(savepoint.epoch),
        fate,
        this_process(),
        str(uuid.uuid4()),
        now,
        str(place),
    )
    before = None if parent is None else _parent(parent.absolute(), savepoint, plan)
    if before is None and fate == "quiet":
        raise BadConfig(
            "quiet_needs_parent",
            "Only the parent's ledger says up to where its targets hold rows.",
            where=Where(job=plan.job),
            safe=UNCHANGED,
            next="Name the parent checkpoint, or choose overwrite (keyed sinks) or again (an emptied target).",
        )
    if place.exists():
        return _already(place, before, plan)
    if before is not None and parent is not None and fate == "quiet" and before.sealed is None:
        _check_source_files(parent.absolute(), plan, before)
    try:
        if before is not None and parent is not None:
            before = _performer(parent.absolute()).run(lineages.seal(plan, before))
        _build(_Source(savepoint, origin, before, parent), plan, place, fork=fork is not None)
    except OSError as error:
        raise unusable(error, plan.job, str(place)) from error
    return _begun(place)


def _check_whole(root: Place, plan: Anew, state: State) -> None:
    """Everything that the epoch rests on must be there, and nothing that will be cut off may stand in for it."""
    lineages.check_closed(plan.job, state)
    lineages.decision_of(plan, state)
    if plan.fate == "quiet":
        _check_source_files(root, plan, state)
    wrong = not_whole(root, plan.epoch, state)
    if wrong:
        raise CheckpointRefused(
            "snapshot_lost",
            f"{len(wrong)} files that epoch {plan.epoch} rests on are missing or changed: "
            f"{'; '.join(map(str, wrong[:3]))}.",
            where=Where(job=plan.job, path=str(root)),
            safe=UNCHANGED,
            next="Choose a later epoch, or restore a savepoint.",
        )


def _check_source_files(root: Place, plan: Anew, state: State) -> None:
    """Spark reads on without a file that is gone, and the state would lack what the targets have."""
    log = SparkLog(store_at(root))
    base, last = lineages.decision_of(plan, state), state.newest
    assert last is not None
    for name in log.source_files(base.offsets, last.offsets):
        began, _ = log.ends(name.split("/")[1], base.offsets)
        for line in (root / name).read_text().split("\n")[1:]:
            entry = json.loads(line) if line else {}
            path = unquote(str(entry.get("path", "")))
            if entry.get("batchId", -1) > began and path.startswith("file:") and not Path(path[5:]).exists():
                raise CheckpointRefused(
                    "source_file_gone",
                    f"A file that an epoch after {plan.epoch} read is gone: {path}.",
                    where=Where(job=plan.job, path=str(root)),
                    safe=UNCHANGED,
                    next="Bring it back, or choose a later epoch, or overwrite or again.",
                )


def _trusted(savepoint: Savepoint) -> State:
    wrong = savepoints.verify(savepoint)
    if wrong:
        raise CheckpointRefused(
            "savepoint_damaged",
            f"{len(wrong)} files of the savepoint are not whole: {'; '.join(map(str, wrong[:3]))}.",
            where=Where(job=savepoint.job, path=str(savepoint.path)),
            safe=UNCHANGED,
            next="Choose another one: fencepost savepoint list FOLDER.",
        )
    return read(savepoint.copy)


def _parent(path: Place, savepoint: Savepoint, plan: Anew) -> State:
    state = read(path)
    left = state.lineage.parent or {}
    # A lineage that was begun anew before the savepoint's epoch never saw what came between.
    follows = left.get("lineage") == savepoint.lineage and left.get("epoch", -1) >= savepoint.epoch
    if savepoint.lineage != state.lineage_id and not follows:
        raise BadConfig(
            "not_the_parent",
            "The savepoint was not made of this checkpoint, or that went on from an earlier epoch since.",
            where=Where(job=plan.job, path=str(path)),
            safe=UNCHANGED,
            next="Name the checkpoint that it was made of (`fencepost savepoint show` has its lineage), or use a newer "
            "savepoint.",
        )
    if plan.fate == "quiet":
        kept = [decision.epoch for _, decision in state.decisions]
        if savepoint.lineage != state.lineage_id or not kept or kept[0] > plan.epoch + 1:
            raise CheckpointRefused(
                "range_not_retained",
                f"The parent no longer has the ranges of all epochs after {plan.epoch}, which quiet runs again.",
                where=Where(job=plan.job, path=str(path)),
                safe=UNCHANGED,
                next="Choose overwrite (keyed sinks) or again (an emptied target), or a newer savepoint.",
            )
    return state


def _already(place: Place, before: State | None, plan: Anew) -> Begun:
    """A command that was repeated after its last step is done; any other folder is somebody's."""
    if isinstance(place, RemotePath) and is_half(place, METADATA):
        raise half_made(place)
    with suppress(CheckpointRefused):
        if before is not None and before.sealed is not None and read(place).lineage_id == before.sealed.next:
            return _begun(place)
    raise _place_taken(place, plan)


def _place_taken(place: Place, plan: Anew) -> BadConfig:
    return BadConfig(
        "place_taken",
        "There is something at the new place already.",
        where=Where(job=plan.job, path=str(place)),
        safe="Safe: it was not touched.",
        next="Name a folder that does not exist.",
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What a new checkpoint is made of."""

    savepoint: Savepoint
    origin: State
    """The ledger in the savepoint."""
    before: State | None
    """The parent's, sealed."""
    parent: Place | None

    @property
    def child(self) -> str | None:
        """The lineage that the seal names."""
        return self.before.sealed.next if self.before is not None and self.before.sealed is not None else None


def _build(source: _Source, plan: Anew, place: Place, *, fork: bool) -> None:
    if isinstance(place, RemotePath):
        with claimed(place) as claim:
            if claim is None:
                raise half_made(place)
            child = _fill(source, plan, place, place, fork=fork)
            if not claim.finish(METADATA, json.dumps({"id": child}, separators=(",", ":")).encode()):
                raise _place_taken(place, plan)
        return
    # Everything in a hidden folder, durable, before it gets its name.
    make_folder(place.parent)
    sweep(place.parent)
    with hidden_folder(place) as temp:
        child = _fill(source, plan, temp, place, fork=fork)
        SparkLog(store_at(temp)).name_lineage(child)
        for folder, _, _ in os.walk(temp, topdown=False):
            sync_folder(Path(folder))
        faults.reach("restore.built")
        temp.rename(place)
        sync_folder(place.parent)


def _fill(source: _Source, plan: Anew, half: Place, place: Place, *, fork: bool) -> str:
    """All but Spark's metadata, which names the lineage; return that. The ledger comes after what it speaks of."""
    savepoint, origin = source.savepoint, source.origin
    ledger = ledger_folder(origin.lineage_id)
    names = [name for name in savepoint.files if not name.startswith((f"{ledger}/", METADATA, f".{METADATA}"))]
    copy_files(savepoint.copy, half, names)
    if source.before is not None and source.parent is not None and plan.fate == "quiet":
        _copy_sources(source.parent.absolute(), source.before, half)
    if isinstance(half, Path):
        _sum_tables(half, names)
    faults.reach("restore.copied")
    moved = SparkLog(store_at(half)).sums(relocate(half, place))
    _copy_topics(half, origin.lineage_id, source.child or plan.new_id)  # a fork has no ancestors to look them up with
    return _performer(half).run(lineages.found(plan, origin, source.before, fork=fork, moved=moved))


def _copy_sources(parent: Place, before: State, to: Place) -> None:
    """The files that the quiet epochs read, as the parent listed them."""
    there = seen(to)
    parts = [part.name for part in parts_of(parent, before.done_through, before)]
    copy_files(parent, to, [name for name in parts if name.startswith("sources/") and not (there / name).exists()])


def copy_files(root: Place, to: Place, names: list[str]) -> None:
    """Copy files, durably; far away many at a time."""
    far = to if isinstance(to, RemotePath) else root
    for _ in each(far, lambda name: copy_file(root, to, name), names):
        pass


def _sum_tables(root: Path, names: list[str]) -> None:
    """Beside every table on a local disk Hadoop keeps a sum; a copy that came from elsewhere has none."""
    for name in names:
        folder, _, last = name.rpartition("/")
        side = f"{folder}/.{last}.crc"
        if folder.endswith(("/SSTs", "/logs")) and not last.startswith(".") and side not in names:
            pieces = measure(root / name, hadoop_every=HADOOP_EVERY).hadoop or b""
            store_at(root).replace(side, HADOOP_MAGIC + HADOOP_EVERY.to_bytes(4, "big") + pieces)


def copy_file(root: Place, to: Place, name: str) -> None:
    """Copy one file, durably; its name becomes durable with its folder."""
    target = to / name
    if isinstance(target, Path):
        make_folder(target.parent)
    _, problem = copy_part(root, Part(name, "other"), target)
    if problem is not None:
        raise CheckpointRefused(
            "copy_failed",
            f"{problem}.",
            where=Where(path=str(root)),
            safe="Safe: the copy is thrown away.",
            next="See that nobody changes the folder, then repeat the command.",
        )


def _copy_topics(root: Place, was: str, now_: str) -> None:
    store = store_at(root)
    for name in store.list(f"fencepost/{was}/topics"):
        store.create(f"fencepost/{now_}/topics/{name}", store.read(f"fencepost/{was}/topics/{name}") or b"")


def _performer(root: Place) -> Performer:
    store = store_at(root)
    return Performer("", store, SparkLog(store), {})


def _begun(path: Place) -> Begun:
    state = read(path)
    return Begun(path, state.lineage.job, state.lineage_id, state.lineage.first_epoch, len(state.lineage.quiet))
