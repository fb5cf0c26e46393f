"""Examines a checkpoint, says what is wrong and what to do, and repairs only what is provably safe to repair.

    start     the next start of the job repairs it by itself, from the ledger
    copy      the right bytes are in a savepoint, as a checksum in the checkpoint proves
    restore   the newest epoch cannot be recovered: continue from a savepoint
    person    somebody has to look

Only reads, unless told to repair; then it only puts files back, and never removes or changes an intact one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fencepost.admin import savepoint
from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol.format import Damaged, digest
from fencepost.protocol.order import State
from fencepost.protocol.records import decode
from fencepost.store import Place, RemotePath, Unanswered, parts, seen, store_at
from fencepost.store.base import ledger_folder
from fencepost.store.ledger import read
from fencepost.store.parts import Part, examine, measure, not_whole, parts_of
from fencepost.store.refusal import unreadable
from fencepost.store.savepoints import Savepoint, find, of_family
from fencepost.store.spark_log import SparkLog

Fix = Literal["start", "copy", "restore", "person"]

STALE_FEW = 100

NO_COPY = (
    "Spark has run here, and there is no savepoint beside it. If the ledger was deleted, restore the folder from a "
    "backup, or start with a new checkpoint. If plain Spark wrote this checkpoint, start the job with adopt=True."
)
BY_ITSELF = "Nothing: the next start repairs it from the ledger."


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that is not as it should be."""

    code: str
    name: str
    """The file, relative to the checkpoint."""
    what: str
    fix: Fix
    next: str
    source: Place | None = None
    """The file with the right bytes."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and in which job's checkpoint."""

    job: str
    epoch: int
    """The newest done epoch; -1 if the ledger cannot say."""
    findings: tuple[Symptom, ...]

    @property
    def is_whole(self) -> bool:
        """Nothing is wrong."""
        return not self.findings


def diagnose(checkpoint: Place, savepoint_folders: Iterable[Place] = (), tell: Tell = nobody) -> Diagnosis:
    """Examine everything that the next start needs. Savepoints are also looked for in `savepoint_folders`."""
    root = checkpoint.absolute()
    try:
        copies = [copy for place in (root, *savepoint_folders) for copy in find(place)[0]]
        try:
            state = read(root)
        except CheckpointRefused as error:
            return Diagnosis("", -1, tuple(_of_the_ledger(root, error, copies, tell)))
        return Diagnosis(state.lineage.job, state.done_through, tuple(_of_the_rest(seen(root), state, copies, tell)))
    except Unanswered as error:
        raise unreadable(error, str(root)) from error  # the store did not answer: the checkpoint may be intact
    except OSError as error:
        what = f"{error.filename or 'a file'} cannot be read: {error.strerror}"
        advice = "Check what is there (a folder instead of a file, a broken link, missing permissions) and fix it."
        return Diagnosis("", -1, (Symptom("unreadable", ".", what, "person", advice),))


def repair(checkpoint: Place, diagnosis: Diagnosis) -> list[Symptom]:
    """Put back files from savepoints; return what was put back. The damaged file is kept beside it."""
    root = checkpoint.absolute()
    done = []
    for finding in diagnosis.findings:
        if finding.fix == "copy" and finding.source is not None:
            _keep(root / finding.name)
            store_at(root).replace(finding.name, finding.source.read_bytes())
            done.append(finding)
    return done


def _keep(path: Place) -> None:
    """Keep the damaged file beside it: nobody has looked at it yet."""
    if not path.exists():
        return
    if isinstance(path, RemotePath):
        store_at(path.parent).replace(f".{path.name}.damaged", path.read_bytes())
    else:
        path.rename(path.with_name(f".{path.name}.damaged"))


