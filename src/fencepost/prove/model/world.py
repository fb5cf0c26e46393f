"""The world a driver acts on, in memory and worse than reality: everything durable is one dictionary of facts.

    ("ledger", number)                record bytes; exclusive and durable
    ("offsets"|"commits", epoch)      (text, synced): what the engine writes is not synced, what recovery writes is
    ("state", attempt)                the segments folded so far
    ("staged", writer, epoch, attempt), ("tx", sink, handle), ("file", sink, handle)     pre-committed rows
    ("open", sink), ("row", sink), ("manifest", sink, epoch)                             an apply and a publish sink
    ("rows", sink)                    what a reader sees: segments, in the order they became visible

Rows are segments (first record, end, attempt): they carry the attempt that made them, so that state and output of
different attempts are told apart. Never decides anything, and never uses a clock or chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from fencepost.errors import OperatorNeeded
from fencepost.protocol import effects as e
from fencepost.protocol.epoch import SinkFacts
from fencepost.protocol.records import Handle, Kept
from fencepost.prove.model import check
from fencepost.prove.model.check import Segment, Violation

LINEAGE = "model"


class Frozen(dict[str, Any]):
    """A mapping that can be part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        """By content; nobody changes one."""
        return hash(frozenset(self.items()))


class SinkSpec(NamedTuple):
    """One sink of the job."""

    name: str
    shape: str
    kept: bool
    """The rows stay staged until they are committed."""

    @property
    def facts(self) -> SinkFacts:
        """What the protocol knows of it."""
        return SinkFacts(self.name, perishable=self.shape == "transaction")


class Job(NamedTuple):
    """What a history has to get done."""

    sinks: tuple[SinkSpec, ...]
    epochs: int = 3
    """A history is over when this many epochs are decided and done."""

    @property
    def name(self) -> str:
        """For tables."""
        return " + ".join(s.name for s in self.sinks) + f", {self.epochs} epochs"


KEPT = SinkSpec("kept", "transaction", kept=True)
BARE = SinkSpec("bare", "transaction", kept=False)
APPLY = SinkSpec("apply", "apply", kept=True)
PUBLISH = SinkSpec("publish", "publish", kept=False)


class Actor(Protocol):
    """The driver that asks for an effect."""

    number: int
    writer: int
    running: tuple[int, int, Segment] | None
    """Writer, epoch and rows of the epoch it is running."""


# --- what the engine itself does to the world, as effects of its own


class Booted(NamedTuple):
    """Where a starting query goes on."""

    epoch: int
    start: int
    end: int | None
    """Known if the epoch was begun before."""
    attempt: str | None
    """Whose state it loads."""


@dataclass(frozen=True, slots=True)
class Boot(e.Effect["Booted | None"]):
    """Read the engine's log as Spark does when a query starts; None if that fails."""


