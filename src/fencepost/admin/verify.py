"""Compares what the ledger decided with Spark's own log, with the files that the newest epochs need, and with the
sinks' targets.

    agrees       the ledger, Spark's log and every sink that can tell say the same
    in flight    a driver is alive, and between the decision and Spark's commits/N
    unfinished   decided, but its driver is gone: recovery finishes it at the next start
    in doubt     a sink did not answer
    differs      two of them disagree

Reports a problem only if two looks agree: what a running job changes in between is not a disagreement. Only reads,
whether the job is running, stopped or dead: it takes no lock, fences nobody, and needs no Spark. The ledger is read
before Spark's log and the sinks, so that they must contain what it calls done; and once more after them, because what
they hold may have been decided in the meantime.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import Literal

from fencepost.admin.doctor import BY_ITSELF, diagnose
from fencepost.contract import Asked, Examined, Holding, Sink, Stray, place_of, unheard
from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.observe import heartbeat, journal
from fencepost.observe.terminal import Tell, nobody
from fencepost.protocol.format import Damaged
from fencepost.protocol.order import State
from fencepost.protocol.records import Decision, Epoch, Handle, Number, Redo, SinkRecord, decode
from fencepost.store import Place, seen, store_at
from fencepost.store.base import record_name
from fencepost.store.ledger import read
from fencepost.store.parts import not_whole
from fencepost.store.spark_log import SparkLog

PAUSE_S = 0.3
"""Between two looks: by then a driver has finished the step it was in."""

Verdict = Literal["agrees", "in flight", "unfinished", "in doubt", "differs"]
Text = Literal["same", "differs", "missing", "retired"]
"""An entry of Spark's log, compared with the decision's text; Spark deletes old entries (retired)."""
Word = Literal["held", "missing", "cannot tell", "no answer", "not asked"]
"""What is known about a sink that had rows in an epoch."""

WORDS: Mapping[Holding, Word] = {Holding.HELD: "held", Holding.MISSING: "missing", Holding.UNKNOWN: "cannot tell"}
AHEAD = (
    "Do not start the job on this checkpoint: rows would be lost or duplicated, and not every target notices. "
    "Bring back the newest copy of the checkpoint, or restore a savepoint that is not older than the target."
)


class Weight(enum.Enum):
    """What a finding does to the verdict."""

    DIFFERS = "differs"
    DOUBT = "in doubt"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be, or cannot be known now."""

    code: str
    what: str
    next: str
    weight: Weight = Weight.DIFFERS
    place: str = ""
    """The file, or the sink."""
    epochs: tuple[int, ...] = ()
    """The epochs that it is about; empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One decided epoch."""

    epoch: int
    record: int
    """The ledger record of its decision; reading the ledger has already verified it."""
    offsets: Text
    commits: Text
    sinks: Mapping[str, Word]
    """The sinks that had rows in it."""
    in_flight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result. Note: `agrees` does not mean that every sink was asked; the notes say which were not."""

    checkpoint: str
    job: str = ""
    lineage: str = ""
    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        if self.findings:
            return self._worst(self.findings)
        return "in flight" if any(row.in_flight for row in self.rows) else "agrees"

    def verdict_of(self, row: Row) -> Verdict:
        """The verdict on one epoch."""
        about = [finding for finding in self.findings if row.epoch in finding.epochs]
        if about:
            return self._worst(about)
        if row.in_flight:
            return "in flight"
        return "in doubt" if "no answer" in row.sinks.values() else "agrees"

    def _worst(self, findings: Iterable[Finding]) -> Verdict:
        return next(weight.value for weight in Weight if weight in {finding.weight for finding in findings})

    def said_twice(self, before: Verified) -> Verified:
        """Only what both looks found: a running job may have moved on during one look."""
        earlier = {(finding.code, finding.place): finding.epochs for finding in before.findings}
        both = []
        for finding in self.findings:
            known = earlier.get((finding.code, finding.place))
            epochs = tuple(epoch for epoch in finding.epochs if known is not None and epoch in known)
            if known is not None and bool(epochs) == bool(finding.epochs):
                both.append(replace(finding, epochs=epochs))
        return replace(self, findings=tuple(both))


def compare(
    checkpoint: Place, sinks: Mapping[str, Sink] | None = None, epochs: int | None = None, tell: Tell = nobody
) -> Verified:
    """Compare the newest `epochs` (None: all that are retained); without `sinks` no target is asked.

    Raises `CheckpointRefused` where there is nothing to compare; a damaged ledger is a finding.
    """
    first = _look(checkpoint, sinks, epochs, tell)
    if not first.findings:
        return first
    time.sleep(PAUSE_S)
    return _look(checkpoint, sinks, epochs, tell).said_twice(first)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAnswer:
    """What one sink says about the epochs that went to it."""

    heard: bool
    newest: int | None
    """The newest epoch that the target itself shows; None if it shows none of those that it was asked about."""
    why: str
    """If it did not answer, or cannot tell."""
    findings: tuple[Finding, ...]


FEW = 3
"""Epochs that a sink is asked about to learn its newest one."""


def ask_one(root: Place, name: str, sink: Sink, again: Callable[[], State]) -> SinkAnswer:
    """Ask a single sink, for whoever does it again and again: neither the whole ledger nor Spark's files are read.

    `again` reads the ledger's newest records.
    """
    state = again()
    mine = [one for one in state.decisions if any(handle.sink == name for handle in one[1].handles)][-FEW:]
    facts = _facts(root, state, mine)
    _read_log(root, state, facts)
    if facts and facts[-1].is_open:
        facts[-1].is_committed = journal.is_committed(journal.read(root), facts[-1].epoch)
    answers = _ask(root, state, facts, {name: sink}, nobody)
    answer = answers[name]
    later = again() if answer.strays else state
    # A mark is the newest epoch, also if it was decided while we asked, or so long ago that it is not retained.
    strays = [one.epoch for one in answer.strays if one.epoch is not None and _is_decided(one, name, later, root)]
    held = [epoch for epoch, holding in answer.holdings.items() if holding is Holding.HELD]
    return SinkAnswer(
        heard=answer.heard,
        newest=max([*strays, *held], default=None),
        why=answer.why,
        findings=tuple(_of_the_targets(root, state, facts, answers, lambda: later)),
    )


def _look(checkpoint: Place, sinks: Mapping[str, Sink] | None, epochs: int | None, tell: Tell) -> Verified:
    root = checkpoint.absolute()
    complete = SparkLog(store_at(root)).names("commits")  # before the ledger: a completed epoch was decided earlier
    try:
        state = read(root)
    except CheckpointRefused as error:
        return _damaged(root, error, tell)
    epoch_facts = _facts(root, state, _newest(state, epochs))
    if epoch_facts and epoch_facts[-1].is_open:
        epoch_facts[-1].is_committed = journal.is_committed(journal.read(root), epoch_facts[-1].epoch)
    tell("Comparing the ledger with Spark's log", 0, 0)
    _read_log(root, state, epoch_facts)
    decides = state.lineage.guarantee == "exactly_once"  # otherwise a mark says nothing about a decision
    answers = _ask(root, state, epoch_facts, sinks or {}, tell) if decides else {}
    lives = any(beat.lives and beat.writer == state.writer for beat in heartbeat.beats(str(root)))
    findings = [
        *_of_the_targets(root, state, epoch_facts, answers, partial(_after, root, state)),
        *_of_the_log(state, epoch_facts, complete),
        *_of_the_files(root, state, tell),
        *_of_the_open_one(state, epoch_facts, lives=lives),
    ]
    return Verified(
        checkpoint=str(root),
        job=state.lineage.job,
        lineage=state.lineage_id,
        rows=tuple(facts.row(in_flight=facts.is_open and lives and not facts.is_complete) for facts in epoch_facts),
        findings=tuple(findings),
        notes=tuple(_notes(state, sinks, answers)),
    )


@dataclass(slots=True)
class _Facts:
    """One decided epoch, and what was seen of it."""

    number: int
    decision: Decision
    handles: tuple[Handle, ...]
    """The decision's handles, or those that replaced lost ones."""
    is_open: bool
    targets: Mapping[str, SinkRecord]
    """The sinks as they were when it was decided."""
    is_committed: bool = True
    """If it is complete in Spark's log: had every sink confirmed it, according to the journal?"""
    texts: dict[str, Text] = field(default_factory=dict)
    sinks: dict[str, Word] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        return self.decision.epoch

    @property
    def is_complete(self) -> bool:
        """Did Spark complete it, and every sink? Without overlap Spark does so only after every sink."""
        return self.texts["commits"] != "missing" and self.is_committed

    def of(self, sink: str) -> tuple[Handle, ...]:
        return tuple(handle for handle in self.handles if handle.sink == sink)

    def row(self, *, in_flight: bool) -> Row:
        return Row(
            epoch=self.epoch,
            record=self.number,
            offsets=self.texts["offsets"],
            commits=self.texts["commits"],
            sinks=dict(self.sinks),
            in_flight=in_flight,
        )


