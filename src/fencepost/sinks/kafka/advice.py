"""What to tell an operator about a transaction: what is safe to do, and what recovery will do. Pure."""

from __future__ import annotations

from fencepost.protocol.records import Epoch, Handle
from fencepost.sinks.kafka.inventory import Row, Verdict
from fencepost.sinks.kafka.outcome import Fate


def safe_to_do(row: Row) -> str:
    """One sentence."""
    if row.verdict is Verdict.DECIDED:
        return _safe_if_decided(row)
    if row.verdict is Verdict.UNKNOWN and row.ledger is not None:
        return "Leave it: this checkpoint has never seen its writer; give the one that the job runs on."
    return {
        Verdict.ORPHAN: "Abort it (tx abort), or start the job, which does. Never commit it.",
        Verdict.RUNNING: "Leave it: a running driver may be about to decide it. If the driver is dead, the next start "
        "of the job aborts it.",
        Verdict.UNKNOWN: "Leave it until --checkpoint of its job tells whether it is decided.",
        Verdict.ENDED: "Nothing to do.",
        Verdict.FOREIGN: "Not fencepost's: ask its owner.",
    }[row.verdict]


def at_next_start(row: Row, now: Fate | None) -> str:
    """What recovery is going to do with it; `now` is the fate of a decided one, by coordinator or topic."""
    if row.handle is None:
        return {
            Verdict.ORPHAN: "Abort it. Its epoch was never decided and runs again.",
            Verdict.RUNNING: "Abort it, unless the running driver decides it first; then commit it.",
            Verdict.UNKNOWN: "Not known without its checkpoint.",
            Verdict.ENDED: "Nothing.",
            Verdict.FOREIGN: "Nothing: it is not fencepost's.",
        }[row.verdict]
    if row.done:
        return "Nothing: its epoch is done."
    return {
        None: "Ask the coordinator what became of it, and commit it if it is open.",
        Fate.OPEN: f"Commit it, then note in the ledger that epoch {row.epoch} is done.",
        Fate.COMMITTED: f"Nothing in Kafka: it is committed. The ledger notes that epoch {row.epoch} is done.",
        Fate.ABORTED: if_lost(row.handle, row.epoch),
        Fate.UNKNOWN: "Stop with outcome_unknown: neither the coordinator nor the topic can tell any more.",
    }[now]


def if_lost(handle: Handle, epoch: Epoch | None) -> str:
    """What recovery does for a decided transaction that is aborted."""
    if handle.kept:
        return f"Write its {handle.rows} rows again from the kept files, in a new transaction, and commit that."
    return (
        f"Its rows were not kept (keep_rows=False): take the decision back and run epoch {epoch} again, if no sink "
        "shows anything of it; otherwise stop with partly_lost."
    )


def _safe_if_decided(row: Row) -> str:
    if row.done:
        return "Look again: the ledger says that its epoch is done."
    assert row.handle is not None
    again = (
        "its rows are kept and written again" if row.handle.kept else "its epoch runs again if none of it is visible"
    )
    return {
        None: "Start the job, or commit it (tx commit) when the broker answers. Never abort it.",
        Fate.OPEN: "Commit it (tx commit), or start the job, which does. Never abort it.",
        Fate.COMMITTED: "Nothing to do: it is committed; the next start notes it.",
        Fate.ABORTED: f"Start the job: the broker aborted it, and {again}.",
        Fate.UNKNOWN: "The coordinator has forgotten it: tx show asks the topic.",
    }[row.fate]
