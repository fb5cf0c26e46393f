"""Real checkpoints of every kind of state, grown until they have a snapshot and changes after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streams import Place, drop_json

import fencepost as fp
from fencepost.admin.savepoint import create
from fencepost.spark.spark_session import settings
from fencepost.store.ledger import read

SOON = {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "2"}
"""Snapshots after two epochs instead of ten."""
PATIENCE_S = 300


def counting(place: Place, spark: Any) -> fp.Job:
    return place.counting(spark)


def on_the_heap(place: Place, spark: Any) -> fp.Job:
    return place.counting(spark, state=fp.FileSystemState())


def joining(place: Place, spark: Any) -> fp.Job:
    """Two streams of rows, which have four stores in each partition."""
    job = place.job(spark)
    schema = "k STRING, v BIGINT, t TIMESTAMP"
    left, right = (
        job.read(fp.Files(place.root / side, format="json", schema=schema, max_files_per_epoch=1))
        .withWatermark("t", "1 minute")
        .alias(side)
        for side in ("left", "right")
    )
    pairs = left.join(right, _expression("left.k = right.k AND right.t BETWEEN left.t AND left.t + INTERVAL 5 SECONDS"))
    return job.write(
        pairs.selectExpr("left.k AS k", "left.v AS a", "right.v AS b"), fp.SQLite(place.database, table="pairs")
    )


def keyed(place: Place, spark: Any) -> fp.Job:
    """Spark writes whole paths into the metadata of such state."""

    def count(record: Any, state: Any) -> tuple[tuple[str, int], tuple[int]]:  # inside, so that it is sent by value
        n = (state.n if state else 0) + 1
        return (record.word, n), (n,)

    job = place.job(spark)
    words = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
    counts = fp.map_with_state(words, count, by="word", state="n BIGINT", output="word STRING, n BIGINT")
    return job.write(counts, fp.SQLite(place.database, table="seen"))


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - only for tests with a session

    return expr(text)


KINDS: dict[str, Callable[[Place, Any], fp.Job]] = {
    "count": counting,
    "heap": on_the_heap,
    "join": joining,
    "keyed": keyed,
}


def feed(place: Place, kind: str, number: int) -> None:
    """Data for one more epoch."""
    if kind == "join":
        for side in ("left", "right"):
            drop_json(place.root / side, {"k": f"k{number}", "v": number, "t": f"2026-01-01T00:00:{number:02d}"})
    else:
        place.say(f"a b c{number}")


def grow(place: Place, kind: str, spark: Any) -> int:
    """Run until every store has a snapshot and something after it, making a savepoint on the way; the last epoch."""
    feed(place, kind, 0)
    deadline = time.monotonic() + PATIENCE_S
    with settings(spark, SOON):
        job = KINDS[kind](place, spark)
        query = job.start()
    try:
        number, after = 1, 0
        while after < 2:
            feed(place, kind, number)
            number += 1
            _until(lambda done=number: read(place.checkpoint).done_through >= done - 2, deadline, query)
            if after or has_snapshots(place.checkpoint):
                after += 1
        create(place.checkpoint, name="running")
        _until(lambda: settled(query), deadline, query)
    finally:
        job.stop()
    return read(place.checkpoint).done_through


def settled(query: Any) -> bool:
    """Nothing runs, and nothing is there to run."""
    return not (query.status["isTriggerActive"] or query.status["isDataAvailable"])


def has_snapshots(checkpoint: Path) -> bool:
    """Is there one in every store?"""
    folders = {file.parent for end in ("delta", "changelog") for file in checkpoint.glob(f"state/**/[0-9]*.{end}")}
    summed = any(checkpoint.glob("state/**/[0-9]*.changelog.crc"))  # then of each snapshot, too, a moment after it
    zipped = "[0-9]*.zip.crc" if summed else "[0-9]*.zip"
    return bool(folders) and all(any(folder.glob(zipped)) or any(folder.glob("*.snapshot")) for folder in folders)


def _until(holds: Callable[[], bool], deadline: float, query: Any) -> None:
    while True:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        try:
            if holds():
                return
        except fp.Refused:
            pass  # the ledger is just being begun
        time.sleep(0.05)