Decisions = Sequence[tuple[Number, Decision]]


def _newest(state: State, epochs: int | None) -> Decisions:
    return state.decisions if epochs is None else state.decisions[-epochs:]


def _facts(root: Place, state: State, wanted: Decisions) -> list[_Facts]:
    opened = state.open.number if state.open else None
    found = []
    for number, decision, handles in decided(root, state, wanted):
        facts = _Facts(number, decision, handles, number == opened, targets_of(state, decision))
        facts.sinks = {one.sink: "not asked" for one in handles}
        found.append(facts)
    return found


def decided(
    root: Place, state: State, wanted: Decisions | None = None
) -> list[tuple[Number, Decision, tuple[Handle, ...]]]:
    """Decisions (None: all that are retained), with their handles, or those that replaced lost ones."""
    wanted = state.decisions if wanted is None else wanted
    redone = _redone(root, state, wanted)
    found = []
    for number, decision in wanted:
        handles = state.open.handles if state.open and number == state.open.number else decision.handles
        for redo in redone.get(number, ()):
            handles = (*(one for one in handles if one.id not in redo.lost), *redo.handles)
        found.append((number, decision, tuple(dict.fromkeys(handles))))
    return found


def targets_of(state: State, decision: Decision) -> Mapping[str, SinkRecord]:
    """The sinks as they were when it was decided."""
    return state.lineage.sinks if decision.sinks is None else decision.sinks


