"""The jobs of golden checkpoints go on, with real Spark: recovery, then more input, and every word counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from formats import listing, next_format
from golden import BEFORE, GOLDENS, LAST, command, counted, feed, fencepost, published, unpacked
from golden_targets import DATABASES, broker_of, restored, say, seen_in
from streams import Place, table

import fencepost as fp

pytestmark = pytest.mark.spark

MORE = ("to be a ñandú", "a b to be")
"""Some of these words are in the state of each of them, and some are new."""
LOCAL = [name for name, one in GOLDENS.items() if not one.server]


def go_on(name: str, place: Place, spark: Any, where: Any = None) -> None:
    GOLDENS[name].build(place, spark, where).run(until="available")


def seen(name: str, place: Place) -> Mapping[str, int]:
    """How often each word is there, by what a reader sees."""
    if name == "files":
        return published(place)
    if name == "keyed":  # a row for each time that a word was seen, with its number
        numbers = table(place.database, "seen")
        found = Counter(word for word, _ in numbers)
        assert sorted(numbers) == sorted((word, n + 1) for word, count in found.items() for n in range(count))
        return dict(found)
    return place.counts()


def is_whole(checkpoint: Path) -> bool:
    """By the word of both."""
    verified, looked_over = fencepost("verify", checkpoint), fencepost("doctor", checkpoint)
    return (0, "agrees", 0) == (verified[0], verified[1]["verdict"], looked_over[0])


@pytest.mark.parametrize("name", LOCAL)
def test_a_job_goes_on_where_it_was(name: str, spark: Any) -> None:
    with unpacked(name) as place:
        go_on(name, place, spark)
        assert place.expected() == seen(name, place)
        assert is_whole(place.checkpoint)
        feed(place, *MORE)
        go_on(name, place, spark)
        assert place.expected() == seen(name, place)
        assert is_whole(place.checkpoint)


@pytest.mark.parametrize("name", ["decided", "files"])
def test_a_job_goes_on_in_the_next_format_and_we_do_not_follow(name: str, spark: Any) -> None:
    with unpacked(name) as place:
        with next_format():
            go_on(name, place, spark)
            feed(place, *MORE)
            go_on(name, place, spark)
            assert place.expected() == seen(name, place)
            assert is_whole(place.checkpoint)
        before = listing(place.root)
        with pytest.raises(fp.FencepostError) as refused:
            go_on(name, place, spark)
        assert "newer_format" == refused.value.code
        assert before == listing(place.root)
        with next_format():
            go_on(name, place, spark)
            assert place.expected() == seen(name, place)


@pytest.mark.parametrize("name", DATABASES)
def test_a_job_into_a_database_goes_on_where_it_was(name: str, spark: Any, request: pytest.FixtureRequest) -> None:
    with restored(name, request) as (place, target):
        feed(place, *MORE)
        go_on(name, place, spark, target.where)
        assert dict.fromkeys(target.seen(), counted(*BEFORE, LAST, *MORE)) == target.seen()
        assert is_whole(place.checkpoint)


def test_a_job_from_kafka_to_kafka_goes_on_where_it_was(spark: Any, require: Callable[[str], None]) -> None:
    require("kafka")
    with unpacked("kafka") as place, broker_of(place) as kafka:
        say(kafka.servers, *MORE)
        go_on("kafka", place, spark, kafka.servers)
        assert dict.fromkeys(("counts", "words"), counted(*BEFORE, LAST, *MORE)) == seen_in(kafka)
        assert is_whole(place.checkpoint)


def test_a_savepoint_is_restored_and_goes_on(spark: Any) -> None:
    """Epochs that the target holds already run again for their state, and write nothing."""
    with unpacked("stopped") as place:
        second = place.root / "second"
        kept = place.root / "checkpoint.savepoints/running"
        words = ("--to", second, "--parent", place.checkpoint, "--sink", "quiet")
        assert 0 == command("savepoint", "restore", kept, *words)[0]
        feed(place, *MORE)
        place.counting(spark, checkpoint=second).run(until="available")
        assert place.expected() == place.counts()
        assert is_whole(second)
        with pytest.raises(fp.FencepostError) as refused:
            go_on("stopped", place, spark)
        assert "sealed" == refused.value.code


def test_a_job_whose_state_was_lost_is_not_counted_on(spark: Any) -> None:
    """A sabotaged twin: with one byte of the state changed, nothing goes on."""
    with unpacked("decided") as place:
        for changes in place.checkpoint.glob("state/0/*/3_*.changelog"):
            data = changes.read_bytes()
            changes.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        feed(place, *MORE)
        with pytest.raises(fp.FencepostError):
            go_on("decided", place, spark)
        assert counted(*BEFORE, LAST) == place.counts()
