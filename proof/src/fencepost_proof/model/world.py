"""The world a driver acts on, in memory and worse than reality: everything durable is one dictionary of facts.

    ("ledger", number, lineage)       record bytes; exclusive and durable
    ("metadata",)                     the lineage that counts
    ("offsets"|"commits", epoch)      (text, synced): what the engine writes is not synced, what recovery writes is
    ("state", attempt)                the segments folded so far
    ("staged", lineage, writer, epoch, attempt), ("tx", sink, handle), ("file", sink, handle)     pre-committed rows
    ("open", sink), ("row", sink), ("manifest", sink, version)                           an apply and a publish sink
    ("rows", sink)                    what a reader sees: segments, in the order they became visible

Rows are segments (first record, end, attempt): they carry the attempt that made them, so that state and output of
different attempts are told apart. Never decides anything, and never uses a clock or chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from fencepost.errors import CheckpointRefused
from fencepost.protocol import effects as e
from fencepost_proof.model import check
from fencepost_proof.model.targets import Actor, Frozen, Targets

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


class World(Targets):
    """All that outlives a driver. Subclasses are sabotaged worlds."""

    __slots__ = ()

    def copy(self) -> Self:
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

    def power_losses(self) -> Iterator[Self]:
        """Each unsynced file survives, vanishes or is empty, independently. All drivers die.

        The engine reads the two newest entries of each log; older unsynced ones simply vanish.
        """
        unsynced: list[tuple[Any, ...]] = []
        gone: list[tuple[Any, ...]] = []
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
        return self.records(effect.lineage)

    def _read(self, actor: Actor, effect: e.Read) -> bytes | None:
        data: bytes | None = self.facts.get(("ledger", effect.number, effect.lineage))
        return data

    def _create(self, actor: Actor, effect: e.Create) -> e.Created:
        key = ("ledger", effect.number, effect.lineage)
        if key in self.facts:
            return e.Created.TAKEN
        self.facts[key] = effect.data
        check.appended(self, effect.lineage, effect.number, effect.data)
        return e.Created.CREATED

    def _forget(self, actor: Actor, effect: e.Forget) -> None:
        self.facts.pop(("ledger", effect.number, effect.lineage), None)

    # --- Spark's log

    def _identity(self, actor: Actor, effect: e.ReadIdentity) -> e.Identity:
        epochs = tuple(sorted({*self.numbers("offsets"), *self.numbers("commits")}))
        named = self.facts.get(("metadata",))
        return e.Identity(named, (str(named),) if self.numbers("ledger") else (), epochs)

    def _name_lineage(self, actor: Actor, effect: e.NameLineage) -> str:
        named: str = self.facts.setdefault(("metadata",), effect.lineage)
        return named

    def _switch_lineage(self, actor: Actor, effect: e.SwitchLineage) -> None:
        if self.facts[("metadata",)] == effect.sealed:
            self.facts[("metadata",)] = effect.lineage

    def _repartition(self, actor: Actor, effect: e.Repartition) -> e.Repartitioned:
        attempt = f"{actor.number}.{effect.epoch + 1}"
        offsets, snapshot = self.text("offsets", effect.epoch), self.text("commits", effect.epoch)
        if not offsets or not snapshot:
            raise CheckpointRefused("rescale_failed", "the copy is not whole", next="")
        self.facts[("state", attempt)] = self.facts[("state", check.attempt_of(snapshot))]
        return e.Repartitioned(offsets, check.snapshot_text(attempt))

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
        self.facts[("staged", actor.lineage, effect.writer, effect.epoch, attempt)] = segment
        for sink in self.sinks:
            if sink.in_tasks:
                name = self.handle_id(sink.name, effect.epoch, effect.writer, attempt)
                self.hold(sink, name, effect.epoch, (actor.lineage, effect.writer), segment)
        return attempt

    def _complete(self, actor: Actor, effect: Complete) -> bool:
        if ("commits", effect.epoch) in self.facts:
            return False
        self.facts[("commits", effect.epoch)] = (check.snapshot_text(effect.attempt), False)
        return True

    def _snapshot(self, actor: Actor, effect: e.TakeSnapshot) -> e.Snapshot:
        assert actor.running is not None
        return e.Snapshot(check.snapshot_text(actor.running[2][2]), Frozen())

    DO: ClassVar[Mapping[type[e.Effect[Any]], Callable[..., Any]]] = {}


READS = frozenset(
    {
        e.ReadIdentity,
        e.Names,
        e.Read,
        e.Strays,
        e.Discard,
        e.LogNames,
        e.LogRead,
        e.LostFiles,
        e.TakeSnapshot,
        e.Orphans,
        e.Wait,
        Boot,
    }
)
"""Effects that change nothing: a driver that dies after one leaves the world as before it."""

World.DO = {
    e.ReadIdentity: lambda w, a, x: w._identity(a, x),
    e.NameLineage: lambda w, a, x: w._name_lineage(a, x),
    e.SwitchLineage: lambda w, a, x: w._switch_lineage(a, x),
    e.Repartition: lambda w, a, x: w._repartition(a, x),
    e.Names: lambda w, a, x: w._names(a, x),
    e.Read: lambda w, a, x: w._read(a, x),
    e.Create: lambda w, a, x: w._create(a, x),
    e.Forget: lambda w, a, x: w._forget(a, x),
    e.LogNames: lambda w, a, x: w._log_names(a, x),
    e.LogRead: lambda w, a, x: w._log_read(a, x),
    e.LogWrite: lambda w, a, x: w._log_write(a, x),
    e.LogDelete: lambda w, a, x: w._log_delete(a, x),
    e.Strays: lambda w, a, x: (),
    e.Discard: lambda w, a, x: w._nothing(a, x),
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
