"""The rig's databases are real ones, keep their ports and what they acknowledged through a kill, and end with us."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pymysql
import pytest
import redis
from cassandra.cluster import Cluster
from fencepost_proof.rig import debs, jars, server
from fencepost_proof.rig.cassandra import Cassandra
from fencepost_proof.rig.debs import DebSet
from fencepost_proof.rig.jars import RigFailed
from fencepost_proof.rig.mariadb import PASSWORD, MariaDB, MySQL
from fencepost_proof.rig.postgres import Postgres
from fencepost_proof.rig.process import HOST, free_ports, until
from fencepost_proof.rig.proxy import Proxy
from fencepost_proof.rig.redis import Redis
from fencepost_proof.rig.server import PortTaken, Server

KINDS = {"postgres": Postgres, "mariadb": MariaDB, "mysql": MySQL, "redis": Redis, "cassandra": Cassandra}


def my_connect(port: int, **more: object) -> pymysql.Connection:
    return pymysql.connect(host=HOST, port=port, user="test", password=PASSWORD, database="test", **more)


def write(made: Server) -> None:
    """Have one row acknowledged by a client that knows no more than the server's address."""
    if isinstance(made, Postgres):
        with psycopg.connect(made.dsn) as connection:
            connection.execute("CREATE TABLE kept (x int)")
            connection.execute("INSERT INTO kept VALUES (7)")
    elif isinstance(made, MariaDB):
        with my_connect(made.port) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept (x int)")
            cursor.execute("INSERT INTO kept VALUES (7)")
            connection.commit()
    elif isinstance(made, Redis):
        with redis.from_url(made.url) as client:
            client.set("kept", 7)
    else:
        with Cluster([HOST], port=made.port, protocol_version=5) as cluster, cluster.connect() as session:
            strategy = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            session.execute(f"CREATE KEYSPACE test WITH replication = {strategy}", timeout=30)
            session.execute("CREATE TABLE test.kept (x int PRIMARY KEY)", timeout=30)
            session.execute("INSERT INTO test.kept (x) VALUES (7)", timeout=30)


def read(made: Server) -> int:
    if isinstance(made, Postgres):
        with psycopg.connect(made.dsn) as connection:
            [(found,)] = connection.execute("SELECT x FROM kept")
    elif isinstance(made, MariaDB):
        found = made.client("SELECT x FROM kept")
    elif isinstance(made, Redis):
        found = made.cli("GET", "kept")
    else:
        with Cluster([HOST], port=made.port, protocol_version=5) as cluster, cluster.connect() as session:
            [(found,)] = session.execute("SELECT x FROM test.kept", timeout=30)
    return int(found)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_killed_server_comes_back_on_its_port_with_its_data(
    require: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    require(name)
    with KINDS[name](tmp_path / "server") as made:
        before = made.port
        write(made)
        made.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, before)).close()
        made.start()
        assert (before, 7) == (made.port, read(made))


