"""Continues from an earlier epoch: of the checkpoint itself (rewind), or of a savepoint, in another folder.

    rewind     seal ─► found ─► switch, all in the checkpoint; its state files stay, the next start cuts Spark's log
    restore    verify ─► seal the parent ─► copy into a hidden folder, found there ─► the folder gets its name
    fork       the same without the seal, under another job's name

On a remote store the new checkpoint is built in place, under a claim, and `metadata` is created exclusively, last. An
interrupted command is simply repeated. Never creates two checkpoints of one lineage, and never leaves a parent able to
decide anything once a child relies on its rows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from fencepost import faults
from fencepost.admin.folder import BEGUN, copy_files, half_made, making
from fencepost.admin.savepoint import verify
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Where, now
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol import lineages
from fencepost.protocol.lineages import Continuation, Fate
from fencepost.protocol.order import State
from fencepost.protocol.records import Decision, Epoch
from fencepost.runtime.driver import this_process
from fencepost.runtime.performer import Performer
from fencepost.store import Place, RemotePath, seen, store_at, way
from fencepost.store.base import ledger_folder
from fencepost.store.ledger import read
from fencepost.store.notes import read_plan, write_plan
from fencepost.store.parts import (
    HADOOP_EVERY,
    HADOOP_MAGIC,
    measure,
    not_whole,
    parts_of,
    schema_paths,
    snapshot_lost,
)
from fencepost.store.path import is_remote
from fencepost.store.refusal import unusable
from fencepost.store.savepoints import Savepoint
from fencepost.store.spark_log import SparkLog, metadata

METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Begun:
    """The checkpoint that continues, and how many quiet epochs it runs first."""

    path: Place
    job: str
    lineage: str
    epoch: int
    quiet: int


def rewind(checkpoint: Place, epoch: int, fate: Fate, tell: Tell = nobody) -> Begun:
    """Let a checkpoint continue after one of its earlier epochs; its job must be stopped."""
    root = checkpoint.absolute()
    state = read(root)
    plan = Continuation(state.lineage.job, Epoch(epoch), fate, this_process(), str(uuid.uuid4()), now)
    if state.sealed is None and not lineages.was_begun_by(plan, state):
        _check_whole(root, plan, state, tell)
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
    tell: Tell = nobody,
) -> Begun:
    """Create a new checkpoint from a savepoint.

    Args:
        savepoint: The savepoint to start from.
        to: The new checkpoint's folder; it must not exist.
        fate: What happens to rows of later epochs in the targets; not for a fork, which has its own targets.
        parent: The checkpoint that the savepoint was made from: it is sealed. None: it is lost, or a fork leaves it be.
        fork: The name of the second job.
        tell: Called with how far it is.
    """
    place = to.absolute()
    origin = _trusted(savepoint, tell)
    if fork is not None:
        fate = "again"
    assert fate is not None
    plan = Continuation(
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
            "'quiet' needs the parent checkpoint: only its ledger says which epochs the targets already hold.",
            where=Where(job=plan.job),
            safe=UNCHANGED,
            next="Name the parent with --parent, or choose 'overwrite' (keyed sinks) or 'again' (an emptied target).",
        )
    if place.exists():
        return _already(place, before, plan)
    if before is not None and parent is not None and before.sealed is None:
        _check_source_files(parent.absolute(), plan, lineages.decision_of(plan, origin), before.newest)
    try:
        if before is not None and parent is not None:
            before = _performer(parent.absolute()).run(lineages.seal(plan, before))
        _build(_Source(savepoint, origin, before, parent), plan, place, tell, fork=fork is not None)
    except OSError as error:
        raise unusable(error, plan.job, str(place)) from error
    return _begun(place)


def _check_whole(root: Place, plan: Continuation, state: State, tell: Tell) -> None:
    """Everything that the epoch needs must be there, and must not depend on anything that will be cut off."""
    lineages.check_closed(plan.job, state)
    _check_source_files(root, plan, lineages.decision_of(plan, state), state.newest)
    wrong = not_whole(root, plan.epoch, state, watch=partial(tell, f"Reading epoch {plan.epoch}"))
    if wrong:
        where = Where(job=plan.job, path=str(root))
        raise snapshot_lost(wrong, plan.epoch, where, "Choose a later epoch, or restore a savepoint.")


def _check_source_files(root: Place, plan: Continuation, base: Decision, last: Decision | None) -> None:
    """What later epochs read is read again, whatever the fate of their rows, and Spark skips a file that is missing."""
    assert last is not None
    for file in SparkLog(store_at(root)).files_read(base.offsets, last.offsets):
        url = unquote(file.url)
        path = RemotePath(url) if is_remote(url) else Path(url.removeprefix("file:"))
        next_ = "Bring the file back as it was, or choose a later epoch."
        if not path.exists():
            what = f"Source file {path} is gone; an epoch after {plan.epoch} read it, and has to read it again."
        elif plan.fate == "quiet" and not file.has_time(_time_of(path)):
            what = f"Source file {path} was changed since an epoch after {plan.epoch} read it; 'quiet' must reread it."
            next_ += " 'overwrite' (keyed sinks) and 'again' (an emptied target) read it as it is now."
        else:
            continue
        raise CheckpointRefused(
            "source_file_gone",
            what,
            where=Where(job=plan.job, path=str(root)),
            safe=UNCHANGED,
            next=next_,
        )


def _time_of(path: Place) -> int:
    """The modification time in milliseconds, as Spark lists it."""
    return path.stat().st_mtime_ns // 1_000_000 if isinstance(path, Path) else round(path.stat().st_mtime * 1000)


def _trusted(savepoint: Savepoint, tell: Tell) -> State:
    wrong = verify(savepoint, tell)
    if wrong:
        raise CheckpointRefused(
            "savepoint_damaged",
            f"{len(wrong)} files of the savepoint are damaged: {'; '.join(map(str, wrong[:3]))}.",
            where=Where(job=savepoint.job, path=str(savepoint.path)),
            safe=UNCHANGED,
            next="Choose another savepoint: fencepost savepoint list FOLDER.",
        )
    return read(savepoint.copy)


def _parent(path: Place, savepoint: Savepoint, plan: Continuation) -> State:
    state = read(path)
    left = state.lineage.parent or {}
    # A lineage that branched off before the savepoint's epoch never saw what came in between.
    follows = left.get("lineage") == savepoint.lineage and left.get("epoch", -1) >= savepoint.epoch
    if savepoint.lineage != state.lineage_id and not follows:
        raise BadConfig(
            "not_the_parent",
            "The savepoint was not made from this checkpoint, or the checkpoint was since rewound to before it.",
            where=Where(job=plan.job, path=str(path)),
            safe=UNCHANGED,
            next="Name the checkpoint that it was made from (`fencepost savepoint show` prints its lineage), or use a "
            "newer savepoint.",
        )
    if plan.fate == "quiet":
        kept = [decision.epoch for _, decision in state.decisions]
        if savepoint.lineage != state.lineage_id or not kept or kept[0] > plan.epoch + 1:
            raise CheckpointRefused(
                "range_not_retained",
                f"'quiet' reruns all epochs after {plan.epoch}, but the parent no longer has all of their offsets.",
                where=Where(job=plan.job, path=str(path)),
                safe=UNCHANGED,
                next="Choose 'overwrite' (keyed sinks) or 'again' (an emptied target), or a newer savepoint.",
            )
    return state


def _already(place: Place, before: State | None, plan: Continuation) -> Begun:
    """If the command was repeated after its last step, it is done; any other existing folder is not ours."""
    if isinstance(place, RemotePath) and (place / BEGUN).exists() and not (place / METADATA).exists():
        raise half_made(place)
    with suppress(CheckpointRefused):
        if before is not None and before.sealed is not None and read(place).lineage_id == before.sealed.next:
            return _begun(place)
    raise _place_taken(place, plan)


def _place_taken(place: Place, plan: Continuation) -> BadConfig:
    return BadConfig(
        "place_taken",
        "The folder for the new checkpoint already exists.",
        where=Where(job=plan.job, path=str(place)),
        safe="Safe: it was not touched.",
        next="Give --to a folder that does not exist.",
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What a new checkpoint is made from."""

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


