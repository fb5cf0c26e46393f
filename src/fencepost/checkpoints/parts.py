"""Which files one epoch of a checkpoint rests on, and whether each is whole.

    metadata, offsets/, commits/          their text is in the ledger
    sources/<source>/<k>[.compact]        sums in the ledger's decisions
    state/<operator>/<partition>[/<store>]/
        <N+1>_<id>.changelog … down to a snapshot <v>_<id>.zip, and the SSTs/ that it names       RocksDB
        <N+1>.delta … down to <v>.snapshot                                                        heap
    state/…/_metadata, _stateSchema       what the state's rows look like
    fencepost/departed                    where sources were read to that the job does without by now
    fencepost/<lineage>/ledger, topics

Only reads, also while the job runs: what is listed may be gone a moment later, and is then reported as missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePosixPath
from typing import BinaryIO, Literal

from fencepost.checkpoints import state_files
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.sums import HADOOP_MAGIC, Measured, measure
from fencepost.ledger import Place, Unanswered, each, place, seen, store_at
from fencepost.ledger.names import record_name
from fencepost.protocol.order import State
from fencepost.protocol.records import Damaged, Decision, Epoch, decode, digest
from fencepost.spark.checkpoint import DEPARTED, SparkLog

Kind = Literal["log", "source", "state", "schema", "ledger", "topics", "sum", "other"]
What = Literal["missing", "empty", "size", "sum", "no_sum", "unreadable", "extra"]

MAY_BE_EMPTY: tuple[Kind, ...] = ("topics", "other")


@dataclass(frozen=True, slots=True)
class Part:
    """One file. The mistake people make: taking a part without a `known` sum for one that was verified."""

    name: str
    kind: Kind
    sha256: str | None = None
    """What the ledger says of it."""
    size: int | None = None
    """What the snapshot says that names it."""
    side: str | None = None
    """The file beside it that holds its sum."""
    spark_side: bool = False
    """That file is Spark's, with JSON in it; otherwise Hadoop's."""
    operator: str | None = None
    partition: int | None = None

    @property
    def known(self) -> bool:
        """Has it a sum anywhere? A record has one in itself, a side file is compared with what it is for."""
        return bool(self.sha256 or self.side) or self.kind in ("ledger", "sum")

    @property
    def by(self) -> str:
        """How it is checked, for people."""
        sides = "Spark's sum" if self.spark_side else "Hadoop's sum"
        if self.kind in ("ledger", "sum"):
            return "itself" if self.kind == "ledger" else "its file"
        return "the ledger" if self.sha256 else sides if self.side else "its size" if self.size else "nothing"


@dataclass(frozen=True, slots=True)
class Problem:
    """A part that is not whole."""

    name: str
    what: What
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.name}: {self.text}"


def parts_of(root: Place, epoch: int, state: State | None = None) -> list[Part]:
    """Every file that `epoch` rests on; `CheckpointRefused` if there is no ledger to trust.

    `state` spares reading the ledger again. A file that ought to be there is listed, whether it is or not.
    """
    state = state or read(root)
    root = seen(place(root))
    found = {part.name: part for part in _all(root, Epoch(epoch), state)}
    sums = state.files
    return [replace(part, sha256=part.sha256 or sums.get(name)) for name, part in found.items()]


def problems(root: Place, parts: Iterable[Part]) -> list[Problem]:
    """What is missing, torn or changed among them; nothing if they are whole as far as anybody knows their sums."""
    root = place(root)
    return [found for _, found in each(root, lambda part: examine(root, part), parts) if found is not None]


def not_whole(root: Place, epoch: int, state: State, most: float = inf) -> list[Problem]:
    """What of an epoch recovery does not mend: state, schemas and source logs. Spark's log it writes from the ledger.

    Of state of more than `most` bytes only the names are looked at.
    """
    root = seen(root)
    rests = [part for part in parts_of(root, epoch, state) if part.kind in ("state", "schema", "source")]
    if sum(sizes(root, rests).values()) <= most:
        return problems(root, rests)
    gone = [part for part in rests if part.kind == "state" and not (root / part.name).is_file()]
    return problems(root, [*gone, *(part for part in rests if part.kind != "state")])


def sizes(root: Place, parts: Iterable[Part]) -> dict[tuple[str, int], int]:
    """Bytes of state by operator and partition."""
    found: Counter[tuple[str, int]] = Counter()
    for part in parts:
        if part.kind == "state" and part.operator is not None and part.partition is not None:
            path = root / part.name
            found[part.operator, part.partition] += path.stat().st_size if path.is_file() else 0
    return dict(found)


def examine(root: Place, part: Part, to: BinaryIO | None = None) -> tuple[Measured | None, Problem | None]:
    """Read one part, once, in pieces; with `to`, copy it on the way."""
    path = root / part.name
    try:
        side = _side(root / part.side) if part.side else None
        every = int.from_bytes(side[4:8], "big") if side and not part.spark_side else 0
        measured = measure(path, crc32c=part.spark_side, hadoop_every=every if 0 < every <= 1 << 20 else None, to=to)
        return measured, next(_complaints(path, part, measured, side), None)
    except FileNotFoundError:
        return None, Problem(part.name, "missing", "it is missing")
    except Unanswered:
        raise  # it may be whole: who knows
    except OSError as error:
        return None, Problem(part.name, "unreadable", f"it cannot be read ({error.strerror})")


def _side(path: Place) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _complaints(path: Place, part: Part, measured: Measured, side: bytes | None) -> Iterator[Problem]:
    """The first is the plainest."""
    if measured.size == 0 and part.kind not in MAY_BE_EMPTY:
        yield Problem(part.name, "empty", "it is empty")
    if part.size is not None and measured.size != part.size:
        yield Problem(part.name, "size", f"it has {measured.size} bytes, and the snapshot says {part.size}")
    if part.sha256 is not None and measured.sha256 != part.sha256:
        yield Problem(part.name, "sum", "it is not what the ledger says")
    if part.kind == "ledger":
        yield from _not_the_record(path, part)
    if part.side is not None and side is None:
        yield Problem(part.name, "no_sum", f"its sum {PurePosixPath(part.side).name} is missing")
    elif part.side is not None and not (_as_spark_says if part.spark_side else _as_hadoop_says)(measured, side or b""):
        yield Problem(part.name, "sum", f"it and its sum {PurePosixPath(part.side).name} do not match")
    if path.suffix == ".zip" and state_files.tables_of(path) is None:
        yield Problem(part.name, "unreadable", "it is no snapshot of RocksDB's")


def _as_spark_says(measured: Measured, side: bytes) -> bool:
    try:
        said = json.loads(side)
        return (said["algorithm"], said["value"] & 0xFFFFFFFF, said["mainFileSize"]) == (
            "CRC32C",
            measured.crc32c,
            measured.size,
        )
    except (ValueError, KeyError, TypeError):
        return False


def _as_hadoop_says(measured: Measured, side: bytes) -> bool:
    return side[:4] == HADOOP_MAGIC and side[8:] == measured.hadoop


def _not_the_record(path: Place, part: Part) -> Iterator[Problem]:
    """The whole chain is `read`'s business; here, that this file still holds the record of its number."""
    try:
        record = decode(path.read_bytes())
    except Damaged as error:
        yield Problem(part.name, "sum", str(error))
        return
    if (f"{record.number:020d}", record.lineage) != (path.stem, path.parent.parent.name):
        yield Problem(part.name, "sum", f"it holds record {record.number} of lineage {record.lineage}")