def _redone(root: Place, state: State, wanted: Decisions) -> dict[int, list[Redo]]:
    """Redo records by decision, which stand before the next one. The state only has the final ones of the open one."""
    found: dict[int, list[Redo]] = {}
    store = store_at(root)
    ends = dict(pairwise([*(number for number, _ in state.decisions), state.last + 1]))
    between = chain.from_iterable(range(number + 1, ends[number]) for number, _ in wanted)
    names = [record_name(state.lineage_id, number) for number in between]
    store.expect(names)
    for name in names:
        data = store.read(name) or b""
        if b'"kind":"redo"' in data:
            try:
                body = decode(data).body
            except (Damaged, CheckpointRefused):
                continue  # the ledger was intact a moment ago; the next look will tell
            if isinstance(body, Redo):
                found.setdefault(body.decision, []).append(body)
    return found


def _read_log(root: Place, state: State, epochs: Iterable[_Facts]) -> None:
    store = store_at(root)
    log = SparkLog(store)
    for name in ("offsets", "commits"):
        store.expect(f"{name}/{facts.epoch}" for facts in epochs)
        oldest = next(iter(log.names(name)), None)
        for facts in epochs:
            wanted = facts.decision.offsets if name == "offsets" else facts.decision.snapshot
            found = log.read(name, facts.epoch)
            if found is not None:
                facts.texts[name] = "same" if found == wanted else "differs"
            else:
                facts.texts[name] = "retired" if oldest is not None and facts.epoch < oldest else "missing"


def _ask(
    root: Place, state: State, epochs: Iterable[_Facts], sinks: Mapping[str, Sink], tell: Tell
) -> dict[str, Examined]:
    """Ask each sink about the epochs that went to its current target."""
    answers = {}
    for name, sink in sinks.items():
        tell(f"Asking {name}", 0, 0)
        mine = [one for one in epochs if one.of(name) and one.targets.get(name) == state.sinks.get(name)]
        asked = Asked(
            lineage=state.lineage_id,
            generation=state.lineage.generation,
            ancestors=frozenset(state.lineage.ancestors),
            epochs={one.epoch: one.of(name) for one in mine},
            last=state.last,
            folder=root / "fencepost" / state.lineage_id,
        )
        answer = answers[name] = _answer(sink, state.lineage.job, asked)
        for one in mine:
            word = WORDS[answer.holdings.get(one.epoch, Holding.UNKNOWN)]
            one.sinks[name] = word if answer.heard else "no answer"
    return answers


