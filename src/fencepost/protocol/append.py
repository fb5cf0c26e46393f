"""How one record is added to a ledger, and how an old driver finds out that it has been replaced.

Never acts on a record that is not proven to be the newest of the live ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fencepost.errors import CheckpointRefused, Fenced, Where
from fencepost.protocol.effects import Create, Created, Forget, Names, Read, Step, ask
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State, advance, fold, oldest_needed
from fencepost.protocol.records import (
    NOTHING_BEFORE,
    Body,
    Claim,
    Decision,
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
    """A driver's in-memory view of its ledger, only as current as its last read or append."""

    state: State
    writer: WriterNumber
    clock: Callable[[], str]
    keep: int = 100
    """How many decisions retention keeps."""
    present: tuple[int, ...] = ()
    """The numbers seen by the last append, so that retention need not list them again."""
    deciding: Epoch | None = None
    """The newest epoch whose decision we have begun to append: from then on it may be decided, whatever fails."""
    older: tuple[WriterNumber, ...] = ()
    """Earlier writers that the ledger remembers, which always includes the last one."""
    sinks: Mapping[str, SinkRecord] | None = None
    """The sinks that the job has now; None: those in the ledger."""

    @property
    def fresh(self) -> frozenset[str]:
        """Sinks whose target differs from that of the newest decision: the new target holds nothing yet."""
        now = self.sinks or {}
        return frozenset(name for name in now if self.state.sinks.get(name) != now[name])

    @property
    def where(self) -> Where:
        """For error messages."""
        return Where(job=self.state.lineage.job)


def append(book: Book, body: Body, point: str) -> Step[None]:
    """Add `body` as the next record, or raise `Fenced`.

    1. its number is the last one I know, plus one
    2. create it exclusively and durably; if the answer is lost, read it: is it mine, absent or another's?
    3. no record may have a higher number: otherwise mine fills a gap that retention left, and I am an old driver
    4. taken, or in a gap: I am fenced; delete nothing, act on nothing
    """
    if not (yield from try_append(book, body, point)):
        raise_fenced(book, (yield from read_newest(book)))


def try_append(book: Book, body: Body, point: str) -> Step[bool]:
    """Steps 1 to 3; False means step 4. Only a starting driver may read the ledger again and retry."""
    state = book.state
    number = Number(state.last + 1)
    record = Record(
        number=number,
        lineage=state.lineage_id,
        writer=WriterNumber(number) if isinstance(body, Writer) else book.writer,
        at=book.clock(),
        previous=state.last_sum,
        oldest=oldest_needed(state, book.keep),
        body=body,
    )
    data = encode(record)
    after = advance(state, record, data)  # checked before it is written, and again whenever it is read

    answer = Created.UNKNOWN
    while answer is Created.UNKNOWN:
        answer = yield from ask(Create(point, state.lineage_id, number, data))
        if answer is not Created.CREATED:
            found = yield from ask(Read("append.read_back", state.lineage_id, number))
            if found is not None:
                answer = Created.CREATED if found == data else Created.TAKEN
            elif answer is Created.TAKEN:
                break  # it was taken, and has already been retired: the ledger is far ahead of me
    if answer is Created.TAKEN:
        book.deciding = None  # the number is another driver's: our decision does not exist, and never will
        return False

    names = yield from ask(Names("append.list", state.lineage_id))
    if names[-1:] != (number,) or (number > 0 and number - 1 not in names):
        return False
    book.state = after
    book.present = names
    if isinstance(body, Writer):
        book.writer = WriterNumber(number)
    return True


def read_ledger(lineage: str, job: str, most: int | None = None) -> Step[State]:
    """Read and verify record 0 and every retained record; raise `CheckpointRefused` at the first bad one.

    Numbers below the newest record's `oldest` are ignored: leftovers of retention, or strays of old drivers. With
    `most`, only about as many of the newest are read, for somebody who looks: the state has fewer decisions then. A
    driver must never do that.
    """
    names = yield from ask(Names("recover.list", lineage))
    while True:
        try:
            return (yield from _read_all(lineage, job, names, most))
        except CheckpointRefused:
            # A live driver may have appended, and retired what we were about to read. If nothing moved, it is damage.
            before, names = names, (yield from ask(Names("recover.list_again", lineage)))
            if names[-1:] == before[-1:]:
                raise


