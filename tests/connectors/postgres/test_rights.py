"""The least that a role needs, TLS, and a password that appears nowhere."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from fencepost_proof.rig.postgres import Postgres as Server

from fencepost.connectors.postgres import dialect
from fencepost.connectors.postgres.sink import Postgres
from fencepost.connectors.table.database import Denied, Silent
from fencepost.contract import UNIT, Asked, Attempt, OutputMode
from fencepost.errors import BadConfig, FencepostError, Policy, Reason, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
SECRET = "canary-s3cret'\\ %x"  # noqa: S105 - of a server that lives for seconds


def rows(epoch: int, count: int = 3) -> pa.Table:
    return pa.table({"id": list(range(count)), "v": [f"v{epoch}"] * count}, SCHEMA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Server]:
    """With TLS, a user with a password, and nothing that everybody may do."""
    with Server(tmp_path_factory.mktemp("tls"), tls=True) as made:
        admin(made, "test", "REVOKE ALL ON DATABASE test FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC")
        with psycopg.connect(made.dsn, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD {}").format(SECRET))
        admin(
            made, "test", "CREATE ROLE idle LOGIN; CREATE ROLE sleeping; CREATE ROLE crowded LOGIN CONNECTION LIMIT 0"
        )
        admin(made, "test", "GRANT CONNECT ON DATABASE test TO crowded")
        admin(made, "test", "CREATE ROLE fickle LOGIN SUPERUSER PASSWORD 'one'")
        rules = made.data / "pg_hba.conf"
        rules.write_text("host all guarded,fickle all scram-sha-256\n" + rules.read_text())
        admin(made, "test", "SELECT pg_reload_conf()")
        yield made


def admin(server: Server, database: str, statements: str) -> list[Any]:
    with psycopg.connect(server.dsn_of(database), autocommit=True) as connection:
        found = connection.execute(statements)
        return found.fetchall() if found.description else []


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """A database with a schema `sales` and a table `orders`, as in the scripts."""
    admin(server, "test", "CREATE DATABASE shop")
    admin(server, "shop", "REVOKE ALL ON DATABASE shop FROM PUBLIC; CREATE SCHEMA sales")
    yield "shop"
    admin(server, "test", "DROP DATABASE shop WITH (FORCE)")
    admin(server, "test", "DROP ROLE IF EXISTS fencepost_writer")


def script(name: str) -> str:
    return resources.files("fencepost.connectors.postgres").joinpath(name).read_text()


def sink(server: Server, table: str = "sales.orders", **settings: Any) -> Postgres:
    return Postgres(
        table, **({"dsn": f"{server.dsn_of('shop')} user=fencepost_writer", "key": "id", "staging": "auto"} | settings)
    )


def start(sink: Postgres, folder: Path, writer: int = 1, mode: OutputMode = "append") -> None:
    """For what is to fail."""
    driver = SinkDriver(sink, folder, writer=writer)
    try:
        driver.start(SCHEMA, mode)
    finally:
        driver.session.close()


def run_epochs(sink: Postgres, folder: Path, mode: OutputMode = "append") -> None:
    driver = SinkDriver(sink, folder)
    driver.start(SCHEMA, mode)
    driver.run(0, rows(0))
    driver.run(1, rows(1))
    driver.session.close()


def in_task(driver: SinkDriver, epoch: int, table: pa.Table) -> pa.Table:
    """What a task that takes two rows for many yields."""
    attempt = Attempt(driver.owner.lineage, driver.owner.writer, Epoch(epoch))
    write: Any = driver.sink.in_tasks("job")
    return pa.Table.from_batches(list(replace(write, few=2)(attempt, iter(table.to_batches(max_chunksize=2)))))


class TestRoles:
    def test_a_role_that_may_create_tables_in_its_schema_needs_no_more(
        self, server: Server, database: str, tmp_path: Path
    ) -> None:
        admin(server, database, script("role.sql"))
        run_epochs(sink(server), tmp_path)
        driver = SinkDriver(sink(server, "sales.log", key=None, staging="target"), tmp_path)
        driver.start(SCHEMA)
        found = driver.session.handles(Epoch(0), driver.rows(0, in_task(driver, 0, rows(0, 20))))
        assert ["table" in handle.body for handle in found] == [True]
        driver.session.verify(Epoch(0), found)
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(0), found).values())
        driver.session.close()
        assert [(3, 20)] == admin(
            server, database, "SELECT (SELECT count(*) FROM sales.orders), (SELECT count(*) FROM sales.log)"
        )

    def test_a_role_that_may_create_nothing_writes_to_tables_that_are_there(
        self, server: Server, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        admin(server, database, f"{ORDERS}; {script('role_without_create.sql')}")
        run_epochs(sink(server, staging="checkpoint"), tmp_path)
        assert "" == caplog.text
        driver = SinkDriver(sink(server), tmp_path, writer=2)
        driver.start(SCHEMA)
        assert "tasks cannot create tables (this user lacks a privilege), so the driver writes" in caplog.text
        handed = in_task(driver, 2, rows(2, 20))
        assert [None] == pa.compute.unique(handed[UNIT]).to_pylist()
        assert 20 == handed.num_rows
        [handle] = driver.session.handles(Epoch(2), driver.rows(2, handed))
        driver.session.verify(Epoch(2), (handle,))
        assert Outcome.DONE == driver.commit(2, handle)
        driver.session.close()
        assert [(20, "v2")] == admin(server, database, "SELECT count(*), min(v) FROM sales.orders")
        with pytest.raises(TargetRefused, match=r"(?s)staging_not_allowed.*'sales.orders'.*Grant CREATE") as refused:
            start(sink(server, staging="target"), tmp_path, writer=3)
        assert "postgres:sales.orders" == refused.value.where.sink
        with pytest.raises(TargetRefused, match="lacks a privilege"):
            start(sink(server, "sales.others"), tmp_path, writer=4)

    def test_each_of_its_grants_is_needed_and_its_absence_is_said_before_any_row(
        self, server: Server, database: str, tmp_path: Path
    ) -> None:
        admin(server, database, f"{ORDERS}; {script('role_without_create.sql')}")
        grants = re.findall(
            r"^GRANT (.*) ON (.*) TO fencepost_writer;", script("role_without_create.sql"), re.MULTILINE
        )
        single = [(right, what) for rights, what in grants for right in rights.split(", ")]
        assert 10 == len(single)
        for right, what in single:
            admin(server, database, f"REVOKE {right} ON {what} FROM fencepost_writer")
            try:
                with pytest.raises(FencepostError) as refused:
                    start(sink(server, staging="checkpoint"), tmp_path)
                assert refused.value.code in {"target_silent", "target_unusable", "schema_does_not_fit"}
            except BaseException as error:
                error.add_note(f"without {right} on {what}")
                raise
            admin(server, database, f"GRANT {right} ON {what} TO fencepost_writer")
        run_epochs(sink(server, staging="checkpoint"), tmp_path)

    def test_without_a_key_insert_is_enough(self, server: Server, database: str, tmp_path: Path) -> None:
        admin(server, database, f"{ORDERS}; {script('role_without_create.sql')}")
        admin(server, database, "REVOKE ALL ON sales.orders FROM fencepost_writer")
        admin(server, database, "REVOKE TEMPORARY ON DATABASE shop FROM fencepost_writer")
        admin(server, database, "GRANT INSERT ON sales.orders TO fencepost_writer")
        admin(server, database, "ALTER TABLE sales.orders DROP CONSTRAINT orders_pkey")
        run_epochs(sink(server, key=None), tmp_path)
        assert [(6,)] == admin(server, database, "SELECT count(*) FROM sales.orders")

    def test_replacing_the_whole_table_needs_the_right_to_delete(
        self, server: Server, database: str, tmp_path: Path
    ) -> None:
        admin(server, database, f"{ORDERS}; {script('role_without_create.sql')}")
        with pytest.raises(TargetRefused, match="lacks a privilege"):
            start(sink(server, key=None, mode="replace"), tmp_path, mode="complete")
        admin(server, database, "GRANT DELETE ON sales.orders TO fencepost_writer")
        run_epochs(sink(server, key=None, mode="replace"), tmp_path, "complete")
        assert [(3, "v1")] == admin(server, database, "SELECT count(*), min(v) FROM sales.orders")

    def test_removing_rows_needs_the_right_to_delete(self, server: Server, database: str, tmp_path: Path) -> None:
        admin(server, database, f"{ORDERS}; {script('role_without_create.sql')}")
        removing = sink(server, staging="checkpoint", deletes="gone")
        marked = rows(0).append_column("gone", pa.array([True, False, False]))
        driver = SinkDriver(removing, tmp_path)
        for step in (driver.session.preflight, driver.session.rehearse):
            with pytest.raises(TargetRefused, match="lacks a privilege"):
                step(marked.schema, "update")
        admin(server, database, "GRANT DELETE ON sales.orders TO fencepost_writer")
        driver.start(marked.schema, "update")
        driver.run(0, marked)
        driver.session.close()
        assert [(2, 1)] == admin(server, database, "SELECT count(*), min(id) FROM sales.orders")


ORDERS = "CREATE TABLE sales.orders (id bigint PRIMARY KEY, v text)"


class TestTls:
    @pytest.mark.parametrize("checks", [False, True])
    def test_the_connection_is_encrypted_where_the_server_offers_it(
        self, server: Server, tmp_path: Path, checks: bool
    ) -> None:
        more = f" sslmode=verify-full sslrootcert={server.certificate}" if checks else ""
        driver = SinkDriver(Postgres(f"t{checks}", dsn=server.dsn + more), tmp_path)
        driver.start(SCHEMA)
        encrypted = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'fence%'"
        assert [(True,)] == admin(server, "test", encrypted)
        driver.session.close()

    def test_a_server_that_cannot_prove_who_it_is_gets_no_rows(self, server: Server, tmp_path: Path) -> None:
        stranger = tmp_path / "root.crt"
        stranger.write_text("")
        driver = SinkDriver(Postgres("t", dsn=f"{server.dsn} sslmode=verify-full sslrootcert={stranger}"), tmp_path)
        with pytest.raises(TargetRefused, match="TLS cannot be set up"):
            driver.start(SCHEMA)


class TestDenied:
    """What a person has to change is refused, and final; what may pass by itself is retried."""

    DENIED: Mapping[str, Mapping[str, Any]] = {
        "wrong password": {"password": "wrong"},
        "no password": {"password": None},
        "unknown user": {"user": "nobody_at_all"},
        "unknown database": {"dbname": "nowhere"},
        "no right to connect": {"user": "idle"},
        "may not log in": {"user": "sleeping"},
        "odd option": {"options": "-c nonsense=1"},
    }
    SILENT: Mapping[str, Mapping[str, Any]] = {
        "nobody listens": {"port": 1},
        "too many connections": {"user": "crowded"},
        "unknown host": {"host": "nowhere.invalid"},
    }

    def dsn(self, server: Server, settings: Mapping[str, Any]) -> str:
        right = {"user": "guarded", "password": SECRET}
        return psycopg.conninfo.make_conninfo(server.dsn, **(right | settings))

    def policies(self, server: Server, folder: Path) -> dict[str, Policy]:
        """What a restart strategy does about each."""
        found = {}
        for name, settings in (self.DENIED | self.SILENT).items():
            with pytest.raises((TargetRefused, Retryable)) as refused:
                start(Postgres("guarded", dsn=self.dsn(server, settings)), folder)
            assert refused.value.code == ("target_silent" if name in self.SILENT else "target_unusable"), name
            found[name] = Reason.of(refused.value).policy
        return found

    def wanted(self) -> dict[str, Policy]:
        return dict.fromkeys(self.DENIED, Policy.FINAL) | dict.fromkeys(self.SILENT, Policy.RESTARTED)

    def test_a_start(self, server: Server, tmp_path: Path) -> None:
        assert self.wanted() == self.policies(server, tmp_path)

    def test_a_dialect_that_takes_every_failure_for_silence_is_found_out(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dialect, "_DENIED", ())
        monkeypatch.setattr(dialect, "_DENIED_CODES", {})
        with pytest.raises(AssertionError, match="wrong password"):
            self.policies(server, tmp_path)

    def test_a_server_whose_words_nobody_knows(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if it spoke another language: only its codes are left to go by."""
        local = ("Connection refused", "failed to resolve host")  # not the server's words
        monkeypatch.setattr(dialect, "_DENIED", ())
        monkeypatch.setattr(dialect, "_HEALING", [pair for pair in dialect._HEALING if pair[0] in local])
        assert self.wanted() == self.policies(server, tmp_path)

    @pytest.mark.parametrize(
        ("states", "kind"),
        [
            ({"28P01"}, Denied),
            ({"28000", "3D000"}, Denied),
            ({"28P01", "57P03"}, Silent),  # one of two hosts is starting up
            ({"53300"}, Silent),
            ({"XX000"}, Silent),
            (set(), Silent),
        ],
    )
    def test_codes(self, states: set[str], kind: type[Exception]) -> None:
        assert kind is type(dialect._by_code(states))

    def test_a_rehearsal_and_a_look(self, server: Server, tmp_path: Path) -> None:
        session = Postgres("guarded", dsn=self.dsn(server, {"password": "wrong"})).session("job")
        with pytest.raises(TargetRefused, match=r"target_unusable.*it refused the login"):
            session.rehearse(SCHEMA, "append")
        assert "it refused the login" == session.examine(Asked(lineage="x", epochs={})).why

    def test_a_password_that_is_changed_under_a_running_job(self, server: Server, tmp_path: Path) -> None:
        dsn = self.dsn(server, {"user": "fickle", "password": "one"})
        writes = Postgres("fickle", dsn=dsn, staging="target").in_tasks("job")
        assert writes is not None
        driver = SinkDriver(Postgres("fickle", dsn=dsn, staging="target"), tmp_path)
        driver.start(SCHEMA)
        driver.run(0, rows(0))
        decided = driver.pre_commit(1, rows(1))
        admin(server, "test", "ALTER ROLE fickle PASSWORD 'two'")
        ours = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'fickle'"
        admin(server, "test", ours)
        with pytest.raises(TargetRefused, match="it refused the login"):
            driver.vote(1, decided)
        assert Outcome.IN_DOUBT == driver.commit(1, decided), "what is decided is never refused"
        attempt = Attempt(driver.owner.lineage, driver.owner.writer, Epoch(2))
        told = pa.Table.from_batches(list(writes(attempt, iter(rows(2).to_batches()))))
        with pytest.raises(TargetRefused, match="it refused the login"):
            driver.session.handles(Epoch(2), driver.rows(2, told))
        admin(server, "test", "ALTER ROLE fickle PASSWORD 'one'")
        assert Outcome.DONE == driver.commit(1, decided)
        driver.session.close()

    def test_a_server_that_is_stopped_and_started(self, own: Any) -> None:
        sink = own.sink()
        own.started(sink, SCHEMA).session.close()
        own.server.kill()
        with pytest.raises(Retryable, match="target_silent") as silent:
            own.started(sink, SCHEMA)
        assert Policy.RESTARTED is Reason.of(silent.value).policy
        own.server.start()
        own.started(sink, SCHEMA)


