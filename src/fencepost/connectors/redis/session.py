"""The driver's side of Redis.

    vote     read the mark · check that every key can take its row · write the mark unchanged
    commit   for every chunk: one script that checks the mark, then writes rows and mark

Redis cannot keep a transaction open between calls, so the vote only checks and the commit does the work. Never relies
on what this process remembers: each script is told which mark to expect, and does nothing if it finds another.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from fencepost import faults
from fencepost.connectors.redis.columns import Chunk, Layout, chunks
from fencepost.connectors.redis.server import Marks, Moved, Target, Write, rights
from fencepost.connectors.redis.sink import Redis
from fencepost.connectors.table.database import Denied, RowsRefused, Silent
from fencepost.connectors.table.mark import MARK, Mark, MarkedSession, ids_of, instant_of, judged
from fencepost.contract import Asked, Examined, Instant, OutputMode, Owner, Rehearsal, Territory, unheard
from fencepost.errors import BadConfig, FencepostError, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.format import VERSION
from fencepost.protocol.records import Epoch, Handle
from fencepost.store.staging import Rows

log = logging.getLogger(__name__)

MOST_KEPT = 64 * 1024 * 1024
"""Bytes of an epoch that stay in memory between vote and commit; the rows of a larger one are read again."""

NOT_DECIDED = "Safe: the epoch was not decided, nothing of it is visible."


@dataclass(frozen=True, slots=True)
class Voted:
    """What a vote leaves for the commit that follows."""

    handles: tuple[Handle, ...]
    state: Marks
    """As the vote left it. If it has changed since, scripts do nothing, and it is read again."""
    chunks: list[Chunk]
    """All of them, or none."""


class RedisSession(MarkedSession):
    """An apply sink whose mark is a hash."""

    def __init__(self, sink: Redis, job: str) -> None:
        super().__init__(job, sink.name)
        self._settings = sink
        self._territory: Territory | None = None
        self._target = Target(sink, job)
        self._voted: Voted | None = None

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Commands for people to run."""
        key = shlex.quote(self._target.mark_key)
        owner = self.owner
        after = f"lineage {owner.lineage} generation {owner.generation} epoch {{epoch}} handle by-hand writer 0"
        after += f" format {MARK.number} fencepost {VERSION}"
        return f"redis-cli DEL {key}", f"redis-cli HSET {key} {after}"

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check columns and server, and return the identity stored in the database."""
        return self._named(self._look(schema, mode, self._target.identify))

    def territory(self) -> Territory | None:
        """The keys with the prefix; of hashes, the fields. Counters add up, whoever adds."""
        return self._territory

    def _claim(self, schema: pa.Schema, identity: str) -> None:
        layout = self._settings.layout
        place = repr((identity or self._settings.address(), layout.prefix))
        fields = frozenset(layout.values_of(schema.names)) if layout.shape == "hash" else frozenset({""})
        if layout.shape != "counter":
            # The names of key columns are not in a key.
            self._territory = Territory(place, "key", frozenset({layout.shape, str(len(layout.key))}), fields)

    def _look(self, schema: pa.Schema, mode: OutputMode, identify: Callable[[], str]) -> str:
        sink = self._settings
        try:
            sink.layout.check(schema)
            if mode not in sink.capabilities.modes:
                raise BadConfig(
                    "counter_adds",
                    "In output mode update a row is a new total, but a counter would add it to the old one.",
                    next="Write totals with shape='string'; or use output mode append, with rows that contain the "
                    "amount to add.",
                )
            found = identify()
        except Silent as error:
            raise self._unanswered(error) from None
        except FencepostError as error:
            raise error.at(job=self.job, sink=self.sink) from None
        self._claim(schema, found)
        return found

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same, without creating an identity."""
        if found := self._look(schema, mode, self._target.identity):
            return Rehearsal(self._named(found))
        return Rehearsal("", ("a key that holds the target's identity",))

    def _named(self, identity: str) -> str:
        """Other keys in the same database are another target."""
        return f"{identity}:{self._settings.shape}:{self._settings.prefix}"

    def open(self, owner: Owner) -> None:
        """Refuse a target of another lineage, and one that was restored to an older state."""
        super().open(owner)
        try:
            state = self._target.state()
        except Silent as error:
            raise self._unanswered(error) from None
        self.check_at_start(state.mark)
        if state.part is not None and self._is_foreign(state.part.mark):
            raise self._another_lineage(state.part.mark)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are already staged; name them, and how they will be written."""
        count = rows.count
        if not count:
            return None
        assert rows.kept, "an apply sink declares keeps_rows"
        body = self._settings.layout.body
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=rows.kept, body=body)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote: can every key take its row, and does the server accept writes?"""
        self._voted = None
        try:
            state = self._target.state()
            self.check_before_vote(state.mark, epoch)
            if state.part is not None:
                self.check_before_vote(state.part.mark, epoch)
            layout = _layout(handles)
            rows = [self.owner.staging.rows(handle.kept, self.sink) for handle in handles]
            kept: list[Chunk] = []
            after = state.touched(self.owner.writer)
            asked = _keeping(chunks(layout, rows, self._target.largest), kept)
            self._target.vote(layout, asked, state, after, ids_of(handles))
            self._voted = Voted(handles, after, kept)
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        except Moved:
            raise self._failed(epoch, Silent("another driver is writing at the same time")) from None
        except Silent as error:
            raise self._failed(epoch, error) from None
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Write what is not there yet, chunk by chunk."""
        try:
            self._finish(epoch, handles)
            self.note_done(epoch)
            outcome = Outcome.DONE
        except Silent as error:
            # A lost answer says nothing about the outcome; the mark does, as soon as it can be read.
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._target.drop()
            outcome = Outcome.IN_DOUBT
        except RowsRefused as error:
            raise self.apply_refused(epoch, error) from None
        return {handle.id: outcome for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send the rows; stop if newer ones of this job are there, so that no value is reverted."""
        if not rows.count:
            return
        mine = self.mark_of(epoch, ())
        layout = self._settings.layout
        try:
            state = self._target.state()
            for chunk in chunks(layout, [rows], self._target.largest):
                state = self._write_chunk(layout, chunk, state, mine)
        except RowsRefused as error:
            raise self.rows_refused(epoch, error) from None
        except Silent as error:
            raise self._failed(epoch, error, safe="The epoch's rows may or may not be in the target.") from None

    def examine(self, asked: Asked) -> Examined:
        """By the mark; a partly written epoch does not count as held."""
        try:
            state, identity = self._target.state(), self._target.identity()
        except Denied as error:
            return unheard(asked, f"it cannot be used: {error}")
        except Silent as error:
            return unheard(asked, str(error))
        except TargetRefused as error:  # a replica, or a server that may lose data: its answer cannot be trusted
            return unheard(asked, error.what)
        found = judged(state.mark, asked)
        if state.part is not None and not found.stranger:
            found = replace(
                found,
                why=f"{found.why}; epoch {state.part.mark.epoch} is only partly written ({state.part.chunks} parts)",
            )
        return replace(found, identity=self._named(identity) if identity else "")

    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        """By the mark; while a later epoch is partly written, the keys are no longer as they were."""
        try:
            state, identity = self._target.state(), self._target.identity()
        except Denied as error:
            return Instant.unheard(f"it cannot be used: {error}")
        except Silent as error:
            return Instant.unheard(f"it does not answer: {error}")
        except TargetRefused as error:  # as in `examine`
            return Instant.unheard(error.what)
        found = instant_of(state.mark, asked, epoch)
        if found.exact and state.part is not None:
            found = Instant(why=f"epoch {state.part.mark.epoch} is partly written, over it", facts=found.facts)
        return replace(found, identity=self._named(identity) if identity else "")

    def close(self) -> None:
        self._voted = None
        self._target.forget()

    def _finish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        mine = self.mark_of(epoch, handles)
        voted, self._voted = self._voted, None
        if voted is None or voted.handles != handles:
            voted = Voted(handles, self._target.state(), [])
        while True:
            state = voted.state
            if self.is_there(state.mark, epoch, handles):
                return
            # Somebody may have emptied the target, or taken it over, since the vote.
            self._check_not_behind(state.mark, epoch)
            if state.part is not None:
                self.is_there(state.part.mark, epoch, handles)
            try:
                for step in self._target.apply(_layout(handles), self._steps(voted, mine)):
                    if not step.chunk.last:
                        faults.reach("redis.chunk")
            except Moved:
                voted = replace(voted, state=self._target.state())
            else:
                return

    def _steps(self, voted: Voted, mine: Mark) -> Iterator[Write]:
        """The chunks that are not written yet."""
        state = voted.state
        done = state.chunks_of(mine)
        rows = [self.owner.staging.rows_again(handle) for handle in voted.handles]
        for number, chunk in enumerate(voted.chunks or chunks(_layout(voted.handles), rows, self._target.largest)):
            if number >= done:
                after = state.whole(mine) if chunk.last else state.half_way(mine, number + 1)
                yield Write(chunk, state, after, ids_of(voted.handles))
                state = after

    def _write_chunk(self, layout: Layout, chunk: Chunk, state: Marks, mine: Mark) -> Marks:
        while True:
            for found in state.newest:
                if not self._is_foreign(found):
                    self.is_next(found, Epoch(mine.epoch))
            try:
                [step] = self._target.apply(layout, [Write(chunk, state, state.written(mine))])
            except Moved:
                state = self._target.state()
            else:
                return step.after

    @property
    def at(self) -> str:
        """From the URL, wherever that is kept."""
        return self._settings.at

    def _unanswered(self, error: Silent, safe: str = "Safe: nothing was written.") -> FencepostError:
        """At a start: final if a person must change something, otherwise worth a retry."""
        if isinstance(error, Denied):
            return TargetRefused(
                "target_unusable",
                f"The server{self.at} cannot be used: {error}.",
                next="Check user, password and database in the URL. Grant what the user needs: ACL SETUSER <user> "
                f"{rights(self._settings.layout)}",
                safe=safe,
            ).at(job=self.job, sink=self.sink)
        return self.target_silent(error, safe)

    def _failed(self, epoch: Epoch, error: Silent, safe: str | None = None) -> FencepostError:
        """The same, for an undecided epoch."""
        if isinstance(error, Denied):
            return self._unanswered(error, safe or NOT_DECIDED).at(epoch=epoch)
        return self.rows_not_taken(epoch, error, safe)


def _keeping(source: Iterable[Chunk], kept: list[Chunk]) -> Iterator[Chunk]:
    """Also keep them in memory, unless they are large."""
    room = MOST_KEPT
    for chunk in source:
        room -= chunk.size
        kept.append(chunk)
        if room < 0:
            kept.clear()
        yield chunk


def _layout(handles: tuple[Handle, ...]) -> Layout:
    """As it was at pre-commit; the sink may have other settings by now."""
    return Layout.of(handles[0].body)
