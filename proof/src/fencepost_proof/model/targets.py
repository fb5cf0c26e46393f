"""The sinks of the model's world, one of each shape, and the rows staged for them.

    transaction   rows in an open transaction, which the target may time out; kept in staged files, or not
    apply         the vote opens the one transaction and does the work; the epoch row names the handle that was applied
    publish       files, and one manifest per epoch, created exclusively

Never decides anything. What is visible is checked the moment it becomes so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from fencepost.errors import OperatorNeeded
from fencepost.protocol import effects as e
from fencepost.protocol.epoch import SinkFacts
from fencepost.protocol.records import Handle, Kept
from fencepost_proof.model import check
from fencepost_proof.model.check import Segment, Violation

if TYPE_CHECKING:
    from fencepost_proof.model.world import World


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
    in_tasks: bool = False
    """The plan's tasks write into the transaction themselves."""

    @property
    def facts(self) -> SinkFacts:
        """What the protocol knows of it."""
        return SinkFacts(self.name, perishable=self.shape == "transaction")


class Job(NamedTuple):
    """What a history has to get done."""

    sinks: tuple[SinkSpec, ...]
    epochs: int = 3
    """A history is over when this many epochs are decided and done."""
    upkeep: str = ""
    """What a person does when two epochs are done: rewind to the first (quiet, overwrite), or rescale."""
    overlap: bool = False
    """The commit of an epoch runs beside the next one's tasks."""

    @property
    def name(self) -> str:
        """For tables."""
        upkeep = f", {self.upkeep}" if self.upkeep else ""
        overlap = ", overlapped" if self.overlap else ""
        return " + ".join(s.name for s in self.sinks) + f", {self.epochs} epochs{upkeep}{overlap}"


KEPT = SinkSpec("kept", "transaction", kept=True)
BARE = SinkSpec("bare", "transaction", kept=False)
APPLY = SinkSpec("apply", "apply", kept=True)
PUBLISH = SinkSpec("publish", "publish", kept=False)
TASKS = SinkSpec("tasks", "transaction", kept=True, in_tasks=True)


class Actor(Protocol):
    """The driver that asks for an effect."""

    number: int
    writer: int
    running: tuple[int, int, Segment] | None
    """Writer, epoch and rows of the epoch it is running."""
    lineage: str
    ancestors: tuple[str, ...]

    @property
    def is_beside(self) -> bool:
        """Is its commit of the last epoch still running?"""


Facts = dict[tuple[Any, ...], Any]


