"""A checkpoint that plain Spark began is taken over where it ended."""

from __future__ import annotations

from typing import Any

import pytest
from streams import Place

import fencepost as fp
from fencepost.connectors.files.source import FOREVER
from fencepost.errors import CheckpointRefused

pytestmark = pytest.mark.spark


def counts(spark: Any, place: Place) -> Any:
    """A writer of word counts, as a plain job has it."""
    words = spark.readStream.option("maxFilesPerTrigger", 1).option("maxFileAge", FOREVER).text(str(place.input))
    words = words.selectExpr("explode(split(value, ' ')) AS word")
    return words.groupBy("word").count().writeStream.outputMode("update").trigger(availableNow=True)


def plain(spark: Any, place: Place) -> None:
    """Run it without fencepost, on Spark's own defaults for state."""
    writer = counts(spark, place).option("checkpointLocation", str(place.checkpoint))
    writer.format("noop").start().awaitTermination()


def adopted(spark: Any, place: Place, bridge: str) -> None:
    """Run it with one changed line."""
    sink = place.counts_sink()
    query = fp.start(counts(spark, place), to=sink, checkpoint=place.checkpoint, adopt=True, bridge=bridge)
    query.awaitTermination()


@pytest.mark.parametrize("bridge", ["jvm", "foreach_batch"])
def test_state_goes_on_where_plain_spark_ended(spark: Any, place: Place, bridge: str) -> None:
    place.say("a b", "a")
    plain(spark, place)
    with pytest.raises(CheckpointRefused, match="ledger_missing"):
        fp.start(counts(spark, place), to=place.counts_sink(), checkpoint=place.checkpoint)
    for words in ("a b c", "a"):
        place.say(words)
        adopted(spark, place, bridge)
    assert place.expected() == place.counts()
    assert ["0", "1", "2", "3"] == sorted(f.name for f in (place.checkpoint / "commits").iterdir() if f.name.isdigit())


@pytest.mark.parametrize(
    ("lost", "code"),
    [("offsets/1", "adopted_log_damaged"), ("commits/1", "adopt_incomplete"), ("offsets", "adopted_log_damaged")],
)
def test_a_log_that_does_not_say_where_it_ended_is_refused_and_left_alone(
    spark: Any, place: Place, lost: str, code: str
) -> None:
    place.say("a b", "a")
    plain(spark, place)
    for file in [*(place.checkpoint / lost).glob("*")] or [place.checkpoint / lost]:
        file.unlink()
    before = {path for path in place.checkpoint.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointRefused) as refused:
        adopted(spark, place, "jvm")
    assert code == refused.value.code
    lock = place.checkpoint / "fencepost" / "lock" / "state"  # held while it looked
    journal = place.checkpoint / "fencepost" / "journal.jsonl"  # says that it was refused
    assert before == {path for path in place.checkpoint.rglob("*") if path.is_file()} - {lock, journal}
