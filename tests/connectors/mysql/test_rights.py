"""Who may write, who is asked, and what they are told: rights, passwords, TLS, and a server that asks for files."""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pymysql
import pytest
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.process import until

from fencepost.connectors.mysql import connection
from fencepost.contract import Asked, Attempt
from fencepost.errors import EpochFailed, FencepostError, Policy, Reason, Refused, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.testing.sink_driver import LINEAGE

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})
SECRET = "pass-canary-0815"  # noqa: S105


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


USER = "fencepost_writer@'%'"


def script(place: Any, name: str) -> list[str]:
    """The statements of a file that people are given, for the database of this test."""
    text = (files("fencepost.connectors.mysql") / name).read_text()
    text = re.sub(r"^--.*$", "", text, flags=re.MULTILINE).replace("shop.", f"{place.database}.")
    return [*(part for part in text.split(";") if part.strip()), f"ALTER USER {USER} IDENTIFIED BY 'test'"]


class TestRights:
    @pytest.fixture
    def app(self, place: Any) -> Iterator[Any]:
        """A user of its own, which the tests have to make."""
        place.user = "fencepost_writer"
        yield place
        place.run(f"DROP USER IF EXISTS {USER}")

    @pytest.fixture
    def weak(self, app: Any) -> Any:
        """One that may create nothing."""
        app.run("CREATE TABLE orders (k varchar(20) COLLATE utf8mb4_bin PRIMARY KEY, v bigint)")
        app.run(*script(app, "role_without_create.sql"))
        return app

    def test_a_user_that_may_create_tables_needs_no_more(self, app: Any) -> None:
        app.run(*script(app, "role.sql"))
        sink = app.sink("orders", key="k", staging="target")
        driver = app.started(sink, WORDS)
        driver.run(0, words(("a", 1), ("a", 2)))
        handles = app.vote(driver, 1, app.staged(sink, words(("b", 3)), epoch=1))
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(1), handles).values())
        assert [] == app.staged_names()
        assert [("a", 2), ("b", 3)] == app.query("SELECT k, v FROM orders ORDER BY k")

    def test_a_user_that_may_create_nothing_writes_to_tables_that_are_there(
        self, weak: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = weak.sink("orders", key="k", staging="auto")
        driver = weak.started(sink, WORDS)
        assert "tasks cannot create tables (this user lacks a privilege)" in caplog.text
        driver.run(0, words(("a", 1), ("a", 2)))
        object.__setattr__(write := sink.in_tasks("job"), "few", 0)
        batches = list(write(Attempt(LINEAGE, WriterNumber(1), Epoch(1)), iter(words(("b", 3)).to_batches())))
        handles = weak.vote(driver, 1, pa.Table.from_batches(batches))
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(1), handles).values())
        assert [("a", 2), ("b", 3)] == weak.query("SELECT k, v FROM orders ORDER BY k")
        with pytest.raises(TargetRefused, match="staging_not_allowed"):
            weak.started(weak.sink("orders", key="k", staging="target"), WORDS)

    def test_removing_rows_needs_the_right_to_delete(self, weak: Any) -> None:
        sink = weak.sink("orders", key="k", staging="checkpoint", deletes="gone")
        marked = words(("a", 1), ("b", 2)).append_column("gone", pa.array([True, False]))
        with pytest.raises(TargetRefused, match="lacks a privilege"):
            weak.started(sink, marked.schema)
        weak.run(f"GRANT DELETE ON {weak.database}.orders TO {USER}")
        weak.started(sink, marked.schema).run(0, marked)
        assert [("b", 2)] == weak.query("SELECT k, v FROM orders")

    def test_without_a_key_it_needs_less(self, weak: Any) -> None:
        weak.run(
            f"REVOKE UPDATE ON {weak.database}.orders FROM {USER}",
            f"REVOKE CREATE TEMPORARY TABLES ON {weak.database}.* FROM {USER}",
        )
        driver = weak.started(weak.sink("orders"), WORDS)
        for epoch in range(2):
            driver.run(epoch, words((f"k{epoch}", 1)))

    @pytest.mark.parametrize(
        "right",
        [
            "SELECT ON {}.fencepost_target",
            *(f"{right} ON {{}}.fencepost_epoch" for right in ("SELECT", "INSERT", "UPDATE")),
            *(f"{right} ON {{}}.orders" for right in ("SELECT", "INSERT", "UPDATE")),
            "CREATE TEMPORARY TABLES ON {}.*",
        ],
    )
    def test_without_any_one_of_these_rights_it_is_refused_or_fails_in_the_vote(self, weak: Any, right: str) -> None:
        weak.run(f"REVOKE {right.format(weak.database)} FROM {USER}")
        driver = weak.driver(weak.sink("orders", key="k"))

        def start_and_run() -> None:
            driver.start(WORDS)
            for epoch in range(2):
                driver.run(epoch, words(("a", epoch)))

        with pytest.raises((Refused, Retryable), match="this user lacks a privilege"):
            start_and_run()

    def test_a_right_that_is_taken_away_fails_the_vote(self, weak: Any) -> None:
        driver = weak.started(weak.sink("orders", key="k"), WORDS)
        driver.run(0, words(("a", 1)))
        weak.run(f"REVOKE INSERT ON {weak.database}.orders FROM {USER}")
        with pytest.raises(EpochFailed, match=r"rows_refused\].*this user lacks a privilege"):
            driver.vote(1, driver.pre_commit(1, words(("a", 1))))

    def test_a_user_without_any_right_is_told_so(self, weak: Any) -> None:
        app = weak
        app.run("CREATE USER none@'127.0.0.1' IDENTIFIED BY 'test'")
        for settings in ({"user": "none"}, {"password": "wrong"}, {"database": "nowhere"}):
            with pytest.raises(TargetRefused, match="target_unusable"):
                app.started(app.sink(**settings), WORDS)
        app.run("DROP USER none@'127.0.0.1'")