def _of_the_ledger(root: Place, error: FencepostError, copies: list[Savepoint], tell: Tell) -> Iterator[Symptom]:
    """Why the ledger cannot be read at all."""
    log = SparkLog(store_at(root))
    if error.code != "ledger_damaged":
        lineages = log.identity().ledgers
        if error.code == "no_ledger" and len(lineages) == 1:
            what = "it names a different query than the ledger, or none"
            yield Symptom("metadata_differs", "metadata", what, "person", f'Write {{"id":"{lineages[0]}"}} into it.')
            return
        if error.code == "no_ledger" and copies:
            yield Symptom(error.code, ".", error.what, "restore", _restore(copies, tell))
        else:
            begun = error.code == "no_ledger" and log.identity().epochs
            yield Symptom(error.code, ".", error.what, "person", NO_COPY if begun else error.next)
        return
    lineage = log.identity().metadata or log.identity().ledgers[0]
    folder = ledger_folder(lineage)
    names = [name for name in store_at(root).list(folder) if name.endswith(".json")]
    bad = dict(_broken_records(root / folder, names))
    way_out = _restore(copies, tell)
    for name, what in bad.items():
        yield _with_copy(root, Symptom("ledger_damaged", f"{folder}/{name}", what, "restore", way_out), copies)
    if not bad:
        yield Symptom("ledger_damaged", folder, error.what, "restore", way_out)


def _broken_records(folder: Place, names: list[str]) -> Iterator[tuple[str, str]]:
    """Records that are damaged, in the wrong place, missing, or not the ones that their successors followed."""
    whole: dict[int, tuple[str, bytes]] = {}
    oldest = 1
    for name in names:
        try:
            data = (folder / name).read_bytes()
            record = decode(data)
        except Unanswered:
            raise
        except (Damaged, OSError) as error:
            yield name, str(error)
            continue
        except CheckpointRefused:
            continue  # of a newer fencepost: whole, and not for us to judge
        if f"{record.number:020d}.json" == name and record.lineage == folder.parent.name:
            whole[record.number] = (record.previous, data)
            oldest = record.oldest
        else:
            yield name, f"it holds record {record.number} of lineage {record.lineage}"
    last = max((int(name[:-5]) for name in names if name[:-5].isdigit()), default=-1)
    for number in (0, *range(max(1, oldest), last + 1)):
        name = f"{number:020d}.json"
        if name not in names:
            yield name, "it is missing"
        elif number in whole and number + 1 in whole and digest(whole[number][1]) != whole[number + 1][0]:
            yield name, "the next record was written after a different one"


def _of_the_rest(root: Place, state: State, copies: list[Savepoint], tell: Tell) -> Iterator[Symptom]:
    if state.sealed is not None:
        where = state.sealed.place or "this folder, once the interrupted rewind or restore is repeated"
        yield Symptom("sealed", ".", f"the job continues in {where}", "person", "Start the job from there.")
    if state.open is not None:
        what = f"epoch {state.open.epoch} is decided, but not yet known to be in every sink"
        yield Symptom("open_decision", ".", what, "start", "If the job is running, nothing; otherwise start it.")
    yield from _of_the_log(root, state)
    yield from _of_the_notes(root, state, copies)
    newest = state.newest
    lost = not_whole(root, newest.epoch, state, watch=partial(tell, f"Reading epoch {newest.epoch}")) if newest else []
    way_out = _restore(of_family(copies, state), tell, parent=root) if lost else ""
    known = {part.name: part for part in parts_of(root, state.done_through, state)} if lost else {}
    for one in lost:
        finding = Symptom("snapshot_lost", one.name, one.text, "restore", way_out)
        yield _with_copy(root, finding, copies, known)
    left = parts.count(root)
    if left > STALE_FEW:
        yield Symptom("stale_files", ".", f"{left} temporary files from dead writers", "start", BY_ITSELF)


def _of_the_log(root: Place, state: State) -> Iterator[Symptom]:
    """The part of Spark's own log that a start needs: the ledger has its text."""
    newest = state.newest
    if newest is None:
        return
    wanted = {"metadata", *(f"{log}/{newest.epoch - back}" for log in ("offsets", "commits") for back in (0, 1))}
    if newest.cause == "rescale":  # its epoch is completed by the next start
        wanted -= {name for name in wanted if name.endswith(f"/{newest.epoch}") and not (root / name).exists()}
    for part in parts_of(root, newest.epoch, state):
        _, problem = examine(root, part) if part.name in wanted else (None, None)
        if problem is not None:
            yield Symptom("spark_log_differs", part.name, problem.text, "start", BY_ITSELF)
    for epoch in SparkLog(store_at(root)).names("commits"):
        if epoch > newest.epoch and newest.cause != "restore":
            what = f"Spark completed epoch {epoch}, but the newest decision is epoch {newest.epoch}"
            ahead = "The query ran without fencepost, or ledger records were removed: restore them from a copy."
            yield Symptom("spark_ahead", f"commits/{epoch}", what, "person", ahead)


