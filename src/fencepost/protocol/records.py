"""The ledger's records, and the one way they are turned into bytes and back.

Never a row's value, never a secret: anyone who can read the checkpoint can `cat` a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

from fencepost.protocol.format import VERSION, Damaged, StoredFormat, digest, plain_of, read, seal, unseal

Epoch = NewType("Epoch", int)
"""The number of an epoch; Spark's batch id."""

Number = NewType("Number", int)
"""A record's place in its ledger, and its file name."""

WriterNumber = NewType("WriterNumber", int)
"""The number of a driver's own `writer` record: unique and increasing, without a counter."""

NOTHING_BEFORE = "0" * 64
"""`previous` of record 0, and the digest of the offsets before the first epoch."""

LEDGER = StoredFormat("The ledger", 1)
"""Stored in each record: a ledger started by an older fencepost continues in the newer format after an upgrade."""


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
        """By id: ids are random and never reused."""
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """What the ledger remembers about a sink: enough to notice that its target was replaced."""

    shape: str
    target: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Record 0: the checkpoint's identity."""

    job: str
    guarantee: str
    first_epoch: Epoch
    sinks: Mapping[str, SinkRecord] = field(hash=False)
    settings: Mapping[str, str] = field(hash=False)
    """Of Spark, chosen at the first start and kept: they say how it writes its state and its log."""
    generation: int = 0
    parent: Mapping[str, Any] | None = field(default=None, hash=False)
    """The lineage and epoch that this one continues from (rewind, restore, fork); `first_epoch` is that epoch."""
    ancestors: tuple[str, ...] = ()
    """Sealed lineages before this one: their marks in a target count as ours, and what they left open is orphaned."""
    fate: str = ""
    """What becomes of the rows of the parent's later epochs that targets hold: quiet, overwrite, again."""
    quiet: tuple[str, ...] = ()
    """Texts of `offsets` for the epochs after the first: they run only for their state and write nothing."""
    later: tuple[str, ...] = ()
    """The same for another fate: what the targets hold of the parent, in case this lineage is rewound before it ran."""


@dataclass(frozen=True, slots=True)
class Writer:
    """From here on only this writer may append."""

    start_id: str
    """Random: two starts are never the same."""
    host: str
    pid: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """at_most_once: from here on the epoch's rows may be sent, once."""

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
    """Checksums of the files that the epoch depends on and that have none elsewhere, by name in the checkpoint."""
    cause: str = "data"
    held: Mapping[str, Epoch] = field(default_factory=dict, hash=False)
    """By sink, the newest epoch before this one that had rows for it: a target without it has lost data."""
    sinks: Mapping[str, SinkRecord] | None = field(default=None, hash=False)
    """The sinks as they are now, if the user declared a change; None: as in record 0."""

    @property
    def held_after(self) -> Mapping[str, Epoch]:
        """What the targets hold once this decision is done."""
        return {**self.held, **{handle.sink: self.epoch for handle in self.handles}}


@dataclass(frozen=True, slots=True)
class Redo:
    """New handles with the same rows replace lost ones."""

    epoch: Epoch
    decision: Number
    lost: tuple[str, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Void:
    """Nothing of this decision is visible or ever will be; the epoch reruns."""

    epoch: Epoch
    decision: Number
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Every handle of every decision so far is committed; written where no next decision says so."""

    through: Epoch


@dataclass(frozen=True, slots=True)
class Sealed:
    """The last record of a ledger: lineage `next` continues after `epoch`, and this one accepts nothing more."""

    next: str
    epoch: Epoch
    fate: str
    place: str = ""
    """Where it continues; "" if in the same checkpoint."""


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
    previous: str
    """The sum of the record before it, with all its bytes."""
    oldest: Number
    body: Body
    format: int = field(default_factory=lambda: LEDGER.number)
    fencepost: str = VERSION
    """The version that wrote it, for people."""

    @property
    def kind(self) -> str:
        """Its name in files, tables and messages."""
        return KIND_OF[type(self.body)]


def positions(offsets: str) -> str:
    """Digest of the source lines of an `offsets/N` text: where the epoch ends.

    The first two lines are the version and Spark's own settings; the rest is one line per source.
    """
    return digest("\n".join(offsets.rstrip("\n").split("\n")[2:]).encode())


def encode(record: Record) -> bytes:
    """Canonical bytes, including the checksum over everything else."""
    return seal(
        {
            "number": record.number,
            "kind": record.kind,
            "lineage": record.lineage,
            "writer": record.writer,
            "at": record.at,
            "previous": record.previous,
            "oldest": record.oldest,
            "body": plain_of(record.body, record.format),
            "format": record.format,
            "fencepost": record.fencepost,
        }
    )


def decode(data: bytes) -> Record:
    """Read bytes back; raise `Damaged` unless they are exactly what `encode` wrote; refuse a newer format."""
    plain = unseal(data)
    number = LEDGER.check_stamp(plain)
    if plain.keys() != HEAD:
        raise Damaged("it is not a record")
    try:
        return Record(
            number=Number(plain["number"]),
            lineage=plain["lineage"],
            writer=WriterNumber(plain["writer"]),
            at=plain["at"],
            previous=plain["previous"],
            oldest=Number(plain["oldest"]),
            body=_body(plain["kind"], plain["body"], number),
            format=number,
            fencepost=plain["fencepost"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"it is not a record ({type(error).__name__})") from error


HEAD = {"number", "kind", "lineage", "writer", "at", "previous", "oldest", "body", "format", "fencepost"}


def _body(kind: str, plain: Mapping[str, Any], number: int) -> Body:
    values = dict(plain)
    for name in ("lost", "ancestors", "quiet", "later"):
        if name in values:
            values[name] = tuple(values[name])
    if "handles" in values:
        values["handles"] = tuple(_handle(handle, number) for handle in values["handles"])
    if values.get("sinks") is not None:
        values["sinks"] = {name: read(SinkRecord, sink, number) for name, sink in values["sinks"].items()}
    body: Body = read(KINDS[kind], values, number)
    return body


def _handle(plain: Mapping[str, Any], number: int) -> Handle:
    kept = tuple(read(Kept, one, number) for one in plain["kept"])
    handle: Handle = read(Handle, {**plain, "kept": kept}, number)
    return handle
