"""The mark: the target's own record of what it holds, written together with the rows.

    lineage · generation · epoch · handle · format       one per job and sink

It is read before the vote (nothing undecided can be there), before a commit after a crash (is the epoch there?), and at
every start: what the ledger calls done must be there, or the target was restored to an older state. Never compares
epochs without their generation: epoch numbers start again after a restore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fencepost.contract import Asked, Examined, Holding, Instant, Owner, Session, Stray, alike
from fencepost.errors import EpochFailed, FencepostError, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.format import VERSION, Damaged, StoredFormat, digest
from fencepost.protocol.records import Epoch, Handle

MARK = StoredFormat("The mark in the target", 1)
LONGEST = 200
"""Maximum length of a mark's `handle`, in characters."""
BY_HAND = frozenset({"by hand", "by-hand", ""})
"""The `handle` of a mark that a person wrote."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest epoch that the target holds for one sink of one job."""

    lineage: str
    generation: int
    epoch: int
    handle: str
    writer: int
    """For people."""
    format: int = field(default_factory=lambda: MARK.number)
    fencepost: str = VERSION
    """The version that wrote it, for people."""

    def __post_init__(self) -> None:
        """Refuse one of a newer fencepost wherever it is read: what it means, only that one knows."""
        try:
            MARK.check(self.format, self.fencepost, error=TargetRefused)
        except Damaged as error:
            raise damaged(error) from error

    @property
    def version(self) -> tuple[int, int]:
        """What is compared: never the epoch alone."""
        return self.generation, self.epoch


