"""Named sources: with every source named, one may be added, removed or moved between two starts.

    offsets/N            clicks:{"logOffset":7}      one line per source, by name
    sources/clicks/      what the source itself remembers
    fencepost/departed/  the position at which a source was read that the job then did without

Spark looks for a source's position in the last two epochs only: one that comes back later would be read from its
beginning again. So a name that departed may not return.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fencepost.errors import BadConfig, CheckpointRefused, OperatorNeeded, Where
from fencepost.ledger import Store
from fencepost.protocol.records import Epoch
from fencepost.spark import session
from fencepost.spark.checkpoint import DEPARTED, SparkLog, source_lines
from fencepost.spark.inspect import PlanSource

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

FORMATS: Mapping[str, str] = {
    EVOLUTION: "true",
    # Only version 2 has names in it. Spark 4.3 takes it by itself, 4.2 has to be told.
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""Fixed at the first start of a job whose sources all have names."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Not a number: Spark's log knows a source without a name by its number."""


def reader(spark: Any, name: str | None, job: str) -> Any:
    """Spark's reader for one source, with its name."""
    if name is None:
        return spark.readStream
    if not NAME.fullmatch(name):
        raise BadConfig(
            "bad_source_name",
            f"{name!r} is no name of a source.",
            where=Where(job=job),
            next="Use letters, digits and underscores, and no digit first: job.read(…, name='clicks').",
        )
    return spark.readStream.name(name)


def allowed(spark: Any, name: str | None) -> AbstractContextManager[None]:
    """Spark takes a name only while this is switched on, and then no source without one."""
    return nullcontext() if name is None else session.settings(spark, {EVOLUTION: "true"})


def formats(sources: Sequence[PlanSource], job: str) -> Mapping[str, str]:
    """What a new checkpoint is begun with; none for sources without names."""
    names = [source.name for source in sources if source.name is not None]
    if not names:
        return {}
    if len(names) < len(sources):
        raise BadConfig(
            "not_all_named",
            f"Some sources have names ({', '.join(sorted(set(names)))}), and {len(sources) - len(names)} have none.",
            where=Where(job=job),
            next="Name them all (job.read(…, name=…)), or none.",
        )
    twice = sorted(name for name, uses in Counter(names).items() if uses > 1)
    if twice:
        raise BadConfig(
            "source_used_twice",
            f"The source {twice[0]!r} is used {names.count(twice[0])} times; Spark takes a name once in a query.",
            where=Where(job=job),
            next="Read it once for each use, under different names (each then has its own position, and may get a "
            "record in another epoch), or give no source a name.",
        )
    return FORMATS


def check_begun_alike(begun: Mapping[str, str], sources: Sequence[PlanSource], job: str) -> None:
    """Refuse names that come too late, and names that are gone: a checkpoint knows its sources by one of two ways."""
    wanted = formats(sources, job)
    if wanted and EVOLUTION not in begun:
        raise BadConfig(
            "names_too_late",
            "The checkpoint was begun with sources that had no names; it knows them by their order.",
            where=Where(job=job),
            next="Take the names out (the same sources, in the same order), or begin a new checkpoint with names.",
        )
    if EVOLUTION in begun and not wanted:
        raise BadConfig(
            "names_missing",
            "The checkpoint knows its sources by their names, and these have none.",
            where=Where(job=job),
            next="Give them back: job.read(…, name='…'). The names are in the last lines of the newest offsets file.",
        )


def check_none_returns(store: Store, sources: Iterable[PlanSource], job: str) -> None:
    """Note where departing sources were read to, and refuse one that departed earlier. After recovery."""
    now = {source.name for source in sources if source.name is not None}
    if not now:
        return
    log = SparkLog(store)
    newest = log.names("offsets")[-1:]
    last = source_lines(log.read("offsets", Epoch(newest[0])) or "") if newest else {}
    for name in sorted(now - set(last)):
        position = store.read(f"{DEPARTED}/{name}")
        if position is not None:
            raise OperatorNeeded(
                "source_returns",
                f"The job did without the source {name!r} for a while. It was read up to {position.decode()}; Spark "
                "would read it from its beginning again.",
                where=Where(job=job, path=f"{store.root}/{DEPARTED}/{name}"),
                safe="Safe: every decided epoch is in the sinks, complete and once; nothing was read or written now.",
                next="Give it a new name, and see that it begins where it ended: start=… for Kafka, the files that "
                "were read already moved away for Files.",
            )
    for name in sorted(set(last) - now):
        store.replace(f"{DEPARTED}/{name}", last[name].encode())


def changed(text: str, job: str) -> CheckpointRefused | None:
    """Spark's complaint about another number of sources without names, in our words."""
    found = re.search(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]", text)
    return found and CheckpointRefused(
        "sources_changed",
        f"The checkpoint was begun with {found[1]} sources, and now there are {found[2]}.",
        where=Where(job=job),
        next="Bring the old sources back, in their old order; or begin a new checkpoint with names (job.read(…, "
        "name=…)): with every source named, sources may be added and removed.",
    )
