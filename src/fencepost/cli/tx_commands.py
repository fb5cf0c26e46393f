"""What `fencepost tx` does: looks at coordinator and ledger, and ends one transaction if that cannot break the promise.

The coordinator is asked first and the ledger read second, so a decision that falls in between is seen. Never writes to
the ledger: no writer record, so a running driver is not fenced and recovery finds everything as it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from fencepost.checkpoints.reader import read
from fencepost.cli import tx_view as view
from fencepost.cli.find import told
from fencepost.cli.tx_cluster import Cluster, ask, no_servers
from fencepost.cli.tx_rules import known_anyway, may_abort, may_commit, no_checkpoint, not_open, out_of_turn
from fencepost.errors import UNCHANGED, BadConfig, FencepostError
from fencepost.kafka_servers import Servers
from fencepost.ledger import Place
from fencepost.protocol.records import Handle
from fencepost.sinks.kafka import advice, ending, inventory, settled
from fencepost.sinks.kafka.coordinator import ONGOING, Denied, Held, Transaction
from fencepost.sinks.kafka.inventory import Ledger, Row, Verdict
from fencepost.sinks.kafka.outcome import Fate

LONGEST_MS = 900_000
"""The brokers' usual limit of a transaction, where we may not ask for theirs."""


def now_ms() -> float:
    """By our clock; brokers have their own."""
    return time.time() * 1000


def list_transactions(servers: Servers | None, paths: tuple[Place, ...], *, every: bool, as_json: bool) -> int:
    """Print open transactions, and decided ones that should be open and are not."""
    if servers is None and not paths:
        raise no_servers()
    _read(paths)  # a wrong path is said at once, not after a silent broker
    out, silent = view.console(), None
    try:
        rows = _rows(servers, paths) if servers else _from_ledgers(paths)
    except FencepostError as error:
        if error.code != "target_silent" or not paths:
            raise
        rows, silent = _from_ledgers(paths), error
    shown = [row for row in rows if every or row.owned is not None]
    heard = servers is not None and silent is None
    if as_json:
        print(view.as_json(shown, now_ms(), heard=heard))
    else:
        view.print_rows(out, shown, now_ms())
        if not heard:
            why = "did not answer" if servers else "was not asked (no --servers)"
            out.print(f"The broker {why}: this is what the ledger says.")
        if not shown:
            out.print("No open transaction" + ("." if every or not heard else " of fencepost's."))
    if silent is not None:
        raise silent
    return 0


def show(servers: Servers | None, name: str, path: Place | None, *, as_json: bool = False) -> int:
    """Print everything about one id."""
    out = view.console()
    with ask(servers) as cluster:
        row = _look(cluster, name, path)
        lines = [("id", row.id)]
        if owned := row.owned:
            lines.append(("owner", f"job {owned.job}, lineage {owned.lineage}, writer {owned.writer}"))
        lines += [("verdict", row.verdict.value), *view.describe(row.found, now_ms())]
        if row.found and row.is_open:
            lines.append(("readers wait at", _held(cluster, row.found)))
        if row.ledger:
            lines += view.ledger_lines(row.ledger)
        if old := inventory.earlier(row):
            lines.append(("named before", f"an earlier transaction under this id: {cluster.fate_of(old).value}"))
        now = None
        if row.handle is not None:
            now = cluster.fate_of(row.handle, row.found)
            lines += _handle_lines(row, row.handle)
            lines.append(("fate", now.value + (", by the topic itself" if row.fate is Fate.UNKNOWN else "")))
        lines += [("safe to do", advice.safe_to_do(row)), ("next start", advice.at_next_start(row, now))]
    if as_json:
        print(json.dumps({key.replace(" ", "_"): text for key, text in lines}, indent=2))
    else:
        view.sheet(out, lines)
    return 0


