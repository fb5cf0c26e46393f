"""What was measured, as tables: merged from several runs, as ratios, and put into docs/PERFORMANCE.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.peers.systems import ROOT, SYSTEMS

PAGE = ROOT / "docs" / "PERFORMANCE.md"
BEGIN, END = "<!-- make bench-peers writes this -->", "<!-- as far as here -->"

OURS = SYSTEMS["fencepost"].name

Lives = list[dict[str, Any]]
Figure = Callable[[dict[str, Any]], float | None]


# --- files


def add(results: dict[str, Any]) -> Path:
    """Put a run to those of the same sources and day, in place of what was saved of it before."""
    path = ROOT / "bench" / "results" / f"peers-{datetime.now(UTC):%Y-%m-%d}-{results['facts']['src']}.json"
    path.parent.mkdir(exist_ok=True)
    runs = json.loads(path.read_text()) if path.exists() else []
    before = [run for run in runs if run["began"] != results["began"]]
    path.write_text(json.dumps([*before, results], indent=1) + "\n")
    return path


def newest() -> Path:
    return max((ROOT / "bench" / "results").glob("peers-*.json"), key=lambda path: path.stat().st_mtime)


def write(path: Path) -> None:
    """Replace what stands between the markers of the page."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{PAGE} has no markers"
    tables = text(json.loads(path.read_text())) + f"\n\n`{path.relative_to(ROOT)}`\n"
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")


# --- one life


def mismatch(life: dict[str, Any]) -> str:
    """What its output had wrong; nothing if it was exact."""
    if "failed" in life:
        return str(life["failed"])
    wrong = [f"{life['wrong_keys']} keys have a wrong count"] if life["wrong_keys"] else []
    return ", ".join(wrong + ([f"{life['repeated']} rows came again"] if life["repeated"] else []))


def line(life: dict[str, Any]) -> str:
    """A life in one line, for whoever waits."""
    said = [life["system"], f"{life['rate']:,}/s" if life["rate"] else "catch-up"]
    said += [
        f"{name} {life[name]}"
        for name in ("start_s", "kill_s", "catch_up_s", "cpu_s_per_million", "mb")
        if name in life
    ]
    said += [
        f"{name} p50 {life[name]['p50']:.0f} p99 {life[name]['p99']:.0f} ms"
        for name in ("first", "warm", "after")
        if name in life
    ]
    return ", ".join([*said, mismatch(life) or "exact"])


# --- all of them


def text(runs: list[dict[str, Any]]) -> str:
    lives = [life | {"run": number} for number, run in enumerate(runs) for life in run["lives"]]
    parts = [steady(lives, rate) for rate in sorted({life["rate"] for life in lives if "warm" in life})]
    parts += [starts(lives), catch_up(lives), verdicts(lives), facts(runs)]
    return "\n".join(part for part in parts if part)


def steady(lives: Lives, rate: int) -> str:
    mine = [life for life in lives if life["rate"] == rate and "warm" in life]
    head = ["first minute p50", "p99", "warm p50", "p99", "fencepost's to its: warm p50", "CPU s per million", "MB"]
    head += ["rows/s", "lives"]
    rows = []
    for name, some in by_system(mine):
        late = [
            middle(some, lambda life, s=span, p=part: life[s][p])
            for span in ("first", "warm")
            for part in ("p50", "p99")
        ]
        cost = f"{number(some, 'cpu_s_per_million')} (broker {number(some, 'broker_cpu_s_per_million')})"
        compared = ratio(mine, name, lambda life: life["warm"]["p50"])
        rows.append(
            [name, *map(whole, late), compared, cost, number(some, "mb"), number(some, "rows_per_s"), len(some)]
        )
    return f"{rate:,} records/s, ms from a record to a row with it:\n\n" + table(["", *head], rows)


