"""Who may write, who is asked, and what they are told: rights, passwords, TLS, and a server that asks for files."""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pymysql
import pytest

from fencepost.errors import EpochFailed, FencepostError, Refused, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.prove.rig.mariadb import MariaDB
from fencepost.prove.rig.process import until
from fencepost.sinks.contract import Attempt
from fencepost.testing.driver import LINEAGE

WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})
SECRET = "pass-canary-0815"  # noqa: S105


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


USER = "fencepost_writer@'%'"


def script(place: Any, name: str) -> list[str]:
    """The statements of a file that people are given, for the database of this test."""
    text = (files("fencepost.sinks.mysql") / name).read_text()
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
        assert "this user lacks a right to make tables" in caplog.text
        driver.run(0, words(("a", 1), ("a", 2)))
        object.__setattr__(write := sink.in_tasks("job"), "few", 0)
        batches = list(write(Attempt(LINEAGE, WriterNumber(1), Epoch(1)), iter(words(("b", 3)).to_batches())))
        handles = weak.vote(driver, 1, pa.Table.from_batches(batches))
        assert {Outcome.DONE} == set(driver.session.commit(Epoch(1), handles).values())
        assert [("a", 2), ("b", 3)] == weak.query("SELECT k, v FROM orders ORDER BY k")
        with pytest.raises(TargetRefused, match="staging_not_allowed"):
            weak.started(weak.sink("orders", key="k", staging="target"), WORDS)

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

        with pytest.raises((Refused, Retryable), match="this user lacks a right"):
            start_and_run()

    def test_a_right_that_is_taken_away_fails_the_vote(self, weak: Any) -> None:
        driver = weak.started(weak.sink("orders", key="k"), WORDS)
        driver.run(0, words(("a", 1)))
        weak.run(f"REVOKE INSERT ON {weak.database}.orders FROM {USER}")
        with pytest.raises(EpochFailed, match=r"rows_refused\].*this user lacks a right"):
            driver.vote(1, driver.pre_commit(1, words(("a", 1))))

    def test_a_user_without_any_right_is_told_so(self, weak: Any) -> None:
        app = weak
        app.run("CREATE USER none@'127.0.0.1' IDENTIFIED BY 'test'")
        for settings in ({"user": "none"}, {"password": "wrong"}, {"database": "nowhere"}):
            with pytest.raises(TargetRefused, match="target_unusable"):
                app.started(app.sink(**settings), WORDS)
        app.run("DROP USER none@'127.0.0.1'")


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