@dataclass(frozen=True, slots=True)
class Plan(e.Effect["int | None"]):
    """Write `offsets/N` with all that has arrived; None if somebody else wrote it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RunPlan(e.Effect["str | None"]):
    """Run the plan: write state and staged rows under the id of a new attempt; None if the state cannot be loaded."""

    epoch: int
    start: int
    end: int
    state: str | None
    writer: int


@dataclass(frozen=True, slots=True)
class Complete(e.Effect[bool]):
    """Write `commits/N`; False if somebody else wrote it."""

    epoch: int
    attempt: str


Facts = dict[tuple[Any, ...], Any]


class World:
    """All that outlives a driver. Subclasses are sabotaged worlds."""

    __slots__ = ("_id", "facts", "sinks")

    def __init__(self, sinks: tuple[SinkSpec, ...], facts: Facts | None = None, known: int | None = None) -> None:
        self.sinks = sinks
        self._id = known
        self.facts: Facts = {("drivers",): 0, **{("rows", s.name): () for s in sinks}} if facts is None else facts

    def copy(self) -> World:
        """A world that may go another way."""
        return type(self)(self.sinks, self.facts.copy(), self._id)

    @property
    def id(self) -> int:
        """Equal worlds have equal ids: 64 bits of hash (among ten million worlds, two collide once in 10^5 runs)."""
        if self._id is None:
            self._id = hash(frozenset(self.facts.items()))
        return self._id

    def do(self, actor: Actor, effect: e.Effect[Any]) -> Any:
        """Perform one effect and answer it."""
        if type(effect) not in READS:
            self._id = None
        return self.DO[type(effect)](self, actor, effect)

    def sink(self, name: str) -> SinkSpec:
        """A sink by name."""
        return next(s for s in self.sinks if s.name == name)

    def below(self, *prefix: Any) -> list[tuple[Any, ...]]:
        """The keys that begin so."""
        width = len(prefix)
        return [key for key in self.facts if key[:width] == prefix]

    def numbers(self, kind: str) -> tuple[int, ...]:
        """The numbers in the ledger, or in one of the engine's logs, rising."""
        return tuple(sorted(key[1] for key in self.facts if key[0] == kind))

    # --- faults

    def start_driver(self) -> int:
        """A driver starts, and new input arrived meanwhile."""
        number: int = self.facts[("drivers",)] + 1
        self.facts[("drivers",)] = number
        self._id = None
        return number

    def end_driver(self, number: int) -> None:
        """A driver died or ended: targets roll back what it held open."""
        for key in self.below("open"):
            if self.facts[key][0] == number:
                self.drop(key)

    def drop(self, key: tuple[Any, ...]) -> None:
        """A fact is no more, by no effect of a driver."""
        del self.facts[key]
        self._id = None

    def power_losses(self) -> Iterator[World]:
        """Each unsynced file survives, vanishes or is empty, independently. All drivers die.

        The engine reads the two newest entries of each log; older unsynced ones simply vanish.
        """
        unsynced = []
        gone = []
        for log in ("offsets", "commits"):
            numbers = self.numbers(log)
            for number in numbers:
                if not self.facts[(log, number)][1]:
                    (unsynced if number >= numbers[-1] - 1 else gone).append((log, number))
        for fates in itertools.product(("survives", "vanishes", "is empty"), repeat=len(unsynced)):
            world = type(self)(self.sinks, self.facts.copy())
            for key in [*gone, *world.below("open")]:
                del world.facts[key]
            for key, fate in zip(unsynced, fates, strict=True):
                if fate == "vanishes":
                    del world.facts[key]
                else:
                    world.facts[key] = (world.facts[key][0] if fate == "survives" else "", True)
            yield world

    def perishable(self) -> list[tuple[Any, ...]]:
        """Transactions that the target may time out by itself."""
        return [key for key, fact in self.facts.items() if key[0] == "tx" and fact[0] == "open"]

    # --- ledger

    def _names(self, actor: Actor, effect: e.Names) -> tuple[int, ...]:
        return self.numbers("ledger")

    def _read(self, actor: Actor, effect: e.Read) -> bytes | None:
        data: bytes | None = self.facts.get(("ledger", effect.number))
        return data

    def _create(self, actor: Actor, effect: e.Create) -> e.Created:
        if ("ledger", effect.number) in self.facts:
            return e.Created.TAKEN
        self.facts[("ledger", effect.number)] = effect.data
        check.appended(self, effect.number, effect.data)
        return e.Created.CREATED

    def _forget(self, actor: Actor, effect: e.Forget) -> None:
        self.facts.pop(("ledger", effect.number), None)

    # --- Spark's log

    def _identity(self, actor: Actor, effect: e.ReadIdentity) -> e.Identity:
        epochs = tuple(sorted({*self.numbers("offsets"), *self.numbers("commits")}))
        return e.Identity(self.facts.get(("metadata",)), (LINEAGE,) if self.numbers("ledger") else (), epochs)

    def _metadata(self, actor: Actor, effect: e.WriteMetadata) -> None:
        self.facts[("metadata",)] = effect.lineage

    def _log_names(self, actor: Actor, effect: e.LogNames) -> tuple[int, ...]:
        return self.numbers(effect.log)

    def _log_read(self, actor: Actor, effect: e.LogRead) -> str | None:
        return self.text(effect.log, effect.epoch)

    def _log_write(self, actor: Actor, effect: e.LogWrite) -> None:
        self.facts[(effect.log, effect.epoch)] = (effect.text, True)

    def _log_delete(self, actor: Actor, effect: e.LogDelete) -> None:
        self.facts.pop((effect.log, effect.epoch), None)

    def _nothing(self, actor: Actor, effect: e.Effect[Any]) -> None:
        pass

    def _lost_files(self, actor: Actor, effect: e.LostFiles) -> tuple[str, ...]:
        attempt = check.attempt_of(effect.snapshot)
        return () if ("state", attempt) in self.facts else (f"state/{attempt}",)

    def text(self, log: str, epoch: int) -> str | None:
        """One entry of the engine's log."""
        entry = self.facts.get((log, epoch))
        return None if entry is None else entry[0]

    # --- the engine

    def _boot(self, actor: Actor, effect: Boot) -> Booted | None:
        begun, complete = self.numbers("offsets"), self.numbers("commits")
        if not begun:
            return None if complete else Booted(0, 0, None, None)
        last = begun[-1]
        ready = last if complete[-1:] == (last,) else last - 1
        if complete[-1:] > (last,) or not self.text("offsets", last):
            return None
        if ready < 0:
            return Booted(0, 0, check.end_of(self.text("offsets", 0)), None)
        if not self.text("offsets", ready) or not self.text("commits", ready):
            return None
        start, attempt = check.end_of(self.text("offsets", ready)), check.attempt_of(self.text("commits", ready))
        if ready == last:
            return Booted(last + 1, start, None, attempt)
        return Booted(last, start, check.end_of(self.text("offsets", last)), attempt)

    def _plan(self, actor: Actor, effect: Plan) -> int | None:
        if ("offsets", effect.epoch) in self.facts:
            return None
        end: int = effect.epoch + self.facts[("drivers",)]
        self.facts[("offsets", effect.epoch)] = (check.offsets_text(end), False)
        return end

    def _run_plan(self, actor: Actor, effect: RunPlan) -> str | None:
        before = () if effect.state is None else self.facts.get(("state", effect.state))
        if before is None:
            return None
        attempt = f"{actor.number}.{effect.epoch}"
        segment = (effect.start, effect.end, attempt)
        self.facts[("state", attempt)] = (*before, segment)
        self.facts[("staged", effect.writer, effect.epoch, attempt)] = segment
        return attempt

    def _complete(self, actor: Actor, effect: Complete) -> bool:
        if ("commits", effect.epoch) in self.facts:
            return False
        self.facts[("commits", effect.epoch)] = (check.snapshot_text(effect.attempt), False)
        return True

    def _snapshot(self, actor: Actor, effect: e.TakeSnapshot) -> e.Snapshot:
        assert actor.running is not None
        return e.Snapshot(check.snapshot_text(actor.running[2][2]), Frozen())

    # --- sinks

    def handle_id(self, sink: str, epoch: int, writer: int, attempt: str) -> str:
        """A name that no other attempt or writer uses."""
        return f"{sink}-{writer}-{epoch}-{attempt}"

    def _open_sinks(self, actor: Actor, effect: e.OpenSinks) -> None:
        for key in self.below("open"):
            if self.facts[key][1] < effect.writer:
                del self.facts[key]

    def _pre_commit(self, actor: Actor, effect: e.PreCommit) -> tuple[Handle, ...]:
        assert actor.running is not None
        writer, epoch, segment = actor.running
        staged = (Kept(f"{writer}/{epoch}/{segment[2]}", segment[1] - segment[0], ""),)
        handles = []
        for sink in self.sinks:
            name = self.handle_id(sink.name, epoch, writer, segment[2])
            handles.append(Handle(name, sink.name, segment[1] - segment[0], staged if sink.kept else (), Frozen()))
            self.hold(sink, name, epoch, writer, segment)
        return tuple(handles)

    def hold(self, sink: SinkSpec, handle: str, epoch: int, writer: int, segment: Segment) -> None:
        """Give a sink its rows, not visible."""
        if sink.shape == "transaction":
            self.facts[("tx", sink.name, handle)] = ("open", epoch, writer, segment)
        elif sink.shape == "publish":
            self.facts[("file", sink.name, handle)] = (epoch, writer, segment)

    def kept(self, handle: Handle) -> Segment | None:
        """The staged rows of a handle; None if they were swept."""
        writer, epoch, attempt = handle.kept[0].file.split("/")
        segment: Segment | None = self.facts.get(("staged", int(writer), int(epoch), attempt))
        return segment

    def staged(self, handle: Handle, writer: int) -> Segment:
        """The staged rows of a decided handle; that they were swept while the latest writer needs them is a violation."""
        segment = self.kept(handle)
        if segment is None and check.ledger(self).writer > writer:
            raise OperatorNeeded("staged_rows_damaged", "swept by a newer driver", next="")
        if segment is None:
            raise Violation("lost", f"the staged rows of decided handle {handle.id} are needed and were swept")
        return segment

    def _vote(self, actor: Actor, effect: e.Vote) -> tuple[str, ...]:
        sink = self.sink(effect.sink)
        if sink.shape == "apply":
            return self._vote_apply(actor, effect)
        kind = "tx" if sink.shape == "transaction" else "file"
        return tuple(h.id for h in effect.handles if (kind, sink.name, h.id) not in self.facts)

    def _vote_apply(self, actor: Actor, effect: e.Vote) -> tuple[str, ...]:
        assert actor.running is not None
        held = self.facts.get(("open", effect.sink))
        row = self.facts.get(("row", effect.sink))
        if (held and held[0] != actor.number) or (row and row[0] >= effect.epoch):
            return tuple(h.id for h in effect.handles)
        (handle,) = effect.handles
        segment = self.kept(handle)
        if segment is None:
            return (handle.id,)  # a newer driver swept the rows of this one
        self.facts[("open", effect.sink)] = (actor.number, actor.running[0], effect.epoch, handle.id, segment)
        return ()

    def _commit(self, actor: Actor, effect: e.Commit) -> Mapping[str, e.Outcome]:
        sink = self.sink(effect.sink)
        commit = {"transaction": self.end, "apply": self.apply, "publish": self.publish}[sink.shape]
        return Frozen({h.id: commit(actor, h, effect.epoch) for h in effect.handles})

    def end(self, actor: Actor, handle: Handle, epoch: int) -> e.Outcome:
        """Commit a transaction; one that is not known is gone."""
        key = ("tx", handle.sink, handle.id)
        if key not in self.facts:
            return e.Outcome.GONE
        status, *rest, segment = self.facts[key]
        if status == "open":
            self.facts[key] = ("committed", *rest, segment)
            self.show(handle, epoch, segment)
        return e.Outcome.DONE

    def apply(self, actor: Actor, handle: Handle, epoch: int) -> e.Outcome:
        """Commit the open transaction of the vote; without one, apply the kept rows, unless the epoch row has them."""
        row = self.facts.get(("row", handle.sink))
        if row and row[0] >= epoch:
            # A row of this epoch by another attempt is never taken for ours.
            return e.Outcome.DONE if row[0] > epoch or row[1] == handle.id else e.Outcome.IN_DOUBT
        held = self.facts.get(("open", handle.sink))
        if held and held[0] != actor.number:
            return e.Outcome.IN_DOUBT
        segment = held[4] if held and held[3] == handle.id else self.staged(handle, actor.writer)
        self.facts.pop(("open", handle.sink), None)
        self.facts[("row", handle.sink)] = (epoch, handle.id)
        self.show(handle, epoch, segment)
        return e.Outcome.DONE

    def publish(self, actor: Actor, handle: Handle, epoch: int) -> e.Outcome:
        """Create the epoch's manifest, exclusively."""
        manifest = self.facts.get(("manifest", handle.sink, epoch))
        if manifest is not None:
            return e.Outcome.DONE if manifest == handle.id else e.Outcome.IN_DOUBT
        file = self.facts.pop(("file", handle.sink, handle.id), None)
        if file is None:
            return e.Outcome.GONE
        self.facts[("manifest", handle.sink, epoch)] = handle.id
        self.show(handle, epoch, file[2])
        return e.Outcome.DONE

    def show(self, handle: Handle, epoch: int, segment: Segment) -> None:
        """Rows become visible."""
        seen = self.facts[("rows", handle.sink)]
        self.facts[("rows", handle.sink)] = (*seen, segment)
        check.became_visible(self, handle, seen, segment)

    def _again(self, actor: Actor, effect: e.Again) -> tuple[Handle, ...]:
        fresh = []
        for lost in effect.handles:
            name = f"{lost.id}+{actor.number}"
            self.hold(self.sink(effect.sink), name, effect.epoch, actor.writer, self.staged(lost, actor.writer))
            fresh.append(Handle(name, lost.sink, lost.rows, lost.kept, Frozen()))
        return tuple(fresh)

    def _orphans(self, actor: Actor, effect: e.Orphans) -> tuple[Handle, ...]:
        return tuple(
            Handle(key[2], effect.sink, 0, (), Frozen())
            for key in sorted(self.orphans(effect.sink))
            if self.facts[key][-2] < effect.before
        )

    def orphans(self, sink: str) -> list[tuple[Any, ...]]:
        """Pre-committed and neither committed nor aborted."""
        return [
            key
            for key, fact in self.facts.items()
            if key[1:2] == (sink,) and ((key[0] == "tx" and fact[0] == "open") or key[0] == "file")
        ]

    def _abort(self, actor: Actor, effect: e.Abort) -> None:
        check.aborted(self, effect.handle)
        self.facts.pop(("file", effect.handle.sink, effect.handle.id), None)
        key = ("tx", effect.handle.sink, effect.handle.id)
        if key in self.facts and self.facts[key][0] == "open":
            del self.facts[key]

    def _sweep(self, actor: Actor, effect: e.SweepStaged) -> None:
        for key in self.below("staged"):
            mine = key[1] == effect.writer and key[2] <= effect.through
            if mine or (effect.recovering and key[1] < effect.writer):
                del self.facts[key]

    DO: ClassVar[Mapping[type[e.Effect[Any]], Callable[..., Any]]] = {}


