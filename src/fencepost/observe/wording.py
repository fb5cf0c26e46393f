"""How a job is, in words: the same ones on a terminal, in a pipe, in JSON and on a page."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from fencepost.errors import LATER
from fencepost.observe import registry
from fencepost.observe.archive import Summary
from fencepost.observe.events import Kind
from fencepost.observe.health import Condition, Health, instant

WORDS: dict[Condition, str] = {
    "waiting": "waiting to restart",
    "silent": "no heartbeat",
    "stopped": "stopped cleanly",
    "unknown": "not known",
}
STEPS = {
    "begun": "its tasks are running",
    "opened": "its rows are with the driver",
    "pre_committed": "pre-committed, not decided",
    "voted": "voted, not decided",
    "decided": "decided, being committed",
    "committed": "decided, being committed",
}
IDLE = {"begun": "begun, not decided", "opened": "begun, not decided"}
"""The same while no driver is running: nothing of it is visible, and it reruns."""
AGAIN: dict[Condition, str] = {
    "running": "Nothing: it was started again, and is running.",
    "starting": "Wait: it is being started again.",
    "waiting": "Wait: it will be started again by itself.",
}
"""After a failure that its restart strategy takes care of."""
SAFE = {
    "exactly_once": LATER,
    "at_least_once": "Nothing is lost; rows of the last epoch may be duplicated.",
    "at_most_once": "Nothing is duplicated; rows of the last epoch may be lost.",
}


def line_of(found: Summary) -> str:
    """A job in one line, for a log, a pipe or a notebook."""
    health = found.health
    parts = ["damaged" if health.damage else WORDS.get(health.condition, health.condition)]
    if health.epoch is not None:
        parts.append(f"epoch {health.epoch} complete")
    if health.flight is not None:
        parts.append(f"{health.flight.epoch}: {_step(health, health.flight.step)}")
    if found.rows_per_s is not None:
        parts.append(f"{found.rows_per_s:,.0f} rows/s")
    if found.spread is not None:
        parts.append(f"p50 {span(found.spread.p50)}, p99 {span(found.spread.p99)}")
    if late := [sink.name for sink in found.sinks if not sink.meets]:
        parts.append(f"not yet in {', '.join(late)}")
    if health.restarts:
        parts.append(f"{health.restarts} restart{'s' if health.restarts > 1 else ''}")
    return " · ".join(parts)


def plain(health: Health) -> dict[str, Any]:
    """For JSON."""
    failure, flight = health.failure, health.flight
    return {
        "job": health.job,
        "checkpoint": health.checkpoint,
        "condition": health.condition,
        "since": instant(health.since),
        "until": instant(health.until),
        "needs_a_person": health.needs_a_person,
        "writer": health.writer,
        "pid": health.pid,
        "host": health.host,
        "supervisor": health.supervisor,
        "standby": None if health.standby is None else {"pid": health.standby, "warm": health.standby_is_warm},
        "guarantee": health.guarantee,
        "generation": health.generation,
        "epoch": health.epoch,
        "epoch_at": instant(health.epoch_at),
        "in_flight": flight
        and {"epoch": flight.epoch, "step": flight.step, "since": instant(flight.since), "in_doubt": flight.doubt},
        "epochs_per_minute": health.per_minute and round(health.per_minute, 2),
        "median_epoch_s": health.median_s and round(health.median_s, 4),
        "rest_s": health.rest_s,
        "watermark": instant(health.watermark),
        "watermark_sources": [
            {"source": one.what, "epoch": one.epoch, "at": instant(one.at), "behind": one.is_behind}
            for one in health.feeds
        ],
        "restarts": health.restarts,
        "restarts_since": instant(health.known_since),
        "last_failure": failure and {**failure.plain, "over": health.is_over},
        "damage": health.damage
        and {"code": health.damage.code, "what": health.damage.what, "next": f"fencepost doctor {health.checkpoint}"},
        "data": data_of(health),
        "next": next_of(health),
        "notes": list(health.notes),
    }


def epoch_of(health: Health) -> str:
    """The newest complete epoch, and the one under way."""
    done = "none is complete yet" if health.epoch is None else f"{health.epoch} complete {ago(health.epoch_at)}"
    if health.flight is None:
        return done
    doubt = f"; in doubt: sink {health.flight.doubt} did not say whether it holds it" if health.flight.doubt else ""
    return f"{done}; {health.flight.epoch}: {_step(health, health.flight.step)} ({ago(health.flight.since)}){doubt}"


def _step(health: Health, step: str) -> str:
    lives = health.condition in ("running", "starting", "silent", "unknown")
    return STEPS[step] if lives else IDLE.get(step, STEPS[step])


def data_of(health: Health) -> str | None:
    """Is it safe? Asked when something is wrong."""
    if health.damage is not None:
        return health.damage.safe
    if health.condition == "failed" and health.failure is not None:
        return health.failure.safe
    if health.is_well and not (health.flight and health.flight.doubt):
        return None
    return SAFE.get(health.guarantee or "")


def next_of(health: Health) -> str | None:
    """What to do, if there is anything to do."""
    if health.damage is not None:
        return f"fencepost doctor {health.checkpoint}"
    if health.condition == "failed" and health.failure is not None and health.failure.next:
        return health.failure.next
    start = f"fencepost run {_file(health)}"
    todo: dict[Condition, str] = {
        "failed": f"Start it again: {start}",
        "dead": f"Start it again: {start} (recovery finishes what is decided)",
        "silent": f"A supervisor kills and restarts it; without one, end process {health.pid}, then {start}",
        "stopped": f"To continue: {start}",
        "unknown": f"Check on {health.host or 'its host'} whether process {health.pid} is running the job.",
    }
    return todo.get(health.condition)


def after_failure(health: Health) -> str | None:
    """What to do about the last failure: if the driver was started again since, nothing yet."""
    failure = health.failure
    if failure is None or failure.kind not in {Kind.FAILED, Kind.DIED} or health.condition not in AGAIN:
        return None if failure is None else failure.next
    return AGAIN[health.condition] + (f" If it fails again: {failure.next}" if failure.next else "")


def _file(health: Health) -> str:
    there = registry.whole(health.checkpoint)
    return next((n.script for n in registry.everything() if n.checkpoint == there and n.script), "FILE")


def since(health: Health) -> str:
    """For how long it has been in its condition."""
    if health.condition == "waiting" and health.until is not None:
        return f", for {span(max(0.0, health.until - time.time()))} more"
    if health.since is None:
        return ""
    took = span(time.time() - health.since)
    return f" for {took}" if health.condition in ("running", "starting", "silent") else f", {took} ago"


def ago_of(text: str) -> str:
    """How long ago an event was."""
    return ago(datetime.fromisoformat(text).timestamp())


def ago(at: float | None) -> str:
    """How long ago, as people say it."""
    return "at an unknown time" if at is None else f"{span(time.time() - at)} ago"


def span(seconds: float) -> str:
    """In one unit, as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return (
        f"{seconds:.0f} s"
        if seconds >= 10
        else f"{max(0.0, seconds):.1f} s"
        if seconds >= 1
        else f"{max(0.0, seconds) * 1000:.0f} ms"
    )