class TestDenied:
    """What a person has to change is refused, and final; what may pass by itself is retried."""

    DENIED: Mapping[str, Mapping[str, Any]] = {
        "wrong password": {"password": "wrong"},
        "no password": {"password": None},
        "unknown user": {"user": "nobody_at_all"},
        "unknown database": {"database": "nowhere"},
        "no such way to log in": {"tls": "/nowhere/ca.pem"},
        "locked": {"user": "locked"},
        "not from here": {"user": "elsewhere"},
    }
    SILENT: Mapping[str, Mapping[str, Any]] = {
        "nobody listens": {"port": 1},
        "unknown host": {"host": "nowhere.invalid"},
        "too many connections": {"user": "crowded"},
    }

    @pytest.fixture
    def crowded(self, place: Any) -> Iterator[Any]:
        """A user that is locked, one of another host, and one that has all its connections open."""
        place.run(
            "CREATE USER locked@'127.0.0.1' IDENTIFIED BY 'test' ACCOUNT LOCK",
            "CREATE USER elsewhere@'10.9.8.7' IDENTIFIED BY 'test'",
            "CREATE USER crowded@'127.0.0.1' IDENTIFIED BY 'test' WITH MAX_USER_CONNECTIONS 1",
            f"GRANT ALL ON {place.database}.* TO crowded@'127.0.0.1'",
        )
        with place.root(user="crowded", password="test"):  # noqa: S106
            yield place
        place.run("DROP USER locked@'127.0.0.1', elsewhere@'10.9.8.7', crowded@'127.0.0.1'")

    def policies(self, place: Any) -> dict[str, Policy]:
        """What a restart strategy does about each."""
        found = {}
        for name, settings in (self.DENIED | self.SILENT).items():
            with pytest.raises((TargetRefused, Retryable)) as refused:
                place.started(place.sink(**settings), WORDS)
            assert refused.value.code == ("target_silent" if name in self.SILENT else "target_unusable"), name
            found[name] = Reason.of(refused.value).policy
        return found

    def test_a_start(self, crowded: Any) -> None:
        wanted = dict.fromkeys(self.DENIED, Policy.FINAL) | dict.fromkeys(self.SILENT, Policy.RESTARTED)
        assert wanted == self.policies(crowded)

    def test_a_dialect_that_takes_every_failure_for_silence_is_found_out(
        self, crowded: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "_DENIED", {})
        monkeypatch.setattr(connection, "_SILENT", dict.fromkeys(connection._DENIED | {1045: ""}, "silent"))
        with pytest.raises(AssertionError, match="wrong password"):
            self.policies(crowded)

    def test_a_rehearsal_and_a_look(self, place: Any) -> None:
        session = place.sink(password="wrong").session("job")  # noqa: S106
        with pytest.raises(TargetRefused, match=r"target_unusable.*it refused the login"):
            session.rehearse(WORDS, "append")
        assert "it refused the login" == session.examine(Asked(lineage="x", epochs={})).why

    def test_a_password_that_is_changed_under_a_running_job(self, place: Any) -> None:
        place.run(
            "CREATE USER fickle@'127.0.0.1' IDENTIFIED BY 'test'",
            f"GRANT ALL ON {place.database}.* TO fickle@'127.0.0.1'",
        )
        sink = place.sink(user="fickle", staging="target")
        driver = place.started(sink, WORDS)
        driver.run(0, words(("a", 0)))
        decided = driver.pre_commit(1, words(("a", 1)))
        place.run("ALTER USER fickle@'127.0.0.1' IDENTIFIED BY 'two'", "KILL USER fickle@'127.0.0.1'")
        with pytest.raises(TargetRefused, match="it refused the login"):
            driver.vote(1, decided)
        assert Outcome.IN_DOUBT == driver.commit(1, decided), "what is decided is never refused"
        told = place.staged(sink, words(("b", 2)), epoch=2)
        with pytest.raises(TargetRefused, match="it refused the login"):
            driver.session.handles(Epoch(2), driver.rows(2, told))
        place.run("ALTER USER fickle@'127.0.0.1' IDENTIFIED BY 'test'")
        assert Outcome.DONE == driver.commit(1, decided)
        driver.session.close()
        place.run("DROP USER fickle@'127.0.0.1'")

    def test_a_server_that_is_stopped_and_started(self, place: Any, tmp_path: Path) -> None:
        with MariaDB(tmp_path / "own") as own:
            sink = place.sink(port=own.port, database="test")
            place.started(sink, WORDS).session.close()
            own.kill()
            with pytest.raises(Retryable, match="target_silent") as silent:
                place.started(sink, WORDS)
            assert Policy.RESTARTED is Reason.of(silent.value).policy
            own.start()
            place.started(sink, WORDS).session.close()


