"""Kills, cuts and sleepers: whatever happens to the server or the connection, an epoch is there once, and whole."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.process import until
from fencepost_proof.rig.proxy import Proxy

from fencepost import faults
from fencepost.connectors.postgres import dialect
from fencepost.connectors.table.database import RowsRefused, Silent
from fencepost.errors import EpochFailed
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch

ROWS = 50
SCHEMA = pa.schema({"k": pa.int64(), "epoch": pa.int64()})


def rows(epoch: int) -> pa.Table:
    return pa.table({"k": list(range(ROWS)), "epoch": [epoch] * ROWS}, SCHEMA)


def counts(place: Any, table: str = "log") -> dict[int, int]:
    return dict(place.query(f"SELECT epoch, count(*) FROM {table} GROUP BY epoch"))  # noqa: S608 - our own name


def settle(driver: Any, epoch: int, handle: Any) -> list[Outcome]:
    """Ask until it is done, as the protocol does."""
    said = [driver.commit(epoch, handle)]
    until(lambda: said[-1] is Outcome.DONE or bool(said.append(driver.commit(epoch, handle))), "it was done")
    return said


def through(place: Any, proxy: Proxy) -> str:
    dsn: str = place.dsn.replace(f"port={place.server.port}", f"port={proxy.port}")
    return dsn + " sslmode=disable"


class TestServerKilled:
    def test_before_the_vote_it_makes_no_difference(self, own: Any) -> None:
        driver = own.started(own.sink("log"), SCHEMA)
        driver.run(0, rows(0))
        handle = driver.pre_commit(1, rows(1))
        own.server.kill()
        with pytest.raises(EpochFailed, match=r"target_silent.*cannot be reached"):
            driver.vote(1, handle)
        own.server.start()
        driver.run(1, rows(1))
        assert {0: ROWS, 1: ROWS} == counts(own)

    def test_in_the_vote_the_epoch_fails_and_runs_again(self, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = own.started(own.sink("log"), SCHEMA)
        handle = driver.pre_commit(0, rows(0))
        with monkeypatch.context() as patch:
            patch.setattr(faults, "reach", lambda _: own.server.kill())
            with pytest.raises(EpochFailed, match="target_silent"):
                driver.vote(0, handle)
        own.server.start()
        assert {} == counts(own)
        driver.run(0, rows(0))
        assert {0: ROWS} == counts(own)

    def test_between_vote_and_commit_the_kept_rows_are_applied_again(self, own: Any) -> None:
        driver = own.started(own.sink("log"), SCHEMA)
        handle = driver.pre_commit(0, rows(0))
        driver.vote(0, handle)
        own.server.kill()
        assert Outcome.IN_DOUBT == driver.commit(0, handle) == driver.commit(0, handle)
        own.server.start()
        assert {} == counts(own)
        assert Outcome.DONE == driver.commit(0, handle) == driver.commit(0, handle)
        driver.run(1, rows(1))
        assert {0: ROWS, 1: ROWS} == counts(own)


class TestConnectionCut:
    def test_after_commit_was_sent_the_outcome_is_asked_for_and_not_guessed(self, place: Any) -> None:
        with Proxy(place.server.port) as proxy:
            driver = place.started(place.sink("log", dsn=through(place, proxy)), SCHEMA)
            handle = driver.pre_commit(0, rows(0))
            driver.vote(0, handle)
            proxy.drop_answer_after(b"COMMIT")
            assert Outcome.IN_DOUBT == driver.commit(0, handle)
            assert 1 == proxy.answers_dropped
            assert {0: ROWS} == counts(place), "it had happened"
            assert Outcome.DONE == driver.commit(0, handle)
            driver.run(1, rows(1))
            driver.session.close()
        assert {0: ROWS, 1: ROWS} == counts(place)

    def test_before_commit_was_sent_the_rows_are_applied_again(self, place: Any) -> None:
        with Proxy(place.server.port) as proxy:
            driver = place.started(place.sink("log", dsn=through(place, proxy)), SCHEMA)
            handle = driver.pre_commit(0, rows(0))
            driver.vote(0, handle)
            proxy.cut_before(b"COMMIT")
            assert Outcome.IN_DOUBT == driver.commit(0, handle)
            assert {} == counts(place), "it had not happened"
            assert Outcome.DONE == driver.commit(0, handle)
            proxy.cut_before(b"COPY")
            with pytest.raises(EpochFailed, match="target_silent"):
                driver.vote(1, driver.pre_commit(1, rows(1)))
            driver.run(1, rows(1))
            driver.session.close()
        assert {0: ROWS, 1: ROWS} == counts(place)

    def test_between_two_epochs_it_is_made_anew(self, place: Any) -> None:
        driver = place.started(place.sink("log"), SCHEMA)
        driver.run(0, rows(0))
        place.query(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'fencepost/%'"
        )
        driver.run(1, rows(1))
        assert {0: ROWS, 1: ROWS} == counts(place)

    def test_a_paused_server_is_waited_for(self, own: Any) -> None:
        driver = own.started(own.sink("log"), SCHEMA)
        handle = driver.pre_commit(0, rows(0))
        driver.vote(0, handle)
        own.server.pause()
        outcomes: list[Outcome] = []
        commit = threading.Thread(target=lambda: outcomes.append(driver.commit(0, handle)))
        commit.start()
        commit.join(0.2)
        assert [] == outcomes
        own.server.resume()
        commit.join()
        assert [Outcome.DONE] == outcomes
        assert {0: ROWS} == counts(own)

    def test_a_vote_that_lay_open_too_long_is_cast_again_by_the_commit(
        self, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dialect, "IDLE", "100ms")
        driver = place.started(place.sink("log"), SCHEMA)
        handle = driver.pre_commit(0, rows(0))
        driver.vote(0, handle)
        until(lambda: not place.query("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"), "it ended")
        assert {} == counts(place)
        assert [Outcome.IN_DOUBT, Outcome.DONE] == settle(driver, 0, handle)
        assert {0: ROWS} == counts(place)

    def test_a_commit_that_the_server_answers_with_rollback_is_no_commit(self, place: Any) -> None:
        server = dialect.PostgresDialect(place.dsn, "")
        server.look()
        with pytest.raises(RowsRefused):
            server.run("SELECT 1 / 0")
        with pytest.raises(Silent):
            server.end()
        server.drop()


class TestSleepers:
    """A second driver in this process shares the connection of the first, unless its dsn is written differently."""

    def test_the_new_driver_ends_the_session_of_one_that_sleeps_in_its_vote(self, place: Any) -> None:
        first = place.started(place.sink("log", key="k"), SCHEMA)
        handle = first.pre_commit(0, rows(0))
        first.vote(0, handle)
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        assert [(1,)] == place.query(asleep)
        second = place.started(place.sink("log", key="k", dsn=place.dsn + " "), SCHEMA, writer=2)
        assert [(0,)] == place.query(asleep)
        assert Outcome.DONE == second.commit(0, handle)
        second.run(1, rows(1))
        assert [Outcome.IN_DOUBT, Outcome.DONE] == settle(first, 0, handle), "it wakes up, and all is there"
        assert {1: ROWS} == counts(place)

    @pytest.mark.parametrize("key", [None, "k"])
    def test_of_two_drivers_that_commit_the_first_epoch_at_once_one_finds_it_there(
        self, place: Any, monkeypatch: pytest.MonkeyPatch, key: str | None
    ) -> None:
        monkeypatch.setattr(dialect, "IMPATIENT", "10s")
        first = place.started(place.sink("log", key=key), SCHEMA)
        second = place.started(place.sink("log", key=key, dsn=place.dsn + " "), SCHEMA, writer=2)
        handle = first.pre_commit(0, rows(0))
        first.vote(0, handle)  # it was asleep when the second one looked for older sessions
        said: list[Outcome] = []
        commit = threading.Thread(target=lambda: said.extend(settle(second, 0, handle)), daemon=True)
        commit.start()
        until(lambda: bool(place.query("SELECT 1 FROM pg_locks WHERE NOT granted")), "the second one waited")
        assert Outcome.DONE == first.commit(0, handle)
        commit.join()
        assert [Outcome.IN_DOUBT, Outcome.DONE] == said
        assert {0: ROWS} == counts(place)

    def test_first_starts_at_the_same_moment_agree_on_one_identity(
        self, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dialect, "PATIENT", "30s")  # each waits for all that came before it
        starts = [place.driver(place.sink("log", dsn=place.dsn + " " * n), job=f"job{n}") for n in range(6)]
        identities: list[str] = []
        threads = [threading.Thread(target=lambda d=d: identities.append(d.start(SCHEMA))) for d in starts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (6, 1) == (len(identities), len(set(identities)))

    def test_sessions_of_newer_writers_and_of_other_lineages_are_left_alone(self, place: Any) -> None:
        driver = place.driver(place.sink("log"), writer=5)
        lineage = driver.owner.lineage
        names = [f"fencepost/{lineage}/5/task", f"fencepost/{lineage}/6", f"fencepost/{lineage}/odd", "fencepost/b/1"]
        with contextlib.ExitStack() as stack:
            for name in [*names, f"fencepost/{lineage}/4", f"fencepost/{lineage}/4/task"]:
                connection = psycopg.connect(place.dsn, application_name=name)
                stack.callback(connection.close)
            driver.start(SCHEMA)
            left = place.query(
                "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'fencepost/%'"
            )
            assert {*names, f"fencepost/{lineage}/5"} == {name for (name,) in left}

    def test_a_sleeper_of_another_role_is_waited_for_and_named_in_the_log(
        self, place: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for role in (old := f"old_{place.schema}", new := f"new_{place.schema}"):
            place.run(f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA {place.schema} TO {role}")
        place.user = old
        first = place.started(place.sink("log", key="k"), SCHEMA)
        place.run(f"GRANT ALL ON ALL TABLES IN SCHEMA {place.schema} TO {new}")
        handle = first.pre_commit(0, rows(0))
        first.vote(0, handle)
        place.user = new
        with caplog.at_level(logging.WARNING):
            second = place.started(place.sink("log", key="k", staging="checkpoint"), SCHEMA, writer=2)
        assert "of an older driver belongs to another role" in caplog.text
        assert Outcome.IN_DOUBT == second.commit(0, handle)
        first.session.close()  # as the server's limit does
        assert Outcome.DONE == second.commit(0, handle)
        assert {0: ROWS} == counts(place)


@contextlib.contextmanager
def watched(place: Any) -> Iterator[list[str]]:
    """A reader on its own connection, who looks all the time; what it saw that it must never see."""
    over = threading.Event()
    wrong: list[str] = []
    looks = [0]

    def look(connection: psycopg.Connection[Any], before: tuple[int, int]) -> tuple[int, int]:
        log = dict(connection.execute("SELECT epoch, count(*) FROM log GROUP BY epoch").fetchall())
        state = dict(connection.execute("SELECT epoch, count(*) FROM state GROUP BY epoch").fetchall())
        now = max(log, default=-1), max(state, default=-1)
        whole = set(log.values()) <= {ROWS} and list(state.values()) in ([], [ROWS])
        if not whole or now[0] < before[0] or now[1] < before[1]:
            wrong.append(f"log {log}, state {state}, and before {before}")
        looks[0] += 1
        return now

    def watch() -> None:
        newest = -1, -1
        while not over.is_set():
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(place.dsn, autocommit=True) as connection,
            ):
                while not over.is_set():
                    newest = look(connection, newest)

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    try:
        yield wrong
    finally:
        over.set()
        reader.join()
    assert looks[0] > 20


def test_a_reader_never_sees_half_an_epoch_nor_an_older_one_whatever_is_killed(own: Any) -> None:
    dice = random.Random(7)
    with Proxy(own.server.port) as proxy:
        dsn = through(own, proxy)
        log = own.started(own.sink("log", dsn=dsn), SCHEMA)
        state = own.started(own.sink("state", key="k", dsn=dsn), SCHEMA)

        def soon(act: Callable[[], object]) -> threading.Thread:
            thread = threading.Thread(target=lambda: (time.sleep(dice.uniform(0, 0.01)), act()), daemon=True)
            thread.start()
            return thread

        def restart() -> None:
            own.server.kill()
            own.server.start()

        attacks: list[Callable[[], object]] = [
            lambda: None,
            lambda: proxy.drop_answer_after(b"COMMIT"),
            lambda: proxy.cut_before(b"COMMIT"),
            proxy.cut,
            restart,
            lambda: soon(proxy.cut),
            lambda: soon(own.server.kill),
            lambda: soon(own.server.kill),
            lambda: soon(own.server.kill),
        ]
        with watched(own) as wrong:
            for epoch, attack in enumerate(attacks):
                handles = [driver.pre_commit(epoch, rows(epoch)) for driver in (log, state)]
                for driver, handle in zip((log, state), handles, strict=True):
                    driver.vote(epoch, handle)
                under_way = attack()
                for driver, handle in zip((log, state), handles, strict=True):
                    driver.commit(epoch, handle)
                if isinstance(under_way, threading.Thread):
                    under_way.join()
                if attack in attacks[-3:]:
                    own.server.start()
                for driver, handle in zip((log, state), handles, strict=True):
                    settle(driver, epoch, handle)
        log.session.close()
        state.session.close()
    assert [] == wrong
    assert dict.fromkeys(range(len(attacks)), ROWS) == counts(own)
    assert {len(attacks) - 1: ROWS} == counts(own, "state")
    assert Epoch(len(attacks) - 1) == own.query("SELECT min(epoch) FROM fencepost_epoch")[0][0]