class TestSecrets:
    def test_a_password_appears_nowhere(
        self, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        said: list[str] = []
        right = psycopg.conninfo.make_conninfo(server.dsn, user="guarded", password=SECRET)
        with caplog.at_level(logging.DEBUG):
            given = Postgres("guarded", dsn=right, key="id", staging="auto")
            driver = SinkDriver(given, tmp_path)
            said += [repr(given), str(given), repr(driver.session), repr(given.in_tasks("job")), given.name]
            said.append(driver.start(SCHEMA))
            said.append(json.dumps(asdict(driver.run(0, rows(0)))))
            said.append(repr(vars(driver.session)))
            driver.session.close()
            for wrong in (
                right.replace("user=guarded", "user=nobody_at_all").replace("dbname=test", "dbname=nowhere"),
                psycopg.conninfo.make_conninfo(right, password=SECRET + "x"),
                psycopg.conninfo.make_conninfo(right, port=1),
                psycopg.conninfo.make_conninfo(right, host="nowhere.invalid"),
                psycopg.conninfo.make_conninfo(right, sslmode="verify-full", sslrootcert=f"/{SECRET}"),
            ):
                with pytest.raises((TargetRefused, Retryable)) as refused:
                    start(Postgres("guarded", dsn=wrong), tmp_path)
                said += [str(refused.value), repr(refused.value), repr(refused.value.args)]
        out, err = capfd.readouterr()
        for text in (*said, caplog.text, out, err):
            assert "canary" not in text
        assert b"canary" not in server.log.read_bytes()

    @pytest.mark.parametrize(
        "dsn",
        [
            "host=h password=canary-1 and more",
            "postgresql://user:canary-1@[h/x",
            "password='canary-1",
            "canary-1",
            "host=h passwd=canary-1",
            "postgresql://user:canary-1%@h/x",
        ],
    )
    def test_a_dsn_that_cannot_be_read_is_refused_without_quoting_it(self, dsn: str) -> None:
        bad = Postgres("t", dsn=dsn, staging="auto")
        for step in (bad.session, bad.in_tasks):
            with pytest.raises(BadConfig, match="bad_dsn") as refused:
                step("job")
            assert "canary" not in str(refused.value) + repr(refused.value)
            assert refused.value.__context__ is None, "a logged traceback would show it"

    def test_the_plan_carries_the_dsn_to_the_tasks_and_shows_it_to_nobody(self) -> None:
        task = Postgres("t", dsn="host=h password=canary-1", staging="auto").in_tasks("job")
        assert "canary" not in repr(task)
        assert b"canary-1" in pickle.dumps(task)
