"""Looks a checkpoint over, says what is wrong with it and what to do, and repairs what is provably right to repair.

    start     the next start of the job mends it by itself, from the ledger
    copy      the right bytes are in a savepoint: a sum in the checkpoint says that they are the right ones
    restore   the newest epoch cannot be had back: begin anew from a savepoint
    person    somebody has to look

Only reads, unless it is told to repair; then it only puts files back, never removes or changes one that is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from fencepost.checkpoints import savepoint as savepoints
from fencepost.checkpoints import stale
from fencepost.checkpoints.manifest import Savepoint, find
from fencepost.checkpoints.parts import Part, examine, not_whole, parts_of
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.sums import measure
from fencepost.errors import CheckpointRefused, FencepostError, Where
from fencepost.ledger import Place, RemotePath, Unanswered, seen, store_at
from fencepost.ledger.names import ledger_folder
from fencepost.protocol.order import State
from fencepost.protocol.records import Damaged, decode, digest
from fencepost.spark.checkpoint import SparkLog

Cure = Literal["start", "copy", "restore", "person"]

STALE_FEW = 100
READ_AT_START = 200_000_000
"""Bytes of state; about two seconds."""
FETCHED_AT_START = 20_000_000
"""The same, from another machine."""

BY_ITSELF = "Nothing: the next start puts it right, from the ledger."


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    code: str
    name: str
    """The file, relative to the checkpoint."""
    what: str
    cure: Cure
    next: str
    source: Place | None = None
    """The file whose bytes are the right ones."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and who is ill."""

    job: str
    epoch: int
    """The newest one that is done; -1 if the ledger cannot say."""
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Nothing is wrong."""
        return not self.findings


def diagnose(checkpoint: Place, savepoint_folders: Iterable[Place] = ()) -> Diagnosis:
    """Look everything over that the next start needs. `savepoint_folders` are looked into besides the usual one."""
    root = checkpoint.absolute()
    try:
        copies = [copy for place in (root, *savepoint_folders) for copy in find(place)[0]]
        try:
            state = read(root)
        except CheckpointRefused as error:
            return Diagnosis("", -1, tuple(_of_the_ledger(root, error, copies)))
        return Diagnosis(state.lineage.job, state.done_through, tuple(_of_the_rest(seen(root), state, copies)))
    except OSError as error:
        what = f"{error.filename or 'something'} cannot be read: {error.strerror}"
        cure = (
            "See what it is (a folder in the place of a file, a link that leads nowhere, no rights) and put it right."
        )
        return Diagnosis("", -1, (Finding("unreadable", ".", what, "person", cure),))


def repair(checkpoint: Place, diagnosis: Diagnosis) -> list[Finding]:
    """Put back what a savepoint has; return what was put back. The damaged file is kept beside it."""
    root = checkpoint.absolute()
    done = []
    for finding in diagnosis.findings:
        if finding.cure == "copy" and finding.source is not None:
            _keep(root / finding.name)
            store_at(root).replace(finding.name, finding.source.read_bytes())
            done.append(finding)
    return done


def _keep(path: Place) -> None:
    """The damaged one, beside it: nobody has looked at it yet."""
    if not path.exists():
        return
    if isinstance(path, RemotePath):
        store_at(path.parent).replace(f".{path.name}.damaged", path.read_bytes())
    else:
        path.rename(path.with_name(f".{path.name}.damaged"))


def check_newest(checkpoint: Place, state: State, said: str | None = None) -> None:
    """Refuse a newest epoch that is not whole; before a start, for Spark would find out late, and say less.

    Large state is left to Spark: it compares the same sums, and to read it twice would take too long. `said` is what
    Spark ended with; if that is about state, all of it is looked at here, for Spark does not say what to do.
    """
    if said is not None and not re.search("STATE_STORE|[Cc]hecksum|CHECKSUM", said):
        return
    if state.newest is None:
        return
    at_start = FETCHED_AT_START if isinstance(checkpoint, RemotePath) else READ_AT_START
    wrong = not_whole(checkpoint, state.newest.epoch, state, at_start if said is None else inf)
    if wrong:
        offers = ", ".join(str(one.path) for one in reversed(_good(find(checkpoint)[0], state))) or "none is there"
        raise CheckpointRefused(
            "snapshot_lost",
            f"{len(wrong)} files that epoch {state.done_through} rests on are missing or changed: "
            f"{'; '.join(map(str, wrong[:3]))}.",
            where=Where(job=state.lineage.job, path=str(checkpoint)),
            next=f"Run `fencepost doctor {checkpoint}`: it says what can be put back. Savepoints, newest first: "
            f"{offers}.",
        )


def _of_the_ledger(root: Place, error: FencepostError, copies: list[Savepoint]) -> Iterator[Finding]:
    """Something stands in the way of reading the ledger at all."""
    log = SparkLog(store_at(root))
    if error.code != "ledger_damaged":
        lineages = log.identity().ledgers
        if error.code == "no_ledger" and len(lineages) == 1:
            what = "it names another query than the ledger's, or none"
            yield Finding("metadata_differs", "metadata", what, "person", f'Write {{"id":"{lineages[0]}"}} into it.')
            return
        yield Finding(error.code, ".", error.what, "person", error.next)
        return
    lineage = log.identity().metadata or log.identity().ledgers[0]
    folder = ledger_folder(lineage)
    names = [name for name in store_at(root).list(folder) if name.endswith(".json")]
    bad = dict(_broken_records(root / folder, names))
    way_out = _restore(copies)
    for name, what in bad.items():
        yield _with_copy(root, Finding("ledger_damaged", f"{folder}/{name}", what, "restore", way_out), copies)
    if not bad:
        yield Finding("ledger_damaged", folder, error.what, "restore", way_out)


def _broken_records(folder: Place, names: list[str]) -> Iterator[tuple[str, str]]:
    """Records that are not whole, not where they belong, missing, or not followed by the one that follows them."""
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
        if f"{record.number:020d}.json" == name and record.lineage == folder.parent.name:
            whole[record.number] = (record.prev, data)
            oldest = record.oldest
        else:
            yield name, f"it holds record {record.number} of lineage {record.lineage}"
    last = max((int(name[:-5]) for name in names if name[:-5].isdigit()), default=-1)
    for number in (0, *range(max(1, oldest), last + 1)):
        name = f"{number:020d}.json"
        if name not in names:
            yield name, "it is missing"
        elif number in whole and number + 1 in whole and digest(whole[number][1]) != whole[number + 1][0]:
            yield name, "the record after it was written after another one"


def _of_the_rest(root: Place, state: State, copies: list[Savepoint]) -> Iterator[Finding]:
    if state.sealed is not None:
        where = state.sealed.place or "this folder, once the command is repeated"
        yield Finding("sealed", ".", f"the lineage goes on in {where}", "person", "Start the job from there.")
    if state.open is not None:
        what = f"epoch {state.open.epoch} is decided and not known to be in every sink"
        yield Finding("open_decision", ".", what, "start", "Nothing, if the job runs; else start it.")
    yield from _of_the_log(root, state)
    lost = not_whole(root, state.newest.epoch, state) if state.newest else []
    way_out = _restore(_good(copies, state)) if lost else ""
    known = {part.name: part for part in parts_of(root, state.done_through, state)} if lost else {}
    for one in lost:
        finding = Finding("snapshot_lost", one.name, one.text, "restore", way_out)
        yield _with_copy(root, finding, copies, known)
    left = stale.count(root)
    if left > STALE_FEW:
        yield Finding("stale_files", ".", f"{left} temporary files of writers that died", "start", BY_ITSELF)


def _of_the_log(root: Place, state: State) -> Iterator[Finding]:
    """Spark's own log, where it is needed: the ledger has its text."""
    newest = state.newest
    if newest is None:
        return
    wanted = {"metadata", *(f"{log}/{newest.epoch - back}" for log in ("offsets", "commits") for back in (0, 1))}
    for part in parts_of(root, newest.epoch, state):
        _, problem = examine(root, part) if part.name in wanted else (None, None)
        if problem is not None:
            yield Finding("spark_log_differs", part.name, problem.text, "start", BY_ITSELF)
    for epoch in SparkLog(store_at(root)).names("commits"):
        if epoch > newest.epoch and newest.cause != "restore":
            what = f"Spark completed epoch {epoch}, and the newest decision is {newest.epoch}"
            ahead = "The query ran without fencepost, or ledger records were removed: restore them from a copy."
            yield Finding("spark_ahead", f"commits/{epoch}", what, "person", ahead)


