"""How one record is added to a ledger, and how an old driver finds out that it is old.

Never acts on a record that is not proven to be the newest of the live ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from fencepost.errors import CheckpointRefused, Fenced, Where
from fencepost.protocol.effects import Create, Created, Forget, Names, Read, Step, ask
from fencepost.protocol.order import State, advance, fold, oldest_needed
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Damaged,
    Epoch,
    Lineage,
    Number,
    Record,
    SinkRecord,
    Writer,
    WriterNumber,
    decode,
    encode,
)


@dataclass(slots=True)
class Book:
    """A driver's own view of its ledger; volatile, and only as new as its last read or append."""

    state: State
    writer: WriterNumber
    clock: Callable[[], str]
    keep: int = 100
    """How many decisions retention leaves."""
    present: tuple[int, ...] = ()
    """The numbers seen by the last append, so that retention lists nothing again."""
    deciding: Epoch | None = None
    """The newest epoch whose decision we have begun to append: from then on it may be decided, whatever fails."""
    older: tuple[WriterNumber, ...] = ()
    """Writers before this one, as far as the ledger remembers them; the last of them always."""
    sinks: Mapping[str, SinkRecord] | None = None
    """The sinks that the job has now; None: those of the ledger."""

    @property
    def fresh(self) -> frozenset[str]:
        """Sinks whose target is another one than that of the newest decision: it holds nothing yet."""
        now = self.sinks or {}
        return frozenset(name for name in now if self.state.sinks.get(name) != now[name])

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.state.lineage.job)


def append(book: Book, body: Body, point: str) -> Step[None]:
    """Add `body` as the next record, or raise `Fenced`.

    1. the number is the last one I know, plus one
    2. create it exclusively and durably; if the answer is lost, read it: mine, absent or another's
    3. nothing may stand above it: otherwise it sits in a hole that retention left, and I am an old driver
    4. taken or hole: I am fenced; delete nothing, act on nothing
    """
    if not (yield from try_append(book, body, point)):
        raise_fenced(book, (yield from read_ledger(book.state.lineage_id, book.state.lineage.job)))


def try_append(book: Book, body: Body, point: str) -> Step[bool]:
    """Steps 1 to 3; False means step 4. Only a starting driver may read on and try again."""
    state = book.state
    number = Number(state.last + 1)
    record = Record(
        number=number,
        lineage=state.lineage_id,
        writer=WriterNumber(number) if isinstance(body, Writer) else book.writer,
        at=book.clock(),
        prev=state.last_sum,
        oldest=oldest_needed(state, book.keep),
        body=body,
    )
    data = encode(record)
    after = advance(state, record, data)  # checked before it is written, and again by whoever reads it

    answer = Created.UNKNOWN
    while answer is Created.UNKNOWN:
        answer = yield from ask(Create(point, state.lineage_id, number, data))
        if answer is not Created.CREATED:
            found = yield from ask(Read("append.read_back", state.lineage_id, number))
            if found is not None:
                answer = Created.CREATED if found == data else Created.TAKEN
            elif answer is Created.TAKEN:
                break  # taken, and already retired: the ledger is far ahead of me
    if answer is Created.TAKEN:
        book.deciding = None  # the number is another driver's: a decision of ours is nowhere, and never will be
        return False

    names = yield from ask(Names("append.list", state.lineage_id))
    if names[-1:] != (number,) or (number > 0 and number - 1 not in names):
        return False
    book.state = after
    book.present = names
    if isinstance(body, Writer):
        book.writer = WriterNumber(number)
    return True


def read_ledger(lineage: str, job: str) -> Step[State]:
    """Read and verify number 0 and every retained record; raise `CheckpointRefused` with the first that is wrong.

    Numbers below the newest record's `oldest` are ignored: leftovers of retention, or strays of old drivers.
    """
    names = yield from ask(Names("recover.list", lineage))
    while True:
        try:
            return (yield from _read_all(lineage, job, names))
        except CheckpointRefused:
            # A live driver may have moved on and retired what we were about to read. It is damage if it stands still.
            before, names = names, (yield from ask(Names("recover.list_again", lineage)))
            if names[-1:] == before[-1:]:
                raise


def retire(book: Book) -> Step[None]:
    """Delete what a durable record says is no longer needed, from the bottom; number 0 always stays."""
    freed = [number for number in book.present if 0 < number < book.state.oldest]
    for number in freed:
        yield from ask(Forget("retention", book.state.lineage_id, Number(number)))
    book.present = tuple(number for number in book.present if number not in freed)


def new_ledger(lineage_id: str, body: Lineage, clock: Callable[[], str]) -> Step[None]:
    """Create number 0. Losing the race is fine: the other one wrote the same job's."""
    record = Record(Number(0), lineage_id, WriterNumber(0), clock(), NOTHING_BEFORE, Number(0), body)
    create = Create("recover.lineage", lineage_id, Number(0), encode(record))
    while (yield from ask(create)) is Created.UNKNOWN:
        pass  # asking again is safe: nobody writes another number 0


def _read_all(lineage: str, job: str, names: tuple[int, ...]) -> Step[State]:
    if not names:
        raise _damaged(job, 0, "it is missing")
    newest = yield from _read(lineage, Number(names[-1]), job)
    wanted = [0, *range(max(1, newest[0].oldest), names[-1])] if names[-1] > 0 else []
    chain = []
    for number in wanted:
        chain.append((yield from _read(lineage, Number(number), job)))
    chain.append(newest)
    try:
        return fold(chain)
    except Damaged as error:
        raise _damaged(job, names[-1], str(error)) from error


def _read(lineage: str, number: Number, job: str) -> Step[tuple[Record, bytes]]:
    data = yield from ask(Read("recover.read", lineage, number))
    if data is None:
        raise _damaged(job, number, "it is missing")
    try:
        record = decode(data)
    except Damaged as error:
        raise _damaged(job, number, str(error)) from error
    if record.number != number:
        raise _damaged(job, number, f"it holds record {record.number}")
    return record, data


def raise_fenced(book: Book, state: State) -> NoReturn:
    """Say who took over, by the ledger as it is now."""
    who = f" (process {state.driver.pid} on {state.driver.host})" if state.driver else ""
    by = "a restore, which sealed this lineage" if state.sealed else f"writer {state.writer}{who}"
    raise Fenced(
        "fenced",
        f"Writer {book.writer} of this checkpoint was replaced by {by}.",
        where=book.where,
        next="Nothing, if the other driver is meant to run. Two drivers on one checkpoint: stop one of them.",
    )


def _damaged(job: str, number: int, what: str) -> CheckpointRefused:
    return CheckpointRefused(
        "ledger_damaged",
        f"Ledger record {number} cannot be trusted: {what}.",
        where=Where(job=job),
        next="Restore the record from a copy of the checkpoint. Do not delete records.",
    )
