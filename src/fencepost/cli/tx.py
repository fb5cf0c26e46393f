"""`fencepost tx`: its commands, and how transactions look in a terminal and in JSON.

What may be ended by hand is decided in `fencepost.connectors.kafka.verdict`, which needs Kafka's clients and is
imported when a command runs: it is not needed to print help.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fencepost.cli.lookup import JOB, told
from fencepost.errors import UNCHANGED, BadConfig, FencepostError, require
from fencepost.store import Place

if TYPE_CHECKING:
    from fencepost.connectors.kafka.fate import Held, Transaction
    from fencepost.connectors.kafka.servers import Servers
    from fencepost.connectors.kafka.verdict import Case, Cluster, Ledger
    from fencepost.protocol.records import Handle

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {"decided": "green", "orphan": "yellow", "running?": "cyan"}
MANY = 8
"""More partitions than this are counted, not named."""

servers = click.option("--servers", help="host:port of the brokers, separated by commas.")
config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="A client's properties file: the login, and bootstrap.servers.",
)
checkpoint = click.option(
    "--checkpoint",
    metavar="JOB",
    type=JOB,
    help="The job's file, name or checkpoint: its ledger says what is decided, and is only read.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes = click.option("--yes", is_flag=True, help="Do it. Without it the plan is printed and nothing is done.")


def of_one(command: F) -> F:
    """The arguments of a command about one transaction."""
    return click.argument("id")(servers(config(checkpoint(command))))


@click.group()
def tx() -> None:
    """Look at open Kafka transactions, and end them by hand.

    Needs DESCRIBE on the transactional ids; others are not shown. Exit codes: 2 refused, 3 a person has to find
    something out, 1 the brokers do not answer, or something was found.
    """


@tx.command("list")
@servers
@config
@click.option(
    "--checkpoint", "checkpoints", metavar="JOB", type=JOB, multiple=True, help="As elsewhere; may be repeated."
)
@click.option("--all", "every", is_flag=True, help="Also transactions that are not fencepost's.")
@as_json
def list_command(
    servers: str | None, config: Path | None, checkpoints: tuple[Place, ...], every: bool, as_json: bool
) -> None:
    """List open transactions: whose they are, whether they are decided, what is safe to do."""
    cluster_named, read, silent = _named(servers, config), _ledgers(*checkpoints), None
    read()  # a wrong path is said at once, not after a silent broker
    try:
        if cluster_named is None and checkpoints:
            cases = _from_ledgers(read())
        else:
            with _ask(cluster_named) as cluster:
                cases = cluster.cases(read)
    except FencepostError as error:
        if error.code != "target_silent" or not checkpoints:
            raise
        cases, silent = _from_ledgers(read()), error
    heard = cluster_named is not None and silent is None
    shown = [case for case in cases if every or case.owned is not None]
    if as_json:
        plain = {"broker_answered": heard, "transactions": [_plain(case, now_ms()) for case in shown]}
        click.echo(json.dumps(plain, indent=2))
    else:
        _print_cases(shown, now_ms())
        if not heard:
            why = "did not answer" if silent else "was not asked (no --servers)"
            click.echo(f"The broker {why}: this is what the ledger says.")
        if not shown:
            click.echo("No open transaction" + ("." if every or not heard else " of fencepost's."))
    if silent is not None:
        raise silent


@tx.command()
@of_one
@as_json
def show(
    id: str,  # noqa: A002 - ID
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    as_json: bool,
) -> None:
    """Show everything known about ID, and what recovery will do with it."""
    with _ask(_named(servers, config)) as cluster:
        lines = list(_all_lines(cluster, cluster.look(id, _ledgers(checkpoint))))
    if as_json:
        click.echo(json.dumps({key.replace(" ", "_"): text for key, text in lines}, indent=2))
    else:
        _print_sheet(lines)


@tx.command()
@of_one
@yes
def commit(
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    yes: bool,
) -> None:
    """Commit ID, if the checkpoint's open decision names it; otherwise refuse.

    Recovery would do the same, and finds it done if this comes first. The ledger is only read; a job that is started
    later takes over as usual.
    """
    read = _ledgers(_needed(checkpoint))
    with _ask(_named(servers, config)) as cluster:
        case = cluster.look(id, read)
        handle = cluster.to_commit(case)
        if handle is None:
            click.echo(f"{id} is already committed.")
            return
        click.echo(f"commit {id}: {handle.rows} rows of epoch {case.epoch} become visible in {_to(case)}.")
        click.echo("The ledger is not touched; the next start of the job finds it committed and continues.")
        _stop_unless(yes)
        became = cluster.commit(handle).value
    click.echo(f"{id} is now: {became}.")
    sys.exit(0 if became == "committed" else 1)


@tx.command()
@of_one
@yes
@click.option("--accept-loss", is_flag=True, help="Also abort what is decided, or may be.")
def abort(  # noqa: PLR0917 - click calls it by keyword
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    yes: bool,
    accept_loss: bool,
) -> None:
    """Abort ID, if no decision names it; otherwise refuse."""
    with _ask(_named(servers, config)) as cluster:
        case = cluster.look(id, _ledgers(checkpoint))
        found = case.may_abort(accept_loss=accept_loss)
        click.echo(f"abort {id} ({case.verdict.value}): its rows in {_to(case)} never become visible.")
        if case.handle is not None:
            click.echo(click.style("It is decided.", fg="red") + f" The next start will: {case.if_lost()}")
        elif case.verdict.value == "unknown":
            click.echo(click.style("It may be decided:", fg="red") + " only its checkpoint can tell.")
        elif case.verdict.value == "running?":
            click.echo(
                click.style("Warning:", fg="yellow")
                + " it belongs to the latest writer. If that driver is running, it may decide this epoch while we "
                "abort it; the job then stops, and writes the rows again at its next start if it keeps them. Abort it "
                "only if the driver is dead."
            )
        _stop_unless(yes)
        became = cluster.abort(case, found).value
    click.echo(f"{id} is now: {became}.")
    sys.exit(0 if became == "aborted" else 1)


@tx.command()
@of_one
@click.option("--as", "word", type=click.Choice(["committed", "lost"]), required=True, help="What you found out.")
@yes
def settle(  # noqa: PLR0917 - click calls it by keyword
    id: str,  # noqa: A002
    servers: str | None,
    config: Path | None,
    checkpoint: Place | None,
    word: str,
    yes: bool,
) -> None:
    """Say what became of ID if neither the coordinator nor the topic can tell any more (outcome_unknown).

    Check the topic first: are the rows of the epoch there? The next start of the job believes you.
    """
    place = _needed(checkpoint)
    with _ask(_named(servers, config)) as cluster:
        case = cluster.look(id, _ledgers(place))
        handle = cluster.to_settle(case)
    then = "its rows count as written" if word == "committed" else case.if_lost()
    click.echo(f"settle {id} as {word}: at the next start, {then}")
    _stop_unless(yes)
    assert case.ledger is not None, "a decision named it"
    from fencepost.connectors.kafka import fate  # noqa: PLC0415 - see above

    with told(place):
        is_first = fate.settle(place.absolute() / "fencepost" / case.ledger.state.lineage_id, handle.id, word)
    click.echo("Noted. Start the job." if is_first else "It was already settled; the earlier answer stands.")
    sys.exit(0 if is_first else 1)


@tx.command("find-hanging")
@servers
@config
@as_json
def find_hanging(servers: str | None, config: Path | None, as_json: bool) -> None:
    """Find transactions, of any program, that the brokers should have ended; exit code 1 if there are some."""
    with _ask(_named(servers, config)) as cluster:
        found = cluster.hanging(now_ms())
    code = 1 if found.late or found.lost else 0
    if as_json:
        plain = {
            "overdue": [
                {"id": one.id, "state": one.state, "partitions": [list(at) for at in one.partitions]}
                for one in found.late
            ],
            "unknown": [
                {"topic": one.topic, "partition": one.partition, "first": one.first, "pid": one.pid, "epoch": one.epoch}
                for one in found.lost
            ],
            "topics_not_read": found.unread,
        }
        click.echo(json.dumps(plain, indent=2))
        sys.exit(code)
    for one in found.late:
        click.echo(f"{one.id}: {one.state} for {_span(now_ms() - one.started_ms)}, timeout {_span(one.timeout_ms)};")
        click.echo(f"  its coordinator did not end it. Partitions: {_places(one.partitions)}")
    for held in found.lost:
        click.echo(f"{held.topic} {held.partition}: open at offset {held.first} by producer {held.pid}, epoch")
        click.echo(f"  {held.epoch}, and no coordinator knows of it. kafka-transactions.sh abort ends it there.")
    if found.unread:
        click.echo(f"{found.unread} of {found.topics} topics were not checked: no permission to read them.")
    if not code:
        click.echo(f"None is hanging; {found.unfinished} open or being ended.")
    sys.exit(code)


# --- what a command asks


def now_ms() -> float:
    """By our clock; brokers have their own."""
    return time.time() * 1000


@contextmanager
def _ask(servers: Servers | None) -> Iterator[Cluster]:
    from fencepost.connectors.kafka.verdict import ask  # noqa: PLC0415 - its clients are an extra

    with ask(servers) as cluster:
        yield cluster


def _named(servers: str | None, config: Path | None) -> Servers | None:
    """The cluster that the options name, if they name one."""
    require("no_kafka_client", "confluent_kafka", "kafka", extra="kafka")
    from fencepost.connectors.kafka.servers import servers_of  # noqa: PLC0415 - not needed to print help

    return servers_of(servers, config)


def _ledgers(*places: Place | None) -> Callable[[], list[Ledger]]:
    """Reads what the ledgers say, at every call: it counts only if it was read after the coordinator was asked."""

    def read_all() -> list[Ledger]:
        from fencepost.connectors.kafka.verdict import Ledger, check_distinct  # noqa: PLC0415 - as above
        from fencepost.store.ledger import read  # noqa: PLC0415 - as above

        found = []
        for place in (one for one in places if one is not None):
            with told(place):
                found.append(Ledger(str(place.absolute()), read(place)))
        check_distinct(found)
        return found

    return read_all


def _from_ledgers(ledgers: list[Ledger]) -> list[Case]:
    from fencepost.connectors.kafka.verdict import due, judge  # noqa: PLC0415 - as above

    return [judge(name, None, ledgers, heard=False) for name in due(ledgers)]


def _needed(checkpoint: Place | None) -> Place:
    if checkpoint is None:
        raise BadConfig(
            "no_checkpoint",
            "Only the job's ledger can tell whether a transaction is decided.",
            safe=UNCHANGED,
            next="Add --checkpoint with the file, name or checkpoint of the job that opened it.",
        )
    return checkpoint


def _stop_unless(yes: bool) -> None:
    if not yes:
        click.echo("Nothing was done; add --yes.")
        sys.exit(1)


# --- how it looks


def _print_cases(cases: list[Case], now_ms: float) -> None:
    """A table per lineage."""
    from rich import box  # noqa: PLC0415 - not needed to print help
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    for (job, lineage), group in groupby(sorted(cases, key=_order), key=lambda case: _order(case)[:2]):
        mine = list(group)
        click.echo(_title(job, lineage, mine[0].ledger))
        table = Table(
            "id", "writer", "epoch", "verdict", "age", "times out", "partitions", "safe to do", box=box.SIMPLE
        )
        table.columns[0].overflow = "fold"
        table.columns[-1].ratio = 1
        for case in mine:
            cells = (
                case.id,
                str(case.owned.writer) if case.owned else "",
                "" if case.epoch is None else str(case.epoch),
                Text(case.verdict.value, style=COLOURS.get(case.verdict.value, "")),
                _age(case, now_ms),
                _left(case, now_ms),
                _places(case.found.partitions) if case.found else "",
                case.safe_to_do(),
            )
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
        _print_table(table)


def _print_sheet(lines: Iterable[tuple[str, str]]) -> None:
    """Names on the left, what they are on the right."""
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    grid = Table.grid(padding=(0, 2))
    for name, text in lines:
        grid.add_row(name, Text(text))
    _print_table(grid)


def _print_table(table: Any) -> None:
    """A terminal has its own width; a file or a pipe gets lines long enough for an id and a sentence."""
    from rich.console import Console  # noqa: PLC0415 - as above

    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _all_lines(cluster: Cluster, case: Case) -> Iterator[tuple[str, str]]:
    yield "id", case.id
    if owned := case.owned:
        yield "owner", f"job {owned.job}, lineage {owned.lineage}, writer {owned.writer}"
    yield "verdict", case.verdict.value
    yield from _coordinator_lines(case.found, now_ms())
    if case.found and case.is_open:
        yield "readers wait at", _first_messages(cluster.readers_wait_at(case.found))
    if case.ledger:
        yield from _ledger_lines(case.ledger)
    if old := case.earlier:
        yield "named before", f"an earlier transaction under this id: {cluster.fate_of(old).value}"
    now = None
    if case.handle is not None:
        now = cluster.fate_of(case.handle, case.found)
        yield from _handle_lines(case, case.handle)
        by_topic = case.fate is not None and case.fate.value == "unknown"
        yield "fate", now.value + (", by the topic itself" if by_topic else "")
    yield "safe to do", case.safe_to_do()
    yield "next start", case.at_next_start(now)


def _coordinator_lines(found: Transaction | None, now_ms: float) -> Iterator[tuple[str, str]]:
    if found is None:
        yield "coordinator", "does not know this id: it has expired, or never was"
        return
    yield "coordinator", found.state
    yield "producer", f"id {found.pid}, epoch {found.epoch}"
    if found.started_ms > 0:
        at = datetime.fromtimestamp(found.started_ms / 1000, UTC)
        yield "began", f"{at:%Y-%m-%d %H:%M:%S} UTC, {_span(now_ms - found.started_ms)} ago"
    yield "timeout", _span(found.timeout_ms)
    if found.partitions:
        yield "partitions", _places(found.partitions)


def _ledger_lines(ledger: Ledger) -> Iterator[tuple[str, str]]:
    state = ledger.state
    yield "checkpoint", ledger.path
    yield "latest writer", _writer(ledger)
    yield "done through", f"epoch {state.done_through}" if state.done_through >= 0 else "no epoch yet"
    if state.open:
        handles = f"{len(state.open.handles)} handle{'' if len(state.open.handles) == 1 else 's'}"
        yield "open decision", f"epoch {state.open.epoch}, record {state.open.number}, {handles}"
    else:
        yield "open decision", "none" + (" (the ledger is sealed)" if state.sealed else "")


def _handle_lines(case: Case, handle: Handle) -> Iterator[tuple[str, str]]:
    kept = "kept in the checkpoint" if handle.kept else "not kept"
    yield (
        "named by",
        f"epoch {case.epoch}{', done' if case.done else ''}: sink {handle.sink}, {handle.rows} rows, {kept}",
    )
    if handle.body["first_record"] is not None:
        topic, partition, offset = handle.body["first_record"]
        yield "first message", f"{topic} {partition} at offset {offset}"


def _first_messages(held: list[Held] | Exception) -> str:
    if isinstance(held, Exception):
        return f"unknown: {held}"
    places = ", ".join(f"{one.topic} {one.partition} at offset {one.first}" for one in held)
    return places or "no message has arrived"


def _to(case: Case) -> str:
    return _places(case.found.partitions) if case.found and case.found.partitions else "its topics"


def _places(partitions: Iterable[tuple[str, int]]) -> str:
    """Topics, each with its partitions."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return "; ".join(
        f"{topic} {', '.join(map(str, numbers))}" if len(numbers) <= MANY else f"{topic} ({len(numbers)} partitions)"
        for topic, numbers in by_topic.items()
    )


