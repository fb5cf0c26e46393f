"""Worlds that break one promise each: a disk, a store or a sink as it must not be. For `sabotage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from fencepost.protocol import effects as e
from fencepost.protocol.records import Handle
from fencepost_proof.model.check import Segment
from fencepost_proof.model.targets import Actor, SinkSpec
from fencepost_proof.model.world import World


class Promising(World):
    __slots__ = ()

    def hold(self, sink: SinkSpec, handle: str, epoch: int, writer: tuple[str, int], segment: Segment) -> None:
        if any(key[0] == "ledger" and handle.encode() in data for key, data in self.facts.items()):
            super().hold(sink, handle, epoch, writer, segment)


class Unsynced(World):
    __slots__ = ()

    def power_losses(self) -> Iterator[Self]:
        for world in super().power_losses():
            yield world
            if len(self.numbers("ledger")) > 1:
                torn = world.copy()
                torn.drop(("ledger", self.numbers("ledger")[-1], self.facts[("metadata",)]))
                yield torn


class Renaming(World):
    __slots__ = ()

    def _create(self, actor: Actor, effect: e.Create) -> e.Created:
        self.facts.pop(("ledger", effect.number, effect.lineage), None)
        return super()._create(actor, effect)


class NamedByEpoch(World):
    __slots__ = ()

    def handle_id(self, sink: str, epoch: int, writer: int, attempt: str) -> str:
        return f"{sink}-{epoch}"


class NoEpochRow(World):
    __slots__ = ()

    def apply(self, actor: Actor, handle: Handle, epoch: int) -> e.Outcome:
        self.facts.pop(("row", handle.sink), None)
        return super().apply(actor, handle, epoch)


class AppliesInTheVote(World):
    __slots__ = ()

    def _vote(self, actor: Actor, effect: e.Vote) -> tuple[str, ...]:
        dead = super()._vote(actor, effect)
        if not dead and self.sink(effect.sink).shape == "apply":
            self.apply(actor, effect.handles[0], effect.epoch)
        return dead


class SleepingSession(World):
    __slots__ = ()

    def _open_sinks(self, actor: Actor, effect: e.OpenSinks) -> None:
        pass


class SweepsNewer(World):
    __slots__ = ()

    def _sweep(self, actor: Actor, effect: e.SweepStaged) -> None:
        super()._sweep(actor, effect)
        if effect.recovering:
            for key in self.below("staged"):
                if key[2] != effect.writer:
                    del self.facts[key]


class NamedTwice(World):
    __slots__ = ()

    def _name_lineage(self, actor: Actor, effect: e.NameLineage) -> str:
        self.facts[("metadata",)] = effect.lineage
        return effect.lineage


class BareEpoch(World):
    __slots__ = ()

    def version(self, lineage: str, epoch: int) -> tuple[int, int]:
        return 0, epoch


class TwoInOneSession(World):
    __slots__ = ()

    def _alone_in_sinks(self, actor: Actor) -> None:
        pass