def _answer(sink: Sink, job: str, asked: Asked) -> Examined:
    session = None
    try:
        session = sink.session(job)
        return session.examine(asked)
    except FencepostError as error:
        return unheard(asked, error.what)
    except Exception as error:  # noqa: BLE001 - a user's own sink may raise anything, which is not an answer
        return unheard(asked, f"asking it failed: {place_of(error)}")
    finally:
        if session is not None:
            session.close()


def _damaged(root: Place, error: CheckpointRefused, tell: Tell) -> Verified:
    """For a ledger that cannot be read: what the doctor says about it, unless there is none at all."""
    found = diagnose(root, tell=tell).findings
    if error.code != "ledger_damaged" and not any(one.code == "metadata_differs" for one in found):
        raise error
    return Verified(
        checkpoint=str(root),
        findings=tuple(
            Finding(code=one.code, place=one.name, what=f"{one.name}: {one.what}", next=one.next) for one in found
        ),
        notes=("The ledger is damaged, so neither Spark's log nor a sink was compared with it.",),
    )


def _of_the_targets(
    root: Place, state: State, epochs: list[_Facts], answers: Mapping[str, Examined], again: Callable[[], State]
) -> Iterator[Finding]:
    """The worst first: rows that no decision names."""
    later = again() if any(answer.strays for answer in answers.values()) else state
    for name, answer in answers.items():
        for stray in (one for one in answer.strays if not _is_decided(one, name, later, root)):
            what = f"sink {name} holds {stray.text}, but no decision names it: ledger records were lost, or the "
            yield Finding(code="target_ahead", place=name, what=f"{what}checkpoint is an old copy", next=AHEAD)
    for name, answer in answers.items():
        if not answer.heard:
            what = f"sink {name} did not answer: {answer.why}"
            cure = "Check that its target is up and that this user may read it, then repeat the command."
            yield Finding(code="target_silent", place=name, what=what, next=cure, weight=Weight.DOUBT)
            continue
        over = [one for one in epochs if one.sinks.get(name) == "missing" and (not one.is_open or one.is_complete)]
        yield from _of_one_target(state, name, answer, tuple(int(one.epoch) for one in over))


def _of_one_target(state: State, name: str, answer: Examined, missing: tuple[int, ...]) -> Iterator[Finding]:
    known = state.sinks.get(name)
    goes_on = state.sealed is not None and state.sealed.next == answer.stranger
    if known is not None and answer.identity is not None and answer.identity != known.target:
        there = "it was replaced by another" if answer.identity else "it has no identity, so it is gone or was emptied"
        what = f"sink {name}: its target is not the one in the ledger; {there}"
        cure = "Bring the old target back. If the change is intended, start once with allow_sink_changes=True."
        yield Finding(code="target_replaced", place=name, what=what, next=cure, epochs=missing)
    elif answer.stranger and not goes_on:
        what = f"sink {name}: its target belongs to another checkpoint, lineage {answer.stranger}"
        cure = "Check which checkpoint the job uses: two must not write to one target under the same name."
        yield Finding(code="target_of_another_lineage", place=name, what=what, next=cure)
    elif missing:
        why = answer.reasons.get(Epoch(missing[-1]), answer.why)
        what = f"sink {name} lacks epochs {span(missing)}, which the ledger calls done: {why}"
        cure = (
            "The target was restored from a backup or a lagging replica, or somebody removed rows or marks. Bring back "
            "its newest state, or rewind the job to an epoch that it holds: fencepost rewind --help."
        )
        yield Finding(code="target_behind", place=name, what=what, next=cure, epochs=missing)


def _after(root: Place, state: State) -> State:
    try:
        return read(root)
    except CheckpointRefused:
        return state


def _is_decided(stray: Stray, sink: str, state: State, root: Place) -> bool:
    """Is it named by a decision that was made while we asked, or by one that is no longer retained?"""
    from fencepost.connectors.table.mark import ids_of  # noqa: PLC0415 - tables are wanted only where there are sinks

    oldest = state.decisions[0][1].epoch if state.decisions else None
    if stray.epoch is not None and oldest is not None and stray.epoch < oldest:
        return True
    for facts in _facts(root, state, state.decisions):
        mine = facts.of(sink)
        if stray.names & {ids_of(mine), *(one.id for one in mine), " ".join(one.id for one in mine)}:
            return True
    return False


