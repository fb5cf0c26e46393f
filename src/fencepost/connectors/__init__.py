"""One folder per system, source and sink side by side; here, what they know about Spark's own sources.

A plan may read a system without `job.read`, so these functions go by Spark's name for the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.connectors.files.source import FileCheck, Weakness
    from fencepost.contract import Dataset
    from fencepost.errors import FencepostError
    from fencepost.spark.plan import PlanSource
    from fencepost.store import Store

Identities = dict[tuple[str, str], dict[str, str]]
"""By kind of source and name of the thing being read: the id that it has now for each source."""
Placed = Mapping[str, "PlanSource"]
"""Sources by name, or by their place in the plan."""
KNOWN = frozenset({"kafka"})
"""Spark's names of sources that have a folder here, of the same name."""


def find(spark: Any, sources: Placed, job: str) -> Identities:
    """What the sources of a plan would read now; refuses what does not exist or may not be read."""
    return {
        (kind, name): ids
        for kind in KNOWN & {one.kind for one in sources.values()}
        for name, ids in _known(kind).find(spark, _options(sources, kind), job).items()
    }


def _options(sources: Placed, kind: str) -> dict[str, Mapping[str, str]]:
    return {place: one.options for place, one in sources.items() if one.kind == kind}


def check_same(store: Store, lineages: Sequence[str], found: Identities, job: str) -> None:
    """Refuse a source that is not the one whose offsets the checkpoint holds; record what is new to it.

    `lineages` is this one, then those before it.
    """
    for (kind, name), ids in found.items():
        _known(kind).check_same(store, lineages, name, ids, job)


def watch(spark: Any, sources: Placed, store: Store, known: Identities, job: str) -> Callable[[str], None] | None:
    """A check to run before each decision: given the lineage, raises if a source was replaced while the job runs.

    `known` are the identities that the start found. None if no source has one.
    """
    kinds = KNOWN & {one.kind for one in sources.values()}
    if not kinds:
        return None

    def check(lineage: str) -> None:
        for kind in kinds:
            for name, ids in _known(kind).find_again(spark, _options(sources, kind), job).items():
                if known.get((kind, name)) != ids:
                    _known(kind).check_same(store, (lineage,), name, ids, job)
                    known[kind, name] = ids

    return check


def notes(sources: Iterable[PlanSource]) -> list[str]:
    """What the sources of a plan give up because of their options, for `fencepost check`."""
    return list(dict.fromkeys(one for s in sources if s.kind in KNOWN for one in _known(s.kind).notes(s.options)))


def settings(sources: Iterable[PlanSource]) -> list[tuple[str, str]]:
    """Options of a plan's sources that change how soon a record is seen, for `fencepost check`."""
    return list(dict.fromkeys(one for s in sources if s.kind in KNOWN for one in _known(s.kind).settings(s.options)))


def weaknesses(spark: Any, source: PlanSource) -> list[Weakness]:
    """What keeps a source with these options from reading each record once."""
    if not source.is_of_files:
        return []
    found: list[Weakness] = _known("files").weaknesses(spark, source.options)
    return found


def file_check(spark: Any, sources: Iterable[PlanSource], job: str) -> FileCheck | None:
    """The check on files that must pass before each decision; None if the plan reads none."""
    if not any(source.is_of_files for source in sources):
        return None
    check: FileCheck = _known("files").FileCheck(spark, job)
    return check


def check_read(
    spark: Any, sources: Iterable[PlanSource], store: Store, *, lineages: Sequence[str], offsets: str, job: str
) -> None:
    """Refuse a start if a file that was read, up to these offsets, was changed since; each change once."""
    if any(source.is_of_files for source in sources):
        _known("files").check_read(spark, store, lineages, offsets, job)


def datasets(source: PlanSource) -> list[Dataset]:
    """What OpenLineage calls what a source reads; of its options only the names of servers, topics and folders."""
    from fencepost.contract import Dataset, dataset_at  # noqa: PLC0415 - imports pyarrow

    options = source.options
    if source.kind == "kafka":
        first = options.get("kafka.bootstrap.servers", "").split(",")[0].strip()
        topics = options.get("subscribe", "").split(",") + list(json.loads(options.get("assign", "{}")))
        named = [topic.strip() for topic in topics if topic.strip()] or [options.get("subscribepattern", "")]
        return [Dataset(f"kafka://{first}", topic) for topic in named]
    if source.is_of_files and "path" in options:
        return [dataset_at(options["path"])]
    if source.kind == "fencepost_delta":
        return [dataset_at(options["location"])]
    if source.kind == "fencepost_iceberg":  # as its sink, which is named after the table
        return [Dataset("fencepost", f"iceberg:{options['location']}")]
    return [Dataset("fencepost", source.name or ("files" if source.is_of_files else source.kind))]


def explain(text: str, job: str) -> FencepostError | None:
    """What a failure of Spark says about a source, as our error; None if it is not about a source."""
    kinds = (*KNOWN, "files", "lake")
    return next((error for kind in kinds if (error := _known(kind).explain(text, job)) is not None), None)


def _known(kind: str) -> ModuleType:
    """Imported only when needed: a job that does not read a system need not have its clients installed."""
    return import_module(f"fencepost.connectors.{kind}.source")