def _with_copy(
    root: Place, finding: Finding, copies: list[Savepoint], known: Mapping[str, Part] | None = None
) -> Finding:
    """Is there a copy of the file whose sum is the one that the checkpoint itself says?"""
    for copy in reversed(copies):
        source = copy.copy / finding.name
        if source.is_file() and finding.name in copy.files and _is_right(root, source, finding.name, known):
            how = f"Its bytes are in savepoint {copy.name}: run the same command with --repair."
            return Finding(finding.code, finding.name, finding.what, "copy", how, source)
    return finding


def _is_right(root: Place, source: Place, name: str, known: Mapping[str, Part] | None) -> bool:
    """The copy must fit what the checkpoint says of it: a sum in the ledger, or the side file that lies here."""
    if known is None:
        return _follows(root, source, name)
    part = known.get(name)
    if part is None or part.kind not in ("state", "schema", "source"):
        return False
    if part.sha256 is not None:
        return measure(source, crc32c=False, hadoop_every=None).sha256 == part.sha256
    return part.side is not None and _fits_side(root, source, part)


def _fits_side(root: Place, source: Place, part: Part) -> bool:
    assert part.side is not None
    copied = source
    for _ in part.name.split("/"):
        copied = copied.parent
    here, there = root / part.side, copied / part.side
    if not here.is_file() or not there.is_file() or here.read_bytes() != there.read_bytes():
        return False
    return examine(copied, part)[1] is None


def _follows(root: Place, source: Place, name: str) -> bool:
    """A record is the right one if the record after it was written after exactly these bytes."""
    try:
        data = source.read_bytes()
        after = decode((root / name).with_name(f"{decode(data).number + 1:020d}.json").read_bytes())
    except (Damaged, OSError):
        return False
    return after.prev == digest(data)


def _good(copies: list[Savepoint], state: State) -> list[Savepoint]:
    """Those of this lineage or of one before it."""
    family = {state.lineage_id, *state.lineage.ancestors}
    return [copy for copy in copies if copy.lineage in family]


def _restore(copies: list[Savepoint]) -> str:
    for copy in reversed(copies):
        if not savepoints.verify(copy):
            return (
                f"The newest good savepoint is of epoch {copy.epoch}: fencepost savepoint restore {copy.path} --to NEW "
                "--sink … and --parent CHECKPOINT, or --parent-lost if its ledger is what is damaged."
            )
    return "There is no good savepoint: restore the folder from a backup, or begin a new checkpoint."