def starts(lives: Lives) -> str:
    mine = [life for life in lives if "start_s" in life]
    if not mine:
        return ""
    head = [
        "launch to first row, s",
        "fencepost's to its",
        "CPU s until then",
        "kill -9 to new row, s",
        "fencepost's to its",
    ]
    head += ["p50 in the 5 s after, ms", "launches, kills"]
    rows = []
    for name, some in by_system(mine):
        killed = [life for life in some if "kill_s" in life]
        after = middle(killed, lambda life: life["after"]["p50"])
        row = [
            name,
            number(some, "start_s"),
            ratio(mine, name, lambda life: life["start_s"]),
            number(some, "start_cpu_s"),
        ]
        row += [number(killed, "kill_s"), ratio(mine, name, lambda life: life.get("kill_s")), whole(after)]
        rows.append([*row, f"{len(some)}, {len(killed)}"])
    return table(["", *head], rows)


def catch_up(lives: Lives) -> str:
    mine = [life for life in lives if "catch_up_s" in life]
    if not mine:
        return ""
    rows = [
        [
            name,
            number(some, "catch_up_s"),
            ratio(mine, name, lambda life: life["catch_up_s"]),
            number(some, "catch_up_cpu_s"),
            len(some),
        ]
        for name, some in by_system(mine)
    ]
    title = f"Catch-up, {max(life['records'] for life in mine):,} records, from the launch until all are counted:\n\n"
    return title + table(["", "s", "fencepost's to its", "CPU s", "lives"], rows)


def verdicts(lives: Lives) -> str:
    """Was every output exact, and was the machine ours?"""
    head = ["lives", "records", "kills", "keys with a wrong count", "rows that came again", "failed"]
    rows = []
    for name, some in by_system(lives):
        records, wrong, repeated = (
            sum(life.get(what, 0) for life in some) for what in ("records", "wrong_keys", "repeated")
        )
        kills = sum("kill_s" in life for life in some)
        failed = "; ".join(life["failed"] for life in some if "failed" in life)
        others = max((life["others_cores"] for life in some if "others_cores" in life), default="")
        rows.append([name, len(some), f"{records:,}", kills, f"{wrong:,}", f"{repeated:,}", failed, others])
    return table(["", *head, "cores that others used, at most"], rows)


def facts(runs: list[dict[str, Any]]) -> str:
    systems = {system.name: system.about for system in SYSTEMS.values()}
    used = dict.fromkeys(life["system"] for run in runs for life in run["lives"])
    said = [f"- **{name}**: {systems[name]}." for name in used if name in systems]
    left_out = {name: why for run in runs for name, why in run.get("left_out", {}).items()}
    said += [f"- **{name}** was left out: {why.splitlines()[0]}" for name, why in left_out.items()]
    said.append("")
    for run in runs:
        known = ", ".join(f"{name} {value}" for name, value in run["facts"].items())
        said.append(f"- Facts: {known}. `python -m bench.peers {run['command']}`")
    return "\n".join(said)


def by_system(lives: Lives) -> list[tuple[str, Lives]]:
    order = [system.name for system in SYSTEMS.values()]
    names = sorted({life["system"] for life in lives}, key=order.index)
    return [(name, [life for life in lives if life["system"] == name]) for name in names]


def middle(lives: Lives, figure: Figure) -> float | None:
    found = [value for life in lives if (value := figure(life)) is not None]
    return statistics.median(found) if found else None


def ratio(lives: Lives, name: str, figure: Figure) -> str:
    """Ours to theirs within one run, the median of the runs that have both: below 1.00 fencepost is faster."""
    found = []
    for run in {life["run"] for life in lives}:
        ours, its = (
            middle([life for life in lives if (life["run"], life["system"]) == (run, system)], figure)
            for system in (OURS, name)
        )
        if ours and its:
            found.append(ours / its)
    return f"{statistics.median(found):.2f}" if found else ""


def number(lives: Lives, name: str) -> str:
    found = middle(lives, lambda life: life.get(name))
    return "" if found is None else f"{found:,.0f}" if found >= 100 else f"{found:.1f}"


def whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)