def _build(source: _Source, plan: Continuation, place: Place, tell: Tell, *, fork: bool) -> None:
    with making(place) as half:
        if half is None:
            raise half_made(place)
        child = _fill(source, plan, half.folder, place, tell, fork=fork)
        if not half.finish(METADATA, metadata(child)):
            raise _place_taken(place, plan)
        faults.reach("restore.built")
        if not half.appear():
            raise _place_taken(place, plan)


def _fill(source: _Source, plan: Continuation, half: Place, place: Place, tell: Tell, *, fork: bool) -> str:
    """Write everything but Spark's `metadata`; return the lineage for it. The ledger comes after what it refers to."""
    savepoint, origin = source.savepoint, source.origin
    ledger = ledger_folder(origin.lineage_id)
    names = [name for name in savepoint.files if not name.startswith((f"{ledger}/", METADATA, f".{METADATA}"))]
    copy_files(savepoint.copy, half, names, tell)
    if source.before is not None and source.parent is not None and plan.fate == "quiet":
        _copy_sources(source.parent.absolute(), source.before, half)
    if isinstance(half, Path):
        _sum_tables(half, names)
    faults.reach("restore.copied")
    moved = SparkLog(store_at(half)).sums(relocate(half, place))
    _copy_notes(half, origin, source.child or plan.new_id)  # a fork has no ancestors to look them up with
    return _performer(half).run(lineages.found(plan, origin, source.before, fork=fork, moved=moved))


