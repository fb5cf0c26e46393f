"""Where a job keeps its state, and how it gets into the checkpoint: one argument, fixed at the first start.

    Memory       on the heap; the checkpoint lives in memory and ends with the process
    FileSystem   on the heap; every change goes into a durable checkpoint, now and then the whole state
    RocksDB      on the local disk; what changed goes into a durable checkpoint (incremental), or all of it each epoch

Never changes what a checkpoint was begun with: its files have one format for their whole life.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fencepost.errors import BadConfig, CheckpointRefused, Where
from fencepost.guarantee import Guarantee, Link
from fencepost.ledger import store_at
from fencepost.ledger.names import record_name
from fencepost.protocol.records import Damaged, Lineage, decode
from fencepost.spark import inspect, session
from fencepost.spark.checkpoint import SparkLog


@dataclass(frozen=True, slots=True)
class Memory:
    """State on the heap, checkpoint in memory: survives a failed query, not a lost driver.

    The mistake people make: taking it to production because it is fast. When the process ends, state and checkpoint are
    gone, and a new start is refused by every sink that knows what it holds. It is for tests and for trying things out.
    """


@dataclass(frozen=True, slots=True)
class FileSystem:
    """State on the heap, checkpoint on a disk; `path` may name the checkpoint, then the job needs no `checkpoint=`.

    The mistake people make: taking it for state that does not fit into memory, or for a cluster. Spark's heap state
    carries no attempt's id, so it is exact with one executor only; RocksDB has neither limit.
    """

    path: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True)
class RocksDB:
    """State in RocksDB on the executors' disks, checkpoint on a disk: the default.

    The mistake people make: `incremental=False` for a large state. Then every epoch uploads what RocksDB has flushed
    since the one before, and lists all of it; with True it writes what the epoch changed.
    """

    incremental: bool = True


Backend = Memory | FileSystem | RocksDB

UNSIGNED = ("delta", "snapshot", "changelog", "zip")
"""Files of one version of a state, named by nothing but its number."""


def formats(backend: Backend) -> Mapping[str, str]:
    """What Spark is told."""
    if isinstance(backend, RocksDB):
        return {**session.FORMATS, session.CHANGELOG: str(bool(backend.incremental)).lower()}
    return session.HEAP_FORMATS


def begun(checkpoint: str) -> Lineage | None:
    """What a checkpoint was begun with; None before its first start.

    A ledger that cannot be read says nothing here: recovery refuses it, in its own words.
    """
    store = store_at(checkpoint)
    try:
        found = SparkLog(store).identity()
        known = found.metadata if found.metadata in found.ledgers else "".join(found.ledgers[:1])
        body = decode(store.read(record_name(known, 0)) or b"").body if known else None
    except (OSError, Damaged):
        return None
    return body if isinstance(body, Lineage) else None


def check_same(asked: Backend | None, has: Mapping[str, str], *, job: str, path: str) -> None:
    """Refuse a backend that the checkpoint was not begun with; who names none takes the checkpoint's own."""
    if asked is None or named(formats(asked)) == named(has):
        return
    raise CheckpointRefused(
        "state_changed",
        f"The checkpoint was begun with {named(has)}, the job asks for {named(formats(asked))}.",
        where=Where(job=job, path=path),
        next="Take state=… away (the checkpoint's own is used), name the one it was begun with, or begin a new "
        "checkpoint.",
    )


def named(has: Mapping[str, str]) -> str:
    """The backend with these formats, as a user writes it."""
    if not has:
        return "what plain Spark had when it was adopted"
    if on_heap(has):
        return "fp.FileSystem()"
    return f"fp.RocksDB(incremental={has.get(session.CHANGELOG) == 'true'})"


def on_heap(has: Mapping[str, str]) -> bool:
    """Is it Spark's heap provider, whose files carry no attempt's id?"""
    return has.get(session.PROVIDER) == session.HEAP_FORMATS[session.PROVIDER]


def check_frames(frames: Sequence[Any], has: Mapping[str, str], job: str) -> None:
    """Refuse a plan whose state the heap cannot hold."""
    if on_heap(has) and inspect.KEYED_STATE in set().union(*map(inspect.states_of, frames)):
        raise BadConfig(
            "keyed_state_needs_rocksdb",
            "Spark's heap state cannot hold keyed state (map_with_state, transformWithState).",
            where=Where(job=job),
            next="Use state=fp.RocksDB().",
        )


def links(spark: Any, frames: Sequence[Any], asked: Backend | None, checkpoint: str, job: str) -> list[Link]:
    """The state as a link of the chain; none for a job without any on a durable checkpoint."""
    known = begun(checkpoint)
    has = formats(asked or RocksDB()) if known is None else known.formats
    check_frames(frames, has, job)
    stateful = any(map(inspect.states_of, frames))
    if stateful and on_heap(has) and (problem := session.runs_tasks_twice(spark)) is not None:
        return [
            Link(
                "state on the heap",
                Guarantee.AT_LEAST_ONCE,
                f"its files carry no attempt's id, and {problem.what}: one attempt could overwrite another's",
                f"{problem.cure}, or use state=fp.RocksDB()",
            )
        ]
    if isinstance(asked, Memory):
        return [
            Link(
                "state in memory",
                Guarantee.EXACTLY_ONCE,
                "a failed query goes on in this process; when the process ends, state and checkpoint are lost and "
                "sinks that know what they hold refuse a new start",
            )
        ]
    if not stateful:
        return []
    if on_heap(has):
        reason = "one executor runs every task once, and a lock keeps a second driver out"
        return [Link("state on the heap", Guarantee.EXACTLY_ONCE, reason)]
    if not has:
        return [Link("state as adopted", Guarantee.EXACTLY_ONCE, "in the format that plain Spark chose")]
    return [Link("state in RocksDB", Guarantee.EXACTLY_ONCE, "its files carry the id of the attempt that wrote them")]


def cut(checkpoint: str, decided_version: int) -> None:
    """State whose files carry no attempt's id: remove what an undecided epoch left.

    Its files have the names that the epoch's next run will use. That run overwrites a change (`N.delta`), but Spark
    would later read a whole state (`N.snapshot`) in its place, and that is another attempt's.
    """
    for file in (Path(checkpoint) / "state").glob("*/*/**/*.*"):
        version, _, kind = file.name.removeprefix(".").partition(".")
        if version.isdigit() and int(version) > decided_version and kind.removesuffix(".crc") in UNSIGNED:
            file.unlink(missing_ok=True)