class Targets:
    """The part of a world that sinks and staged rows are."""

    __slots__ = ("_id", "facts", "sinks")

    def __init__(self, sinks: tuple[SinkSpec, ...], facts: Facts | None = None, known: int | None = None) -> None:
        self.sinks = sinks
        self._id = known
        self.facts: Facts = {("drivers",): 0, **{("rows", s.name): () for s in sinks}} if facts is None else facts

    def sink(self, name: str) -> SinkSpec:
        """A sink by name."""
        return next(s for s in self.sinks if s.name == name)

    def below(self, *prefix: Any) -> list[tuple[Any, ...]]:
        """The keys that begin so."""
        width = len(prefix)
        return [key for key in self.facts if key[:width] == prefix]

    def numbers(self, kind: str) -> tuple[int, ...]:
        """The numbers in the ledger that counts, or in one of the engine's logs, rising."""
        if kind == "ledger":
            return self.records(self.facts.get(("metadata",)))
        return tuple(sorted(key[1] for key in self.facts if key[0] == kind))

    def records(self, lineage: str | None) -> tuple[int, ...]:
        """The numbers in a lineage's ledger, rising."""
        return tuple(sorted(key[1] for key in self.facts if key[0] == "ledger" and key[2] == lineage))

    def handle_id(self, sink: str, epoch: int, writer: int, attempt: str) -> str:
        """A name that no other attempt or writer uses."""
        return f"{sink}-{writer}-{epoch}-{attempt}"

    def _open_sinks(self, actor: Actor, effect: e.OpenSinks) -> None:
        for key in self.below("open"):
            lineage, writer = self.facts[key][1]
            if writer < effect.writer if lineage == effect.lineage else lineage in effect.ancestors:
                del self.facts[key]
        for sink in self.sinks:
            row = self.facts.get(("row", sink.name), ((-1, -1),))
            held = (effect.generation, effect.held.get(sink.name, -1))
            if sink.shape == "apply" and sink.name in effect.held and row[0] < held:
                raise Violation("stuck", f"the ledger says that {sink.name} holds epoch {held}, which it never did")

    def _pre_commit(self, actor: Actor, effect: e.PreCommit) -> tuple[Handle, ...]:
        assert actor.running is not None
        self._alone_in_sinks(actor)
        writer, epoch, segment = actor.running
        staged = (Kept(f"{actor.lineage}/{writer}/{epoch}/{segment[2]}", segment[1] - segment[0], ""),)
        handles = []
        for sink in self.sinks:
            name = self.handle_id(sink.name, epoch, writer, segment[2])
            handles.append(Handle(name, sink.name, segment[1] - segment[0], staged if sink.kept else (), Frozen()))
            if not sink.in_tasks:
                self.hold(sink, name, epoch, (actor.lineage, writer), segment)
        return tuple(handles)

    def _alone_in_sinks(self, actor: Actor) -> None:
        """A session is used by one thread at a time: its one transaction must not get rows of two epochs."""
        if actor.is_beside:
            raise Violation("torn", "an epoch reached the sinks beside the commit of the last one")

    def hold(self, sink: SinkSpec, handle: str, epoch: int, writer: tuple[str, int], segment: Segment) -> None:
        """Give a sink its rows, not visible."""
        if sink.shape == "transaction":
            self.facts[("tx", sink.name, handle)] = ("open", epoch, writer, segment)
        elif sink.shape == "publish":
            self.facts[("file", sink.name, handle)] = (epoch, writer, segment)

    def kept(self, handle: Handle) -> Segment | None:
        """The staged rows of a handle; None if they were swept."""
        lineage, writer, epoch, attempt = handle.kept[0].file.split("/")
        segment: Segment | None = self.facts.get(("staged", lineage, int(writer), int(epoch), attempt))
        return segment

    def staged(self, handle: Handle, writer: int) -> Segment:
        """The staged rows of a decided handle: the latest writer must never need what was swept."""
        segment = self.kept(handle)
        if segment is None and check.ledger(cast("World", self)).writer > writer:
            raise OperatorNeeded("staged_rows_damaged", "swept by a newer driver", next="")
        if segment is None:
            raise Violation("lost", f"the staged rows of decided handle {handle.id} are needed and were swept")
        return segment

    def _vote(self, actor: Actor, effect: e.Vote) -> tuple[str, ...]:
        sink = self.sink(effect.sink)
        self._alone_in_sinks(actor)
        if sink.shape == "apply":
            return self._vote_apply(actor, effect)
        kind = "tx" if sink.shape == "transaction" else "file"
        return tuple(h.id for h in effect.handles if (kind, sink.name, h.id) not in self.facts)

    def _vote_apply(self, actor: Actor, effect: e.Vote) -> tuple[str, ...]:
        assert actor.running is not None
        held = self.facts.get(("open", effect.sink))
        row = self.facts.get(("row", effect.sink))
        if (held and held[0] != actor.number) or (row and row[0] >= self.version(actor.lineage, effect.epoch)):
            return tuple(h.id for h in effect.handles)
        (handle,) = effect.handles
        segment = self.kept(handle)
        if segment is None:
            return (handle.id,)  # a newer driver swept the rows of this one
        writer = (actor.lineage, actor.running[0])
        self.facts[("open", effect.sink)] = (actor.number, writer, effect.epoch, handle.id, segment)
        return ()

    def version(self, lineage: str, epoch: int) -> tuple[int, int]:
        """What an epoch row is compared by: generation and epoch."""
        return check.generation_of(cast("World", self), lineage), epoch

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
        version = self.version(actor.lineage, epoch)
        if row and row[0] >= version:
            # A row of this epoch by another attempt is never taken for ours.
            return e.Outcome.DONE if row[0] > version or row[1] == handle.id else e.Outcome.IN_DOUBT
        held = self.facts.get(("open", handle.sink))
        if held and held[0] != actor.number:
            return e.Outcome.IN_DOUBT
        segment = held[4] if held and held[3] == handle.id else self.staged(handle, actor.writer)
        self.facts.pop(("open", handle.sink), None)
        self.facts[("row", handle.sink)] = (version, handle.id)
        self.show(handle, epoch, segment)
        return e.Outcome.DONE

    def publish(self, actor: Actor, handle: Handle, epoch: int) -> e.Outcome:
        """Create the epoch's manifest, exclusively."""
        version = self.version(actor.lineage, epoch)
        manifest = self.facts.get(("manifest", handle.sink, version))
        if manifest is not None:
            return e.Outcome.DONE if manifest == handle.id else e.Outcome.IN_DOUBT
        file = self.facts.pop(("file", handle.sink, handle.id), None)
        if file is None:
            return e.Outcome.GONE
        self.facts[("manifest", handle.sink, version)] = handle.id
        self.show(handle, epoch, file[2])
        return e.Outcome.DONE

    def show(self, handle: Handle, epoch: int, segment: Segment) -> None:
        """Rows become visible."""
        seen = self.facts[("rows", handle.sink)]
        if check.overwrites(cast("World", self)):  # a keyed target: what comes again takes the place of what was there
            seen = tuple(old for old in seen if old[1] <= segment[0])
        self.facts[("rows", handle.sink)] = (*seen, segment)
        check.became_visible(cast("World", self), handle, seen, segment)

    def _again(self, actor: Actor, effect: e.Again) -> tuple[Handle, ...]:
        fresh = []
        for lost in effect.handles:
            name = f"{lost.id}+{actor.number}"
            writer = (actor.lineage, actor.writer)
            self.hold(self.sink(effect.sink), name, effect.epoch, writer, self.staged(lost, actor.writer))
            fresh.append(Handle(name, lost.sink, lost.rows, lost.kept, Frozen()))
        return tuple(fresh)

    def _orphans(self, actor: Actor, effect: e.Orphans) -> tuple[Handle, ...]:
        return tuple(
            Handle(key[2], effect.sink, 0, (), Frozen())
            for key in sorted(self.orphans(effect.sink))
            if self.is_older(actor, self.facts[key][-2], effect.before)
        )

    def is_older(self, actor: Actor, writer: tuple[str, int], before: int) -> bool:
        """A writer of this lineage below `before`, or any of a sealed one before it."""
        return writer[1] < before if writer[0] == actor.lineage else writer[0] in actor.ancestors

    def orphans(self, sink: str) -> list[tuple[Any, ...]]:
        """Pre-committed and neither committed nor aborted."""
        return [
            key
            for key, fact in self.facts.items()
            if key[1:2] == (sink,) and ((key[0] == "tx" and fact[0] == "open") or key[0] == "file")
        ]

    def _abort(self, actor: Actor, effect: e.Abort) -> None:
        check.aborted(cast("World", self), effect.handle)
        self.facts.pop(("file", effect.handle.sink, effect.handle.id), None)
        key = ("tx", effect.handle.sink, effect.handle.id)
        if key in self.facts and self.facts[key][0] == "open":
            del self.facts[key]

    def _sweep(self, actor: Actor, effect: e.SweepStaged) -> None:
        for key in self.below("staged"):
            mine = key[1:3] == (actor.lineage, effect.writer) and key[3] <= effect.through
            if mine or (effect.recovering and self.is_older(actor, key[1:3], effect.writer)):
                del self.facts[key]
