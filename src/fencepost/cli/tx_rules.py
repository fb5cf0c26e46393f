"""What may be ended by hand: never abort what may be decided, never commit what is not."""

from __future__ import annotations

from fencepost.errors import UNCHANGED, BadConfig, FencepostError, OperatorNeeded, Refused
from fencepost.protocol.records import Handle
from fencepost.sinks.kafka.advice import if_lost, safe_to_do
from fencepost.sinks.kafka.coordinator import Transaction
from fencepost.sinks.kafka.inventory import Row, Verdict
from fencepost.sinks.kafka.outcome import Fate


def may_commit(row: Row) -> Handle:
    """Only what the open decision names: anything else is written again, and would then be there twice."""
    if row.handle is not None and not row.done:
        return row.handle
    reasons = {
        Verdict.DECIDED: f"The ledger says that its epoch {row.epoch} is done: there is nothing to commit.",
        Verdict.ORPHAN: "No decision names it: its epoch runs again, so committing it would write the rows twice.",
        Verdict.RUNNING: "No decision names it yet: only its driver may decide.",
        Verdict.ENDED: f"No decision names it, and it has ended: {row.found.state if row.found else 'forgotten'}.",
        Verdict.FOREIGN: "It is not one of fencepost's.",
        Verdict.UNKNOWN: "This checkpoint has never seen its writer: it is a copy, or older than the transaction.",
    }
    raise Refused("not_decided", reasons[row.verdict], safe=UNCHANGED, next=safe_to_do(row))


def may_abort(row: Row, *, accept_loss: bool) -> Transaction:
    """Never what is decided or may be, unless its owner says so."""
    if row.verdict is Verdict.FOREIGN:
        raise Refused(
            "foreign",
            "It is not one of fencepost's.",
            safe=UNCHANGED,
            next="Ask its owner; Kafka's own tool is kafka-transactions.sh.",
        )
    if row.verdict is Verdict.DECIDED and not accept_loss:
        raise Refused(
            "decided",
            f"It is decided: epoch {row.epoch} of the ledger names it.",
            safe=UNCHANGED,
            next=f"{safe_to_do(row)} If it has to go: --accept-loss --yes.",
        )
    if row.verdict is Verdict.RUNNING and not accept_loss:
        raise Refused(
            "may_be_decided",
            "It is of the latest writer: if that driver runs, it may decide this epoch while we abort it.",
            safe=UNCHANGED,
            next="Leave it; if the driver is dead, the next start of the job aborts it. If it has to go now: "
            "--accept-loss --yes.",
        )
    if row.verdict is Verdict.UNKNOWN and not accept_loss:
        raise Refused(
            "may_be_decided",
            "Nobody can tell whether it is decided: the checkpoint of its job is missing, or has not seen its writer.",
            safe=UNCHANGED,
            next="Give --checkpoint DIR of the job that opened it. If that is lost: --accept-loss --yes.",
        )
    if row.found is None or not row.is_open:
        state = row.found.state if row.found else "forgotten by the coordinator"
        raise Refused("not_open", f"It is not open: {state}.", safe=UNCHANGED, next="Nothing: there is none to abort.")
    return row.found


def not_open(row: Row, handle: Handle, now: Fate) -> FencepostError:
    """Decided, and nothing that could be committed is there."""
    if now is Fate.ABORTED:
        return Refused(
            "aborted",
            f"It is decided, but the broker has aborted it: it was open longer than {handle.body['timeout_ms']} ms.",
            safe=UNCHANGED if handle.kept else "The ledger is unchanged; the rows of this epoch are not kept.",
            next=f"Start the job. It will: {if_lost(handle, row.epoch)}",
        )
    return OperatorNeeded(
        "outcome_unknown",
        "Neither the coordinator nor the topic can tell whether it was committed.",
        next="Look into the topic for the rows of this epoch (`fencepost tx show` says where they began), then say "
        "what you found: `fencepost tx settle ID --as committed` or `--as lost`.",
    )


def no_checkpoint() -> BadConfig:
    """A verb that needs the ledger's word."""
    return BadConfig(
        "no_checkpoint",
        "Only a checkpoint's ledger can tell that a transaction is decided.",
        safe=UNCHANGED,
        next="Give --checkpoint DIR of the job that opened it.",
    )


def known_anyway(now: Fate) -> Refused:
    """A person's word is wanted only where there is no better one."""
    return Refused(
        "not_unknown",
        f"There is nothing to settle: the cluster itself says that it is {now.value}.",
        safe=UNCHANGED,
        next="Start the job: recovery asks the same question and acts on the answer.",
    )


def out_of_turn(name: str, ahead: Handle) -> Refused:
    """Another sink's handle has to be done first."""
    return Refused(
        "out_of_turn",
        f"The decision also names {ahead.id!r} of sink {ahead.sink!r}, whose rows are not kept. If that is lost, the "
        f"epoch runs again, and the rows of {name} would be there twice.",
        safe=UNCHANGED,
        next="Start the job: recovery commits both in their order.",
    )
