"""Compares what the ledger decided with Spark's own log, with the files that the newest epochs rest on, and with the
targets of the sinks.

Only reads, with the job running, stopped or dead: it takes no lock, fences nobody, and needs no Spark. The ledger is
read before Spark's log and the sinks, so that what it calls done must be found there; and once more behind them, so
that what they hold may have been decided meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fencepost.checkpoints.doctor import BY_ITSELF, diagnose
from fencepost.checkpoints.parts import not_whole
from fencepost.checkpoints.reader import read
from fencepost.checkpoints.verified import Finding, Row, Text, Verified, Weight, Word, span
from fencepost.errors import CheckpointRefused, FencepostError
from fencepost.ledger import Place, seen, store_at
from fencepost.ledger.names import record_name
from fencepost.observe import pulse
from fencepost.protocol.order import State
from fencepost.protocol.records import Damaged, Decision, Epoch, Handle, Redo, SinkRecord, decode
from fencepost.sinks.holding import Asked, Examined, Holding, Stray, unheard
from fencepost.spark.checkpoint import SparkLog

if TYPE_CHECKING:
    from fencepost.sinks.contract import Sink

PAUSE_S = 0.3
"""Between two looks: a driver that was in the middle of something is over it, or its next epoch is."""

WORDS: Mapping[Holding, Word] = {Holding.HELD: "held", Holding.MISSING: "missing", Holding.UNKNOWN: "cannot tell"}
AHEAD = (
    "Do not start the job on this checkpoint: rows in between would be lost or doubled, and not every target notices. "
    "Bring back the checkpoint's newest copy, or restore a savepoint that is not older than the target."
)


def verify(checkpoint: Place, sinks: Mapping[str, Sink] | None = None, epochs: int | None = None) -> Verified:
    """Compare the newest `epochs` (all that are retained, if None); without `sinks` no target is asked.

    Raises `CheckpointRefused` where there is nothing to compare; a damaged ledger is a finding.
    """
    first = _look(checkpoint, sinks, epochs)
    if not first.findings:
        return first
    time.sleep(PAUSE_S)
    return _look(checkpoint, sinks, epochs).said_twice(first)


def _look(checkpoint: Place, sinks: Mapping[str, Sink] | None, epochs: int | None) -> Verified:
    root = checkpoint.absolute()
    complete = SparkLog(store_at(root)).names("commits")  # before the ledger: what Spark completed was decided before
    try:
        state = read(root)
    except CheckpointRefused as error:
        return _damaged(root, error)
    epoch_facts = _facts(root, state, epochs)
    _read_log(root, state, epoch_facts)
    decides = state.lineage.guarantee == "exactly_once"  # else a mark says nothing about a decision
    answers = _ask(root, state, epoch_facts, sinks or {}) if decides else {}
    lives = any(beat.lives and beat.writer == state.writer for beat in pulse.beats(str(root)))
    findings = [
        *_of_the_targets(root, state, epoch_facts, answers),
        *_of_the_log(state, epoch_facts, complete),
        *_of_the_files(root, state),
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
    """Those of the decision, or what stands in the place of lost ones."""
    is_open: bool
    targets: Mapping[str, SinkRecord]
    """The sinks as they were when it was decided."""
    texts: dict[str, Text] = field(default_factory=dict)
    sinks: dict[str, Word] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        return self.decision.epoch

    @property
    def is_complete(self) -> bool:
        """Spark's own word, which it gives only after every sink's."""
        return self.texts["commits"] != "missing"

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


def _facts(root: Place, state: State, epochs: int | None) -> list[_Facts]:
    wanted = state.decisions if epochs is None else state.decisions[-epochs:]
    redone = _redone(root, state)
    opened = state.open.number if state.open else None
    found = []
    for number, decision in wanted:
        handles = state.open.handles if state.open and number == opened else decision.handles
        for redo in redone.get(number, ()):
            handles = (*(one for one in handles if one.id not in redo.lost), *redo.handles)
        targets = state.lineage.sinks if decision.sinks is None else decision.sinks
        facts = _Facts(number, decision, tuple(dict.fromkeys(handles)), number == opened, targets)
        facts.sinks = {one.sink: "not asked" for one in handles}
        found.append(facts)
    return found


def _redone(root: Place, state: State) -> dict[int, list[Redo]]:
    """By decision. The state has only what stands at the end of the open one."""
    found: dict[int, list[Redo]] = {}
    store = store_at(root)
    names = [record_name(state.lineage_id, number) for number in range(state.oldest, state.last + 1)]
    store.expect(names)
    for name in names:
        data = store.read(name) or b""
        if b'"kind":"redo"' in data:
            try:
                body = decode(data).body
            except Damaged:
                continue  # the ledger was whole a moment ago; the next look says what it is now
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


def _ask(root: Place, state: State, epochs: Iterable[_Facts], sinks: Mapping[str, Sink]) -> dict[str, Examined]:
    """Each sink, about the epochs that went to the target that it has now."""
    answers = {}
    for name, sink in sinks.items():
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
    from fencepost.sinks.contract import place_of  # noqa: PLC0415 - pyarrow is wanted only where there are sinks

    session = None
    try:
        session = sink.session(job)
        return session.examine(asked)
    except FencepostError as error:
        return unheard(asked, error.what)
    except Exception as error:  # noqa: BLE001 - a sink of the user's own may raise anything; it is no answer
        return unheard(asked, f"to ask it failed: {place_of(error)}")
    finally:
        if session is not None:
            session.close()


def _damaged(root: Place, error: CheckpointRefused) -> Verified:
    """A ledger that cannot be read: what the doctor says of it, unless there is none at all."""
    found = diagnose(root).findings
    if error.code != "ledger_damaged" and not any(one.code == "metadata_differs" for one in found):
        raise error
    return Verified(
        checkpoint=str(root),
        findings=tuple(
            Finding(code=one.code, place=one.name, what=f"{one.name}: {one.what}", next=one.next) for one in found
        ),
        notes=("A ledger that is not whole decides nothing: neither Spark's log nor a sink was compared with it.",),
    )


def _of_the_targets(
    root: Place, state: State, epochs: list[_Facts], answers: Mapping[str, Examined]
) -> Iterator[Finding]:
    """The worst first: what no decision names."""
    later = _after(root, state) if any(answer.strays for answer in answers.values()) else state
    for name, answer in answers.items():
        for stray in (one for one in answer.strays if not _is_decided(one, name, later, root)):
            what = f"sink {name} holds {stray.text}, and no decision names it: ledger records were lost, or the "
            yield Finding(code="target_ahead", place=name, what=f"{what}checkpoint is an old copy", next=AHEAD)
    for name, answer in answers.items():
        if not answer.heard:
            what = f"sink {name} was asked and did not say: {answer.why}"
            cure = "See that its target works and that this user may read it, then ask again."
            yield Finding(code="target_silent", place=name, what=what, next=cure, weight=Weight.DOUBT)
            continue
        over = [one for one in epochs if one.sinks.get(name) == "missing" and (not one.is_open or one.is_complete)]
        yield from _of_one_target(state, name, answer, tuple(int(one.epoch) for one in over))


def _of_one_target(state: State, name: str, answer: Examined, missing: tuple[int, ...]) -> Iterator[Finding]:
    known = state.sinks.get(name)
    goes_on = state.sealed is not None and state.sealed.next == answer.stranger
    if known is not None and answer.identity is not None and answer.identity != known.target:
        there = "another one lies in its place" if answer.identity else "it has no identity: it is gone, or was emptied"
        what = f"sink {name}: its target is not the one that the ledger knows; {there}"
        cure = "Bring the target back. If the change is meant: start once with sinks_changed=True."
        yield Finding(code="target_replaced", place=name, what=what, next=cure, epochs=missing)
    elif answer.stranger and not goes_on:
        what = f"sink {name}: its target belongs to lineage {answer.stranger}"
        cure = "See which checkpoint the job runs on: two of them must not write to one target under one name."
        yield Finding(code="target_of_another_lineage", place=name, what=what, next=cure)
    elif missing:
        why = answer.reasons.get(Epoch(missing[-1]), answer.why)
        what = f"sink {name} lacks epochs {span(missing)}, which the ledger calls done: {why}"
        cure = (
            "It was set back (a backup, a replica that lagged), or somebody removed rows or marks. Bring back the "
            "target's newest state; or rewind the job to an epoch that it holds: fencepost rewind --help."
        )
        yield Finding(code="target_behind", place=name, what=what, next=cure, epochs=missing)


def _after(root: Place, state: State) -> State:
    try:
        return read(root)
    except CheckpointRefused:
        return state


def _is_decided(stray: Stray, sink: str, state: State, root: Place) -> bool:
    """By a decision that was made while we asked, or by one that is no longer retained."""
    from fencepost.sinks.marks import ids_of  # noqa: PLC0415 - as above

    oldest = state.decisions[0][1].epoch if state.decisions else None
    if stray.epoch is not None and oldest is not None and stray.epoch < oldest:
        return True
    for facts in _facts(root, state, None):
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
                cure = BY_ITSELF if facts.epoch in newest else f"No start reads it; record {facts.number} has its text."
                yield Finding(code="spark_log_differs", place=place, what=what, next=cure, epochs=(int(facts.epoch),))
    last = state.newest.epoch if state.newest else state.lineage.first_epoch - 1
    anew = state.newest is not None and state.newest.cause == "restore"
    for number in complete if state.lineage.guarantee == "exactly_once" and not anew else ():
        if number > last and number != state.voided:
            what = f"Spark completed epoch {number}, and the newest decision is {last}"
            cure = "The query ran without fencepost, or ledger records were removed: restore them from a copy."
            yield Finding(code="spark_ahead", place=f"commits/{number}", what=what, next=cure)


def _of_the_files(root: Place, state: State) -> Iterator[Finding]:
    """Of the newest epoch, and of the one before, which counts if the newest is taken back."""
    named = set()
    root = seen(root)
    for _, decision in reversed(state.decisions[-2:]):
        for problem in not_whole(root, decision.epoch, state):
            if problem.name not in named:
                named.add(problem.name)
                what = f"epoch {decision.epoch} rests on {problem.name}, and {problem.text}"
                cure = f"Run `fencepost doctor {root}`: it says what can be put back."
                about = (int(decision.epoch),)
                yield Finding(code="snapshot_lost", place=problem.name, what=what, next=cure, epochs=about)


def _of_the_open_one(state: State, epochs: list[_Facts], *, lives: bool) -> Iterator[Finding]:
    if not epochs or epochs[-1].is_complete or (lives and epochs[-1].is_open):
        return
    facts = epochs[-1]
    told = "; ".join(f"{name}: {word}" for name, word in sorted(facts.sinks.items()))
    what = f"epoch {facts.epoch} is decided and not complete{f' ({told})' if told else ''}; its driver is gone"
    cure = "Start the job: recovery finishes it, and nothing is lost or doubled."
    about = (int(facts.epoch),)
    yield Finding(code="open_decision", what=what, next=cure, weight=Weight.UNFINISHED, epochs=about)


def _notes(state: State, sinks: Mapping[str, Sink] | None, answers: Mapping[str, Examined]) -> Iterator[str]:
    if state.lineage.guarantee != "exactly_once":
        yield f"Under {state.lineage.guarantee} no epoch is decided: there is nothing to compare the sinks with."
    if state.sealed is not None:
        where = f" in {state.sealed.place}" if state.sealed.place else ""
        yield f"This lineage is sealed after epoch {state.sealed.epoch}: it goes on{where} as {state.sealed.next}."
    if sinks is None:
        yield "No sink was asked: give the job's FILE for that."
        return
    for name in sorted({*state.sinks} - {*sinks}):
        yield f"Sink {name} is in the ledger and not in the job: it was not asked."
    for name, answer in sorted(answers.items()):
        untold = [int(epoch) for epoch, holding in answer.holdings.items() if holding is Holding.UNKNOWN]
        if answer.heard and untold and not answer.stranger:
            why = answer.reasons.get(Epoch(untold[-1])) or answer.why
            yield f"Sink {name} cannot tell about epochs {span(untold)}: {why}."
