"""How transactions look on a terminal and in JSON."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencepost.sinks.kafka.advice import safe_to_do
from fencepost.sinks.kafka.coordinator import Held, Transaction
from fencepost.sinks.kafka.inventory import Ledger, Row, Verdict

COLOURS = {Verdict.DECIDED: "green", Verdict.ORPHAN: "yellow", Verdict.RUNNING: "cyan"}
MANY = 8
"""More partitions than this are counted, not named."""


def console() -> Console:
    """A terminal has its width; a file or a pipe gets lines long enough for an id and a sentence."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def print_rows(out: Console, rows: list[Row], now_ms: float) -> None:
    """A table per lineage."""
    for (job, lineage), group in groupby(sorted(rows, key=_order), key=lambda row: _order(row)[:2]):
        mine = list(group)
        out.print(escape(_title(job, lineage, mine[0].ledger)))
        table = Table(
            "id", "writer", "epoch", "verdict", "age", "times out", "partitions", "safe to do", box=box.SIMPLE
        )
        table.columns[0].overflow = "fold"
        table.columns[-1].ratio = 1
        for row in mine:
            colour = COLOURS.get(row.verdict, "default")
            cells = (
                row.id,
                str(row.owned.writer) if row.owned else "",
                "" if row.epoch is None else str(row.epoch),
                row.verdict.value,
                _age(row, now_ms),
                _left(row, now_ms),
                places(row.found.partitions) if row.found else "",
                safe_to_do(row),
            )
            table.add_row(*(f"[{colour}]{escape(c)}[/]" if i == 3 else escape(c) for i, c in enumerate(cells)))
        out.print(table)


def as_json(rows: Iterable[Row], now_ms: float, *, heard: bool) -> str:
    """The same for programs; `heard` is false where no broker answered."""
    return json.dumps({"broker_answered": heard, "transactions": [_plain(row, now_ms) for row in rows]}, indent=2)


def hanging_as_json(late: Iterable[Transaction], lost: Iterable[Held], *, unread: int) -> str:
    """Of `find-hanging`: what its coordinator did not end, what no coordinator knows of, and how much was not seen."""
    overdue = [{"id": one.id, "state": one.state, "partitions": [list(at) for at in one.partitions]} for one in late]
    unknown = [
        {"topic": one.topic, "partition": one.partition, "first": one.first, "pid": one.pid, "epoch": one.epoch}
        for one in lost
    ]
    return json.dumps({"overdue": overdue, "unknown": unknown, "topics_not_read": unread}, indent=2)


def describe(found: Transaction | None, now_ms: float) -> list[tuple[str, str]]:
    """What the coordinator says, line by line."""
    if found is None:
        return [("coordinator", "does not know this id: it has expired, or never was")]
    lines = [
        ("coordinator", found.state),
        ("producer", f"id {found.pid}, epoch {found.epoch}"),
        ("timeout", span(found.timeout_ms)),
    ]
    if found.started_ms > 0:
        at = datetime.fromtimestamp(found.started_ms / 1000, UTC)
        lines.insert(2, ("began", f"{at:%Y-%m-%d %H:%M:%S} UTC, {span(now_ms - found.started_ms)} ago"))
    if found.partitions:
        lines.append(("partitions", places(found.partitions)))
    return lines


def ledger_lines(ledger: Ledger) -> list[tuple[str, str]]:
    """What the ledger says, line by line."""
    state = ledger.state
    lines = [("checkpoint", ledger.path), ("latest writer", _writer(ledger))]
    lines.append(("done through", f"epoch {state.done_through}" if state.done_through >= 0 else "no epoch yet"))
    if state.open:
        handles = f"{len(state.open.handles)} handle{'' if len(state.open.handles) == 1 else 's'}"
        lines.append(("open decision", f"epoch {state.open.epoch}, record {state.open.number}, {handles}"))
    else:
        lines.append(("open decision", "none" + (" (the ledger is sealed)" if state.sealed else "")))
    return lines


def first_messages(held: Iterable[Held]) -> str:
    """Where readers of committed messages wait."""
    return ", ".join(f"{one.topic} {one.partition} at offset {one.first}" for one in held)


def sheet(out: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Names on the left, what they are on the right."""
    grid = Table.grid(padding=(0, 2))
    for name, text in lines:
        grid.add_row(name, escape(text))
    out.print(grid)


def places(partitions: Iterable[tuple[str, int]]) -> str:
    """Topics, each with its partitions."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return "; ".join(
        f"{topic} {', '.join(map(str, numbers))}" if len(numbers) <= MANY else f"{topic} ({len(numbers)} partitions)"
        for topic, numbers in by_topic.items()
    )


def span(ms: float) -> str:
    """A length of time in its two largest units."""
    seconds = max(0, int(ms / 1000))
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part} {below}"
    return f"{seconds} s"


def _order(row: Row) -> tuple[str, str, int, str]:
    owned = row.owned
    return (owned.job, owned.lineage, owned.writer, row.id) if owned else ("", "", 0, row.id)


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


def _age(row: Row, now_ms: float) -> str:
    if not row.heard:
        return "not asked"
    if row.found is None:
        return "forgotten"
    return span(now_ms - row.found.started_ms) if row.is_open else row.found.state


def _left(row: Row, now_ms: float) -> str:
    left = row.left_ms(now_ms)
    if left is None:
        return ""
    return f"in {span(left)}" if left > 0 else "overdue"


def _plain(row: Row, now_ms: float) -> dict[str, Any]:
    owned, found, left = row.owned, row.found, row.left_ms(now_ms)
    return {
        "id": row.id,
        "job": row.ledger.state.lineage.job if row.ledger else owned.job if owned else None,
        "lineage": owned.lineage if owned else None,
        "writer": owned.writer if owned else None,
        "epoch": row.epoch,
        "verdict": row.verdict.value,
        "sink": row.handle.sink if row.handle else None,
        "rows": row.handle.rows if row.handle else None,
        "fate": row.fate.value if row.fate else None,
        "state": found.state if found else None,
        "producer_id": found.pid if found else None,
        "producer_epoch": found.epoch if found else None,
        "started_ms": found.started_ms if found else None,
        "timeout_ms": found.timeout_ms if found else None,
        "age_s": round((now_ms - found.started_ms) / 1000, 1) if found and row.is_open else None,
        "left_s": None if left is None else round(left / 1000, 1),
        "partitions": [list(place) for place in found.partitions] if found else [],
        "safe_to_do": safe_to_do(row),
    }
