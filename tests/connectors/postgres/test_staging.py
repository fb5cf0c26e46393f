"""Tasks that load their rows into tables of their own, and the driver that moves them into place."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.process import until

from fencepost.connectors.table.database import Silent
from fencepost.connectors.table.session import TableSession
from fencepost.contract import UNIT, Attempt
from fencepost.errors import EpochFailed, OperatorNeeded
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
STAGED = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename ~ '^fencepost_[0-9a-f]{8}_'"


def batches(*rows: tuple[Any, Any], size: int = 3) -> list[pa.RecordBatch]:
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, SCHEMA)
    return table.to_batches(max_chunksize=size)


def many(prefix: str, count: int = 20, version: int = 0) -> list[pa.RecordBatch]:
    return batches(*((f"{prefix}{n}", version * 1000 + n) for n in range(count)))


def task(driver: Any, epoch: int, rows: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One attempt of one task, as Spark runs it, which takes ten rows for many."""
    write = pickle.loads(pickle.dumps(driver.sink.in_tasks("job")))  # noqa: S301 - as Spark ships it
    attempt = Attempt(driver.owner.lineage, driver.owner.writer, Epoch(epoch))
    return list(replace(write, few=min(write.few, 10))(attempt, iter(rows)))


def handles(driver: Any, epoch: int, *tasks: list[pa.RecordBatch]) -> tuple[Handle, ...]:
    table = pa.Table.from_batches([batch for written in tasks for batch in written])
    found: tuple[Handle, ...] = driver.session.handles(Epoch(epoch), driver.rows(epoch, table))
    return found


def finish(driver: Any, epoch: int, found: tuple[Handle, ...]) -> set[Outcome]:
    assert () == driver.session.verify(Epoch(epoch), found)
    return set(driver.session.commit(Epoch(epoch), found).values())


@pytest.fixture(params=[None, "k"], ids=["append", "upsert"])
def driver(request: pytest.FixtureRequest, place: Any) -> Any:
    return place.started(place.sink(key=request.param), SCHEMA)


class TestEpochs:
    def test_a_task_with_few_rows_gives_them_to_the_driver(self, place: Any, driver: Any) -> None:
        written = task(driver, 0, many("a", 5))
        assert [] == place.query(STAGED)
        assert {None} == {unit for batch in written for unit in batch.column(UNIT).to_pylist()}
        [handle] = handles(driver, 0, written)
        assert {Outcome.DONE} == finish(driver, 0, (handle,))
        assert [(5,)] == place.query("SELECT count(*) FROM words")

    @pytest.mark.parametrize("crash", [False, True], ids=["as voted", "after a crash"])
    def test_the_last_task_wins_whether_it_sent_its_rows_or_filled_a_table(self, place: Any, crash: bool) -> None:
        driver = place.started(place.sink(key="k"), SCHEMA)
        few, table = [("a1", 1), ("a2", 2), ("a3", 3)], many("a", 20, version=1)
        tasks = [few, table, [("a1", 4), ("a2", 5)], many("b", 20), [("a1", 6), ("b1", 7)]]
        written = [task(driver, 0, rows if isinstance(rows[0], pa.RecordBatch) else batches(*rows)) for rows in tasks]
        found = handles(driver, 0, *written)
        if not crash:
            assert () == driver.session.verify(Epoch(0), found)
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), found).values())
        rows = dict(place.query("SELECT k, v FROM words WHERE k IN ('a1', 'a2', 'a3', 'b1', 'b2')"))
        assert rows == {"a1": 6, "a2": 5, "a3": 1003, "b1": 7, "b2": 2}

    def test_a_task_with_many_fills_a_table_that_is_moved_and_dropped(self, place: Any, driver: Any) -> None:
        found = handles(driver, 0, task(driver, 0, many("a")))
        assert [(found[0].body["table"],)] == place.query(STAGED)
        assert [20] == [handle.rows for handle in found]
        assert [(0,)] == place.query("SELECT count(*) FROM words")
        assert () == driver.session.verify(Epoch(0), found)
        assert [(0,)] == place.query("SELECT count(*) FROM words")
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), found).values())
        assert [(20, 20)] == place.query("SELECT count(*), count(DISTINCT k) FROM words")
        assert [] == place.query(STAGED)
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), found).values())
        assert [(20,)] == place.query("SELECT count(*) FROM words")

    def test_small_and_large_tasks_of_one_epoch_become_visible_together(self, place: Any, driver: Any) -> None:
        empty = task(driver, 0, [])
        assert [] == empty
        written = [task(driver, 0, many(*spec)) for spec in (("a", 5), ("b", 20), ("c", 1), ("d", 40))]
        found = handles(driver, 0, empty, *written)
        assert [6, 20, 40] == sorted(handle.rows for handle in found)
        assert {Outcome.DONE} == finish(driver, 0, found)
        assert [("a", 5), ("b", 20), ("c", 1), ("d", 40)] == place.query(
            "SELECT left(k, 1) AS task, count(*) FROM words GROUP BY 1 ORDER BY 1"
        )

    def test_of_rows_with_one_key_the_last_one_wins_in_a_task_and_across_epochs(self, place: Any) -> None:
        driver = place.started(place.sink(key="k"), SCHEMA)
        twice = many("a", 20) + many("a", 20, version=1)
        assert {Outcome.DONE} == finish(driver, 0, handles(driver, 0, task(driver, 0, twice)))
        assert [(1000 * 20 + 190, 20)] == place.query("SELECT sum(v)::int, count(*) FROM words")
        tasks = [task(driver, 1, many("a", 20, version=version)) for version in (2, 3)]
        assert {Outcome.DONE} == finish(driver, 1, handles(driver, 1, *tasks))
        assert [(3000 * 20 + 190, 20)] == place.query("SELECT sum(v)::int, count(*) FROM words")

    def test_with_staging_target_even_one_row_is_staged_and_with_checkpoint_none(self, place: Any) -> None:
        driver = place.started(place.sink(staging="target"), SCHEMA)
        found = handles(driver, 0, task(driver, 0, many("a", 1)))
        assert ["table" in handle.body for handle in found] == [True]
        assert place.sink(staging="checkpoint").in_tasks("job") is None

    def test_odd_names_and_wide_types_go_through_a_staged_table_too(self, place: Any) -> None:
        place.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        place.run('CREATE TABLE "we""ird.%s" ("Key" varchar(9) PRIMARY KEY, m mood, f float8[], g int DEFAULT 7)')
        schema = pa.schema({"Key": pa.string(), "m": pa.string(), "f": pa.list_(pa.float32())})
        rows = pa.table({"Key": [f"k{n}" for n in range(20)], "m": ["ok"] * 20, "f": [[0.5, None]] * 20}, schema)
        driver = place.started(place.sink('"we""ird.%s"', key="Key"), schema)
        assert {Outcome.DONE} == finish(driver, 0, handles(driver, 0, task(driver, 0, rows.to_batches())))
        assert [(20, "ok", "{0.5,NULL}", 7)] == place.query(
            'SELECT count(*), min(m::text), min(f::text), min(g) FROM "we""ird.%s"'
        )


