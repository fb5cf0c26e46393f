"""What a server does to a sink: locks, deadlocks, lost answers, missing rights, and rows that tasks staged in it."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.process import until
from fencepost_proof.rig.proxy import Proxy

from fencepost.connectors.mysql import dialect
from fencepost.connectors.mysql.dialect import MySQLDialect
from fencepost.connectors.table.database import Silent
from fencepost.connectors.table.mark import Mark
from fencepost.errors import EpochFailed, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.testing import rows_of
from fencepost.testing.sink_driver import LINEAGE

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})
SECRET = "pass-canary-0815"  # noqa: S105


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


class TestTransactions:
    def test_the_answer_of_commit_is_lost_and_the_epoch_is_there_once(self, place: Any) -> None:
        with Proxy(place.server.port) as proxy:
            driver = place.started(place.sink(port=proxy.port), WORDS)
            handle = driver.pre_commit(0, words(("a", 1)))
            driver.vote(0, handle)
            proxy.drop_answer_after(b"COMMIT")
            assert Outcome.IN_DOUBT == driver.commit(0, handle)
            assert 1 == proxy.answers_dropped
            assert Outcome.DONE == driver.commit(0, handle)
            assert [("a", 1)] == place.query("SELECT k, v FROM words")
            handle = driver.pre_commit(1, words(("b", 2)))
            driver.vote(1, handle)
            proxy.cut_before(b"COMMIT")
            assert Outcome.IN_DOUBT == driver.commit(1, handle)
            assert [("a", 1)] == place.query("SELECT k, v FROM words")
            assert Outcome.DONE == driver.commit(1, handle)
            proxy.cut()  # between epochs: no reason to fail one
            driver.run(2, words(("c", 3)))
            driver.session.close()
        assert [("a", 1), ("b", 2), ("c", 3)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_a_deadlock_is_voted_again(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dialect, "PATIENT", 20)
        driver = place.started(place.sink(key="k"), WORDS)
        driver.run(0, words(("a", 0), ("b", 0)))
        handle = driver.pre_commit(1, words(("a", 1), ("b", 1)))
        with place.root(database=place.database, autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("CREATE TABLE heavy (n int)")
            cursor.execute("INSERT INTO heavy SELECT seq FROM seq_1_to_2000")  # so that the server ends the other one
            cursor.execute("UPDATE words SET v = 7 WHERE k = 'b'")
            voting = threading.Thread(target=driver.vote, args=(1, handle))
            voting.start()
            until(place.is_waited_for, "the vote waited for the other one")
            cursor.execute("UPDATE words SET v = 7 WHERE k = 'a'")
            other.commit()
        voting.join()
        assert Outcome.DONE == driver.commit(1, handle)
        assert [("a", 1), ("b", 1)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_of_two_drivers_that_find_no_mark_only_one_writes_it(
        self, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dialect, "PATIENT", 20)
        place.started(place.sink(), WORDS)
        one, two = MySQLDialect(place.sink().address), MySQLDialect(place.sink().address)
        mark = Mark(LINEAGE, 0, 0, "handle", 1)
        for server in (one, two):
            server.begin(patient=True)
            assert server.mark("job", "words") is None
        one.set_mark("job", "words", mark)
        refused: list[str] = []

        def set_mark() -> None:
            try:
                two.set_mark("job", "words", mark)
            except Silent as error:
                refused.append(str(error))

        setting = threading.Thread(target=set_mark)
        setting.start()
        until(place.is_waited_for, "the second one waited for the first")
        one.end()
        setting.join()
        assert ["another driver has written an epoch in the meantime"] == refused
        for server in (one, two):
            server.drop()

    def test_a_driver_that_vanished_holds_nothing_after_the_take_over(self, place: Any) -> None:
        first = place.started(place.sink(key="k"), WORDS)
        handle = first.pre_commit(0, words(("a", 1)))
        first.vote(0, handle)
        lost = first.session.database
        first.session.database._open.clear()  # as if it were in another process
        second = place.started(place.sink(key="k"), WORDS, writer=2)
        assert second.session.database is not lost
        assert Outcome.DONE == second.commit(0, handle)
        assert first.commit(0, handle) is not Outcome.GONE
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_driver_is_found_by_its_number_in_the_ledger_however_far_back(self, place: Any) -> None:
        first = place.started(place.sink(key="k"), WORDS)
        handle = first.pre_commit(0, words(("a", 1)))
        first.vote(0, handle)
        first.session.database._open.clear()  # as if it were in another process
        second = place.started(place.sink(key="k"), WORDS, writer=1000, older=[1])
        assert Outcome.DONE == second.commit(0, handle)

    def test_a_newer_driver_is_not_ended_by_an_older_one_that_starts_late(self, place: Any) -> None:
        second = place.started(place.sink(), WORDS, writer=2)
        handle = second.pre_commit(0, words(("a", 1)))
        second.vote(0, handle)
        second.session.database._open.clear()
        place.started(place.sink(), WORDS, writer=1)
        assert Outcome.DONE == second.commit(0, handle)

    def test_two_sinks_of_a_job_vote_in_one_transaction(self, place: Any) -> None:
        drivers = [place.started(place.sink(table, key="k"), WORDS) for table in ("one", "two")]
        handles = [driver.pre_commit(0, words(("a", 1))) for driver in drivers]
        for driver, handle in zip(drivers, handles, strict=True):
            driver.vote(0, handle)
            assert [(0, 0)] == place.query("SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")
        assert [Outcome.DONE] * 2 == [d.commit(0, h) for d, h in zip(drivers, handles, strict=True)]
        assert [(1, 1)] == place.query("SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")

    def test_no_table_is_changed_while_a_vote_is_open(self, place: Any) -> None:
        driver = place.started(place.sink(), WORDS)
        driver.vote(0, driver.pre_commit(0, words(("a", 1))))
        with pytest.raises(Exception, match="a vote is open"):
            driver.session.database.drop_tables(["fencepost_x"])
        assert [] == place.query("SELECT k, v FROM words")

    def test_a_transaction_that_ended_before_its_commit_is_in_doubt(self, place: Any) -> None:
        driver = place.started(place.sink(), WORDS)
        handle = driver.pre_commit(0, words(("a", 1)))
        driver.vote(0, handle)
        driver.session.database.run("ROLLBACK")
        assert Outcome.IN_DOUBT == driver.commit(0, handle)
        assert Outcome.DONE == driver.commit(0, handle)
        assert [("a", 1)] == place.query("SELECT k, v FROM words")


class TestChanges:
    def test_a_table_that_changes_while_the_job_runs(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(20) PRIMARY KEY, v bigint)")
        driver = place.started(place.sink(key="k"), WORDS)
        driver.run(0, words(("a", 1)))
        place.run("ALTER TABLE words ADD more int DEFAULT 3")
        driver.run(1, words(("b", 2)))
        for change, undo in (
            ("ALTER TABLE words CHANGE v w bigint", "ALTER TABLE words CHANGE w v bigint"),
            ("RENAME TABLE words TO gone", "RENAME TABLE gone TO words"),
            ("ALTER TABLE words ADD must int NOT NULL", "ALTER TABLE words DROP must"),
            ("ALTER TABLE words ENGINE = MyISAM", "ALTER TABLE words ENGINE = InnoDB"),
        ):
            place.run(change)
            with pytest.raises(EpochFailed, match="rows_refused"):
                driver.vote(2, driver.pre_commit(2, words(("c", 3))))
            place.run(undo)
        driver.run(2, words(("c", 3)))
        assert [("a", 1), ("b", 2), ("c", 3)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_a_column_that_rounds_since_the_start_is_refused(self, place: Any) -> None:
        times = pa.table({"t": pa.array([123456], pa.timestamp("us"))})
        driver = place.started(place.sink("times"), times.schema)
        place.run("ALTER TABLE times MODIFY t datetime")
        with pytest.raises(EpochFailed, match="'t' is datetime"):
            driver.vote(0, driver.pre_commit(0, times))

    def test_a_table_that_refuses_a_decided_epoch_needs_an_operator(self, place: Any) -> None:
        driver = place.started(place.sink(), WORDS)
        handle = driver.pre_commit(0, words(("a", -1)))
        driver.vote(0, handle)
        driver.session.rollback(undecided=False)
        place.run("ALTER TABLE words ADD CHECK (v > 0)")
        with pytest.raises(OperatorNeeded, match="apply_refused"):
            driver.commit(0, handle)

    def test_a_server_that_may_forget_is_refused_unless_that_is_accepted(
        self, place: Any, request: pytest.FixtureRequest
    ) -> None:
        place.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        request.addfinalizer(lambda: place.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))
        with pytest.raises(TargetRefused, match="target_forgets"):
            place.started(place.sink(), WORDS)
        sink = place.sink(durable=False)
        assert not sink.capabilities.repeatable
        place.started(sink, WORDS).run(0, words(("a", 1)))


class TestStaging:
    @pytest.mark.parametrize("key", [None, "k"])
    def test_tables_of_tasks_are_moved_in_one_transaction_and_dropped(self, place: Any, key: str | None) -> None:
        sink = place.sink(key=key, staging="target")
        driver = place.started(sink, WORDS)
        tables = [words(*((f"k{task}-{n}", n) for n in range(5))) for task in range(3)]
        rows = place.staged(sink, *tables)
        assert 3 == len(place.staged_names())
        handles = place.vote(driver, 0, rows)
        assert [] == place.query("SELECT * FROM words")
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), handles).values())
        assert sorted(row for table in tables for row in rows_of(table)) == sorted(place.query("SELECT * FROM words"))
        assert [] == place.staged_names()

    def test_a_second_driver_moves_what_was_decided_and_drops_what_was_not(self, place: Any) -> None:
        sink = place.sink(key="k", staging="target")
        first = place.started(sink, WORDS)
        handles = place.vote(first, 0, place.staged(sink, words(("a", 1), ("a", 2))))
        orphan = place.staged(sink, words(("x", 9)), epoch=1)
        assert 2 == orphan.num_rows + 1
        first.session.rollback(undecided=False)
        second = place.started(sink, WORDS, writer=2)
        assert {Outcome.DONE} == set(second.session.commit(Epoch(0), handles).values())
        found = second.session.orphans(WriterNumber(2))
        assert 1 == len(found) == len(place.staged_names())
        for handle in (*found, *found):
            second.session.abort(handle)
        assert [] == place.staged_names()
        assert {Outcome.DONE} == set(first.session.commit(Epoch(0), handles).values())
        assert [("a", 2)] == place.query("SELECT k, v FROM words")

    def test_rows_that_a_task_cannot_stage_fail_the_epoch_and_leave_no_table(self, place: Any) -> None:
        sink = place.sink(key="k", staging="target")
        driver = place.started(sink, WORDS)
        with pytest.raises(EpochFailed, match=r"(?s)rows_refused.*column `k`"):
            place.vote(driver, 0, place.staged(sink, words(("canary" * 60, 1))))
        assert [] == place.staged_names()

    def test_an_older_driver_in_this_process_does_not_commit_a_newer_vote(self, place: Any) -> None:
        sink = place.sink(staging="target")
        first = place.started(sink, WORDS)
        rows = place.staged(sink, words(("x", 9)))
        second = place.started(sink, WORDS, writer=2)
        second.vote(0, second.pre_commit(0, words(("a", 1))))
        for handle in first.session.handles(Epoch(0), first.rows(0, rows)):
            first.session.abort(handle)
        assert [] == place.query("SELECT * FROM words")
        assert 1 == len(place.staged_names())


class TestInMySQL:
    """What MySQL does differently."""

    def test_the_whole_way_in_mysql(self, mysql_place: Any, request: pytest.FixtureRequest) -> None:
        place = mysql_place
        request.addfinalizer(lambda: place.run("SET GLOBAL local_infile = 1"))
        for infile in (1, 0):
            place.run(f"SET GLOBAL local_infile = {infile}")
            sink = place.sink(f"words{infile}", key="k", staging="target")
            driver = place.started(sink, WORDS)
            driver.run(0, words(("a", 1), ("A", 2), ("a", 3), ("a ", 4)))
            handles = place.vote(driver, 1, place.staged(sink, words(("a", 5), ("b'\\\n", 6)), epoch=1))
            assert {Outcome.DONE} == set(driver.session.commit(Epoch(1), handles).values())
            found = place.query(f"SELECT k, v FROM words{infile}")  # noqa: S608
            assert [("A", 2), ("a", 5), ("a ", 4), ("b'\\\n", 6)] == sorted(found)
            assert [] == place.staged_names()
            with pytest.raises(EpochFailed, match="column `k`"):
                driver.vote(2, driver.pre_commit(2, words(("canary" * 60, 1))))
            driver.session.close()

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ('{"a": "canary", "a": 2}', "the same field twice"),
            ('{"a": 12345678901234567890123}', "would round"),
            ("[0.12345678901234567890123]", "would round"),
        ],
    )
    def test_json_that_mysql_would_change_is_refused_in_the_vote(
        self, mysql_place: Any, changed: str, said: str
    ) -> None:
        mysql_place.run("CREATE TABLE words (n int PRIMARY KEY, j json)")
        kept = '{"b": [1.10, -1e2, 18446744073709551615]}'
        rows = pa.table({"n": pa.array([0, 1], pa.int32()), "j": [kept, changed]})
        driver = mysql_place.started(mysql_place.sink(key="n"), rows.schema)
        with pytest.raises(EpochFailed, match=f"column 'j' .*{said}") as refused:
            driver.vote(0, driver.pre_commit(0, rows))
        assert "canary" not in str(refused.value)
        driver.run(0, rows.slice(0, 1))
        assert [('{"b": [1.1, -100.0, 18446744073709551615]}',)] == mysql_place.query("SELECT j FROM words")

    def test_a_login_with_the_password_of_mysql_8_and_a_killed_session(self, mysql_place: Any) -> None:
        place = mysql_place
        first = place.started(place.sink(), WORDS)
        handle = first.pre_commit(0, words(("a", 1)))
        first.vote(0, handle)
        first.session.database._open.clear()
        second = place.started(place.sink(), WORDS, writer=2)
        assert Outcome.DONE == second.commit(0, handle)
        assert Outcome.DONE == first.commit(0, handle) or Outcome.DONE == first.commit(0, handle)
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_binary_log_that_is_not_synced_makes_the_server_forget(
        self, mysql_place: Any, request: pytest.FixtureRequest
    ) -> None:
        mysql_place.run("SET GLOBAL sync_binlog = 0")
        request.addfinalizer(lambda: mysql_place.run("SET GLOBAL sync_binlog = 1"))
        with pytest.raises(TargetRefused, match=r"(?s)target_forgets.*sync_binlog is 0"):
            mysql_place.started(mysql_place.sink(), WORDS)
