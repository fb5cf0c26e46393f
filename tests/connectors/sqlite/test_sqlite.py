"""SQLite: the contract, and what only SQLite does."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.sqlite import dialect
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import EpochFailed, OperatorNeeded, Retryable
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, Kept
from fencepost.testing import SinkContract, SinkDriver, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "PATIENT", "PRAGMA busy_timeout = 100")
    monkeypatch.setattr(dialect, "IMPATIENT", "PRAGMA busy_timeout = 50")


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def script(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def started(sink: SQLite, folder: Path, schema: pa.Schema = TABLE.schema, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(schema)
    return driver


class TestUpsert(SinkContract):
    notices_a_setback = True
    tells = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> SQLite:
        return SQLite(tmp_path / "target.db", table="words", key="k", name="words")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return query(tmp_path / "target.db", "SELECT k, v FROM words")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return locked(tmp_path / "target.db")

    def forget(self, tmp_path: Path) -> bool:
        script(tmp_path / "target.db", "DELETE FROM fencepost_epoch")
        return True


class TestAppend(TestUpsert):
    def make_sink(self, tmp_path: Path) -> SQLite:
        path = tmp_path / "target.db"
        if not path.exists():
            script(path, "CREATE TABLE words (k TEXT UNIQUE, v INTEGER CHECK (v >= 0))")
        return SQLite(path, table="words", name="words", create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-1"], "v": [1, 2]})


def test_the_last_row_of_a_key_within_an_epoch_wins(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 1, 1], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    driver = started(SQLite(tmp_path / "t.db", table="t", key=("a", "b")), tmp_path, table.schema)
    driver.run(0, table)
    driver.session.close()
    assert [(1, "x", 3), (1, "y", 2)] == query(tmp_path / "t.db", "SELECT * FROM t ORDER BY b")


def test_a_table_that_is_nothing_but_its_key_takes_a_key_twice(tmp_path: Path) -> None:
    table = pa.table({"k": ["a", "a"]})
    driver = started(SQLite(tmp_path / "t.db", table="t", key="k"), tmp_path, table.schema)
    driver.run(0, table)
    driver.session.close()
    assert [("a",)] == query(tmp_path / "t.db", "SELECT * FROM t")


def test_two_sinks_of_a_job_in_one_file_share_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    one = started(SQLite(path, table="one"), tmp_path)
    two = started(SQLite(path, table="two"), tmp_path)
    first, second = one.pre_commit(0, TABLE), two.pre_commit(0, TABLE)
    assert ((), ()) == (one.vote(0, first), two.vote(0, second))
    assert [(0,)] == query(path, "SELECT count(*) FROM one")
    assert (Outcome.DONE, Outcome.DONE) == (one.commit(0, first), two.commit(0, second))
    one.session.close()
    two.run(1, TABLE)
    two.session.close()
    assert [(2, 4)] == query(path, "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")


def test_a_second_sink_that_fails_its_vote_takes_the_first_one_along(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    one = started(SQLite(path, table="one"), tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE two (k TEXT PRIMARY KEY, v INTEGER)")
    two = started(SQLite(path, table="two"), tmp_path)
    one.vote(0, one.pre_commit(0, TABLE))
    again = two.pre_commit(0, pa.table({"k": ["a", "a"], "v": [1, 2]}))
    with pytest.raises(EpochFailed, match=r"UNIQUE constraint failed: two\.k"):
        two.vote(0, again)
    one.session.rollback()
    assert [(0, 0)] == query(path, "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")
    one.session.close()
    two.session.close()


def test_a_locked_database_fails_the_vote_and_it_can_be_cast_again(tmp_path: Path) -> None:
    driver = started(SQLite(tmp_path / "t.db", table="t"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    with locked(tmp_path / "t.db"), pytest.raises(EpochFailed) as failed:
        driver.vote(0, handle)
    assert "target_silent" == failed.value.code
    driver.run(0, TABLE)
    driver.session.close()
    assert rows_of(TABLE) == query(tmp_path / "t.db", "SELECT * FROM t")


def test_a_database_that_was_moved_away_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    driver = started(SQLite(path, table="t"), tmp_path)
    handle = driver.run(0, TABLE)
    for suffix in ("", "-wal", "-shm"):
        if (side := Path(f"{path}{suffix}")).exists():
            side.rename(tmp_path / f"moved.db{suffix}")
    later = driver.pre_commit(1, TABLE)
    with pytest.raises(EpochFailed):
        driver.vote(1, later)
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    assert not path.exists()
    script(path, "CREATE TABLE t (k TEXT, v INTEGER)")
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    driver.session.close()


CRASH = textwrap.dedent(
    """
    import json, os, signal, sys
    from pathlib import Path
    import pyarrow as pa
    from fencepost.connectors.sqlite.sink import SQLite
    from fencepost.testing import SinkDriver
    folder, point = Path(sys.argv[1]), sys.argv[2]
    table = pa.table({"k": ["a", "b"], "v": [1, 2]})
    driver = SinkDriver(SQLite(folder / "t.db", table="t", name="t"), folder)
    driver.start(table.schema)
    driver.run(0, table)
    handle = driver.pre_commit(1, table)
    (folder / "handle").write_text(json.dumps([handle.id, [(k.file, k.rows, k.sum) for k in handle.kept]]))
    if point != "pre-committed":
        driver.vote(1, handle)
    if point == "committed":
        driver.commit(1, handle)
    os.kill(os.getpid(), signal.SIGKILL)
    """
)


@pytest.mark.parametrize("point", ["pre-committed", "voting", "voted", "committed"])
def test_another_process_finishes_what_a_killed_one_began(tmp_path: Path, point: str) -> None:
    environment = dict(os.environ)
    if point == "voting":
        environment["FENCEPOST_FAULT"] = "vote.during=kill@2"
    died = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), point], check=False, env=environment, capture_output=True
    )
    assert -signal.SIGKILL == died.returncode, died.stderr
    handle_id, kept = json.loads((tmp_path / "handle").read_text())
    handle = Handle(handle_id, "t", 2, tuple(Kept(*k) for k in kept))
    path = tmp_path / "t.db"
    assert [(4 if point == "committed" else 2,)] == query(path, "SELECT count(*) FROM t")
    driver = started(SQLite(path, table="t", name="t"), tmp_path, writer=2)
    assert Outcome.DONE == driver.commit(1, handle)
    assert Outcome.DONE == driver.commit(1, handle)
    driver.session.close()
    assert [(4,)] == query(path, "SELECT count(*) FROM t")
    assert [(1, handle_id)] == query(path, "SELECT epoch, handle FROM fencepost_epoch")


def test_rows_that_the_target_refuses_after_the_decision_need_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    driver = started(SQLite(path, table="t"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    driver.session.close()
    script(path, "CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'a secret'); END")
    later = started(SQLite(path, table="t"), tmp_path, writer=2)
    with pytest.raises(OperatorNeeded) as refused:
        later.commit(0, handle)
    assert "apply_refused" == refused.value.code
    assert "a secret" not in str(refused.value)
    script(path, "DROP TRIGGER no")
    assert Outcome.DONE == later.commit(0, handle)
    later.session.close()


def test_changed_staged_rows_are_never_applied(tmp_path: Path) -> None:
    driver = started(SQLite(tmp_path / "t.db", table="t"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    staged = driver.owner.staging.root / handle.kept[0].file
    staged.write_bytes(staged.read_bytes().replace(b"a", b"z"))
    with pytest.raises(OperatorNeeded) as damaged:
        driver.commit(0, handle)
    assert "staged_rows_damaged" == damaged.value.code
    assert [(0,)] == query(tmp_path / "t.db", "SELECT count(*) FROM t")
    driver.session.close()


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("k TEXT, v INTEGER NOT NULL CHECK (v < 2)", "CHECK constraint failed: v < 2"),
        ("k TEXT, v INTEGER, UNIQUE (v, k)", "UNIQUE constraint failed: t.v, t.k"),
        ("k TEXT NOT NULL, v INTEGER", "NOT NULL constraint failed: t.k"),
        ("k TEXT UNIQUE ON CONFLICT ROLLBACK, v INTEGER", "UNIQUE constraint failed: t.k"),
        ("k TEXT UNIQUE ON CONFLICT IGNORE, v INTEGER", "UNIQUE constraint failed: t.k"),
        ("k TEXT, v INTEGER, UNIQUE (k)\n on  conflict\n replace", "UNIQUE constraint failed: t.k"),
        ("k TEXT NOT NULL ON CONFLICT IGNORE, v INTEGER", "NOT NULL constraint failed: t.k"),
        ("k TEXT NOT NULL ON CONFLICT REPLACE DEFAULT 'x', v INTEGER", "NOT NULL constraint failed: t.k"),
    ],
)
def test_a_constraint_fails_the_epoch_before_its_decision_by_name(tmp_path: Path, definition: str, words: str) -> None:
    path = tmp_path / "t.db"
    script(path, f"CREATE TABLE t ({definition})")
    driver = started(SQLite(path, table="t"), tmp_path)
    handle = driver.pre_commit(0, pa.table({"k": ["s3cret", "s3cret", None], "v": [1, 1, 77]}))
    with pytest.raises(EpochFailed, match=words.replace("(", ".")) as failed:
        driver.vote(0, handle)
    assert ("rows_refused", False, False) == (
        failed.value.code,
        "s3cret" in str(failed.value),
        "77" in str(failed.value),
    )
    assert [(0, 0)] == query(path, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM fencepost_epoch)")
    driver.run(0, pa.table({"k": ["fine"], "v": [1]}))
    driver.session.close()


def test_a_row_never_takes_the_place_of_a_row_with_another_key(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script(path, "CREATE TABLE T (k TEXT PRIMARY KEY ON CONFLICT REPLACE, v INTEGER UNIQUE ON CONFLICT REPLACE)")
    driver = started(SQLite(path, table="t", key="k"), tmp_path)
    driver.run(0, pa.table({"k": ["a", "b"], "v": [1, 2]}))
    driver.run(1, pa.table({"k": ["a"], "v": [3]}))
    handle = driver.pre_commit(2, pa.table({"k": ["c"], "v": [2]}))
    with pytest.raises(EpochFailed, match=r"UNIQUE constraint failed: T\.v"):
        driver.vote(2, handle)
    driver.session.close()
    assert [("a", 3), ("b", 2)] == query(path, "SELECT * FROM t ORDER BY k")


@pytest.mark.parametrize("step", ["vote", "commit"])
def test_a_full_disk_loses_nothing(tmp_path: Path, step: str) -> None:
    path = tmp_path / "t.db"
    driver = started(SQLite(path, table="t"), tmp_path)
    table = pa.table({"k": ["x" * 1000] * 5000, "v": [1] * 5000})
    handle = driver.pre_commit(0, table)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        if step == "vote":
            with pytest.raises(EpochFailed, match="target_silent"):
                driver.vote(0, handle)
        else:
            assert Outcome.IN_DOUBT == driver.commit(0, handle)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(0,)] == query(path, "SELECT count(*) FROM t")
    assert Outcome.DONE == driver.commit(0, handle)
    driver.session.close()
    assert [(5000,)] == query(path, "SELECT count(*) FROM t")


def test_a_commit_whose_answer_is_lost_is_asked_of_the_epoch_row(tmp_path: Path) -> None:
    driver = started(SQLite(tmp_path / "t.db", table="t"), tmp_path)
    handle = driver.pre_commit(0, TABLE)
    driver.vote(0, handle)
    file = driver.session.database
    end = file.end

    def answer_lost() -> None:
        end()
        raise dialect.Silent("the answer is lost")

    file.end = answer_lost
    assert Outcome.IN_DOUBT == driver.commit(0, handle)
    del file.end
    assert Outcome.DONE == driver.commit(0, handle)
    driver.session.close()
    assert [(2,)] == query(tmp_path / "t.db", "SELECT count(*) FROM t")


def test_a_reader_never_blocks_the_writer_and_never_sees_half(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    driver = started(SQLite(path, table="t"), tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert [(0,)] == reader.execute("SELECT count(*) FROM t").fetchall()
        driver.run(0, TABLE)
        assert [(0,)] == reader.execute("SELECT count(*) FROM t").fetchall()
        reader.execute("COMMIT")
        assert [(2,)] == reader.execute("SELECT count(*) FROM t").fetchall()
    connection = driver.session.database._now
    assert ("wal", 2) == (
        connection.execute("PRAGMA journal_mode").fetchone()[0],
        connection.execute("PRAGMA synchronous").fetchone()[0],
    )
    driver.session.close()


def test_a_lock_that_a_sleeping_driver_holds_does_not_stop_a_new_one_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    started(SQLite(path, table="t"), tmp_path).session.close()
    with locked(path):
        started(SQLite(path, table="t"), tmp_path).session.close()


def test_a_locked_database_where_a_table_has_to_be_made_may_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    started(SQLite(path, table="t"), tmp_path).session.close()
    with locked(path), pytest.raises(Retryable) as silent:
        started(SQLite(path, table="another"), tmp_path)
    assert "target_silent" == silent.value.code


def test_an_older_writer_in_this_process_cannot_end_what_a_newer_one_holds(tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "t.db", table="t")
    old = started(sink, tmp_path)
    handle = old.pre_commit(0, TABLE)
    old.vote(0, handle)
    new = started(sink, tmp_path, writer=2)
    mine = new.pre_commit(0, TABLE)
    new.vote(0, mine)
    old.session.rollback()
    assert Outcome.IN_DOUBT == old.commit(0, handle)
    with pytest.raises(EpochFailed):
        old.vote(0, handle)
    with pytest.raises(EpochFailed):
        old.session.write(Epoch(0), old.rows(0, TABLE))
    assert Outcome.DONE == new.commit(0, mine)
    new.session.close()
    old.session.close()
    assert [(2,)] == query(tmp_path / "t.db", "SELECT count(*) FROM t")


def test_a_second_start_in_this_process_waits_until_a_vote_is_over(tmp_path: Path) -> None:
    """Both share one connection: without a lock the newcomer's look would roll back half of the vote."""
    path = tmp_path / "t.db"
    first = started(SQLite(path, table="t"), tmp_path)
    handle = first.pre_commit(0, TABLE)
    with first.session.database.lock:
        newcomer = Thread(target=lambda: started(SQLite(path, table="t"), tmp_path, writer=2), daemon=True)
        newcomer.start()
        newcomer.join(0.2)
        assert newcomer.is_alive()
        first.vote(0, handle)
    newcomer.join(5)
    assert not newcomer.is_alive()
    with closing(sqlite3.connect(path)) as database:
        assert [(0,)] == database.execute("SELECT count(*) FROM t").fetchall()
        assert [(0,)] == database.execute("SELECT count(*) FROM fencepost_epoch").fetchall()