class TestFailures:
    def test_an_attempt_that_fails_leaves_nothing(self, place: Any, driver: Any) -> None:
        def failing() -> Iterator[pa.RecordBatch]:
            yield from many("a")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            task(driver, 0, failing())
        assert [] == place.query(STAGED)

    def test_an_attempt_that_nobody_heard_of_is_dropped_with_the_epoch(self, place: Any, driver: Any) -> None:
        task(driver, 0, many("a"))
        again = task(driver, 0, many("a"))
        newer = task(driver, 1, many("b"))
        assert {Outcome.DONE} == finish(driver, 0, handles(driver, 0, again))
        assert [(20,)] == place.query("SELECT count(*) FROM words")
        assert [(handles(driver, 1, newer)[0].id,)] == place.query(STAGED), "an epoch that is under way keeps its own"

    def test_orphans_of_older_writers_are_listed_and_dropped_and_no_others(self, place: Any, driver: Any) -> None:
        orphan = handles(driver, 0, task(driver, 0, many("a")))[0]
        driver.session.close()
        second = place.started(driver.sink, SCHEMA, writer=2)
        mine = handles(second, 0, task(second, 0, many("b")))
        place.run("CREATE TABLE fencepost_notes (a int)")
        other = place.started(place.sink("others", key="k"), SCHEMA, writer=2)
        assert () == other.session.orphans(WriterNumber(2))
        assert [orphan.id] == [found.id for found in second.session.orphans(WriterNumber(2))]
        second.session.abort(orphan)
        second.session.abort(orphan)
        assert () == second.session.orphans(WriterNumber(2))
        assert {Outcome.DONE} == finish(second, 0, mine)
        assert [("b",)] == place.query("SELECT DISTINCT left(k, 1) FROM words")

    def test_another_driver_finishes_from_the_staged_tables(self, place: Any, driver: Any) -> None:
        found = handles(driver, 0, task(driver, 0, many("a")), task(driver, 0, many("b", 3)))
        driver.session.verify(Epoch(0), found)
        second = place.started(replace(driver.sink, dsn=place.dsn + " "), SCHEMA, writer=2)
        assert {Outcome.DONE} == set(second.session.commit(Epoch(0), found).values())
        assert () == second.session.orphans(WriterNumber(2))
        assert {Outcome.IN_DOUBT} == set(driver.session.commit(Epoch(0), found).values()), "its session was ended"
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), found).values())
        assert [(23,)] == place.query("SELECT count(*) FROM words")
        assert [] == place.query(STAGED)

    def test_a_crash_between_commit_and_drop_leaves_tables_for_the_next_start(
        self, place: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = handles(driver, 0, task(driver, 0, many("a")))
        with monkeypatch.context() as patch:
            patch.setattr(TableSession, "_after_commit", lambda *_: None)
            assert {Outcome.DONE} == finish(driver, 0, found)
        driver.session.close()
        assert [(found[0].id,)] == place.query(STAGED)
        second = place.started(driver.sink, SCHEMA, writer=2, held=Epoch(0))
        assert () == second.session.orphans(WriterNumber(2)), "what was committed is no orphan"
        assert [] == place.query(STAGED)
        assert {Outcome.DONE} == set(second.session.commit(Epoch(0), found).values())
        assert [(20,)] == place.query("SELECT count(*) FROM words")

    def test_a_staged_table_that_somebody_dropped_fails_the_vote_or_asks_an_operator(
        self, place: Any, driver: Any
    ) -> None:
        found = handles(driver, 0, task(driver, 0, many("a")))
        place.run(f"DROP TABLE {found[0].id}")
        with pytest.raises(EpochFailed, match=r"the staged table .* no longer exists"):
            driver.session.verify(Epoch(0), found)
        found = handles(driver, 0, task(driver, 0, many("a")))
        driver.session.verify(Epoch(0), found)
        driver.session.rollback(undecided=False)
        place.run(f"DROP TABLE {found[0].id}")
        with pytest.raises(OperatorNeeded, match=r"apply_refused.*the staged table .* no longer exists"):
            driver.session.commit(Epoch(0), found)

    def test_a_table_that_somebody_reads_is_dropped_later_and_holds_nobody_up(self, place: Any, driver: Any) -> None:
        found = handles(driver, 0, task(driver, 0, many("a")))
        with psycopg.connect(place.dsn) as dump:
            dump.execute(f"SELECT 1 FROM {found[0].id}")  # noqa: S608 - our own name
            assert {Outcome.DONE} == finish(driver, 0, found)
            assert {Outcome.DONE} == finish(driver, 1, handles(driver, 1, task(driver, 1, many("b"))))
            assert [(found[0].id,)] == place.query(STAGED)
        assert {Outcome.DONE} == finish(driver, 2, handles(driver, 2, task(driver, 2, many("c"))))
        assert [] == place.query(STAGED)

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            (("canary-4711\0", 1), "column 'k' has a NUL byte"),
            ((None, 1), "key column 'k' is NULL"),
            (("canary-4711 is too long", 1), "column 'k' has text that is too long"),
            (("wrong", 1), 'column "k"'),
        ],
    )
    def test_rows_that_a_task_cannot_load_fail_the_epoch_in_our_words(self, place: Any, row: Any, said: str) -> None:
        place.run("CREATE DOMAIN word AS varchar(12) CHECK (VALUE <> 'wrong')")
        place.run("CREATE TABLE words (k word PRIMARY KEY, v bigint)")
        driver = place.started(place.sink(key="k"), SCHEMA)
        written = task(driver, 0, many("a") + batches(row))
        with pytest.raises(EpochFailed) as refused:
            handles(driver, 0, written)
        assert said in str(refused.value)
        assert "canary" not in str(refused.value)
        assert "'words'" in refused.value.what
        assert [] == place.query(STAGED)

    def test_rows_that_only_the_table_refuses_fail_the_vote(self, place: Any) -> None:
        place.run("CREATE TABLE words (k text, v bigint CHECK (v < 19))")
        driver = place.started(place.sink(), SCHEMA)
        with pytest.raises(EpochFailed, match="words_v_check"):
            driver.session.verify(Epoch(0), handles(driver, 0, task(driver, 0, many("canary"))))

    def test_a_table_that_lost_a_column_is_said_by_the_driver(self, place: Any, driver: Any) -> None:
        place.run("ALTER TABLE words DROP v")
        with pytest.raises(EpochFailed, match="no longer has column 'v'"):
            handles(driver, 0, task(driver, 0, many("a")))

    def test_taking_over_ends_the_sessions_of_older_tasks(self, place: Any, driver: Any) -> None:
        go_on = threading.Event()
        raised: list[BaseException] = []

        def slow() -> Iterator[pa.RecordBatch]:
            yield from many("a")
            go_on.wait(30)
            yield from many("b")

        def run() -> None:
            try:
                task(driver, 0, slow())
            except Silent as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        tasks = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%/1/task'"
        until(lambda: bool(place.query(tasks)), "the task was there")
        place.started(replace(driver.sink, dsn=place.dsn + " "), SCHEMA, writer=2)
        assert [] == place.query(tasks)
        go_on.set()
        thread.join()
        assert 1 == len(raised)
        assert [] == place.query(STAGED)