def commit(servers: Servers | None, name: str, path: Place | None, *, yes: bool) -> int:
    """Commit a transaction that the open decision names. Repeatable, and idempotent with recovery.

    Both end it by the same handle: the second one finds it committed. If a job is running, its driver may be about to
    do the same, and will find it done.
    """
    if path is None:
        raise no_checkpoint()
    out = view.console()
    with ask(servers) as cluster:
        row = _look(cluster, name, path)
        handle = may_commit(row)
        now = cluster.fate_of(handle, row.found)
        if now is Fate.COMMITTED:
            out.print(f"{escape(name)} is committed already.")
            return 0
        if now is not Fate.OPEN or row.fate is not Fate.OPEN:  # what the coordinator itself holds under this name
            raise not_open(row, handle, now)
        if ahead := inventory.in_the_way(row, cluster.others(row)):
            raise out_of_turn(name, ahead[0])
        out.print(f"commit {escape(name)}: {handle.rows} rows of epoch {row.epoch} become visible in {_to(row)}.")
        out.print("The ledger is not touched; the next start of the job finds it committed and goes on.")
        if not yes:
            return _nothing_done(out)
        became = ending.end(cluster.coordinator, handle.body, commit=True)
    out.print(f"{escape(name)} is now: {became.value}.")
    return 0 if became is Fate.COMMITTED else 1


def abort(servers: Servers | None, name: str, path: Place | None, *, yes: bool, accept_loss: bool) -> int:
    """Abort a transaction that no decision names; with `accept_loss`, also one that is or may be decided."""
    out = view.console()
    with ask(servers) as cluster:
        row = _look(cluster, name, path)
        found = may_abort(row, accept_loss=accept_loss)
        out.print(f"abort {escape(name)} ({row.verdict.value}): its rows in {_to(row)} never become visible.")
        if row.handle is not None:
            out.print(f"[red]It is decided.[/red] The next start will: {advice.if_lost(row.handle, row.epoch)}")
        elif row.verdict is Verdict.UNKNOWN:
            out.print("[red]It may be decided:[/red] without its checkpoint nobody can tell.")
        elif row.verdict is Verdict.RUNNING:
            out.print(
                "[yellow]Warning:[/yellow] it is of the latest writer. If that driver runs, it may decide this epoch "
                "while we abort it; the job then stops, and writes the rows again at its next start if it keeps them. "
                "Abort it only if the driver is dead."
            )
        if not yes:
            return _nothing_done(out)
        version = row.handle.body["end_version"] if row.handle else cluster.coordinator.end_version()
        became = ending.end(
            cluster.coordinator,
            {
                "id": name,
                "pid": found.pid,
                "epoch": found.epoch,
                "started_ms": found.started_ms,
                "end_version": version,
            },
            commit=False,
        )
    out.print(f"{escape(name)} is now: {became.value}.")
    return 0 if became is Fate.ABORTED else 1


def settle(servers: Servers | None, name: str, path: Place | None, *, word: str, yes: bool) -> int:
    """Note a person's word about a decided transaction, if nobody else can tell."""
    if path is None:
        raise no_checkpoint()
    out = view.console()
    with ask(servers) as cluster:
        row = _look(cluster, name, path)
        handle = may_commit(row)
        now = cluster.fate_of(handle, row.found)
    if now is not Fate.UNKNOWN:
        raise known_anyway(now)
    assert row.ledger is not None
    then = "its rows count as written" if word == "committed" else advice.if_lost(handle, row.epoch)
    out.print(f"settle {escape(name)} as {word}: at the next start, {then}")
    if not yes:
        return _nothing_done(out)
    with told(path):
        is_first = settled.settle(path.absolute() / "fencepost" / row.ledger.state.lineage_id, handle.id, word)
    if not is_first:
        out.print("It was settled before; that stands.")
        return 1
    out.print("Noted. Start the job.")
    return 0