def _all(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    yield from _log_parts(root, epoch, state)
    yield from _source_parts(root, epoch, state)
    for file in state_files.find(root, epoch, snapshots(root, state)):
        side = file.side
        if side is not None:
            yield Part(side, "sum", operator=file.operator, partition=file.partition)
        yield Part(
            file.name,
            "schema" if file.schema else "state",
            size=file.size,
            side=side,
            spark_side=file.spark_side,
            operator=file.operator,
            partition=file.partition,
        )
    yield from _own_parts(root, epoch, state)


def snapshots(root: Place, state: State) -> dict[int, str]:
    """The text of `commits/<epoch>` for every epoch that is known: the ledger's word first, then Spark's."""
    log = SparkLog(store_at(root))
    decided = {int(decision.epoch): decision.snapshot for _, decision in state.decisions}
    others = [epoch for epoch in log.names("commits") if epoch not in decided]
    return {epoch: log.read("commits", Epoch(epoch)) or "" for epoch in others} | decided


def _log_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    # It is written in one way only, by us as by Spark, so its sum is known without having been kept.
    metadata = json.dumps({"id": state.lineage_id}, separators=(",", ":")).encode()
    yield from _with_side(root, Part("metadata", "log", sha256=digest(metadata)))
    log = SparkLog(store_at(root))
    decided: dict[int, Decision] = {int(decision.epoch): decision for _, decision in state.decisions}
    for folder in ("offsets", "commits"):
        # Spark wants the newest epoch and the one before; older ones are for whoever looks back.
        wanted = {max(0, epoch - 1), int(epoch), *log.names(folder)}
        for number in sorted(number for number in wanted if number <= epoch):
            text = None
            if decision := decided.get(number):
                text = decision.offsets if folder == "offsets" else decision.snapshot
            known = None if text is None else digest(text.encode())
            yield from _with_side(root, Part(f"{folder}/{number}", "log", sha256=known))


def _source_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    store = store_at(root)
    log = SparkLog(store)
    offsets = {d.epoch: d.offsets for _, d in state.decisions}.get(epoch) or log.read("offsets", epoch)
    later = {stray.name for stray in log.source_strays(offsets)}
    for source in store.list("sources"):
        entries = {n: f"sources/{source}/{name}" for n, name in log.source_entries(source)}
        entries = {n: name for n, name in entries.items() if name not in later}
        # Spark deletes an entry some time after a later one repeated it in a compact file.
        compact = max((n for n, name in entries.items() if name.endswith(".compact")), default=-1)
        surely, _ = log.ends(source, offsets)
        lost = {n: f"sources/{source}/{n}" for n in range(compact + 1, surely + 1) if n not in entries}
        for name in (entries | lost).values():
            yield from _with_side(root, Part(name, "source"))
    for name in store.list(DEPARTED):
        yield Part(f"{DEPARTED}/{name}", "source")


def _own_parts(root: Place, epoch: Epoch, state: State) -> Iterator[Part]:
    lineage = state.lineage_id
    # An epoch that is not decided has lost its record: the newest one leaves no hole behind.
    end = state.last + (2 if epoch >= state.next_epoch else 1)
    for number in (0, *range(max(1, state.oldest), end)):
        yield Part(record_name(lineage, number), "ledger")
    for topic in store_at(root).list(f"fencepost/{lineage}/topics"):
        yield Part(f"fencepost/{lineage}/topics/{topic}", "topics")


def _with_side(root: Place, part: Part) -> Iterator[Part]:
    """With Hadoop's side file, where plain Spark wrote one."""
    folder, _, name = part.name.rpartition("/")
    side = f"{folder}/.{name}.crc".lstrip("/")
    if (root / side).is_file():
        yield Part(side, "sum")
        part = replace(part, side=side)
    yield part