READS = frozenset(
    {e.ReadIdentity, e.Names, e.Read, e.LogNames, e.LogRead, e.LostFiles, e.TakeSnapshot, e.Orphans, e.Wait, Boot}
)
"""Effects that change nothing: a driver that dies after one leaves the world as before it."""

World.DO = {
    e.ReadIdentity: lambda w, a, x: w._identity(a, x),
    e.WriteMetadata: lambda w, a, x: w._metadata(a, x),
    e.Names: lambda w, a, x: w._names(a, x),
    e.Read: lambda w, a, x: w._read(a, x),
    e.Create: lambda w, a, x: w._create(a, x),
    e.Forget: lambda w, a, x: w._forget(a, x),
    e.LogNames: lambda w, a, x: w._log_names(a, x),
    e.LogRead: lambda w, a, x: w._log_read(a, x),
    e.LogWrite: lambda w, a, x: w._log_write(a, x),
    e.LogDelete: lambda w, a, x: w._log_delete(a, x),
    e.ForgetUndecided: lambda w, a, x: w._nothing(a, x),
    e.LostFiles: lambda w, a, x: w._lost_files(a, x),
    e.OpenSinks: lambda w, a, x: w._open_sinks(a, x),
    e.PreCommit: lambda w, a, x: w._pre_commit(a, x),
    e.Vote: lambda w, a, x: w._vote(a, x),
    e.TakeSnapshot: lambda w, a, x: w._snapshot(a, x),
    e.Commit: lambda w, a, x: w._commit(a, x),
    e.Again: lambda w, a, x: w._again(a, x),
    e.Orphans: lambda w, a, x: w._orphans(a, x),
    e.Abort: lambda w, a, x: w._abort(a, x),
    e.SweepStaged: lambda w, a, x: w._sweep(a, x),
    e.Wait: lambda w, a, x: w._nothing(a, x),
    Boot: lambda w, a, x: w._boot(a, x),
    Plan: lambda w, a, x: w._plan(a, x),
    RunPlan: lambda w, a, x: w._run_plan(a, x),
    Complete: lambda w, a, x: w._complete(a, x),
}