def find_hanging(servers: Servers | None, *, as_json: bool = False) -> int:
    """Print transactions that are open beyond their timeout, or on a partition that no coordinator knows of."""
    out = view.console()
    unread = 0
    with ask(servers) as cluster:
        coordinator = cluster.coordinator
        before: list[Held] = []
        topics = coordinator.partitions()
        for partitions in topics.values():
            try:
                before += coordinator.held(partitions)
            except Denied:
                unread += 1
        unfinished = coordinator.unfinished()
        after = coordinator.held({(one.topic, one.partition) for one in before}) if before else []
        too_old = now_ms() - (coordinator.largest_timeout_ms() or LONGEST_MS) - inventory.SLACK_MS
    late = inventory.overdue(unfinished, now_ms())
    lost = inventory.abandoned(before, unfinished, after, too_old)
    if as_json:
        print(view.hanging_as_json(late, lost, unread=unread))
        return 1 if late or lost else 0
    for one in late:
        age = view.span(now_ms() - one.started_ms)
        out.print(escape(f"{one.id}: {one.state} for {age}, timeout {view.span(one.timeout_ms)}; ") + "its coordinator")
        out.print(f"  did not end it. Partitions: {escape(view.places(one.partitions))}")
    for held in lost:
        out.print(escape(f"{held.topic} {held.partition}: open at offset {held.first} by producer {held.pid}, epoch "))
        out.print(f"  {held.epoch}, and no coordinator knows of it. kafka-transactions.sh abort ends it there.")
    if unread:
        out.print(f"{unread} of {len(topics)} topics may not be read, and were not looked at.")
    if not late and not lost:
        out.print(f"None is hanging; {len(unfinished)} open or being ended.")
    return 1 if late or lost else 0


def _rows(servers: Servers, paths: tuple[Place, ...]) -> list[Row]:
    with ask(servers) as cluster:
        found = cluster.coordinator.describe(cluster.coordinator.open_ids())
        found = {name: one for name, one in found.items() if one is not None and one.state == ONGOING}
        ledgers = _read(paths)
        found |= cluster.coordinator.describe(name for name in inventory.due(ledgers) if name not in found)
    rows = [inventory.judge(name, one, ledgers) for name, one in found.items()]
    return [row for row in rows if row.fate is not Fate.COMMITTED]  # the usual state between two decisions


def _from_ledgers(paths: tuple[Place, ...]) -> list[Row]:
    ledgers = _read(paths)
    return [inventory.judge(name, None, ledgers, heard=False) for name in inventory.due(ledgers)]


def _read(paths: tuple[Place, ...]) -> list[Ledger]:
    found = []
    for path in paths:
        with told(path):
            found.append(Ledger(str(path.absolute()), read(path)))
    inventory.check_distinct(found)
    return found


def _look(cluster: Cluster, name: str, path: Place | None) -> Row:
    """One transaction: the coordinator first, then the ledger."""
    paths = (path,) if path else ()
    _read(paths)
    found = cluster.coordinator.describe([name])[name]
    row = inventory.judge(name, found, _read(paths))
    if found is None and row.handle is None:
        raise BadConfig(
            "unknown_transaction",
            f"Neither the coordinator nor a ledger knows transaction {name!r}.",
            safe=UNCHANGED,
            next="`fencepost tx list --all` shows the open ones. An id is forgotten a week after its last use.",
        )
    if path and row.owned and row.ledger is None:
        raise BadConfig(
            "another_lineage",
            f"The checkpoint is not the one of job {row.owned.job}, lineage {row.owned.lineage}.",
            safe=UNCHANGED,
            next="Give the checkpoint of the job that opened it; `metadata` in it begins with the lineage.",
        )
    return row


def _handle_lines(row: Row, handle: Handle) -> Iterator[tuple[str, str]]:
    kept = "kept in the checkpoint" if handle.kept else "not kept"
    named = f"epoch {row.epoch}{', done' if row.done else ''}: sink {handle.sink}, {handle.rows} rows, {kept}"
    yield ("named by", named)
    if handle.body["first"] is not None:
        topic, partition, offset = handle.body["first"]
        yield ("first message", f"{topic} {partition} at offset {offset}")


def _held(cluster: Cluster, found: Transaction) -> str:
    try:
        held = cluster.coordinator.held(found.partitions)
    except Denied as error:
        return f"not known: {error}"
    return view.first_messages(one for one in held if one.pid == found.pid) or "no message has arrived"


def _to(row: Row) -> str:
    return escape(view.places(row.found.partitions)) if row.found and row.found.partitions else "its topics"


def _nothing_done(out: Console) -> int:
    out.print("Nothing was done; add --yes.")
    return 1
