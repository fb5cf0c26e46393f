"""The mark: a target's own memory of what it holds, written together with the rows.

    lineage · generation · epoch · handle       one per job and sink

It is asked before the vote (nothing undecided can be there), before a commit after a crash (there already?), and at
every start: what the ledger calls done must be there, or the target was set back. Never compares epochs without their
generation: their numbers start again after a restore.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from fencepost.errors import OperatorNeeded, TargetRefused
from fencepost.protocol.records import Epoch, Handle, digest
from fencepost.sinks.contract import Owner, Session
from fencepost.sinks.holding import Asked, Examined, Holding, Stray, alike

LONGEST = 200
"""Characters of a mark's `handle`."""
BY_HAND = frozenset({"by hand", "by-hand", ""})
"""What `handle` is where a person set the mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest epoch that the target holds of one sink of one job."""

    lineage: str
    generation: int
    epoch: int
    handle: str
    writer: int
    """For people."""

    @property
    def version(self) -> tuple[int, int]:
        """What marks are compared by."""
        return self.generation, self.epoch


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found that changed nothing."""

    identity: str
    """"" if the target has none."""
    mark: Mark | None
    has_table: bool
    """Is the table there that the rows are in?"""


class MarkedSession(Session):
    """The driver's side of a target that has a mark."""

    def __init__(self, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink
        self._held: Epoch | None = None

    @property
    @abstractmethod
    def how_to_mark(self) -> tuple[str, str]:
        """For people: what removes the mark, and what sets it to `{epoch}`."""

    def open(self, owner: Owner) -> None:
        """What the ledger calls done, the target must hold."""
        super().open(owner)
        self._held = owner.held.get(self.sink)

    def mark_of(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mark:
        """The mark that goes with the rows."""
        owner = self.owner
        return Mark(owner.lineage, owner.generation, epoch, ids_of(handles), owner.writer)

    def note_done(self, epoch: Epoch) -> None:
        """The target holds it: it must not be without it later."""
        self._held = Epoch(max(epoch, self._held if self._held is not None else epoch))

    def check_at_start(self, found: Mark | None) -> None:
        """Refuse a target of another lineage, and one that was set back."""
        if found is not None and self._is_foreign(found):
            raise self._another_lineage(found)
        self._check_not_behind(found)

    def check_before_vote(self, found: Mark | None, epoch: Epoch) -> None:
        """Nothing of an undecided epoch can be in the target: if it is, the ledger lost a record.

        The mistake people make: taking "already there" for done. The epoch may have another range now; skipping it
        would lose the difference.
        """
        self._check_not_behind(found, epoch)
        if found is None:
            return
        if self._is_foreign(found):
            raise self._another_lineage(found).at(epoch=epoch)
        if found.version >= (self.owner.generation, epoch):
            raise self._ahead(found, epoch)

    def is_there(self, found: Mark | None, epoch: Epoch, handles: tuple[Handle, ...]) -> bool:
        """Is the decided epoch in the target? An older driver may ask about one that is long over: yes."""
        if found is None:
            self._check_not_behind(found, epoch)
            return False
        if self._is_foreign(found):
            raise OperatorNeeded(
                "target_of_another_lineage",
                f"The target was taken by lineage {found.lineage} before a decided epoch was in it.",
                next="Give the other job a target (or a job name) of its own, restore this one, then start the job.",
            ).at(job=self.job, epoch=epoch, sink=self.sink)
        mine = (self.owner.generation, epoch)
        if found.version == mine and found.handle != ids_of(handles):
            raise self._ahead(found, epoch)
        if found.version < mine:
            self._check_not_behind(found, epoch)  # it may have been set back since the vote
        return found.version >= mine

    def is_next(self, found: Mark | None, epoch: Epoch) -> bool:
        """at_least_once: is the epoch newer than what the target holds? Raise if it is older.

        An older one comes from a driver that slept, or from an old copy of the checkpoint. To write it would set
        values back for all to see; to leave it out would lose rows, because the copy may cut its epochs differently.
        """
        mine = (self.owner.generation, epoch)
        if found is not None and found.version > mine:
            raise self._ahead(found, epoch)
        return found is None or found.version < mine

    def _is_foreign(self, found: Mark) -> bool:
        return found.lineage != self.owner.lineage and found.lineage not in self.owner.ancestors

    def _check_not_behind(self, found: Mark | None, epoch: Epoch | None = None) -> None:
        """A backup was restored, a replica without the last commits took over, or somebody removed the mark."""
        held = self._held
        if held is None or (found is not None and found.version >= (self.owner.generation, held)):
            return
        forced = self.how_to_mark[1].replace("{epoch}", str(held))
        there = "no epoch of this sink" if found is None else f"epoch {found.epoch} as its newest"
        raise OperatorNeeded(
            "target_behind",
            f"The ledger says that the target holds epoch {held}, the target says it holds {there}: it was set back "
            "(a backup, a replica that lagged), or the mark was removed.",
            next="Bring back the target's newest state, or start a new checkpoint on an emptied target to write "
            f"everything again. If the missing epochs may stay lost: {forced}",
            safe="The target was not touched. What it lost, it lost before; the ledger knows up to which epoch.",
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _another_lineage(self, found: Mark) -> TargetRefused:
        error = TargetRefused(
            "target_of_another_lineage",
            f"The target holds epochs of lineage {found.lineage} under the same job and sink name.",
            next="Give this job another name or a target of its own. If the other checkpoint is gone for good and its "
            f"rows may stay: {self.how_to_mark[0]}",
            safe="Safe: nothing was written to the target.",
        )
        error.at(job=self.job, sink=self.sink)
        return error

    def _ahead(self, found: Mark, epoch: Epoch) -> OperatorNeeded:
        error = OperatorNeeded(
            "target_ahead",
            f"The target holds generation {found.generation}, epoch {found.epoch} (handle {found.handle}), which the "
            "ledger does not know: ledger records were lost, or the checkpoint is an old copy.",
            next="Restore the checkpoint's newest copy. Going on would lose or double the rows in between.",
            safe="Safe: the target was not touched.",
        )
        error.at(job=self.job, epoch=epoch, sink=self.sink)
        return error


def ids_of(handles: tuple[Handle, ...]) -> str:
    """The handles of an epoch as the mark names them; thousands of them by their sum."""
    ids = " ".join(handle.id for handle in handles)
    return ids if len(ids) <= LONGEST else f"{len(handles)} handles {digest(ids.encode())}"


def examined(seen: Seen, asked: Asked, table: str) -> Examined:
    """By the mark; of a table that is gone nothing is held, whatever the mark says."""
    found = judged(seen.mark, asked)
    if seen.mark is not None and not seen.has_table:
        found = replace(found, holdings=alike(asked, Holding.MISSING), why=f"there is no table {table!r}")
    return replace(found, identity=f"{seen.identity}:{table}" if seen.identity else "")


def judged(found: Mark | None, asked: Asked) -> Examined:
    """What a mark says about decided epochs: it is the newest that the target holds, and none before it is missing."""
    if found is None:
        return Examined(holdings=alike(asked, Holding.MISSING), why="it has no mark of this job and sink")
    if found.lineage not in {asked.lineage, *asked.ancestors}:
        why = f"it is marked by lineage {found.lineage}"
        return Examined(holdings=alike(asked, Holding.UNKNOWN), stranger=found.lineage, why=why)
    holdings = {
        epoch: Holding.HELD if _shows(found, (asked.generation, epoch), handles) else Holding.MISSING
        for epoch, handles in asked.epochs.items()
    }
    why = f"its newest is generation {found.generation}, epoch {found.epoch} (handle {found.handle})"
    stray = Stray(why.removeprefix("its newest is "), frozenset({found.handle}), Epoch(found.epoch))
    is_stray = found.lineage == asked.lineage and not _is_named(found, asked)
    return Examined(holdings=holdings, strays=(stray,) if is_stray else (), why=why)


def _shows(found: Mark, mine: tuple[int, int], handles: tuple[Handle, ...]) -> bool:
    """Of the newest epoch the mark names the handles too: rows of another attempt are not those of the decision."""
    named = found.version != mine or found.handle in BY_HAND or found.handle == ids_of(handles)
    return found.version >= mine and named


def _is_named(found: Mark, asked: Asked) -> bool:
    epoch = Epoch(found.epoch)
    if epoch in asked.epochs:
        return _shows(found, found.version, asked.epochs[epoch])
    return bool(asked.epochs) and epoch < min(asked.epochs)  # older than what is retained