class TestSecrets:
    def test_the_password_is_nowhere(self, place: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        caplog.set_level(logging.DEBUG)
        broken = tmp_path / "my.cnf"
        broken.write_text(f"[client\npassword={SECRET}\n")
        shown = []
        for settings in (
            {"password": SECRET},
            {"password": SECRET + "€"},
            {"password": SECRET, "tls": "/nowhere/ca.pem"},
            {"password": None, "user": None, "defaults_file": str(broken)},
        ):
            sink = place.sink(staging="target", **settings)
            with pytest.raises(FencepostError) as refused:
                place.started(sink, WORDS)
            chain = refused.value
            while chain is not None:
                shown += [str(chain), repr(chain)]
                chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
            shown += [repr(sink), repr(sink.in_tasks("job")), repr(sink.address), repr(sink.session("job"))]
        assert SECRET not in caplog.text + "".join(shown)

    def test_a_defaults_file_will_do(self, place: Any, tmp_path: Path) -> None:
        (tmp_path / "my.cnf").write_text(
            f"[client]\nuser=test\npassword=test\nhost=127.0.0.1\nport={place.server.port}\n"
        )
        nothing = dict.fromkeys(("user", "password", "host", "port"))
        place.started(place.sink(**nothing, defaults_file=str(tmp_path / "my.cnf")), WORDS).run(0, words(("a", 1)))
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_server_that_asks_for_a_file_gets_none(self, place: Any, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(SECRET)
        with Rogue(tmp_path / "secret") as rogue, pytest.raises(FencepostError):
            place.started(place.sink(port=rogue.port, tls=False), WORDS)
        assert rogue.asked
        assert SECRET.encode() not in rogue.got


class TestTLS:
    def test_tls_is_used_where_it_is_offered_and_checked_where_asked(self, place: Any, tmp_path: Path) -> None:
        with MariaDB(tmp_path / "tls", tls=True) as with_tls:
            self.check(place, with_tls)

    def check(self, place: Any, with_tls: MariaDB) -> None:
        def cipher(server: MariaDB, **settings: Any) -> str:
            sink = place.sink(port=server.port, database="test", **settings)
            driver = place.started(sink, WORDS, job=f"job-{settings}-{server.port}")
            [(_, found)] = driver.session.database.run("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            driver.session.close()
            return str(found)

        assert "" == cipher(place.server)
        assert "" != cipher(with_tls)
        assert "" != cipher(with_tls, tls=str(with_tls.certificate))
        assert "" == cipher(with_tls, tls=False)
        for server, settings in (
            (with_tls, {"tls": True}),
            (with_tls, {"tls": str(with_tls.certificate), "host": "127.0.0.2"}),
            (place.server, {"tls": True}),
        ):
            with pytest.raises((Retryable, Refused)):
                cipher(server, **settings)


class Rogue:
    """A server that lets anybody in and answers every statement by asking for a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked = False
        self.got = b""

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                hello = b"\x0a8.0.40\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", 0xF7FF)
                hello += struct.pack("<BHHB", 45, 2, 0x0008, 21) + bytes(10) + b"123456789012\0mysql_native_password\0"
                self._send(client, 0, hello)
                client.recv(65536)
                self._send(client, 2, b"\0\0\0\2\0\0\0")
                statements = 0
                while (got := client.recv(65536)) and statements < 20:
                    self.got += got
                    statements += 1
                    if statements <= 2:  # SET NAMES, SET sql_mode
                        self._send(client, 1, b"\0\0\0\2\0\0\0")
                        continue
                    self.asked = True
                    self._send(client, 1, b"\xfb" + str(self._path).encode())

    def _send(self, client: socket.socket, number: int, payload: bytes) -> None:
        client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


def test_pymysql_alone_would_send_the_file(tmp_path: Path) -> None:
    """Why `local_infile` stays off; and that the rogue server of these tests can do harm."""
    (tmp_path / "secret").write_text(SECRET)
    settings = {"user": "x", "local_infile": True, "sql_mode": "", "autocommit": None, "read_timeout": 1}
    with Rogue(tmp_path / "secret") as rogue:
        connection = pymysql.connect(host="127.0.0.1", port=rogue.port, **settings)
        with pytest.raises(pymysql.Error):
            connection.query("SELECT 1")
        until(lambda: SECRET.encode() in rogue.got, "it got the file")