def read_newest(book: Book) -> Step[State]:
    """The ledger as it is now; a driver that meets records of a newer fencepost above its own was replaced."""
    try:
        return (yield from read_ledger(book.state.lineage_id, book.state.lineage.job))
    except CheckpointRefused as error:
        if error.code != "newer_format":
            raise
        raise Fenced(
            "fenced",
            f"Writer {book.writer} of this checkpoint was replaced by a driver of a newer fencepost. {error.what}",
            where=book.where,
            next="Nothing, if the other driver is meant to run; it is the only one that can from now on.",
        ) from error


def check_readable(lineage: str) -> Step[None]:
    """Refuse a ledger that a newer fencepost has written to, by its newest record: before anything is changed.

    What else may be wrong with it, whoever reads all of it says.
    """
    names = yield from ask(Names("check.list", lineage))
    data = (yield from ask(Read("check.read", lineage, Number(names[-1])))) if names else None
    with suppress(Damaged):
        decode(data or b"")


def retire(book: Book) -> Step[None]:
    """Delete what a durable record says is no longer needed, oldest first; record 0 always stays."""
    freed = [number for number in book.present if 0 < number < book.state.oldest]
    for number in freed:
        yield from ask(Forget("retention", book.state.lineage_id, Number(number)))
    book.present = tuple(number for number in book.present if number not in freed)


def new_ledger(lineage_id: str, body: Lineage, clock: Callable[[], str]) -> Step[None]:
    """Create record 0. Losing the race is fine: the other driver wrote it for the same job."""
    record = Record(Number(0), lineage_id, WriterNumber(0), clock(), NOTHING_BEFORE, Number(0), body)
    create = Create("recover.lineage", lineage_id, Number(0), encode(record))
    while (yield from ask(create)) is Created.UNKNOWN:
        pass  # retrying is safe: nobody writes a different record 0


def _read_all(lineage: str, job: str, names: tuple[int, ...], most: int | None) -> Step[State]:
    if not names:
        raise _damaged(job, 0, "it is missing")
    newest = yield from _read(lineage, Number(names[-1]), job)
    begin = max(1, newest[0].oldest)
    if most is not None:
        begin = yield from _anchor(lineage, job, begin, max(begin, names[-1] - most))
    wanted = [0, *range(begin, names[-1])] if names[-1] > 0 else []
    chain = []
    for number in wanted:
        chain.append((yield from _read(lineage, Number(number), job)))
    chain.append(newest)
    try:
        return fold(chain)
    except Damaged as error:
        raise _damaged(job, names[-1], str(error)) from error


def _anchor(lineage: str, job: str, oldest: int, number: int) -> Step[int]:
    """The next record downwards that says enough to start reading at it; `oldest` always does."""
    while number > oldest:
        record, _ = yield from _read(lineage, Number(number), job)
        if isinstance(record.body, Decision | Claim):
            break
        number -= 1
    return number


def _read(lineage: str, number: Number, job: str) -> Step[tuple[Record, bytes]]:
    data = yield from ask(Read("recover.read", lineage, number))
    if data is None:
        raise _damaged(job, number, "it is missing")
    try:
        record = decode(data)
    except Damaged as error:
        raise _damaged(job, number, str(error)) from error
    except CheckpointRefused as error:
        raise error.at(job=job) from None
    if record.number != number:
        raise _damaged(job, number, f"it holds record {record.number}")
    return record, data


def raise_fenced(book: Book, state: State) -> NoReturn:
    """Say who took over, according to the ledger as it is now."""
    raise replaced(f"Writer {book.writer} of this checkpoint", state)


def replaced(who: str, state: State) -> Fenced:
    """The error of a driver that is no longer the latest writer."""
    job, new = state.lineage.job, state.driver
    which = f": process {new.pid} on {new.host}, which took over at {state.taken_at}" if new else ""
    by = "a restore, which sealed this lineage" if state.sealed else f"writer {state.writer}{which}"
    return Fenced(
        "fenced",
        f"{who} was replaced by {by}.",
        where=Where(job=job),
        next=f"Nothing, if the other driver is the one you want: `fencepost status {job}` shows how it is doing. "
        f"Otherwise stop it (`fencepost stop {job}`), then start this one again. Two drivers on one checkpoint keep "
        "fencing each other.",
    )


def _damaged(job: str, number: int, what: str) -> CheckpointRefused:
    return CheckpointRefused(
        "ledger_damaged",
        f"Ledger record {number} is damaged: {what}.",
        where=Where(job=job),
        next="Restore the record from a backup of the checkpoint. Do not delete records.",
    )