def _span(ms: float) -> str:
    """A length of time in its two largest units."""
    seconds = max(0, int(ms / 1000))
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {below}"
    return f"{seconds} s"


def _order(case: Case) -> tuple[str, str, int, str]:
    owned = case.owned
    return (owned.job, owned.lineage, owned.writer, case.id) if owned else ("", "", 0, case.id)


def _title(job: str, lineage: str, ledger: Ledger | None) -> str:
    if not lineage:
        return "of other programs"
    if ledger is None:
        return f"job {job}, lineage {lineage}"
    opened = ledger.state.open
    state = f"epoch {opened.epoch} is decided and not known to be done" if opened else "no decision is open"
    return f"job {ledger.state.lineage.job}, lineage {lineage}: {state}; latest writer {_writer(ledger)}"


def _writer(ledger: Ledger) -> str:
    state = ledger.state
    return f"{state.writer}" + (f" (process {state.driver.pid} on {state.driver.host})" if state.driver else "")


def _age(case: Case, now_ms: float) -> str:
    if not case.heard:
        return "not asked"
    if case.found is None:
        return "forgotten"
    return _span(now_ms - case.found.started_ms) if case.is_open else case.found.state


def _left(case: Case, now_ms: float) -> str:
    left = case.left_ms(now_ms)
    if left is None:
        return ""
    return f"in {_span(left)}" if left > 0 else "overdue"


def _plain(case: Case, now_ms: float) -> dict[str, Any]:
    owned, found, left = case.owned, case.found, case.left_ms(now_ms)
    return {
        "id": case.id,
        "job": case.ledger.state.lineage.job if case.ledger else owned.job if owned else None,
        "lineage": owned.lineage if owned else None,
        "writer": owned.writer if owned else None,
        "epoch": case.epoch,
        "verdict": case.verdict.value,
        "sink": case.handle.sink if case.handle else None,
        "rows": case.handle.rows if case.handle else None,
        "fate": case.fate.value if case.fate else None,
        "state": found.state if found else None,
        "producer_id": found.pid if found else None,
        "producer_epoch": found.epoch if found else None,
        "started_ms": found.started_ms if found else None,
        "timeout_ms": found.timeout_ms if found else None,
        "age_s": round((now_ms - found.started_ms) / 1000, 1) if found and case.is_open else None,
        "left_s": None if left is None else round(left / 1000, 1),
        "partitions": [list(place) for place in found.partitions] if found else [],
        "safe_to_do": case.safe_to_do(),
    }
