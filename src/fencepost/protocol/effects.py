"""Everything the protocol may ask for, as values.

A step is a generator that yields these and is sent the answers. Production performs them (`runtime/performer.py`). The
model applies them to a world in memory, where a crash may come before or after each, or the answer may be lost. `point`
names the crash points around an effect: `<point>.before` and `<point>.after`.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fencepost.protocol.records import Epoch, Handle, Number, WriterNumber

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect(Generic[T]):
    """One thing to do, answered with a `T`."""

    point: str


Step = Generator[Effect[Any], Any, T]
"""A piece of protocol that ends with a `T`."""


def ask(effect: Effect[T]) -> Step[T]:
    """Yield one effect and return its answer, typed."""
    answer: T = yield effect
    return answer


class Created(enum.Enum):
    """What an exclusive create can answer."""

    CREATED = "created"
    TAKEN = "taken"
    UNKNOWN = "unknown"


class Outcome(enum.Enum):
    """What a sink can say about a handle. In doubt means: ask again, never guess."""

    DONE = "done"
    GONE = "gone"
    IN_DOUBT = "in_doubt"


# --- the checkpoint and its ledger


@dataclass(frozen=True, slots=True)
class ReadIdentity(Effect["Identity"]):
    """Which lineage is this checkpoint directory's?"""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint directory contains, before any of it is trusted."""

    metadata: str | None
    """The id in Spark's `metadata`; None if there is no such file, "" if it cannot be read."""
    ledgers: tuple[str, ...]
    """Lineages that have a ledger here."""
    epochs: tuple[int, ...]
    """Numbers in Spark's `offsets` and `commits`."""


@dataclass(frozen=True, slots=True)
class NameLineage(Effect[str]):
    """Write Spark's `metadata`, durably and exclusively: the lineage is Spark's query id. Answer: the id now in it.

    If two drivers start at the same time, one names the lineage and the other must use that name, or they would never
    meet in one ledger. A file that cannot be read is replaced.
    """

    lineage: str


@dataclass(frozen=True, slots=True)
class SwitchLineage(Effect[None]):
    """Make Spark's `metadata` name the successor of a sealed lineage, durably, if it still names the sealed one."""

    sealed: str
    lineage: str


@dataclass(frozen=True, slots=True)
class Repartition(Effect["Repartitioned"]):
    """Let Spark redistribute the state of an epoch over this many partitions, in a copy of the checkpoint.

    Afterwards the new state files are in the checkpoint, under names that nothing uses yet; its log is not touched.
    """

    epoch: Epoch
    partitions: int


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """What Spark wrote for the repartition, which is an epoch without input."""

    offsets: str
    snapshot: str
    files: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Names(Effect[tuple[int, ...]]):
    """The numbers present in a lineage's ledger, ascending."""

    lineage: str


@dataclass(frozen=True, slots=True)
class Read(Effect[bytes | None]):
    """The bytes of one record."""

    lineage: str
    number: Number


@dataclass(frozen=True, slots=True)
class Create(Effect[Created]):
    """Create one record exclusively and durably, completely or not at all."""

    lineage: str
    number: Number
    data: bytes


@dataclass(frozen=True, slots=True)
class Forget(Effect[None]):
    """Delete one record that retention no longer keeps."""

    lineage: str
    number: Number


# --- Spark's own log


@dataclass(frozen=True, slots=True)
class LogNames(Effect[tuple[int, ...]]):
    """The epochs in `offsets` or `commits`, ascending."""

    log: str


@dataclass(frozen=True, slots=True)
class LogRead(Effect[str | None]):
    """The text of one entry; None if it does not exist."""

    log: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LogWrite(Effect[None]):
    """Write one entry durably, replacing whatever is there."""

    log: str
    epoch: Epoch
    text: str


@dataclass(frozen=True, slots=True)
class LogDelete(Effect[None]):
    """Remove one entry."""

    log: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Strays(Effect[tuple["StrayFile", ...]]):
    """Entries in the sources' own logs that belong to no epoch up to `offsets` (None: no epoch is decided).

    Also state schemas that an epoch after `epoch` introduced: Spark would keep them, and later read state with them.
    """

    epoch: Epoch
    offsets: str | None


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file, and a stamp that no other file with that name will ever have."""

    name: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Discard(Effect[None]):
    """Delete strays; one whose stamp has changed is somebody else's, and stays."""

    strays: tuple[StrayFile, ...]


@dataclass(frozen=True, slots=True)
class LostFiles(Effect[tuple[str, ...]]):
    """Which of the state and source files that the decisions depend on are missing or changed?"""

    epoch: Epoch
    snapshot: str
    files: Mapping[str, str]


# --- the running epoch and its sinks


@dataclass(frozen=True, slots=True)
class OpenSinks(Effect[None]):
    """Tell every sink its owner; a sink ends the sessions of older writers, so that a sleeping one blocks nothing."""

    lineage: str
    generation: int
    writer: WriterNumber
    held: Mapping[str, Epoch] = field(default_factory=dict, hash=False)
    """By sink, the newest epoch that its target must hold."""
    older: tuple[WriterNumber, ...] = ()
    """Writers before this one."""
    ancestors: tuple[str, ...] = ()
    """Sealed lineages before this one."""


@dataclass(frozen=True, slots=True)
class PreCommit(Effect[tuple[Handle, ...]]):
    """Hand the rows of the running epoch to every sink, durably and not yet visible."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Vote(Effect[tuple[str, ...]]):
    """Which of these handles can no longer be committed?"""

    sink: str
    epoch: Epoch
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Effect["Snapshot"]):
    """What the engine will write as `commits/N`, and checksums of the files it depends on that have none elsewhere.

    `before` and `offsets` are the texts of `offsets/N-1` (as decided) and `offsets/N`.
    """

    epoch: Epoch
    before: str | None
    offsets: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at the barrier, as the engine names it."""

    text: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Commit(Effect[Mapping[str, Outcome]]):
    """Make these handles visible; repeatable, from any process, at any later time."""

    sink: str
    epoch: Epoch
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Beside(Effect[None]):
    """Start a step that runs by itself from now on, beside what follows, until `Join`."""

    step: Step[None]


@dataclass(frozen=True, slots=True)
class Join(Effect[None]):
    """Wait until nothing runs beside us any more; if it failed, raise that, now and at every later `Join`."""


@dataclass(frozen=True, slots=True)
class Again(Effect[tuple[Handle, ...]]):
    """Pre-commit the kept rows of lost handles again, under new handles."""

    sink: str
    epoch: Epoch
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Orphans(Effect[tuple[Handle, ...]]):
    """Pre-committed units of writers older than `before`; with `at_leisure` the sink may answer without looking."""

    sink: str
    before: WriterNumber
    at_leisure: bool = False


@dataclass(frozen=True, slots=True)
class Abort(Effect[None]):
    """Abort one orphan. Never used for a handle that a decision names."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class SweepStaged(Effect[None]):
    """Delete staged files: mine of epochs up to `through` and, when recovering, all those of older writers."""

    writer: WriterNumber
    through: Epoch
    recovering: bool


@dataclass(frozen=True, slots=True)
class WritePlainly(Effect[None]):
    """Send the rows of the running epoch and flush, without any protocol (for the two weaker guarantees)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Mute(Effect[None]):
    """Drop the running epoch's rows: they may have been sent before."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Wait(Effect[None]):
    """Back off before asking a sink again; `attempt` counts retries in a row."""

    attempt: int