@pytest.mark.parametrize("name", ["postgres", "mariadb", "redis", "cassandra"])
def test_a_server_ends_with_the_process_that_started_it(
    require: Callable[[str], None], tmp_path: Path, name: str
) -> None:
    require(name)
    program = (
        f"import sys, pathlib, time; from fencepost_proof.rig.{name} import {KINDS[name].__name__} as Kind;"
        "print(Kind(pathlib.Path(sys.argv[1])).start().pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "server")], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    with starter.stdout:
        pid = int(starter.stdout.readline())
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    until(lambda: server.state(pid) == "Z", "the server followed")


def test_a_server_that_another_killed_can_be_started_again(require: Callable[[str], None], tmp_path: Path) -> None:
    require("postgres")
    with Postgres(tmp_path / "server") as made, psycopg.connect(made.dsn):
        os.kill(made.pid, signal.SIGKILL)
        until(lambda: server.state(made.pid) == "Z", "it was dead")
        made.start()
        with psycopg.connect(made.dsn) as connection:
            assert (1,) == connection.execute("SELECT 1").fetchone()


def test_a_frozen_server_does_not_answer_and_a_woken_one_does(redis_server: Redis) -> None:
    with redis.from_url(redis_server.url, socket_timeout=0.5, retry=None) as client:
        client.ping()
        redis_server.pause()
        try:
            with pytest.raises(redis.exceptions.TimeoutError):
                client.ping()
        finally:
            redis_server.resume()
        assert client.ping()


def test_a_frozen_postgres_freezes_the_connections_it_has(require: Callable[[str], None], tmp_path: Path) -> None:
    require("postgres")
    with Postgres(tmp_path / "server") as postgres, psycopg.connect(postgres.dsn) as connection:
        postgres.pause()
        try:
            connection.pgconn.send_query(b"SELECT 1")
            time.sleep(0.2)
            connection.pgconn.consume_input()
            assert connection.pgconn.is_busy()
        finally:
            postgres.resume()
        assert connection.pgconn.get_result() is not None
        assert connection.pgconn.get_result() is None


def test_a_port_that_was_taken_meanwhile_is_given_up(
    require: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("redis")
    with socket.create_server((HOST, 0)) as taken:
        choices = [[taken.getsockname()[1]], free_ports(1)]
        monkeypatch.setattr(server, "free_ports", lambda count: choices.pop(0))
        monkeypatch.setattr(server, "is_free", lambda port: True)
        with Redis(tmp_path / "server") as made:
            assert taken.getsockname()[1] != made.port


def test_a_port_that_is_taken_while_the_server_is_down_is_waited_for_in_vain(
    require: Callable[[str], None], tmp_path: Path
) -> None:
    require("redis")
    with Redis(tmp_path / "server") as made:
        made.stop()
        with socket.create_server((HOST, made.port)), pytest.raises(PortTaken, match="taken"):
            made.start()


def test_a_server_that_does_not_start_says_why(require: Callable[[str], None], tmp_path: Path) -> None:
    require("redis")
    with pytest.raises(RigFailed, match=r"ended with code 1(?s:.)*no-such-thing"):
        Redis(tmp_path / "server", settings={"no-such-thing": "1"}).start()


def test_settings_are_given_to_the_server(require: Callable[[str], None], tmp_path: Path) -> None:
    require("mariadb")
    with MariaDB(tmp_path / "server", settings={"innodb-flush-log-at-trx-commit": "2"}, tls=True) as made:
        assert "2\t1\n" == made.client("SELECT @@innodb_flush_log_at_trx_commit, @@local_infile")
        checks = ssl.create_default_context(cafile=made.certificate)
        with my_connect(made.port, ssl=checks) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
            assert "TLSv1.3" == cursor.fetchone()[1]


def test_postgres_offers_tls_and_keeps_what_it_acknowledged(require: Callable[[str], None], tmp_path: Path) -> None:
    require("postgres")
    with Postgres(tmp_path / "server", settings={"work_mem": "5MB"}, tls=True) as made:
        other = made.create_database("other one").replace("other one", "'other one'")
        with psycopg.connect(f"{other} sslmode=verify-full sslrootcert={made.certificate}") as connection:
            assert ("on", "5MB") == tuple(
                connection.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "work_mem")
            )
            assert ("other one", True) == (connection.info.dbname, bool(connection.pgconn.ssl_in_use))
        made.stop()


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("CREATE TABLE proxied (x int)")
    with Proxy(postgres.port) as made:
        yield made
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("DROP TABLE proxied")


def through(proxy: Proxy) -> psycopg.Connection:
    return psycopg.connect(f"host={HOST} port={proxy.port} user=test dbname=test sslmode=disable connect_timeout=10")


def rows(postgres: Postgres) -> list[int]:
    with psycopg.connect(postgres.dsn) as connection:
        return [x for (x,) in connection.execute("SELECT x FROM proxied ORDER BY x")]


def test_a_dropped_answer_loses_the_answer_and_not_the_commit(postgres: Postgres, proxy: Proxy) -> None:
    proxy.drop_answer_after(b"COMMIT")
    with through(proxy) as connection:
        connection.execute("INSERT INTO proxied VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert [1] == rows(postgres)
    with through(proxy) as connection:
        connection.execute("INSERT INTO proxied VALUES (2)")
    assert [1, 2] == rows(postgres)
    assert (2, 1, 0) == (proxy.connections, proxy.answers_dropped, proxy.cuts)


def test_what_is_cut_before_it_arrives_is_not_done(postgres: Postgres, proxy: Proxy) -> None:
    proxy.cut_before(lambda sent: b"COMMIT" in sent)
    with through(proxy) as connection:
        connection.execute("INSERT INTO proxied VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert ([], 1) == (rows(postgres), proxy.cuts)


def test_all_connections_can_be_cut_and_new_ones_refused(proxy: Proxy) -> None:
    with through(proxy) as connection:
        proxy.refuse(True)
        connection.execute("SELECT 1")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, proxy.port))
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    proxy.refuse(False)
    with through(proxy) as connection:
        connection.execute("SELECT 1")
    assert 1 == proxy.cuts


def test_a_marker_in_two_pieces_is_seen() -> None:
    with socket.create_server((HOST, 0)) as listener, Proxy(listener.getsockname()[1]) as proxy:
        proxy.cut_before(b"COMMIT")
        with socket.create_connection((HOST, proxy.port)) as client:
            client.sendall(b"ABC COM")
            behind, _ = listener.accept()
            with behind:
                assert b"ABC COM" == behind.recv(100)
                client.sendall(b"MIT")
                assert b"" == behind.recv(100)


@pytest.fixture
def fake_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let lines of shell be all the programs there are."""

    def make(**lines: str) -> None:
        for name, line in lines.items():
            program = tmp_path / "bin" / name.replace("_", "-")
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{line}\n")
            program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make


NOTHING = DebSet("nothing", ("nothing",), ("nothingd",))
UNPACK = 'mkdir -p "$3/usr/bin" && echo x >"$3/usr/bin/nothingd" && chmod +x "$3/usr/bin/nothingd"'


def test_packages_are_fetched_once_and_unpacked(fake_tools: Callable[..., None], tmp_path: Path) -> None:
    fake_tools(apt_get="echo x >nothing_1_all.deb", dpkg=UNPACK)
    found = debs.unpack(NOTHING)
    assert found.root / "usr/bin/nothingd" == found.program("nothingd")
    assert "nothing_1_all\n" == (found.root / "versions.txt").read_text()
    (tmp_path / "bin" / "apt-get").unlink()
    assert found == debs.unpack(NOTHING)
    assert [NOTHING.folder.name] == os.listdir(tmp_path / "cache" / "fencepost" / "debs")


def test_lists_of_packages_are_fetched_for_us_alone_where_there_are_none(fake_tools: Callable[..., None]) -> None:
    update, download = "*lists*update) touch lists/here", "*) test -e lists/here && echo x >nothing_1_all.deb"
    fake_tools(apt_get=f'case "$*" in {update};; {download};; esac', dpkg=UNPACK)
    assert "nothing_1_all\n" == (debs.unpack(NOTHING).root / "versions.txt").read_text()


def test_packages_of_another_debian_run_with_the_c_library_that_came_with_them(fake_tools: Callable[..., None]) -> None:
    loader = 'mkdir -p "$3/usr/lib64" "$3/usr/lib/a-linux-gnu" && touch "$3/usr/lib64/ld-linux-a.so.2"'
    apt = 'case "$*" in *install*) grep -q " later main" sources.list && echo x >archives/nothing_1_all.deb;; esac'
    fake_tools(apt_get=apt, dpkg=f"{UNPACK} && {loader}")
    found = debs.unpack(DebSet("nothing", ("nothing",), (), suite="later"))
    libraries = str(found.root / "usr/lib/a-linux-gnu")
    runs = [str(found.root / "usr/lib64/ld-linux-a.so.2"), "--library-path", libraries]
    assert [*runs, str(found.root / "usr/bin/nothingd")] == found.command("nothingd")


def test_what_is_installed_stands_in_where_packages_cannot_be_had(
    fake_tools: Callable[..., None], tmp_path: Path
) -> None:
    fake_tools(apt_get="echo no network; exit 100", dpkg="exit 1")
    with pytest.raises(RigFailed, match=r"no network(?s:.)*install nothingd"):
        debs.unpack(NOTHING)
    fake_tools(nothingd="exit 0")
    assert tmp_path / "bin" / "nothingd" == debs.unpack(NOTHING).program("nothingd")
    (tmp_path / "bin" / "apt-get").unlink()
    assert {} == debs.unpack(NOTHING).environment
    assert [] == os.listdir(jars.cache().with_name("debs"))
