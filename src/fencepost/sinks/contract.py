"""What a sink is: settings that a user names, and a session that the driver opens.

    pre_commit  rows are with the sink or staged: durable, not visible        → a handle
    verify      can every handle be committed? (a database does the work here, in an open transaction)
    commit      make them visible: repeatable, from any process, at any later time
    abort       undo an orphan: repeatable

`fencepost.testing.SinkContract` is the test suite that a sink of your own has to pass.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.rows import Rows, Staging
from fencepost.sinks.holding import Asked, Examined, Holding, alike
from fencepost.sinks.rehearsal import Rehearsal

Shape = Literal["transaction", "apply", "publish"]
OutputMode = Literal["append", "update", "complete"]
HOW_TO_TAKE: Mapping[OutputMode, str] = {
    "append": "mode='replace' is for output mode complete, in which every epoch has the whole result: say "
    "output_mode='complete', or use mode='append'.",
    "update": "An aggregate in output mode update changes rows that were written before: give the sink a key=… to find "
    "them by, or use output_mode='append'.",
    "complete": "In output mode complete every epoch has the whole result: give a table sink mode='replace', or use "
    "output_mode='update' with key=….",
}
"""What to do for a sink to take rows of an output mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a sink can do; declared here, tested by the contract suite, weighed by `fencepost.guarantee`."""

    shape: Shape
    repeatable: bool
    """A commit repeated after a crash leaves no second copy: an epoch row, a manifest, an ended transaction, a key."""
    atomic: bool = True
    """A reader sees an epoch whole or not at all."""
    perishable: bool = False
    """The target may lose a pre-committed unit by itself (a broker's transaction timeout)."""
    keeps_rows: bool = True
    """The epoch's rows have to stay staged until they are committed."""
    modes: frozenset[OutputMode] = frozenset({"append"})
    """Output modes whose rows this sink writes correctly; update needs a key, complete a table that it may empty."""
    replaces: bool = False
    """A row that comes again takes the place of the old one: by its key, or because the whole table is replaced."""
    remedy: str = ""
    """What would make this sink stronger, for the message of a refused job."""
    note: str = ""
    """What these settings give up, for `fencepost check`."""


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
    """By sink, the newest epoch that its target must hold, says the ledger."""
    older: tuple[WriterNumber, ...] = ()
    """Writers of this lineage before this one, as far as the ledger remembers them; the last of them always."""

    def handle_id(self, epoch: Epoch) -> str:
        """A name that no other attempt, writer or lineage uses."""
        return f"{self.lineage[:8]}-{self.writer}-{epoch}-{uuid.uuid4().hex[:12]}"

    def is_older(self, lineage: str, writer: int, before: WriterNumber) -> bool:
        """A writer of this lineage below `before`, or any of a sealed one; of a lineage only its first 8 letters count.

        The mistake people make: deleting what such a writer left without looking whether it was committed.
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
"""Writes a task's rows and yields them, with two columns more (`UNIT`, `UNIT_FACTS`), if they are to be kept; last
comes one row that says what was written. Pickled, and called in the tasks."""

UNIT = "__fencepost_unit"
"""The name of the unit that holds the row."""
UNIT_FACTS = "__fencepost_unit_facts"
"""JSON, in the last row of a unit; null in the others."""


def place_of(error: BaseException) -> str:
    """What was raised, and where. Not its message: those of client libraries quote rows and connection strings."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return type(error).__name__ + place


class Sink(ABC):
    """Where a branch of a job goes: settings only, nothing open.

    The mistake people make: connecting in `__init__`. A sink is built before recovery, may be built in a notebook and
    never run, and must be cheap to build; connect in `session`.
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

    def in_tasks(self, job: str) -> WriteInTask | None:
        """The tasks' side, for a sink that they write to by themselves; None if the driver writes."""
        return None


class Session(ABC):
    """The driver's side of a sink, for one start of the query; called by one thread at a time, not always the same."""

    _owner: Owner | None = None
    empties = False
    """An epoch without rows is written too: it says that the result is empty."""

    @abstractmethod
    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check the target before any data flows, make what was asked for, and return its identity.

        Raise `TargetRefused` if the columns do not fit. The identity is stored in the ledger; another one at a later
        start is refused, so it must live *in* the target (a random id in a table, a file), not be made of its name.
        """

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal | None:
        """Refuse what `preflight` would refuse, and change nothing; None if that cannot be told. For `fencepost check`.

        The mistake people make: calling `preflight` from here though it makes tables.
        """
        return None

    def open(self, owner: Owner) -> None:
        """This process took over: end what older writers still hold, refuse a target marked by another lineage."""
        self._owner = owner

    @property
    def owner(self) -> Owner:
        """On whose behalf we write; known once recovery took over."""
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
        """Pre-commit once more what the target lost, from the kept rows."""
        return self.pre_commit(epoch, rows)

    @abstractmethod
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote: ids of handles that can no longer be committed. Raise if the target refuses the rows."""

    @abstractmethod
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Make the handles visible; say of each whether it is done, gone, or in doubt.

        The mistake people make: answering GONE after a timeout. An answer that was lost is IN_DOUBT.
        """

    @abstractmethod
    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send the rows plainly and flush (at_least_once, at_most_once)."""

    def rollback(self, *, undecided: bool = True) -> None:
        """The running epoch failed: let go of what `verify` holds. Must not raise.

        `undecided` is false if a decision may name its handles: such a unit must stay, for recovery to commit.
        """

    def abort(self, handle: Handle) -> None:
        """Undo one orphan; undone already is fine."""

    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        """Units that writers older than `before` pre-committed and nobody committed or aborted.

        `at_leisure`: between two epochs, not in recovery. Then it must not raise, and may answer without looking.
        """
        return ()

    def examine(self, asked: Asked) -> Examined:
        """What does the target hold, by its own word? For `fencepost verify`, without `preflight` and `open`.

        The mistake people make: looking with the means of writing. It must change nothing, take no lock, end nobody's
        session and make no table: the job may be running. A target that does not answer is `unheard`.
        """
        return Examined(holdings=alike(asked, Holding.UNKNOWN), why="this sink has no way to ask its target")

    def close(self) -> None:
        """Let go of connections. Must not raise."""
