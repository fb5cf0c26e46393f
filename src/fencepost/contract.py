"""What a sink is: settings chosen by the user, and a session that the driver opens.

    pre_commit  rows are with the sink or staged: durable, not visible        → a handle
    verify      can every handle be committed? (a database does the work here, in an open transaction)
    commit      make them visible: repeatable, from any process, at any later time
    abort       undo an orphan: repeatable

Everything that your own sink has to import is here, in `__all__`: the contract, the types it uses, and the errors a
sink raises. The two classes that make most sinks short, `fp.TwoPhaseCommit` and `fp.WriteAheadLog`, are in `fencepost`;
`fencepost.testing.SinkContract` is the test suite to pass. docs/tutorials/write-a-sink.md builds one.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from fencepost.errors import BadConfig, EpochFailed, InDoubt, OperatorNeeded, TargetRefused, Where
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, Kept, WriterNumber
from fencepost.store import Place
from fencepost.store.staging import Rows, Staging, slices

__all__ = [
    "UNIT",
    "UNIT_FACTS",
    "Asked",
    "Attempt",
    "BadConfig",
    "Capabilities",
    "Dataset",
    "Epoch",
    "EpochContext",
    "EpochFailed",
    "Examined",
    "Handle",
    "Holding",
    "InDoubt",
    "Instant",
    "Kept",
    "Keyed",
    "Letter",
    "Letters",
    "LettersWanted",
    "OperatorNeeded",
    "Outcome",
    "OutputMode",
    "Owner",
    "Package",
    "Place",
    "Rehearsal",
    "Rows",
    "RowsOfUnit",
    "Session",
    "Shape",
    "Sink",
    "SortedRows",
    "Source",
    "Staging",
    "Stray",
    "TargetRefused",
    "Territory",
    "Unit",
    "Where",
    "WriteInTask",
    "WriterNumber",
    "alike",
    "check_can_write",
    "check_can_write_file",
    "dataset_at",
    "end_of",
    "ends_in",
    "place_of",
    "rows_in",
    "together",
    "unheard",
]

Shape = Literal["transaction", "apply", "publish"]
OutputMode = Literal["append", "update", "complete"]
HOW_TO_TAKE: Mapping[OutputMode, str] = {
    "append": "mode='replace' is for output mode complete, in which every epoch holds the whole result: set "
    "output_mode='complete', or use mode='append'.",
    "update": "In output mode update an aggregate changes rows that were written before, and SELECT DISTINCT repeats "
    "them: set key=… on the sink so that it can find them, or use output_mode='append' (in place of DISTINCT: "
    "dropDuplicates(), which emits each row once in any mode).",
    "complete": "In output mode complete every epoch holds the whole result: set mode='replace' on a table sink, or "
    "use output_mode='update' with key=….",
}
"""How to make a sink accept rows of an output mode."""


def mode_does_not_fit(mode: OutputMode, remedy: str = "") -> BadConfig:
    """The sink is not set up for the rows that it would get; `remedy` is the sink's own advice."""
    return BadConfig(
        "mode_does_not_fit",
        f"With these settings the sink does not support output mode {mode}.",
        next=remedy or HOW_TO_TAKE[mode],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sink can do; declared here, tested by the contract suite, weighed by `fencepost.guarantee`."""

    shape: Shape
    repeatable: bool
    """A commit repeated after a crash leaves no second copy: an epoch row, a manifest, an ended transaction, a key."""
    atomic: bool = True
    """A reader sees an epoch whole or not at all."""
    perishable: bool = False
    """The target may drop a pre-committed unit on its own (a broker's transaction timeout)."""
    keeps_rows: bool = True
    """The epoch's rows have to stay staged until they are committed."""
    modes: frozenset[OutputMode] = frozenset({"append"})
    """Output modes whose rows this sink writes correctly; update needs a key, complete a table that it may empty."""
    replaces: bool = False
    """A row that comes again replaces the old one: by its key, or because the whole table is replaced."""
    remedy: str = ""
    """What would give this sink a stronger guarantee, for the message of a refused job."""
    note: str = ""
    """What these settings give up, for `fencepost check`."""
    names_rows: bool = False
    """It can tell which rows it refuses (`Session.refused`), so that they can become dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """For a sink in which a row replaces the row with the same key: which of two rows is the last.

    It must not be chance, because a task that runs again, or an epoch that is cut elsewhere after a crash, would then
    change the result. So under exactly_once one of these has to hold, or the job is refused (`last_row_undefined`):

        the plan       it aggregates or deduplicates by columns of the key: an epoch has one row per key
        `order_by`     the row with the greatest value stays. NULL is the smallest; if two rows have the same value, the
                       other columns decide, from left to right
        `unique_key`   you say that no key occurs twice (an id that the producer made)

    Across epochs the same holds where the target compares (`greatest`); if two rows have the same value, the one of the
    later epoch stays. Elsewhere the later epoch wins, so rows of one key should reach the job in the order of
    `order_by`, as those of one Kafka partition do.
    """

    key: tuple[str, ...]
    """Empty if only the target knows it."""
    order_by: tuple[str, ...] = ()
    greatest: bool = False
    """`order_by` holds across epochs, too: a row does not replace a greater one that is in the target."""
    unique: bool = False
    keeps_all: bool = False
    """Each row stays, as in a topic; whoever keeps one per key (compaction, a reader) keeps the last."""
    deletes: str | None = None
    """A boolean column that is not written: where it is true, the row of that key is removed from the target. The last
    row of a key counts, whether it removes or writes. NULL is neither, so the epoch is refused."""


def refused_one_by_one(
    batch: pa.RecordBatch, why: Callable[[pa.RecordBatch], Exception | None], first: int = 0
) -> Iterator[tuple[int, Exception]]:
    """The rows that are refused alone, by place, found by halving what is refused together."""
    error = why(batch)
    if error is not None and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from refused_one_by_one(batch.slice(0, half), why, first)
        yield from refused_one_by_one(batch.slice(half), why, first + half)
    elif error is not None:
        yield first, error


def names_of(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """A setting that names a column or several, as a tuple."""
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def problem_of_order(order_by: str | Sequence[str] | None, *, unique_key: bool, keyed: bool) -> tuple[str, str] | None:
    """What is wrong with these settings of a sink, and what to do; None if nothing is."""
    names = names_of(order_by)
    problems = (
        (order_by is not None and (not names or "" in names), "order_by= is empty", "Name a column"),
        (len(set(names)) != len(names), "order_by= names a column twice", "Name each once"),
        (bool(names) and unique_key, "order_by= and unique_key=True exclude each other", "Remove one of them"),
        (
            (bool(names) or unique_key) and not keyed,
            "order_by= and unique_key= are for rows that replace others by key",
            "Remove them, or set key=",
        ),
    )
    return next(((what, cure) for wrong, what, cure in problems if wrong), None)


def problem_of_deletes(deletes: str | None, key: Sequence[str], *, keyed: bool) -> tuple[str, str] | None:
    """The same for `deletes`."""
    problems = (
        (deletes == "", "deletes= is empty", "Name a column"),
        (deletes in key, "deletes= names a column of the key", "Name another column"),
        (not keyed, "deletes= removes rows by their key", "Remove it, or set key="),
    )
    return next(((what, cure) for wrong, what, cure in problems if wrong and deletes is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """On whose behalf a session writes."""

    job: str
    lineage: str
    generation: int
    writer: WriterNumber
    staging: Staging
    ancestors: frozenset[str] = field(default_factory=frozenset)
    """Lineages this one was restored from: their marks in a target are ours."""
    held: Mapping[str, Epoch] = field(default_factory=dict)
    """By sink, the newest epoch that its target must hold according to the ledger."""
    older: tuple[WriterNumber, ...] = ()
    """Earlier writers of this lineage, as far as the ledger remembers them; always at least the last one."""

    def handle_id(self, epoch: Epoch) -> str:
        """A name that no other attempt, writer or lineage uses."""
        return f"{self.lineage[:8]}-{self.writer}-{epoch}-{uuid.uuid4().hex[:12]}"

    def is_older(self, lineage: str, writer: int, before: WriterNumber) -> bool:
        """A writer of this lineage below `before`, or any of a sealed one; only a lineage's first 8 characters count.

        Note: do not delete what such a writer left without checking whether it was committed.
        """
        if lineage[:8] == self.lineage[:8]:
            return writer < before
        return lineage[:8] in {ancestor[:8] for ancestor in self.ancestors}

    def epoch_of_older(self, handle_id: str, before: WriterNumber) -> Epoch | None:
        """The epoch of a unit that an older writer (see `is_older`) pre-committed, else None."""
        parts = handle_id.rsplit("-", 3)
        if len(parts) != 4 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        return Epoch(int(parts[2])) if self.is_older(parts[0], int(parts[1]), before) else None


@dataclass(frozen=True, slots=True)
class Attempt:
    """On whose behalf a task writes."""

    lineage: str
    writer: WriterNumber
    epoch: Epoch


WriteInTask = Callable[[Attempt, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Writes a task's rows and, if they are to be kept, yields them with two more columns (`UNIT`, `UNIT_FACTS`); the last
row says what was written. Pickled, and called in the tasks."""

UNIT = "__fencepost_unit"
"""The name of the unit that holds the row."""
UNIT_FACTS = "__fencepost_unit_facts"
"""JSON, in the last row of a unit; null in the others."""


def place_of(error: BaseException) -> str:
    """What was raised, and where. Not its message: client libraries quote rows and connection strings in theirs."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return type(error).__name__ + place


class Sink(ABC):
    """Where a branch of a job goes: settings only, nothing open.

    Note: do not connect in `__init__`. A sink is built before recovery, may be built in a notebook and never run, and
    must be cheap to build; connect in `session`.
    """

    name: str
    """Unique within a job, and the same at every start: the ledger knows the sink by it."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sink, with these settings, can do."""

    @abstractmethod
    def session(self, job: str) -> Session:
        """Open the driver's side; one per start of the query."""

    @property
    def keyed(self) -> Keyed | None:
        """For a sink in which a row replaces the row with the same key; None if each row stays."""
        return None

    def in_tasks(self, job: str) -> WriteInTask | None:
        """The tasks' side, for a sink that tasks write to directly; None if the driver writes."""
        return None

    def timing_notes(self, longest_s: float | None) -> list[str]:
        """Notes on the target's timeouts that do not suit an epoch of up to `longest_s` seconds (None: no limit)."""
        return []

    def dataset(self) -> Dataset | None:
        """What OpenLineage calls the target; None: the sink's own name. Never a user, a password or an option."""
        return None


class Session(ABC):
    """The driver's side of a sink, for one start of the query; called by one thread at a time, not always the same."""

    _owner: Owner | None = None
    empties = False
    """An epoch without rows is written too: it means that the result is empty."""

    @abstractmethod
    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the target before any data flows, create what is needed, and return its identity.

        Raise `TargetRefused` if the columns do not fit. The identity is stored in the ledger; a different one at a
        later start is refused, so it must live *in* the target (a random id in a table, a file), not be derived from
        its name.
        """

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal | None:
        """Refuse what `preflight` would refuse, and change nothing; None if that is not known. For `fencepost check`.

        Note: do not call `preflight` from here if it creates tables.
        """
        return None

    def territory(self) -> Territory | None:
        """What this session writes to, known after `preflight` or `rehearse`; None if that cannot be compared."""
        return None

    def open(self, owner: Owner) -> None:
        """This process took over: end what older writers still hold, refuse a target that another lineage owns."""
        self._owner = owner

    @property
    def owner(self) -> Owner:
        """On whose behalf we write; known once recovery has taken over."""
        assert self._owner is not None, "open() comes first"
        return self._owner

    @abstractmethod
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """Make the rows durable and not visible; None if there are none."""

    def handles(self, epoch: Epoch, rows: Rows) -> tuple[Handle, ...]:
        """Pre-commit what the driver holds, or name what the tasks have pre-committed."""
        handle = self.pre_commit(epoch, rows)
        return () if handle is None else (handle,)

    def again(self, epoch: Epoch, lost: Handle, rows: Rows) -> Handle | None:
        """Pre-commit again, from the kept rows, what the target lost."""
        return self.pre_commit(epoch, rows)

    @abstractmethod
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote: ids of handles that can no longer be committed. Raise if the target refuses the rows."""

    def refused(self, epoch: Epoch, batch: pa.RecordBatch) -> Mapping[int, str]:
        """Which rows the target refuses because of their own values, by place, and why; never quote a value.

        Asked after `pre_commit` or `verify` raised `EpochFailed("rows_refused", …)` and `rollback` was called. Nothing
        may be left in the target, and an answer must not depend on other rows: each is then a dead letter.
        """
        return {}

    @abstractmethod
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Make the handles visible; say of each whether it is done, gone, or in doubt.

        Note: do not answer GONE after a timeout. A lost reply is IN_DOUBT.
        """

    @abstractmethod
    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send the rows plainly and flush (at_least_once, at_most_once)."""

    def rollback(self, *, undecided: bool = True) -> None:
        """The running epoch failed: release what `verify` holds. Must not raise.

        `undecided` is false if a decision may name its handles: such a unit must stay, for recovery to commit.
        """

    def abort(self, handle: Handle) -> None:
        """Undo one orphan; if it is already undone, that is fine."""

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Units that writers older than `before` pre-committed and that were neither committed nor aborted.

        `at_leisure`: between two epochs, not in recovery. Then it must not raise, and may answer without looking.
        """
        return ()

    def examine(self, asked: Asked) -> Examined:
        """What does the target itself say it holds? For `fencepost verify`, without `preflight` and `open`.

        Note: this must change nothing, take no lock, end no session and create no table: the job may be running. If the
        target does not answer, return `unheard`.
        """
        return Examined(holdings=alike(asked, Holding.UNKNOWN), why="this sink has no way to ask its target")

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """How does a reader see the target as it was right after this epoch? For `fencepost as-of`.

        `epoch` is done, and had rows for this sink; `asked` may also have later ones. Called like `examine`, without
        `preflight` and `open`, and under the same rules. If the target does not answer, return `Instant.unheard`.
        """
        return Instant(why="this sink has no way to tell how its target was")

    def letters(self, wanted: LettersWanted) -> Letters | None:
        """Some of the dead letters that the target holds; None if they cannot be read here. For `fencepost ui FILE`.

        Called like `examine`, without `preflight` and `open`, and under the same rules; give up after `LETTERS_S`.
        """
        return None

    def close(self) -> None:
        """Close connections. Must not raise."""


# --- what your own sink is given, if it derives from fp.TwoPhaseCommit or is an fp.WriteAheadLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One transaction to open."""

    id: str
    """Unique to this attempt; use it as the transaction's name in your system."""
    job: str
    sink: str
    lineage: str
    generation: int
    epoch: int
    writer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochContext:
    """Which epoch is being sent. If the target stores (generation, epoch) with the rows, it can reject duplicates.

    Note: do not store the epoch alone. Epoch numbers repeat after a restore; the generation does not.
    """

    job: str
    sink: str
    generation: int
    epoch: int


# --- an examination: what a target holds, asked by a command that writes nothing: `fencepost verify`.
#
#     held      the target itself shows the epoch
#     missing   the target answered, and does not have it
#     unknown   it cannot tell, or did not answer
#
# Never guesses: a target that does not remember epochs says unknown, which is not an error.


class Holding(enum.Enum):
    """Whether a target holds an epoch."""

    HELD = "held"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the ledger says about one sink, without taking over the checkpoint."""

    lineage: str
    epochs: Mapping[Epoch, tuple[Handle, ...]]
    """The decided epochs that had rows for this sink, oldest first."""
    generation: int = 0
    ancestors: frozenset[str] = frozenset()
    last: int = 0
    """The ledger's newest record: no writer that it knows has a higher number."""
    folder: Place | None = None
    """The lineage's folder in the checkpoint, where `fencepost tx settle` leaves its answers."""
    whole: bool = False
    """Are these all epochs that the job ever had? Older ones may no longer be retained, or be of an earlier lineage."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Something of this lineage that the target holds, and that nothing in `Asked` names."""

    text: str
    """For people."""
    names: frozenset[str]
    """A decision made in the meantime would name it by one of these: a handle's id, or all ids of an epoch."""
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a target says. Note: unknown does not mean held."""

    holdings: Mapping[Epoch, Holding]
    identity: str | None = None
    """As `preflight` returns it; "" if the target has none, None if it was not read."""
    strays: tuple[Stray, ...] = ()
    stranger: str = ""
    """A lineage that is neither ours nor an ancestor's, and that owns the target."""
    heard: bool = True
    """Did the target answer?"""
    why: str = ""
    """The reason for an answer other than held, for people."""
    reasons: Mapping[Epoch, str] = field(default_factory=dict)
    """The same for single epochs that have a reason of their own."""


def alike(asked: Asked, holding: Holding) -> dict[Epoch, Holding]:
    """The same answer for every epoch."""
    return dict.fromkeys(asked.epochs, holding)


def unheard(asked: Asked, why: str) -> Examined:
    """The target did not answer."""
    return Examined(holdings=alike(asked, Holding.UNKNOWN), heard=False, why=why)


def together(found: Iterable[Holding]) -> Holding:
    """An epoch of several units is held if each of them is."""
    known = set(found)
    for worst in (Holding.MISSING, Holding.UNKNOWN):
        if worst in known:
            return worst
    return Holding.HELD


# --- an instant: how a reader sees a target as it was right after an epoch; for `fencepost as-of`, which writes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """A target as it was right after an epoch. Note: only if it is `exact` does a reader see that epoch."""

    text: str = ""
    """How a reader gets there, ready to paste: `VERSION AS OF 7`; "" if there is no way."""
    exact: bool = False
    """Does such a reader see what the job wrote up to the epoch, and nothing that it wrote later?"""
    why: str = ""
    """For people: what the text is for; or why it is not exact."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, as plain values of JSON: names and numbers, never a row's value."""
    identity: str | None = None
    """As `preflight` returns it; "" if the target has none, None if it was not read."""
    heard: bool = True
    """Did the target answer?"""

    @classmethod
    def unheard(cls, why: str) -> Instant:
        """The target did not answer."""
        return cls(why=why, heard=False)


# --- dead letters, as a page asks a target for them: never the record


LETTERS_S: Final = 2.0
"""The longest that reading a page of dead letters may keep a target busy."""
LETTERS_SAMPLED: Final = 1_000
"""Letters that are read to say which sources and errors there are; one more says that these are not all."""
LONGEST_ERROR: Final = 4_000
"""Most characters of an error in a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersWanted:
    """Which dead letters."""

    source: str | None = None
    position: str = ""
    """How it begins."""
    error: tuple[str, str] | None = None
    """How it begins, and how it ends."""
    skip: int = 0
    most: int = 50


class Letter(NamedTuple):
    """Where a record was read, and why it is bad. The error may quote the record: `admin.letters` takes that out."""

    source: str | None
    position: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What a target answers."""

    found: tuple[Letter, ...] = ()
    """By source, position and error; one more than wanted if there are more."""
    sample: tuple[Letter, ...] = ()
    """Some of all letters, whichever the target reads first; without positions."""
    is_late: bool = False
    """Were there too many to sort within `LETTERS_S`? Then nothing was found, but there is a sample."""
    heard: bool = True
    """Did the target answer?"""
    why: str = ""
    """If it did not, or holds no letters yet."""


# --- datasets: how OpenLineage names what a job reads and writes, so that jobs that share a table are seen to


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table, a topic or a folder: `postgres://db:5432` and `shop.public.orders`."""

    namespace: str
    name: str


OBJECTS: Final = frozenset({"s3", "gs"})
"""Stores whose keys do not begin with a slash."""
BEFORE_AT: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Stores in whose URLs a container, not a user, stands before the @."""


def dataset_at(path: str | os.PathLike[str]) -> Dataset:
    """A folder or a file on this machine, or in a store by its URL."""
    text = os.fspath(path)
    if "://" not in text and not text.startswith("file:"):
        return Dataset("file", os.path.realpath(text))
    url = urlsplit(text)
    if url.scheme == "file":
        return Dataset("file", url.path)
    scheme = "s3" if url.scheme in {"s3a", "s3n"} else url.scheme
    user, _, host = url.netloc.rpartition("@")
    container = f"{user.partition(':')[0]}@" if user and scheme in BEFORE_AT else ""
    name = url.path.strip("/") if scheme in OBJECTS else url.path.rstrip("/")
    return Dataset(f"{scheme}://{container}{host}", name or "/")


# --- a rehearsal: what a start would find in a target and create there; for `fencepost check`, which changes nothing


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A target that a start would accept."""

    identity: str
    """As `preflight` would return it; "" if there is none yet."""
    makes: tuple[str, ...] = ()
    """What a start would create, in words."""


# --- territory: which part of a target a session writes to; no two sinks of one job may overwrite each other's rows


@dataclass(frozen=True, slots=True)
class Territory:
    """What a sink writes to."""

    place: str
    """Equal for one table, folder or set of keys, whatever name or path led there. Never shown: it may hold secrets."""
    way: Literal["append", "key", "all"]
    """Rows are added; or replace rows with their key; or nobody else may write there."""
    key: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    """With a key: what is replaced."""

    def overlaps(self, other: Territory) -> bool:
        """Could one overwrite what the other wrote? Two that fill different columns of the same rows do not."""
        if self.place != other.place or self.way == other.way == "append":
            return False
        apart = self.key == other.key and not self.columns & other.columns
        return not (self.way == other.way == "key" and apart)


def check_apart(territories: Mapping[str, Territory | None]) -> None:
    """Refuse two sinks of one job that would overwrite each other's rows."""
    known = [(name, territory) for name, territory in territories.items() if territory is not None]
    for number, (name, territory) in enumerate(known):
        for other, its in known[:number]:
            if territory.overlaps(its):
                raise BadConfig(
                    "target_twice",
                    f"Sinks {other!r} and {name!r} write to the same target, and would overwrite each other's rows.",
                    next="Name another table, folder or prefix in one of them; or union the DataFrames and write them "
                    "to one sink.",
                )


def check_can_write(folder: Path) -> None:
    """Raise `OSError` if this user cannot write files into a folder, or cannot create it."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise _because(errno.ENOTDIR, place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise _because(errno.EACCES, place)


def check_can_write_file(path: Path) -> None:
    """The same for a file, in a folder that must exist."""
    if not path.parent.is_dir():
        raise _because(errno.ENOENT, path.parent)
    check_can_write(path.parent)
    if path.is_dir():
        raise _because(errno.EISDIR, path)
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise _because(errno.EACCES, path)


def _because(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


# --- units: what tasks that write directly tell the driver, in two columns beside the rows
#
# k  v  unit  facts
# a  1  u1    -                  a row that is kept, and in unit u1
# b  2  -     -                  a row that is kept, and in no unit: the driver writes it
# -  -  u1    {"rows": 1, …}     the task's summary of its unit


def rows_in(batch: pa.RecordBatch, unit: str | None) -> pa.RecordBatch:
    """Rows that are to be kept, and the unit that holds them."""
    nulls = pa.nulls(batch.num_rows, pa.string())
    return _beside(batch, nulls if unit is None else pa.repeat(pa.scalar(unit, pa.string()), batch.num_rows), nulls)


def end_of(schema: pa.Schema, unit: str, facts: Mapping[str, Any]) -> pa.RecordBatch:
    """One row that says what a unit holds."""
    schema = _nullable(schema)
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return _beside(nothing, pa.array([unit], pa.string()), pa.array([json.dumps(facts)], pa.string()))


def ends_in(rows: Rows) -> dict[str, dict[str, Any]]:
    """The units of an epoch, with their tasks' summaries."""
    found: dict[str, dict[str, Any]] = {}
    for batch in rows.batches():
        ends = batch.filter(pc.is_valid(batch.column(UNIT_FACTS)))
        found |= dict(
            zip(ends.column(UNIT).to_pylist(), map(json.loads, ends.column(UNIT_FACTS).to_pylist()), strict=True)
        )
    return found


def parts_of(rows: Rows) -> Iterator[tuple[str | None, Iterator[pa.RecordBatch]]]:
    """What the tasks left, in the order of their partitions: the name of a unit, or rows that are in no unit (None).

    Read the rows before you ask for the next part, as with `itertools.groupby`.
    """
    pieces = groupby(_pieces(rows), key=itemgetter(0))
    return ((unit, (batch for _, batch in part)) for unit, part in pieces)


def _pieces(rows: Rows) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    names = [name for name in rows.schema.names if name not in (UNIT, UNIT_FACTS)]
    for batch in rows.batches():
        ends = pc.indices_nonzero(pc.is_valid(batch.column(UNIT_FACTS))).to_pylist()
        start = 0
        for end in (*ends, batch.num_rows):
            plain = batch.slice(start, end - start)
            plain = plain.filter(pc.is_null(plain.column(UNIT))).select(names)
            if plain.num_rows:
                yield None, plain
            if end < batch.num_rows:
                yield batch.column(UNIT)[end].as_py(), plain
            start = end + 1


@dataclass(frozen=True, slots=True)
class RowsOfUnit:
    """The rows of one unit among all that were kept; with None, the rows that are in no unit."""

    all: Rows
    unit: str | None

    @property
    def schema(self) -> pa.Schema:
        """Columns as the user's DataFrame has them."""
        return pa.schema([field for field in self.all.schema if field.name not in (UNIT, UNIT_FACTS)])

    @property
    def count(self) -> int:
        return sum(batch.num_rows for batch in self.batches())

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The files that hold them, among others."""
        return self.all.kept

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        names = self.schema.names
        for batch in self.all.batches():
            unit = batch.column(UNIT)
            mine = pc.is_null(unit) if self.unit is None else pc.equal(unit, self.unit)
            found = batch.filter(pc.and_(mine, pc.is_null(batch.column(UNIT_FACTS)))).select(names)
            if found.num_rows:
                yield found


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows with the one that `order_by` calls the last at the end; needs memory for an epoch that is not in order."""

    all: Rows
    order_by: tuple[str, ...]

    @classmethod
    def of(cls, rows: Rows, order_by: Sequence[str]) -> Rows:
        """The rows as they are, if there is no order."""
        return cls(rows, tuple(order_by)) if order_by and rows.kept else rows

    @property
    def schema(self) -> pa.Schema:
        return self.all.schema

    @property
    def count(self) -> int:
        return self.all.count

    @property
    def kept(self) -> tuple[Kept, ...]:
        return self.all.kept

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, again at every call."""
        table = pa.Table.from_batches(self.all.batches(), self.schema)
        places = sorted_places(table, self.order_by)
        if not places.equals(pa.array(range(len(places)), places.type)):
            table = table.take(places)
        for batch in table.to_batches():
            yield from slices(batch)


def sorted_places(table: pa.Table, order_by: Sequence[str]) -> pa.Array:
    """The places of the rows, with the one that `order_by` calls the last at the end."""
    rest = [name for name in table.column_names if name not in order_by]
    compared = [_comparable(table.column(name)) for name in (*order_by, *rest)]
    # Whether there is a value comes first: Arrow by itself puts NULL at the end.
    by = [part for column in compared for part in ((column.is_valid(),) if column.null_count else ()) + (column,)]
    names = [str(place) for place in range(len(by))]
    return pc.sort_indices(pa.table(by, names), sort_keys=[(name, "ascending") for name in names])


def is_comparable(kind: pa.DataType) -> bool:
    """Can rows be sorted by a column of this type?"""
    return not pa.types.is_nested(kind)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow does not sort by nested values; their text is an order, too, and always the same."""
    if is_comparable(column.type):
        return column
    texts = (None if value is None else repr(value) for value in column.to_pylist())
    return pa.chunked_array([pa.array(texts, pa.string())])


def _beside(batch: pa.RecordBatch, units: pa.Array, facts: pa.Array) -> pa.RecordBatch:
    schema = pa.schema([*_nullable(batch.schema), (UNIT, pa.string()), (UNIT_FACTS, pa.string())])
    return pa.RecordBatch.from_arrays([*batch.columns, units, facts], schema=schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


# --- sources: settings that become a plain streaming DataFrame. No pyspark is imported here.


@dataclass(frozen=True, slots=True)
class Package:
    """A Spark connector that Spark itself does not bring along."""

    title: str
    artifact: str
    """Its artifact name among Spark's own packages, without the Scala and Spark versions."""
    provider: str
    """The Java class that is there once the connector is."""
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """By Spark's minor version: the packages known to work with it, all that are needed, the connector first. For a
    Spark whose own connector is not available."""


class Source(ABC):
    """Where records come from: settings only, nothing open."""

    name: str
    package: ClassVar[Package | None] = None
    """The package that a session needs to read this."""

    @abstractmethod
    def load(self, reader: Any) -> Any:
        """Turn a `DataStreamReader` into a DataFrame."""

    def newest(self, most: int) -> Source | None:
        """Only what arrives from now on, at most `most` records per epoch, to warm up a standby; None if impossible."""
        return None