def _of_the_log(state: State, epochs: list[_Facts], complete: tuple[int, ...]) -> Iterator[Finding]:
    newest = [facts.epoch for facts in epochs][-2:]
    for facts in epochs:
        for name, text in facts.texts.items():
            waits = name == "commits" and text == "missing" and facts is epochs[-1]
            if text in ("differs", "missing") and not waits:
                place = f"{name}/{facts.epoch}"
                what = f"Spark's {place} is {'missing' if text == 'missing' else 'not what was decided'}"
                cure = BY_ITSELF if facts.epoch in newest else f"No start needs it; record {facts.number} has its text."
                yield Finding(code="spark_log_differs", place=place, what=what, next=cure, epochs=(int(facts.epoch),))
    last = state.newest.epoch if state.newest else state.lineage.first_epoch - 1
    restored = state.newest is not None and state.newest.cause == "restore"
    for number in complete if state.lineage.guarantee == "exactly_once" and not restored else ():
        if number > last and number != state.voided:
            what = f"Spark completed epoch {number}, but the newest decision is epoch {last}"
            cure = "The query ran without fencepost, or ledger records were removed: restore them from a copy."
            yield Finding(code="spark_ahead", place=f"commits/{number}", what=what, next=cure)


def _of_the_files(root: Place, state: State, tell: Tell) -> Iterator[Finding]:
    """The files of the newest epoch, and of the one before it, which counts if the newest is undone."""
    named = set()
    root = seen(root)
    for _, decision in reversed(state.decisions[-2:]):
        watch = partial(tell, f"Reading epoch {decision.epoch}")
        for problem in not_whole(root, decision.epoch, state, watch=watch):
            if problem.name not in named:
                named.add(problem.name)
                what = f"epoch {decision.epoch} needs {problem.name}, but {problem.text}"
                cure = f"Run `fencepost doctor {root}`: it says what can be repaired."
                about = (int(decision.epoch),)
                yield Finding(code="snapshot_lost", place=problem.name, what=what, next=cure, epochs=about)


def _of_the_open_one(state: State, epochs: list[_Facts], *, lives: bool) -> Iterator[Finding]:
    if not epochs or epochs[-1].is_complete or (lives and epochs[-1].is_open):
        return
    facts = epochs[-1]
    told = "; ".join(f"{name}: {word}" for name, word in sorted(facts.sinks.items()))
    what = f"epoch {facts.epoch} is decided but not complete{f' ({told})' if told else ''}; its driver is gone"
    cure = "Start the job: recovery finishes it, and nothing is lost or duplicated."
    about = (int(facts.epoch),)
    yield Finding(code="open_decision", what=what, next=cure, weight=Weight.UNFINISHED, epochs=about)


def _notes(state: State, sinks: Mapping[str, Sink] | None, answers: Mapping[str, Examined]) -> Iterator[str]:
    if state.lineage.guarantee != "exactly_once":
        yield f"With {state.lineage.guarantee} the ledger has no decisions to compare the sinks with."
    if state.sealed is not None:
        where = f" in {state.sealed.place}" if state.sealed.place else ""
        yield f"This lineage is sealed after epoch {state.sealed.epoch}: it continues{where} as {state.sealed.next}."
    if sinks is None:
        yield "No sink was asked: name the job's FILE to include the sinks."
        return
    for name in sorted({*state.sinks} - {*sinks}):
        yield f"Sink {name} is in the ledger but not in the job: it was not asked."
    for name, answer in sorted(answers.items()):
        untold = [int(epoch) for epoch, holding in answer.holdings.items() if holding is Holding.UNKNOWN]
        if answer.heard and untold and not answer.stranger:
            why = answer.reasons.get(Epoch(untold[-1])) or answer.why
            yield f"Sink {name} cannot tell about epochs {span(untold)}: {why}."


def span(epochs: Iterable[int]) -> str:
    """Numbers for people: 3–7, 9."""
    parts: list[list[int]] = []
    for epoch in sorted(epochs):
        if parts and parts[-1][-1] == epoch - 1:
            parts[-1] = [parts[-1][0], epoch]
        else:
            parts.append([epoch])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