def damaged(why: Damaged) -> OperatorNeeded:
    """A mark that nobody wrote like this."""
    return OperatorNeeded(
        "mark_damaged",
        f"The mark in the target cannot be trusted: {why}.",
        next="Check whether somebody changed it by hand, and correct it; docs/FORMAT.md says what it holds.",
        safe="Safe: the target was not touched.",
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What a read-only look found."""

    identity: str
    """Empty if the target has none."""
    mark: Mark | None
    has_table: bool
    """Does the table for the rows exist?"""


class MarkChecks(ABC):
    """The checks a session runs on a mark; a mixin for the contract's `Session`, which knows the owner."""

    job: str
    sink: str
    target: str = "The target"
    """What messages call it."""

    _held: Epoch | None = None
    """The newest epoch that the target must hold."""

    @property
    @abstractmethod
    def owner(self) -> Owner:
        """On whose behalf we write."""

    @property
    @abstractmethod
    def how_to_mark(self) -> tuple[str, str]:
        """For people: a command that removes the mark, and one that sets it to `{epoch}`."""

    def named(self, handles: tuple[Handle, ...]) -> str:
        """The handles of an epoch as this target's mark shows them."""
        return ids_of(handles)

    def mark_of(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mark:
        owner = self.owner
        return Mark(owner.lineage, owner.generation, epoch, self.named(handles), owner.writer)

    def note_done(self, epoch: Epoch) -> None:
        """The target holds this epoch now, and must still hold it later."""
        self._held = Epoch(max(epoch, self._held if self._held is not None else epoch))

    def check_at_start(self, found: Mark | None) -> None:
        """Refuse a target of another lineage, and one that was restored to an older state."""
        if found is not None and self._is_foreign(found):
            raise self._another_lineage(found)
        self._check_not_behind(found)

    def check_before_vote(self, found: Mark | None, epoch: Epoch) -> None:
        """Nothing of an undecided epoch can be in the target: if it is, the ledger lost a record.

        Note: "already there" does not mean done. The epoch may cover other offsets now; skipping it would lose the
        difference.
        """
        self._check_not_behind(found, epoch)
        if found is None:
            return
        if self._is_foreign(found):
            raise self._another_lineage(found).at(epoch=epoch)
        if found.version >= (self.owner.generation, epoch):
            raise self._ahead(found, epoch)

    def is_there(self, found: Mark | None, epoch: Epoch, handles: tuple[Handle, ...]) -> bool:
        """Is the decided epoch in the target? Also true if a newer one is: an older driver may still be asking."""
        if found is None:
            self._check_not_behind(found, epoch)
            return False
        if self._is_foreign(found):
            raise OperatorNeeded(
                "target_of_another_lineage",
                f"Another lineage ({found.lineage}) took over the target before a decided epoch was written.",
                next="Give the other job its own target (or job name), restore this target, then start the job.",
            ).at(job=self.job, epoch=epoch, sink=self.sink)
        mine = (self.owner.generation, epoch)
        if found.version == mine and found.handle != self.named(handles):
            raise self._ahead(found, epoch)
        if found.version < mine:
            self._check_not_behind(found, epoch)  # it may have been restored to an older state since the vote
        return found.version >= mine

    def is_next(self, found: Mark | None, epoch: Epoch) -> bool:
        """at_least_once: is the epoch newer than what the target holds? Raise if it is older.

        An older epoch comes from a stalled driver, or from an old copy of the checkpoint. Writing it would visibly
        revert values; skipping it would lose rows, because the copy may divide its input into other epochs.
        """
        mine = (self.owner.generation, epoch)
        if found is not None and found.version > mine:
            raise self._ahead(found, epoch)
        return found is None or found.version < mine

    def _is_foreign(self, found: Mark) -> bool:
        return found.lineage != self.owner.lineage and found.lineage not in self.owner.ancestors

    def _check_not_behind(self, found: Mark | None, epoch: Epoch | None = None) -> None:
        """Otherwise a backup was restored, a lagging replica took over, or somebody removed the mark."""
        held = self._held
        if held is None or (found is not None and found.version >= (self.owner.generation, held)):
            return
        forced = self.how_to_mark[1].replace("{epoch}", str(held))
        there = "no epoch of this sink" if found is None else f"epoch {found.epoch} as its newest"
        raise OperatorNeeded(
            "target_behind",
            f"The ledger says that the target holds epoch {held}, but the target says it holds {there}: it was "
            "restored to an older state (a backup, a lagging replica), or its mark was removed.",
            next="Restore the target's newest state, or start a new checkpoint on an emptied target to write "
            f"everything again. If the missing epochs may stay lost: {forced}",
            safe="The target was not touched. What it lost was lost earlier; the ledger knows up to which epoch.",
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _another_lineage(self, found: Mark) -> TargetRefused:
        error = TargetRefused(
            "target_of_another_lineage",
            f"The target holds epochs of another lineage ({found.lineage}) under the same job and sink name.",
            next="Give this job another name or its own target. If the other checkpoint is gone for good and its rows "
            f"may stay: {self.how_to_mark[0]}",
            safe="Safe: nothing was written to the target.",
        )
        error.at(job=self.job, sink=self.sink)
        return error

    def _ahead(self, found: Mark, epoch: Epoch) -> OperatorNeeded:
        error = OperatorNeeded(
            "target_ahead",
            f"The target holds generation {found.generation}, epoch {found.epoch} (handle {found.handle}), which the "
            "ledger does not know: ledger records were lost, or the checkpoint is an old copy.",
            next="Restore the newest copy of the checkpoint. Continuing would lose or duplicate the rows in between.",
            safe="Safe: the target was not touched.",
        )
        error.at(job=self.job, epoch=epoch, sink=self.sink)
        return error

    # Errors that all targets with a mark share.

    @property
    def at(self) -> str:
        """Where the target is, for people (' at db:5432'); nothing for a file. Never a user or a secret."""
        return ""

    def target_silent(self, error: Exception, safe: str = "Safe: nothing was written.") -> FencepostError:
        """At a start: worth a retry."""
        return Retryable(
            "target_silent",
            f"{self.target}{self.at} does not answer: {error}.",
            next="Check that the server is up (a cluster: enough nodes), that the address, port and TLS settings are "
            "right, that this user has access and that nobody holds a lock; then start the job again.",
            safe=safe,
        ).at(job=self.job, sink=self.sink)

    def rows_not_taken(self, epoch: Epoch, error: Exception, safe: str | None = None) -> FencepostError:
        """The same, for an undecided epoch."""
        return EpochFailed(
            "target_silent",
            f"{self.target}{self.at} did not accept the rows: {error}.",
            next="Check that the server is up (a cluster: enough nodes) and nobody holds a lock; the epoch reruns.",
            safe=safe,
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def rows_refused(self, epoch: Epoch, error: Exception, safe: str | None = None) -> FencepostError:
        """The target voted no."""
        return EpochFailed(
            "rows_refused",
            f"{self.target} refused rows: {error}.",
            next="Fix the target or the data; the epoch reruns from the same offsets.",
            safe=safe,
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def apply_refused(self, epoch: Epoch, why: object) -> FencepostError:
        """It voted yes, but now rejects the decided rows."""
        return OperatorNeeded(
            "apply_refused",
            f"{self.target} refuses rows of a decided epoch: {why}. It was changed after the vote, or lost data.",
            next="Change it so that it accepts the rows again (they are kept until then), then start the job.",
        ).at(job=self.job, epoch=epoch, sink=self.sink)


class MarkedSession(Session, MarkChecks):
    """The driver's side of a target that has a mark but is not an SQL table."""

    def __init__(self, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink

    def open(self, owner: Owner) -> None:
        """The target must hold what the ledger calls done."""
        super().open(owner)
        self._held = owner.held.get(self.sink)


def ids_of(handles: tuple[Handle, ...]) -> str:
    """The handles of an epoch as the mark stores them; a checksum if there are too many."""
    ids = " ".join(handle.id for handle in handles)
    return ids if len(ids) <= LONGEST else f"{len(handles)} handles {digest(ids.encode())}"


Named = Callable[[tuple[Handle, ...]], str]
"""How a target's mark shows the handles of an epoch."""


def examined(seen: Seen, asked: Asked, table: str) -> Examined:
    """By the mark; if the table is gone, nothing is held, whatever the mark says."""
    found = judged(seen.mark, asked)
    if seen.mark is not None and not seen.has_table:
        found = replace(found, holdings=alike(asked, Holding.MISSING), why=f"table {table!r} does not exist")
    return replace(found, identity=f"{seen.identity}:{table}" if seen.identity else "")


def judged(found: Mark | None, asked: Asked, named: Named = ids_of) -> Examined:
    """What a mark says about decided epochs: the target holds the one it names, and every one before it."""
    if found is None:
        return Examined(holdings=alike(asked, Holding.MISSING), why="it has no mark for this job and sink")
    if found.lineage not in {asked.lineage, *asked.ancestors}:
        why = f"its mark belongs to another lineage ({found.lineage})"
        return Examined(holdings=alike(asked, Holding.UNKNOWN), stranger=found.lineage, why=why)
    holdings = {
        epoch: Holding.HELD if _shows(found, (asked.generation, epoch), named(handles)) else Holding.MISSING
        for epoch, handles in asked.epochs.items()
    }
    why = f"its newest is generation {found.generation}, epoch {found.epoch} (handle {found.handle})"
    stray = Stray(why.removeprefix("its newest is "), frozenset({found.handle}), Epoch(found.epoch))
    is_stray = found.lineage == asked.lineage and not _is_named(found, asked, named)
    return Examined(holdings=holdings, strays=(stray,) if is_stray else (), why=why)


def instant_of(found: Mark | None, asked: Asked, epoch: Epoch, named: Named = ids_of) -> Instant:
    """For a target without time travel: it is as it was right after an epoch while its mark names that epoch."""
    if found is None:
        return Instant(why="it has no mark for this job and sink")
    if found.lineage not in {asked.lineage, *asked.ancestors}:
        return Instant(why=f"its mark belongs to another lineage ({found.lineage})")
    facts = {"generation": found.generation, "epoch": found.epoch}
    mine, there = (asked.generation, epoch), f"generation {found.generation}, epoch {found.epoch}"
    if found.version > mine:
        return Instant(why=f"it has moved on to {there}, and keeps no older state", facts=facts)
    is_another = epoch in asked.epochs and not _shows(found, mine, named(asked.epochs[epoch]))
    if found.version < mine or is_another:
        return Instant(why=f"it does not hold that epoch: its newest is {there} (handle {found.handle})", facts=facts)
    return Instant(text="as it is now", exact=True, why=f"its newest is {there}", facts=facts)


def instant_seen(seen: Seen, asked: Asked, epoch: Epoch, table: str) -> Instant:
    """The same of a table, with its identity."""
    found = instant_of(seen.mark, asked, epoch)
    if not seen.has_table:
        found = Instant(why=f"table {table!r} does not exist", facts=found.facts)
    return replace(found, identity=f"{seen.identity}:{table}" if seen.identity else "")


def _shows(found: Mark, mine: tuple[int, int], handle: str) -> bool:
    """For the newest epoch the mark also names the handles: another attempt's rows are not the decided ones."""
    is_same = found.version != mine or found.handle in BY_HAND or found.handle == handle
    return found.version >= mine and is_same


def _is_named(found: Mark, asked: Asked, named: Named) -> bool:
    epoch = Epoch(found.epoch)
    if epoch in asked.epochs:
        return _shows(found, found.version, named(asked.epochs[epoch]))
    return bool(asked.epochs) and epoch < min(asked.epochs)  # older than what is retained
