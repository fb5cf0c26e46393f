"""A server that changes while a job runs: tables altered, rights gone, locks, a full disk, a backup, another server."""

# ruff: noqa: S607 - mount, umount and cp are where the system has them

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.postgres import NOBODY
from fencepost_proof.rig.postgres import Postgres as Server
from fencepost_proof.rig.process import until
from fencepost_proof.rig.proxy import Proxy

from fencepost.connectors.postgres import dialect
from fencepost.connectors.table import session
from fencepost.errors import EpochFailed, OperatorNeeded, Retryable
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


@pytest.fixture(params=[None, "k"], ids=["append", "upsert"])
def running(request: pytest.FixtureRequest, place: Any) -> Any:
    """A driver that has committed an epoch."""
    driver = place.started(place.sink(key=request.param), WORDS)
    driver.run(0, words(("a", 1)))
    return driver


def refused(driver: Any, rows: pa.Table, epoch: int = 1) -> str:
    with pytest.raises(EpochFailed) as error:
        driver.vote(epoch, driver.pre_commit(epoch, rows))
    assert "canary" not in str(error.value)
    assert "words" in error.value.what
    return str(error.value)


class TestWhileRunning:
    def test_a_column_more_does_no_harm_and_a_wider_one_neither(self, place: Any, running: Any) -> None:
        place.run("ALTER TABLE words ADD more int; ALTER TABLE words ALTER v TYPE numeric; ANALYZE words")
        running.run(1, words(("b", 2)))
        assert [("a", 1, None), ("b", 2, None)] == place.query("SELECT k, v::int, more FROM words ORDER BY k")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("ALTER TABLE words ALTER v TYPE numeric(20,-2)", "since the job started: column 'v' is numeric(20,-2)"),
            ("ALTER TABLE words ALTER v TYPE real", "changed since the job started: column 'v' is real"),
            ("ALTER TABLE words ALTER v TYPE int", ""),
            ("ALTER TABLE words DROP v", ""),
            ("ALTER TABLE words RENAME v TO w", ""),
            ("ALTER TABLE words ADD must int NOT NULL DEFAULT 0; ALTER TABLE words ALTER must DROP DEFAULT", "must"),
            ("DROP TABLE words", "no longer exists"),
        ],
    )
    def test_a_table_that_no_longer_fits_is_refused_in_the_vote(
        self, place: Any, running: Any, change: str, said: str
    ) -> None:
        place.run(change)
        assert said in refused(running, words(("canary", 2**40 + 1)))

    def test_a_right_that_was_taken_away_is_said_and_may_come_back(self, place: Any) -> None:
        role = f"r{place.schema}"
        place.run(f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA {place.schema} TO {role}")
        place.run(f"CREATE TABLE words (k text, v bigint); GRANT INSERT, SELECT ON words TO {role}")
        place.user = role
        driver = place.started(place.sink(), WORDS)
        driver.run(0, words(("a", 1)))
        place.run(f"REVOKE INSERT ON words FROM {role}")
        assert "lacks a privilege" in refused(driver, words(("canary", 2)))
        place.run(f"GRANT INSERT ON words TO {role}")
        driver.run(1, words(("b", 2)))

    def test_a_statement_timeout_of_the_role_fails_the_epoch(self, place: Any) -> None:
        place.run(
            "CREATE TABLE words (k text, v bigint); CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(5); RETURN NEW; END $$;"
            "CREATE TRIGGER t BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION slow()"
        )
        role = f"r{place.schema}"
        place.run(f"CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET statement_timeout = '200ms'")
        place.user = role
        driver = place.started(place.sink(), WORDS)
        assert "statement_timeout" in refused(driver, words(("canary", 1)), epoch=0)

    def test_a_lock_of_another_session_is_waited_for_and_then_said(self, place: Any, running: Any) -> None:
        with psycopg.connect(place.dsn) as connection:
            connection.execute("LOCK TABLE words IN EXCLUSIVE MODE")
            assert "another session holds a lock" in refused(running, words(("canary", 1)))
        running.run(1, words(("b", 2)))


class TestAfterTheVote:
    """The decision is made, the driver is gone, and then somebody changes the table."""

    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize(
        ("change", "mend"),
        [
            ("ALTER TABLE words RENAME TO gone", "ALTER TABLE gone RENAME TO words"),
            ("ALTER TABLE words ALTER v TYPE numeric(9,-2)", "ALTER TABLE words ALTER v TYPE bigint"),
            ("ALTER TABLE words ADD CHECK (v < 0) NOT VALID", "ALTER TABLE words DROP CONSTRAINT words_v_check"),
            (
                "ALTER TABLE words ADD FOREIGN KEY (v) REFERENCES others DEFERRABLE INITIALLY DEFERRED",
                "INSERT INTO others VALUES (4711)",
            ),
        ],
    )
    def test_an_operator_is_asked_and_mending_it_finishes_the_epoch(
        self, place: Any, change: str, mend: str, key: str | None
    ) -> None:
        place.run("CREATE TABLE others (id bigint PRIMARY KEY)")
        driver = place.started(place.sink(key=key), WORDS)
        handle = driver.pre_commit(0, words(("canary", 4711)))
        driver.vote(0, handle)
        driver.session.rollback(undecided=False)
        place.run(change)
        with pytest.raises(OperatorNeeded) as asked:
            driver.commit(0, handle)
        assert "apply_refused" == asked.value.code
        assert "words" in asked.value.what
        assert "canary" not in str(asked.value)
        place.run(mend)
        assert Outcome.DONE == driver.commit(0, handle) == driver.commit(0, handle)
        assert [("canary", 4711)] == place.query("SELECT k, v FROM words")


class TestDeadlock:
    def test_a_deadlock_with_another_session_is_tried_again(self, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dialect, "PATIENT", "10s")
        dsn = place.dsn.replace("search_path", "deadlock_timeout=300ms -c search_path")
        driver = place.started(place.sink(key="k", dsn=dsn), WORDS)
        driver.run(0, words(("a", 0), ("b", 0)))
        seen = place.server.log.stat().st_size

        def waits() -> bool:
            return bool(place.query("SELECT 1 FROM pg_locks WHERE NOT granted"))

        with psycopg.connect(place.dsn) as other:
            other.execute("UPDATE words SET v = 9 WHERE k = 'b'")
            vote = threading.Thread(target=lambda: driver.run(1, words(("a", 1), ("b", 1))))
            vote.start()
            until(waits, "the vote waited for the row that we hold")
            other.execute("UPDATE words SET v = 9 WHERE k = 'a'")
        vote.join()
        assert b"deadlock detected" in place.server.log.read_bytes()[seen:]
        assert [("a", 1), ("b", 1)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_it_is_not_tried_for_ever(self, place: Any) -> None:
        place.run(
            "CREATE TABLE words (k text, v bigint); CREATE SEQUENCE tries; CREATE FUNCTION lose() RETURNS trigger"
            " LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('tries'); RAISE EXCEPTION USING ERRCODE = '40P01'; END $$;"
            "CREATE TRIGGER t BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION lose()"
        )
        driver = place.started(place.sink(), WORDS)
        assert "deadlock detected" in refused(driver, words(("canary", 1)), epoch=0)
        assert [(session.ATTEMPTS,)] == place.query("SELECT last_value FROM tries")


@pytest.fixture
def small_disk(own: Any, tmp_path: Path) -> Iterator[str]:
    """A tablespace that is soon full; where no file system can be mounted, one of files that may not grow."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = f"size=2m,uid={NOBODY},gid={NOBODY}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=False).returncode == 0:
        try:
            own.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
            yield "TABLESPACE small"
            own.run("DROP TABLE words")
            own.run("DROP TABLESPACE small")
        finally:
            subprocess.run(["umount", disk], check=True)
        return
    no_limit = resource.prlimit(own.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(own.server.pid, resource.RLIMIT_FSIZE, (17 << 20, no_limit[1]))  # WAL files have 16 MB
    yield ""
    resource.prlimit(own.server.pid, resource.RLIMIT_FSIZE, no_limit)


def test_a_full_disk_fails_the_epoch_and_nothing_of_it_stays(own: Any, small_disk: str) -> None:
    own.run(f"CREATE TABLE words (k text, v bigint) {small_disk}")
    driver = own.started(own.sink(), WORDS)
    driver.run(0, words(("a", 1)))
    noise = random.Random(1)
    rows = words(*((noise.randbytes(900).hex(), n) for n in range(11_000)))
    assert "disk" in refused(driver, rows) or not small_disk
    driver.run(1, words(("b", 2)))
    assert [("a", 1), ("b", 2)] == own.query("SELECT k, v FROM words ORDER BY k")


class TestAnotherState:
    def test_yesterdays_backup_is_noticed_by_the_running_job_and_at_the_next_start(
        self, own: Any, tmp_path: Path
    ) -> None:
        driver = own.started(own.sink(), WORDS)
        driver.run(0, words(("a", 1)))
        with stopped(own.server):
            subprocess.run(["cp", "-a", own.server.data, tmp_path / "backup"], check=True)
        driver.run(1, words(("b", 2)))
        with stopped(own.server):
            shutil.rmtree(own.server.data)
            (tmp_path / "backup").rename(own.server.data)
        handle = driver.pre_commit(2, words(("c", 3)))
        with pytest.raises(OperatorNeeded, match=r"target_behind.*holds epoch 1.*epoch 0 as its newest"):
            driver.vote(2, handle)
        driver.session.close()
        with pytest.raises(OperatorNeeded, match="target_behind"):
            own.started(own.sink(), WORDS, writer=2, held=Epoch(1))
        assert [("a", 1)] == own.query("SELECT k, v FROM words")

    def test_a_standby_is_read_only_and_says_so(self, own: Any) -> None:
        driver = own.started(own.sink(), WORDS)
        driver.run(0, words(("a", 1)))
        signal = own.server.data / "standby.signal"
        with stopped(own.server):
            signal.touch()
        assert "read-only" in refused(driver, words(("b", 2)))
        with pytest.raises(Retryable, match=r"target_silent.*read-only"):
            own.started(own.sink(dsn=own.dsn + " "), WORDS, writer=2)
        with stopped(own.server):
            signal.unlink()
        driver.run(1, words(("b", 2)))

    def test_an_empty_server_in_its_place_is_not_written_to(self, own: Any, place: Any) -> None:
        with Proxy(own.server.port) as proxy:
            dsn = own.dsn.replace(f"port={own.server.port}", f"port={proxy.port}")
            driver = own.driver(own.sink(dsn=dsn))
            identity = driver.start(WORDS)
            driver.run(0, words(("a", 1)))
            handle = driver.pre_commit(1, words(("b", 2)))
            driver.vote(1, handle)
            proxy.server_port = place.server.port
            proxy.cut()
            place.run(f"CREATE SCHEMA {own.schema}")
            assert Outcome.IN_DOUBT == driver.commit(1, handle) == driver.commit(1, handle)
            assert "a different database answers" in refused(driver, words(("c", 3)), epoch=2)
            driver.session.close()
            elsewhere = own.driver(own.sink(dsn=dsn), writer=2)
            assert identity != elsewhere.start(WORDS), "the ledger compares them, and refuses the start"
            elsewhere.session.close()
            proxy.server_port = own.server.port
            proxy.cut()
            back = own.driver(own.sink(dsn=dsn), writer=3)
            assert identity == back.start(WORDS)
            assert Outcome.DONE == back.commit(1, handle)
        place.run(f"DROP SCHEMA {own.schema} CASCADE")
        assert [("a", 1), ("b", 2)] == own.query("SELECT k, v FROM words ORDER BY k")


class stopped:  # noqa: N801 - reads as a word
    """A server that is down meanwhile."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __enter__(self) -> None:
        self.server.stop()

    def __exit__(self, *_: object) -> None:
        self.server.start()
