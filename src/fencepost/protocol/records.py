"""The ledger's records, and their one way to bytes and back.

Never a row's value, never a secret: a record is read with `cat` by whoever may read the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NewType

Epoch = NewType("Epoch", int)
"""The number of an epoch; Spark's batch id."""

Number = NewType("Number", int)
"""The place of a record in its ledger; also its file name."""

WriterNumber = NewType("WriterNumber", int)
"""The number of a driver's own `writer` record: unique and rising without a counter."""

NOTHING_BEFORE = "0" * 64
"""`prev` of record 0, and the digest of the positions before the first epoch."""

FORMAT = 1
"""Of the ledger; number 0 says it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A staged file that holds an epoch's rows until every sink has them."""

    file: str
    rows: int
    sum: str


@dataclass(frozen=True, slots=True)
class Handle:
    """The name by which any process can commit or abort one pre-committed unit."""

    id: str
    sink: str
    rows: int
    kept: tuple[Kept, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """By id: ids are random and never used twice."""
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """What the ledger remembers of a sink: enough to notice that its target was replaced."""

    shape: str
    target: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Number 0: who we are."""

    job: str
    guarantee: str
    first_epoch: Epoch
    sinks: Mapping[str, SinkRecord] = field(hash=False)
    formats: Mapping[str, str] = field(hash=False)
    generation: int = 0
    parent: Mapping[str, Any] | None = field(default=None, hash=False)
    """The lineage and epoch from which this one was begun anew; `first_epoch` is that epoch."""
    ancestors: tuple[str, ...] = ()
    """Sealed lineages before this one: their marks in a target are ours, what they left open is nobody's."""
    fate: str = ""
    """What becomes of the rows that targets hold of later epochs of the parent: quiet, overwrite, again."""
    quiet: tuple[str, ...] = ()
    """Texts of `offsets` for the epochs after the first: they run for their state and write nothing."""
    later: tuple[str, ...] = ()
    """The same for another fate: what the targets hold of the parent, for whoever thinks again before it has begun."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Writer:
    """From here on only this writer appends."""

    start: str
    host: str
    pid: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """at_most_once: from here on the epoch's rows may leave, once."""

    epoch: Epoch
    offsets: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The point of no return: this epoch will be committed, whatever crashes."""

    epoch: Epoch
    offsets: str
    start: str
    end: str
    done_through: Epoch
    handles: tuple[Handle, ...]
    snapshot: str
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Sums of files that the epoch rests on and that have none elsewhere, by their names in the checkpoint."""
    cause: str = "data"
    held: Mapping[str, Epoch] = field(default_factory=dict, hash=False)
    """By sink, the newest epoch before this one that had rows for it: a target that lacks it lost data."""
    sinks: Mapping[str, SinkRecord] | None = field(default=None, hash=False)
    """What the sinks are by now, if their user declared a change; None: as number 0 says."""

    @property
    def held_after(self) -> Mapping[str, Epoch]:
        """What the targets hold once this decision is done."""
        return {**self.held, **{handle.sink: self.epoch for handle in self.handles}}


@dataclass(frozen=True, slots=True)
class Redo:
    """New handles, holding the same rows, in the place of lost ones."""

    epoch: Epoch
    decision: Number
    lost: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Void:
    """Nothing of this decision is visible or ever will be; the epoch runs again."""

    epoch: Epoch
    decision: Number
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Every handle of every decision up to here is committed, and no next decision is there to say so."""

    through: Epoch


@dataclass(frozen=True, slots=True)
class Sealed:
    """The last record: lineage `next` goes on after `epoch`, and nobody here any more."""

    next: str
    epoch: Epoch
    fate: str
    place: str = ""
    """Where it goes on; "": in the same checkpoint."""


Body = Lineage | Writer | Claim | Decision | Redo | Void | Done | Sealed

KINDS: Mapping[str, type[Body]] = {
    "lineage": Lineage,
    "writer": Writer,
    "claim": Claim,
    "decision": Decision,
    "redo": Redo,
    "void": Void,
    "done": Done,
    "sealed": Sealed,
}
KIND_OF: Mapping[type[Body], str] = {cls: kind for kind, cls in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its place in the chain."""

    number: Number
    lineage: str
    writer: WriterNumber
    at: str
    prev: str
    oldest: Number
    body: Body

    @property
    def kind(self) -> str:
        """The word used for it in files, tables and messages."""
        return KIND_OF[type(self.body)]


class Damaged(Exception):
    """Bytes that are not a whole, unchanged record of this ledger."""


def digest(data: bytes) -> str:
    """SHA-256, the one digest of every durable thing here."""
    return hashlib.sha256(data).hexdigest()


def positions(offsets: str) -> str:
    """Digest of the source lines of an `offsets/N` text: where the epoch ends.

    The first two lines are the version and Spark's own settings; the rest is one line per source.
    """
    return digest("\n".join(offsets.rstrip("\n").split("\n")[2:]).encode())


def encode(record: Record) -> bytes:
    """Canonical bytes, with the sum over everything else."""
    plain: dict[str, Any] = {
        "number": record.number,
        "kind": record.kind,
        "lineage": record.lineage,
        "writer": record.writer,
        "at": record.at,
        "prev": record.prev,
        "oldest": record.oldest,
        "body": asdict(record.body),
    }
    content = _canonical(plain)
    return _with_sum(content, digest(content))


def decode(data: bytes) -> Record:
    """Read bytes back; raise `Damaged` unless they are exactly what `encode` once wrote."""
    try:
        plain = json.loads(data)
        expected = plain.pop("sum")
        content = _canonical(plain)
        if digest(content) != expected:
            raise Damaged("its sum does not match its content")
        if data != _with_sum(content, expected) or plain.keys() != HEAD:
            raise Damaged("it is not in canonical form")
        record = Record(
            number=Number(plain["number"]),
            lineage=plain["lineage"],
            writer=WriterNumber(plain["writer"]),
            at=plain["at"],
            prev=plain["prev"],
            oldest=Number(plain["oldest"]),
            body=_body(plain["kind"], plain["body"]),
        )
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"it is not a record ({type(error).__name__})") from error
    return record


def _with_sum(content: bytes, total: str) -> bytes:
    """Put the sum at its place among the sorted keys: before the last one, `writer`."""
    head, writer, tail = content.rpartition(b',"writer":')
    return b'%b,"sum":"%b"%b%b\n' % (head, total.encode(), writer, tail)


def _canonical(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


HEAD = {"number", "kind", "lineage", "writer", "at", "prev", "oldest", "body"}
FIELDS = {cls: {field.name for field in fields(cls)} for cls in KIND_OF}


def _body(kind: str, plain: Mapping[str, Any]) -> Body:
    cls = KINDS[kind]
    if cls is Lineage and plain.get("format") != FORMAT:
        raise Damaged(f"it is of format {plain.get('format')}, and this version of fencepost knows format {FORMAT}")
    if plain.keys() != FIELDS[cls]:
        raise Damaged("it has other fields than a record of this version")
    values = dict(plain)
    for name in ("lost", "ancestors", "quiet", "later"):
        if name in values:
            values[name] = tuple(values[name])
    if "handles" in values:
        values["handles"] = tuple(_handle(h) for h in values["handles"])
    if values.get("sinks") is not None:
        values["sinks"] = {name: SinkRecord(**sink) for name, sink in values["sinks"].items()}
    return cls(**values)


def _handle(plain: Mapping[str, Any]) -> Handle:
    return Handle(**{**plain, "kept": tuple(Kept(**kept) for kept in plain["kept"])})
