"""The driver's side of Redis.

    vote     read the mark · ask whether every key takes its row · write the mark as it is
    commit   for every chunk: one script that finds the mark as expected, writes rows and mark

Redis holds no transaction open between two calls, so the vote asks and the commit does the work. Never goes by what
this process remembers: each script is told which mark it builds on, and does nothing on any other.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from fencepost import faults
from fencepost.errors import BadConfig, EpochFailed, FencepostError, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle
from fencepost.rows import Rows
from fencepost.sinks.contract import OutputMode, Owner
from fencepost.sinks.database import RowsRefused, Silent
from fencepost.sinks.holding import Asked, Examined, unheard
from fencepost.sinks.marks import Mark, MarkedSession, judged
from fencepost.sinks.redis.chunks import Chunk, chunks
from fencepost.sinks.redis.layout import Layout
from fencepost.sinks.redis.server import NoAccess, rights
from fencepost.sinks.redis.sink import Redis
from fencepost.sinks.redis.state import State
from fencepost.sinks.redis.target import Moved, Step, Target
from fencepost.sinks.rehearsal import Rehearsal

log = logging.getLogger(__name__)

MOST_KEPT = 64 * 1024 * 1024
"""Bytes of an epoch that stay in memory between its vote and its commit; of a larger one the rows are read again."""


@dataclass(frozen=True, slots=True)
class Voted:
    """What a vote leaves for the commit right behind it."""

    handles: tuple[Handle, ...]
    state: State
    """As the vote left it. Scripts do nothing if it is not so any more, and then it is read."""
    chunks: list[Chunk]
    """All of them, or none."""


class RedisSession(MarkedSession):
    """An apply sink whose mark is a hash."""

    def __init__(self, sink: Redis, job: str) -> None:
        super().__init__(job, sink.name)
        self._settings = sink
        self._target = Target(sink, job)
        self._voted: Voted | None = None

    @property
    def how_to_mark(self) -> tuple[str, str]:
        """Commands for a person to run."""
        key = shlex.quote(self._target.mark_key)
        owner = self.owner
        after = f"lineage {owner.lineage} generation {owner.generation} epoch {{epoch}} handle by-hand writer 0"
        return f"redis-cli DEL {key}", f"redis-cli HSET {key} {after}"

    def preflight(self, schema: pa.Schema, mode: OutputMode) -> str:
        """Check columns and server, and return the identity that stands in the database."""
        return self._named(self._look(schema, mode, self._target.identify))

    def _look(self, schema: pa.Schema, mode: OutputMode, identify: Callable[[], str]) -> str:
        sink = self._settings
        try:
            sink.layout.check(schema)
            if mode not in sink.capabilities.modes:
                raise BadConfig(
                    "counter_adds",
                    "In output mode update a row is a new total, and a counter would add it to the old one.",
                    next="Write totals with shape='string'; or use output mode append, with rows that say how much "
                    "to add.",
                )
            return identify()
        except NoAccess as error:
            raise TargetRefused(
                "target_unusable",
                f"The server cannot be used: {error}.",
                next=f"See the URL's user and password. What it needs: ACL SETUSER <user> {rights(sink.layout)}",
                safe="Safe: nothing was written.",
            ).at(job=self.job, sink=self.sink) from None
        except Silent as error:
            raise self._unanswered(error) from None
        except FencepostError as error:
            raise error.at(job=self.job, sink=self.sink) from None

    def rehearse(self, schema: pa.Schema, mode: OutputMode) -> Rehearsal:
        """The same, with the identity that is there."""
        if found := self._look(schema, mode, self._target.identity):
            return Rehearsal(self._named(found))
        return Rehearsal("", ("an identity, under a key of its own",))

    def _named(self, identity: str) -> str:
        """The same database, other keys: another target."""
        return f"{identity}:{self._settings.shape}:{self._settings.prefix}"

    def open(self, owner: Owner) -> None:
        """Refuse a target of another lineage, and one that was set back."""
        super().open(owner)
        try:
            state = self._target.state()
        except Silent as error:
            raise self._unanswered(error) from None
        self.check_at_start(state.mark)
        if state.part is not None and self._is_foreign(state.part.mark):
            raise self._another_lineage(state.part.mark)

    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        """The rows are staged already; name them, and how they are to be written."""
        count = rows.count
        if not count:
            return None
        assert rows.kept, "an apply sink declares keeps_rows"
        body = self._settings.layout.body
        return Handle(id=self.owner.handle_id(epoch), sink=self.sink, rows=count, kept=rows.kept, body=body)

    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        """Vote: would every key take its row, and does the server take a write?"""
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
            self._target.vote(layout, _keeping(chunks(layout, rows, self._target.largest), kept), state, after)
            self._voted = Voted(handles, after, kept)
        except RowsRefused as error:
            raise self._refused(epoch, error, "the epoch runs again from the same positions") from None
        except Moved:
            raise self._not_written(epoch, Silent("another driver writes at the same time")) from None
        except Silent as error:
            raise self._not_written(epoch, error) from None
        return ()

    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        """Write what is not there yet, chunk by chunk."""
        try:
            self._finish(epoch, handles)
            self.note_done(epoch)
            outcome = Outcome.DONE
        except Silent as error:
            # An answer that was lost says nothing: the mark does, as soon as it can be read.
            log.warning("sink %s: commit of epoch %d is in doubt: %s", self.sink, epoch, error)
            self._target.drop()
            outcome = Outcome.IN_DOUBT
        except RowsRefused as error:
            raise OperatorNeeded(
                "apply_refused",
                f"The target refuses rows of a decided epoch: {error}. It was changed since the vote, or lost data.",
                next="Mend the keys so that they take the rows again (they are kept), then start the job.",
            ).at(job=self.job, epoch=epoch, sink=self.sink) from None
        return {handle.id: outcome for handle in handles}

    def write(self, epoch: Epoch, rows: Rows) -> None:
        """Send the rows; if newer ones of this job are there, stop: a value must not jump back."""
        if not rows.count:
            return
        mine = self.mark_of(epoch, ())
        layout = self._settings.layout
        try:
            state = self._target.state()
            for chunk in chunks(layout, [rows], self._target.largest):
                state = self._write_chunk(layout, chunk, state, mine)
        except RowsRefused as error:
            raise self._refused(epoch, error, "then start the job again") from None
        except Silent as error:
            raise self._not_written(epoch, error, safe="The epoch's rows may or may not be in the target.") from None

    def examine(self, asked: Asked) -> Examined:
        """By the mark; an epoch that is half-way in is not held."""
        try:
            state, identity = self._target.state(), self._target.identity()
        except Silent as error:
            return unheard(asked, f"it does not answer: {error}")
        except TargetRefused as error:  # a replica, or one that forgets: its word is not worth much
            return unheard(asked, error.what)
        found = judged(state.mark, asked)
        if state.part is not None and not found.stranger:
            found = replace(found, why=f"{found.why}; of epoch {state.part.mark.epoch} only {state.part.chunks} parts")
        return replace(found, identity=self._named(identity) if identity else "")

    def close(self) -> None:
        """Let go of the connection."""
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
            # Since the vote somebody may have emptied the target, or taken it.
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

    def _steps(self, voted: Voted, mine: Mark) -> Iterator[Step]:
        """The chunks that are not in yet."""
        state = voted.state
        done = state.chunks_of(mine)
        rows = [self.owner.staging.rows_again(handle) for handle in voted.handles]
        for number, chunk in enumerate(voted.chunks or chunks(_layout(voted.handles), rows, self._target.largest)):
            if number >= done:
                after = state.whole(mine) if chunk.last else state.half_way(mine, number + 1)
                yield Step(chunk, state, after)
                state = after

    def _write_chunk(self, layout: Layout, chunk: Chunk, state: State, mine: Mark) -> State:
        while True:
            for found in state.newest:
                if not self._is_foreign(found):
                    self.is_next(found, Epoch(mine.epoch))
            try:
                [step] = self._target.apply(layout, [Step(chunk, state, state.written(mine))])
            except Moved:
                state = self._target.state()
            else:
                return step.after

    def _unanswered(self, error: Silent) -> FencepostError:
        return Retryable(
            "target_silent",
            f"The target does not answer: {error}.",
            next="See that the server works, then start the job again.",
            safe="Safe: nothing was written.",
        ).at(job=self.job, sink=self.sink)

    def _refused(self, epoch: Epoch, error: RowsRefused, then: str) -> FencepostError:
        return EpochFailed(
            "rows_refused", f"The target refused rows: {error}.", next=f"Mend the keys or the rows; {then}."
        ).at(job=self.job, epoch=epoch, sink=self.sink)

    def _not_written(self, epoch: Epoch, error: Silent, safe: str | None = None) -> FencepostError:
        return EpochFailed(
            "target_silent",
            f"The target did not take the rows: {error}.",
            next="See that the server works; the epoch runs again.",
            safe=safe,
        ).at(job=self.job, epoch=epoch, sink=self.sink)


def _keeping(source: Iterable[Chunk], kept: list[Chunk]) -> Iterator[Chunk]:
    """Keep them too, unless they are large."""
    room = MOST_KEPT
    for chunk in source:
        room -= chunk.size
        kept.append(chunk)
        if room < 0:
            kept.clear()
        yield chunk


def _layout(handles: tuple[Handle, ...]) -> Layout:
    """As it was when the rows were named; the sink may have other settings by now."""
    return Layout.of(handles[0].body)