def _copy_sources(parent: Place, before: State, to: Place) -> None:
    """Copy the parent's lists of the files that the quiet epochs read."""
    there = seen(to)
    parts = [part.name for part in parts_of(parent, before.done_through, before)]
    copy_files(parent, to, [name for name in parts if name.startswith("sources/") and not (there / name).exists()])


def _sum_tables(root: Path, names: list[str]) -> None:
    """On a local disk Hadoop keeps a checksum file for each table file; a copy from a remote store has none."""
    for name in names:
        folder, _, last = name.rpartition("/")
        side = f"{folder}/.{last}.crc"
        if folder.endswith(("/SSTs", "/logs")) and not last.startswith(".") and side not in names:
            pieces = measure(root / name, hadoop_every=HADOOP_EVERY).hadoop or b""
            store_at(root).replace(side, HADOOP_MAGIC + HADOOP_EVERY.to_bytes(4, "big") + pieces)


def _copy_notes(root: Place, origin: State, now_: str) -> None:
    store, was = store_at(root), origin.lineage_id
    for name in store.list(f"fencepost/{was}/topics"):
        store.create(f"fencepost/{now_}/topics/{name}", store.read(f"fencepost/{was}/topics/{name}") or b"")
    branches = read_plan(store, (was, *reversed(origin.lineage.ancestors)))
    if branches is not None:
        write_plan(store, now_, 0, branches)  # as if before its first writer


def _performer(root: Place) -> Performer:
    store = store_at(root)
    return Performer("", store, SparkLog(store), {})


def _begun(path: Place) -> Begun:
    state = read(path)
    return Begun(path, state.lineage.job, state.lineage_id, state.lineage.first_epoch, len(state.lineage.quiet))


def relocate(root: Place, place: Place | None = None) -> list[str]:
    """Make a copied checkpoint independent: the paths in it point into `root`, or to its final place.

    Spark writes absolute paths into the metadata of transformWithState's operators (`state/0/_metadata/v2/0` says
    "stateSchemaFilePaths":["file:/old/place/state/0/_stateSchema/default/0_…"]). Left alone, the copy works until the
    original folder is deleted, and then does not start. Returns the files that were changed.
    """
    store, changed = store_at(root), []
    here = root.absolute()
    there = place or here
    start = str(there) if isinstance(there, RemotePath) else f"file:{there}"
    found: Iterator[Place] = here.glob("state/*/_metadata/v2/[0-9]*")
    for file in sorted(found, key=str):
        text = file.read_text()
        name = way(file, here)
        for path in schema_paths(file):
            inside = "/".join(path.split("/")[-5:])  # state/<operator>/_stateSchema/<store>/<file>
            text = text.replace(
                json.dumps(path, ensure_ascii=False), json.dumps(f"{start}/{inside}", ensure_ascii=False)
            )
        if text != file.read_text():
            store.delete(f"{PurePosixPath(name).parent}/.{file.name}.crc")  # remove Hadoop's stale checksum first
            store.replace(name, text.encode())
            changed.append(name)
    return changed
