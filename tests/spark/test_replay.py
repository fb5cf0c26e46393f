"""A source's records are read twice before its word is believed, and nothing else is touched."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from ended import tree
from streams import Place

import fencepost as fp
from fencepost.cli.main import cli
from fencepost.errors import EpochFailed, GuaranteeTooHigh
from fencepost.runtime.checks import look
from fencepost.spark import replay
from fencepost.testing import check_replayable

pytestmark = [pytest.mark.spark]

Again = Callable[[list[Any]], Any]
"""What a source returns for its range the second time."""


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A probe removes the checkpoint that it made."""
    here = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    yield
    assert [] == list(here.glob("fencepost-probe-*"))


def own(spark: Any, again: Again, rows: int = 3) -> Any:
    """A stream of a Python data source, as a user may write one."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader  # noqa: PLC0415 - needs pyspark

    name = f"own{uuid.uuid4().hex}"

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def read(self, start: dict[str, int]) -> Any:
            return iter([(n, f"v{n}") for n in range(start["at"], rows)]), {"at": rows}

        def readBetweenOffsets(self, start: Any, end: Any) -> Any:  # noqa: N802 - Spark's name
            return iter(again([(n, f"v{n}") for n in range(start["at"], end["at"])]))

    class Own(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "n INT, value STRING"

        def simpleStreamReader(self, schema: Any) -> Reader:  # noqa: N802 - Spark's name
            return Reader()

    spark.dataSource.register(Own)
    return spark.readStream.format(name).load()


@pytest.mark.parametrize(
    ("again", "how"),
    [
        (lambda rows: [(None, value) for _, value in rows], "3 rows both times, but not the same"),
        (lambda rows: [1 // 0 for _ in rows], r"3 rows the first time, \S.* the second"),
    ],
    ids=("a null", "an error"),
)
def test_a_source_that_returns_something_else_the_second_time_is_caught(spark: Any, again: Again, how: str) -> None:
    with pytest.raises(GuaranteeTooHigh) as caught:
        check_replayable(own(spark, again))
    assert "not_replayable" == caught.value.code
    assert re.search(how, caught.value.what)
    assert "v1" not in str(caught.value)


def test_the_order_of_the_records_does_not_matter(spark: Any) -> None:
    check_replayable(own(spark, lambda rows: rows[::-1]))


def test_a_source_without_records_proves_nothing(spark: Any) -> None:
    with pytest.raises(AssertionError, match="would find no records"):
        check_replayable(own(spark, lambda rows: [], rows=0))


def test_a_source_that_cannot_even_be_read_once_is_not_called_a_liar(spark: Any) -> None:
    stream = spark.readStream.format("kafka").options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "x"})
    quick = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500", "fetchoffset.numretries": "1"}
    with pytest.raises(EpochFailed) as caught:
        check_replayable(stream.options(**quick).load())
    assert "probe_failed" == caught.value.code


def probed(job: fp.Job) -> tuple[list[str], list[str]]:
    found = look(job._launch(looks=True), probes=True)
    return [note for note in found.notes if "probed" in note], [error.code for error in found.problems]


def test_files_are_probed_once_for_all_branches_and_neither_checkpoint_nor_target_is_touched(
    spark: Any, place: Place
) -> None:
    place.say("a b", "c")
    job = place.job(spark)
    lines = place.text(job)
    for number in range(2):
        job.write(lines, fp.SQLite(place.database, table=f"lines{number}"))
    job.run(until="available")
    before = tree(place.root)
    (note,), _ = probed(job)
    assert "(1 row) was the same" in note  # a file is an epoch, and so it is here
    assert before == tree(place.root)


def test_a_topic_passes(spark: Any, place: Place, broker: Any, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(5):
        producer.produce(topic, value=f"v{number}", headers={"n": str(number)})
    assert 0 == producer.flush(30)
    job = place.job(spark)
    job.write(job.read(fp.Kafka(topic, servers=broker.servers)), fp.SQLite(place.database, table="rows"))
    (note,), problems = probed(job)
    assert ("(5 rows) was the same" in note, []) == (True, problems)
    assert not place.checkpoint.exists()


def test_a_micro_batch_that_takes_too_long_is_left_unread(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "LIMIT_S", 0.0)
    place.say("a")
    with pytest.raises(AssertionError, match="was not read twice within 0 s"):
        check_replayable(spark.readStream.text(str(place.input)))
    assert [] == spark.streams.active


@pytest.mark.since(4, 2)
def test_a_source_with_a_name_is_probed_too(spark: Any, place: Place) -> None:
    place.say("a")
    job = place.job(spark)
    lines = job.read(fp.Files(str(place.input), format="text"), name="lines")
    job.write(lines, fp.SQLite(place.database, table="lines"))
    (note,), problems = probed(job)
    assert ("(1 row) was the same" in note, []) == (True, problems)


def test_a_socket_is_not_even_opened(spark: Any, place: Place) -> None:
    job = place.job(spark)
    job.write(job.read(fp.Socket("localhost", 1)), fp.SQLite(place.database, table="lines"))
    (note,), problems = probed(job)
    assert ("cannot be read again" in note, ["guarantee_too_high"]) == (True, problems)


def test_a_job_that_is_wrong_otherwise_is_not_probed(spark: Any, place: Place) -> None:
    place.say("a")
    job = place.job(spark)
    job.write(place.text(job), fp.SQLite(place.database, table="lines", key="value"))
    (note,), problems = probed(job)
    assert ("were not probed" in note, ["last_row_undefined"]) == (True, problems)


JOB = """
import fencepost as fp
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}
    def read(self, start):
        return iter([("new",)] if start["at"] < 1 else []), {"at": 1}
    def readBetweenOffsets(self, start, end):
        return iter(AGAIN)

class Own(DataSource):
    @classmethod
    def name(cls):
        return "NAME"
    def schema(self):
        return "value STRING"
    def simpleStreamReader(self, schema):
        return Reader()

job = fp.Job("own", checkpoint="checkpoint")
job.spark.dataSource.register(Own)
own = job.read(job.spark.readStream.format("NAME").load(), replayable=True)
job.write(own, fp.SQLite("out.db", table="rows"))
"""


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("again", "code", "end"),
    [("[]", 2, "1 problem: it would start, but must not."), ("[('new',)]", 0, "It would start.")],
)
def test_as_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, code: int, end: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.py"
    file.write_text(JOB.replace("AGAIN", again).replace("NAME", f"own{code}"))
    done = CliRunner().invoke(cli, ["check", "--probe", str(file)])
    assert (code, end) == (done.exit_code, done.stdout.splitlines()[-1])
    assert ("[not_replayable] Source own2 did not return" in done.stdout) == (code == 2)
    assert ["job.py"] == [path.name for path in tmp_path.iterdir()]
    believed = CliRunner().invoke(cli, ["check", str(file)])
    assert (0, False) == (believed.exit_code, "probed" in believed.stdout)