def _of_the_notes(root: Place, state: State, copies: list[Savepoint]) -> Iterator[Symptom]:
    """What a start relies on beside the ledger. Each writer's note of the plan is written once."""
    known = {part.name: part for part in parts_of(root, state.done_through, state) if part.kind in ("plan", "topics")}
    for part in known.values():
        _, problem = examine(root, part)
        if problem is not None:
            how = "Restore the file from a copy of the checkpoint, or from a savepoint."
            yield _with_copy(root, Symptom("note_damaged", part.name, problem.text, "person", how), copies, known)


def _with_copy(
    root: Place, finding: Symptom, copies: list[Savepoint], known: Mapping[str, Part] | None = None
) -> Symptom:
    """Is there a copy of the file that matches the checksum in the checkpoint?"""
    for copy in reversed(copies):
        source = copy.copy / finding.name
        if source.is_file() and finding.name in copy.files and _is_right(root, source, finding.name, known):
            how = f"Savepoint {copy.name} has an intact copy: run the same command with --repair."
            return Symptom(finding.code, finding.name, finding.what, "copy", how, source)
    return finding


def _is_right(root: Place, source: Place, name: str, known: Mapping[str, Part] | None) -> bool:
    """The copy must match what the checkpoint says: a checksum in the ledger, or the checksum file beside it."""
    if known is None:
        return _follows(root, source, name)
    part = known.get(name)
    if part is not None and part.kind == "plan":
        return examine(_root_of(source, name), part)[1] is None
    if part is None or part.kind not in ("state", "schema", "source"):
        return False
    if part.sha256 is not None:
        return measure(source, crc32c=False, hadoop_every=None).sha256 == part.sha256
    return part.side is not None and _fits_side(root, source, part)


def _root_of(file: Place, name: str) -> Place:
    for _ in name.split("/"):
        file = file.parent
    return file


def _fits_side(root: Place, source: Place, part: Part) -> bool:
    assert part.side is not None
    copied = _root_of(source, part.name)
    here, there = root / part.side, copied / part.side
    if not here.is_file() or not there.is_file() or here.read_bytes() != there.read_bytes():
        return False
    return examine(copied, part)[1] is None


def _follows(root: Place, source: Place, name: str) -> bool:
    """A record is the right one if the record after it was written after exactly these bytes."""
    try:
        data = source.read_bytes()
        after = decode((root / name).with_name(f"{decode(data).number + 1:020d}.json").read_bytes())
    except (Damaged, CheckpointRefused, OSError):
        return False
    return after.previous == digest(data)


def _restore(copies: list[Savepoint], tell: Tell, parent: Place | None = None) -> str:
    """How to continue from a savepoint; without a parent its ledger is lost, and nobody knows what targets hold."""
    for copy in reversed(copies):
        if not savepoint.verify(copy, tell):
            how = f"--parent {parent} --sink quiet (or overwrite, or again)"
            if parent is None:
                how = "--parent-lost --sink overwrite (or again), once no driver is running on the old checkpoint"
            return (
                f"The newest good savepoint is of epoch {copy.epoch}: fencepost savepoint restore {copy.path} --to NEW "
                f"{how}. Savepoints, newest first: {_listed(copies)}."
            )
    bad = f" Damaged: {_listed(copies)}." if copies else ""
    return f"There is no good savepoint: restore the folder from a backup, or start with a new checkpoint.{bad}"


def _listed(copies: list[Savepoint]) -> str:
    return ", ".join(str(copy.path) for copy in reversed(copies))
