"""Pages of a job whose file was named: what its sinks say, where its dead letters were read, and no value of a row."""

from __future__ import annotations

import html
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest
from addresses import check_page, codes, everything
from browser import get
from ended import tree, wait_until
from fencepost_proof.rig.mariadb import MariaDB
from fencepost_proof.rig.postgres import Postgres as Server
from fencepost_proof.rig.process import HOST
from fencepost_proof.stand_in import StandIn
from killing import wait
from starlette.types import ASGIApp

import fencepost as fp
from fencepost import faults
from fencepost.admin.letters import OTHER
from fencepost.connectors.table.session import TableSession
from fencepost.contract import LONGEST_ERROR, LettersWanted
from fencepost.observe import registry
from fencepost.observe.journal import Observer
from fencepost.ui import api, targets
from fencepost.ui.application import application
from fencepost.ui.shelf import Shelf
from fencepost.ui.targets import Targets

CANARY = "canary-7791"
"""A value of a record, which must be on no page."""
RAISED = f"ValueError: invalid literal for int() with base 10: '{CANARY}' (to_order, line 3)"
LETTERS = [
    *(("orders", f"orders-0@{n}", f'{{"card":"{CANARY}"}}', RAISED) for n in range(60)),
    ("orders", "orders-1@7", CANARY, "the record is null"),
    ("clicks", "file:///in/50%_!.json#1", CANARY, "the record is null"),
    ("clicks", "file:///in/50x_!.json#1", CANARY, "the record is null"),
    ("clicks", None, CANARY, "sink db refused it: NOT NULL constraint failed: rows.id"),
    (None, None, CANARY, CANARY),
]
TABLE = "CREATE TABLE letters (source {0}, position {0}, record {0}, error {0})"


def ran(folder: Path, sinks: Mapping[str, fp.Sink], fault: str = "") -> Path:
    """Run a job in a child until it ends or the fault does; its checkpoint."""
    checkpoint = folder / "checkpoint"
    pid = os.fork()
    if not pid:
        try:
            faults.arm({faults.ARM: fault} if fault else {})
            (checkpoint / "fencepost").mkdir(parents=True, exist_ok=True)
            StandIn(checkpoint, (1, 3, 5, 7), 2, sinks, observer=Observer("stand-in")).run()
        finally:
            os._exit(0)
    assert wait(pid) == (-9 if fault else 0)
    return checkpoint


def named(checkpoint: Path, sinks: Mapping[str, fp.Sink], *dead: str) -> ASGIApp:
    """The pages as `fencepost ui FILE` serves them."""
    key = registry.key_of(checkpoint)
    shelf = Shelf([checkpoint], registered=False, targets={key: Targets(sinks, frozenset(dead))})
    return application(shelf, codes, api.routes(shelf, codes))


def in_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(TABLE.format("TEXT"))
        database.executemany("INSERT INTO letters VALUES (?, ?, ?, ?)", LETTERS)


def in_duckdb(path: Path) -> None:
    with duckdb.connect(path) as database:
        database.execute(TABLE.format("VARCHAR"))
        database.executemany("INSERT INTO letters VALUES (?, ?, ?, ?)", LETTERS)


def in_postgres(dsn: str) -> None:
    with psycopg.connect(dsn) as database, database.cursor() as cursor:
        cursor.execute(TABLE.format("text"))
        cursor.executemany("INSERT INTO letters VALUES (%s, %s, %s, %s)", LETTERS)


def at(server: MariaDB) -> dict[str, Any]:
    return {"host": HOST, "port": server.port, "user": "test", "password": "test"}


def mysql(table: str, server: MariaDB) -> fp.Sink:
    return fp.MySQL(table, database="test", name="dead", **at(server))


def in_mysql(server: MariaDB) -> None:
    with pymysql.connect(**at(server), database="test") as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS letters")
        cursor.execute(TABLE.format("text"))
        cursor.executemany("INSERT INTO letters VALUES (%s, %s, %s, %s)", LETTERS)
        connection.commit()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Iterator[Server]:
    """One that tests may pause."""
    require("postgres")
    with Server(tmp_path_factory.mktemp("postgres")) as made:
        yield made


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "EVERY_S", 0.0)
    monkeypatch.setattr("fencepost.ui.shelf.FRESH_S", 0.0)


def held_of(page: str, sink: str) -> str:
    """What the page says that a target holds, without when it said so."""
    return re.sub(r" [\d.]+ m?s ago$", "", row_of(page, sink)[4])


def row_of(page: str, sink: str) -> list[str]:
    """The cells of one sink in the table of sinks."""
    (row,) = [one for one in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if f">{sink}</th>" in one]
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
    return [" ".join(html.unescape(re.sub("<[^>]*>", " ", one)).split()) for one in cells]


def test_postgres_and_sqlite_say_what_they_hold_and_where_bad_records_were_and_no_value(
    tmp_path: Path, server: Server
) -> None:
    dsn = server.create_database("orders")
    sinks: dict[str, fp.Sink] = {
        "db": fp.SQLite(tmp_path / "out.db", table="rows", name="db"),
        "pg": fp.Postgres("rows", dsn=dsn, name="pg"),
    }
    checkpoint = ran(tmp_path, sinks)
    in_sqlite(tmp_path / "letters.db")
    in_postgres(dsn)
    dead: dict[str, fp.Sink] = {
        "dead": fp.SQLite(tmp_path / "letters.db", table="letters", name="dead"),
        "dead-pg": fp.Postgres("letters", dsn=dsn, name="dead-pg"),
    }
    before, app, key = tree(tmp_path), named(checkpoint, {**sinks, **dead}, *dead), registry.key_of(checkpoint)
    page = get(app, f"/jobs/{key}/sinks").text
    for name in sinks:
        assert "1" == held_of(page, name), "the newest epoch, as the target says"
    told = get(app, f"/api/v1/jobs/{key}/sinks").json["sinks"]
    assert [("db", 1, []), ("pg", 1, [])] == [(s["name"], s["mark"]["epoch"], s["mark"]["findings"]) for s in told]
    queries = ["", "?sink=dead-pg", "?sink=dead-pg&skip=50", "?error=ValueError%20in%20to_order,%20line%203"]
    addresses = [*everything(checkpoint), *(f"/jobs/{key}/dead-letters{query}" for query in queries)]
    addresses += [f"/api/v1/jobs/{key}/dead-letters{query}" for query in queries]
    for path in addresses:
        answer = get(app, path)
        assert 200 == answer.status, path
        assert "7791" not in answer.text, path
        if not path.startswith("/api/"):
            check_page(answer)
    for sink in dead:
        page = get(app, f"/jobs/{key}/dead-letters?sink={sink}&skip=50").text
        assert "ValueError in to_order, line 3" in page
        assert "orders-0@9" in page, "as text: after 50 others"
    with psycopg.connect(dsn) as database:
        held = database.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost%'")
        assert [(0,)] == held.fetchall(), "no transaction and no session stays open"
    with closing(sqlite3.connect(tmp_path / "letters.db")) as database:
        assert (len(LETTERS),) == database.execute(
            "SELECT count(*) FROM letters WHERE record LIKE ?", (f"%{CANARY}%",)
        ).fetchone()
    assert tree(checkpoint) == {path: facts for path, facts in before.items() if path.startswith(f"{checkpoint}/")}


def marks(app: ASGIApp, key: str) -> dict[str, Any]:
    """By sink, as the API has them."""
    return {sink["name"]: sink["mark"] for sink in get(app, f"/api/v1/jobs/{key}/sinks").json["sinks"]}


def letters(app: ASGIApp, key: str, query: str) -> Any:
    answer = get(app, f"/api/v1/jobs/{key}/dead-letters?{query}")
    assert 200 == answer.status, answer.text
    assert answer.json["heard"], answer.json["why"]
    return answer.json


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres", "mariadb", "mysql"])
def test_dead_letters_are_paged_and_filtered_by_source_position_and_error(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dead: fp.Sink
    if kind == "sqlite":
        in_sqlite(tmp_path / "letters.db")
        dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    elif kind == "duckdb":
        in_duckdb(tmp_path / "letters.duckdb")
        dead = fp.DuckDB(tmp_path / "letters.duckdb", table="letters", name="dead")
    elif kind == "postgres":
        dsn = request.getfixturevalue("server").create_database(f"letters{os.getpid()}")
        in_postgres(dsn)
        dead = fp.Postgres("letters", dsn=dsn, name="dead")
    else:
        server = request.getfixturevalue(kind)
        in_mysql(server)
        dead = mysql("letters", server)
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    app, key = named(checkpoint, {"dead": dead}, "dead"), registry.key_of(checkpoint)
    first, second = letters(app, key, ""), letters(app, key, "skip=50")
    assert (50, True, 15, False) == (len(first["letters"]), first["more"], len(second["letters"]), second["more"])
    every = [(one["source"], one["position"]) for one in (*first["letters"], *second["letters"])]
    assert sorted(every, key=str) == sorted(((source, position) for source, position, _, _ in LETTERS), key=str)
    assert {"ValueError in to_order, line 3": 60, "the record is null": 3, OTHER: 1} == {
        error: count for error, count in first["errors"].items() if "refused" not in error
    }
    assert {"orders": 61, "clicks": 3, "": 1} == first["sources"]
    for query, count in {
        "source=clicks": 3,
        "source=clicks&error=the%20record%20is%20null": 2,
        "position=orders-1@": 1,
        "position=file:///in/50%25_!": 1,
        "error=ValueError%20in%20to_order,%20line%203&count=200": 60,
        "error=ValueError%20in%20to_order,%20line%204": 0,
        "error=ValueError&count=200": 60,
        "source=nobody": 0,
    }.items():
        assert count == len(letters(app, key, query)["letters"]), query
    page = get(app, f"/jobs/{key}/dead-letters?error=the%20record%20is%20null&position=file").text
    assert 2 == page.count(">file:///in/50")
    (more,) = re.findall(
        r'href="(\?[^"]*)" rel="next"', get(app, f"/jobs/{key}/dead-letters?count=2&source=orders").text
    )
    assert "source=orders" in more
    assert "skip=2" in more


@pytest.mark.parametrize(
    "query",
    [
        "error=ValueError:%20inv",
        "error=canary-7",
        "skip=x",
        "skip=10001",
        "position=%00",
        "source=" + "x" * 501,
        "error=" + "x" * (LONGEST_ERROR + 1),
        "sink=db",
    ],
)
def test_what_is_not_valid_is_refused(query: str, tmp_path: Path) -> None:
    in_sqlite(tmp_path / "letters.db")
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    app, key = named(checkpoint, {"dead": dead}, "dead"), registry.key_of(checkpoint)
    for path in (f"/jobs/{key}/dead-letters?{query}", f"/api/v1/jobs/{key}/dead-letters?{query}"):
        answer = get(app, path)
        assert (400, True) == (answer.status, "bad_query" in answer.text)


def test_a_server_that_stops_is_said_since_when_with_what_it_last_held(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = server.create_database("stops")
    sinks: dict[str, fp.Sink] = {
        "db": fp.SQLite(tmp_path / "out.db", table="rows", name="db"),
        "pg": fp.Postgres("rows", dsn=f"{dsn} connect_timeout=2", name="pg"),
    }
    checkpoint = ran(tmp_path, sinks)
    app, fresh = (named(checkpoint, sinks, "pg") for _ in range(2))
    key = registry.key_of(checkpoint)
    assert "silent" not in get(app, f"/jobs/{key}/sinks").text
    monkeypatch.setattr(targets, "PATIENCE_S", 0.5)
    monkeypatch.setattr(targets, "SHORT_S", 0.5)
    server.pause()
    try:
        began = time.monotonic()
        page = get(app, f"/jobs/{key}/sinks").text
        assert time.monotonic() - began < 10, "nobody waits for the server, which never answers"
        assert re.search(r"<strong>pg</strong> has not answered since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page)
        assert re.search(r"It last answered at .* and held epoch 1 then", page)
        assert ["1 silent", "1"] == [held_of(page, "pg"), held_of(page, "db")], "the other one is asked beside it"
        since = marks(app, key)["pg"]["silent_since"]
        assert "It has never answered these pages" in get(fresh, f"/jobs/{key}/sinks").text
        assert "cannot be read: it has not answered yet" in get(app, f"/jobs/{key}/dead-letters").text
        for _ in range(2):  # questions that end after the two seconds of the client
            wait_until(lambda: targets.SLOW != marks(app, key)["pg"]["silent_because"])
            time.sleep(2.5)
        assert since == marks(app, key)["pg"]["silent_since"], "since the first time"
    finally:
        server.resume()
    wait_until(lambda: "has not answered" not in get(app, f"/jobs/{key}/sinks").text)


def test_a_sink_is_asked_once_in_a_while_however_many_pages_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks)
    in_sqlite(tmp_path / "letters.db")
    asked: list[str] = []
    real, read = targets.verify.ask_one, targets.letters.read
    monkeypatch.setattr(targets.verify, "ask_one", lambda *given: (asked.append("mark"), real(*given))[1])
    monkeypatch.setattr(targets.letters, "read", lambda *given: (asked.append("letters"), read(*given))[1])
    monkeypatch.setattr(targets, "EVERY_S", 60.0)
    dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    app, key = named(checkpoint, {**sinks, "dead": dead}, "dead"), registry.key_of(checkpoint)
    paths = [f"/jobs/{key}/sinks", f"/api/v1/jobs/{key}/sinks", f"/jobs/{key}/dead-letters"] * 5
    pages = [threading.Thread(target=get, args=(app, path)) for path in paths]
    for one in pages:
        one.start()
    for one in pages:
        one.join(60)
    assert ["letters", "mark", "mark"] == sorted(asked), "one mark for each of two sinks"


def test_a_target_that_was_set_back_or_is_another_or_holds_more_is_said(tmp_path: Path) -> None:
    sinks = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks)
    app, key = named(checkpoint, sinks), registry.key_of(checkpoint)

    def change(statement: str) -> str:
        with closing(sqlite3.connect(tmp_path / "out.db")) as database, database:
            database.execute(statement)
        return get(app, f"/jobs/{key}/sinks").text

    behind = change("UPDATE fencepost_epoch SET epoch = 0")
    assert "target_behind" in behind
    assert "0" == held_of(behind, "db")
    assert "target_ahead" in change("UPDATE fencepost_epoch SET epoch = 5, handle = 'x'")
    assert "target_replaced" in change("UPDATE fencepost_target SET id = 'other'")


@pytest.mark.parametrize(("fault", "shown"), [("decide.after=kill@2", "0"), ("commit.after=kill@2", "1")])
def test_an_epoch_on_its_way_is_not_called_lost(fault: str, shown: str, tmp_path: Path) -> None:
    sinks = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks, fault)
    page = get(named(checkpoint, sinks), f"/jobs/{registry.key_of(checkpoint)}/sinks").text
    assert shown == held_of(page, "db")
    assert "target_" not in page


def test_a_job_that_decides_while_its_sink_is_asked_is_not_called_ahead(tmp_path: Path) -> None:
    sinks = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks, "decide.before=kill@2")
    app, key = named(checkpoint, sinks), registry.key_of(checkpoint)
    states = []
    real = targets.Targets.looks

    def late(self: Targets, root: Any, again: Any) -> Any:
        def once() -> Any:
            states.append(again())
            if len(states) == 1:
                ran(tmp_path, sinks)  # decides epoch 1, after the ledger was read
            return states[-1]

        return real(self, root, once)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets.Targets, "looks", late)
        patch.setattr(targets, "PATIENCE_S", 60.0)
        page = get(app, f"/jobs/{key}/sinks").text
    assert [0, 1] == [one.newest.epoch for one in states]
    assert "1" == held_of(page, "db")
    assert "target_" not in page


def test_without_a_file_the_pages_say_how_to_see_more(tmp_path: Path) -> None:
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    shelf, key = Shelf([checkpoint], registered=False), registry.key_of(checkpoint)
    app = application(shelf, codes, api.routes(shelf, codes))
    for page in ("sinks", "dead-letters"):
        assert "fencepost ui FILE" in get(app, f"/jobs/{key}/{page}").text
    (sink,) = get(app, f"/api/v1/jobs/{key}/sinks").json["sinks"]
    assert None is sink["mark"]
    told = get(app, f"/api/v1/jobs/{key}/dead-letters").json
    assert (False, [], None) == (told["asked"], told["letters"], told["sink"])


def test_a_sink_that_pages_cannot_read_is_said_and_no_sink_at_all_too(tmp_path: Path) -> None:
    sinks: dict[str, fp.Sink] = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint, key = ran(tmp_path, sinks), registry.key_of(tmp_path / "checkpoint")
    sinks["files"] = fp.Files(tmp_path / "letters", name="files")
    sinks["gone"] = fp.SQLite(tmp_path / "gone.db", table="letters", name="gone")
    sinks["new"] = fp.SQLite(tmp_path / "out.db", table="letters", name="new")
    app = named(checkpoint, sinks, "files", "gone", "new")
    assert "fp.list_published(path)" in get(app, f"/jobs/{key}/dead-letters?sink=files").text
    assert "</strong> cannot be read: it cannot be opened" in get(app, f"/jobs/{key}/dead-letters?sink=gone").text
    assert "does not exist yet" in get(app, f"/jobs/{key}/dead-letters?sink=new").text
    assert "no sink for dead letters" in get(named(checkpoint, sinks), f"/jobs/{key}/dead-letters").text


def slow(kind: str, folder: Path, request: pytest.FixtureRequest) -> fp.Sink:
    """A sink whose letters take minutes to sort."""
    view = "CREATE VIEW letters AS SELECT 'a' AS source, 'r' AS record, 'e' AS error, {} AS position FROM one"
    if kind == "sqlite":
        numbers = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n)"
        with closing(sqlite3.connect(folder / "slow.db")) as database, database:
            database.execute("CREATE TABLE one AS SELECT 1 AS n")
            database.execute(view.format(numbers))
        return fp.SQLite(folder / "slow.db", table="letters", name="dead")
    if kind == "postgres":
        dsn = request.getfixturevalue("server").create_database(f"slow{os.getpid()}")
        with psycopg.connect(dsn) as database:
            database.execute("CREATE TABLE one AS SELECT 1 AS n")
            database.execute(  # stable, so that it is not called for a column that nobody asks for
                "CREATE FUNCTION slow() RETURNS text LANGUAGE plpgsql STABLE AS"
                " $$ BEGIN PERFORM pg_sleep(600); RETURN ''; END $$"
            )
            database.execute(view.format("slow()"))
        return fp.Postgres("letters", dsn=dsn, name="dead")
    if kind == "duckdb":  # where a view is refused
        with duckdb.connect(folder / "slow.duckdb") as database:
            database.execute(
                "CREATE TABLE letters AS SELECT 'a' AS source, md5(i::text) AS position, 'r' AS record, 'e' AS error"
                " FROM range(1000000) AS n(i)"
            )
        return fp.DuckDB(folder / "slow.duckdb", table="letters", name="dead")
    server = request.getfixturevalue(kind)
    in_mysql(server)
    with pymysql.connect(**at(server), database="test") as connection, connection.cursor() as cursor:
        for _ in range(11):  # a view is refused here, too
            cursor.execute("INSERT INTO letters SELECT * FROM letters")
        connection.commit()
    return mysql("letters", server)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres", "mariadb", "mysql"])
def test_a_target_is_not_kept_busy_for_long(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = slow(kind, tmp_path, request)
    monkeypatch.setattr(
        "fencepost.connectors.table.database.LETTERS_S", 0.3 if kind in {"sqlite", "postgres"} else 0.01
    )
    found = targets.letters.read(sink, "job", LettersWanted())
    if kind in {"sqlite", "postgres"}:
        assert (True, True, 1, {OTHER: 1}) == (found.heard, found.is_late, found.counted, found.errors), found.why
    else:  # where even the sample may take longer than that
        assert found.is_late or not found.heard
    assert re.search("too many letters to sort in time|took too long|took longer", found.why), found.why


def test_letters_that_are_too_many_to_sort_are_counted_and_the_page_says_how_to_narrow_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("fencepost.connectors.table.database.LETTERS_S", 0.3)
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    app, key = named(checkpoint, {"dead": slow("sqlite", tmp_path, request)}, "dead"), registry.key_of(checkpoint)
    page = get(app, f"/jobs/{key}/dead-letters").text
    assert "too many letters to sort in time: choose a source" in page
    assert "<option>a</option>" in page
    assert "By error" in page
    assert "Position</th>" not in page
    told = letters(app, key, "")
    assert ([], True, {"a": 1}) == (told["letters"], told["late"], told["sources"])


@pytest.mark.parametrize(("count", "is_all"), [(1_000, True), (1_001, False)])
def test_a_thousand_letters_are_all_of_them_and_one_more_is_not(count: int, is_all: bool, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "letters.db")) as database, database:
        database.execute(TABLE.format("TEXT"))
        database.executemany(
            "INSERT INTO letters VALUES ('a', ?, 'r', 'the record is null')", [(str(n),) for n in range(count)]
        )
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    told = letters(named(checkpoint, {"dead": dead}, "dead"), registry.key_of(checkpoint), "")
    assert (1_000, is_all, {"a": 1_000}) == (told["counted"], told["counted_all"], told["sources"])


def test_each_error_that_a_page_lists_can_be_chosen(tmp_path: Path) -> None:
    """Also one of a record with many fields, or with a space in a name that is not a printable character."""
    fields = ", ".join(f"field_{n} BIGINT" for n in range(300))
    errors = [f"the record is not a JSON object of {fields}"[:LONGEST_ERROR]]
    errors.append("the record is not a JSON object of total\N{NO-BREAK SPACE}amount DOUBLE")
    with closing(sqlite3.connect(tmp_path / "letters.db")) as database, database:
        database.execute(TABLE.format("TEXT"))
        database.executemany("INSERT INTO letters VALUES ('a', 'p', 'r', ?)", [(error,) for error in errors])
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    app, path = named(checkpoint, {"dead": dead}, "dead"), f"/jobs/{registry.key_of(checkpoint)}/dead-letters"
    links = re.findall(r'href="(\?[^"]*error=[^"]*)"', get(app, path).text)
    assert len(errors) == len(links)
    for link in links:
        answer = get(app, path + html.unescape(link))
        assert (200, 1) == (answer.status, answer.text.count('<td class="pos target">p</td>'))


@pytest.mark.parametrize("raised", [AttributeError(CANARY), SystemExit(CANARY), None], ids=["error", "exit", "None"])
def test_a_sink_that_raises_anything_or_answers_nothing_is_silent(raised: BaseException | None, tmp_path: Path) -> None:
    sinks: dict[str, fp.Sink] = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks)
    in_sqlite(tmp_path / "letters.db")
    sinks["dead"] = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    app, key = named(checkpoint, sinks, "dead"), registry.key_of(checkpoint)

    def strange(*_: Any) -> None:
        if raised is not None:
            raise raised

    with pytest.MonkeyPatch.context() as patch:
        for name in ("examine", "letters", "close"):
            patch.setattr(TableSession, name, strange)
        page = get(app, f"/jobs/{key}/sinks")
        assert (200, True) == (page.status, "<strong>db</strong> has not answered since" in page.text)
        assert "asking it failed: " in page.text
        assert "Load the page again to ask it again." in page.text
        dead = get(app, f"/jobs/{key}/dead-letters")
        why = {AttributeError: "cannot be read: AttributeError at ", SystemExit: f"cannot be read: {targets.SLOW}"}
        assert (200, True) == (dead.status, why.get(type(raised), "is none of these") in dead.text)
        assert CANARY not in page.text + dead.text
    wait_until(lambda: "1" == held_of(get(app, f"/jobs/{key}/sinks").text, "db"))
    assert letters(app, key, "")["letters"]


def test_a_checkpoint_that_cannot_be_read_is_not_called_a_silent_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")}
    checkpoint = ran(tmp_path, sinks)
    app, key = named(checkpoint, sinks), registry.key_of(checkpoint)

    def gone(*_: Any) -> Any:
        raise PermissionError("planted")

    monkeypatch.setattr(targets.verify, "ask_one", gone)
    page = get(app, f"/jobs/{key}/sinks").text
    assert "has not answered since" not in page
    assert f"<strong>db</strong> was not asked: {targets.UNREAD}" in page
    told = marks(app, key)["db"]
    assert (None, "", targets.UNREAD) == (told["silent_since"], told["silent_because"], told["why"])


def test_letters_that_come_late_are_there_when_the_page_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = ran(tmp_path, {"db": fp.SQLite(tmp_path / "out.db", table="rows", name="db")})
    in_sqlite(tmp_path / "letters.db")
    dead = fp.SQLite(tmp_path / "letters.db", table="letters", name="dead")
    app, path = named(checkpoint, {"dead": dead}, "dead"), f"/jobs/{registry.key_of(checkpoint)}/dead-letters"
    go, asked, read = threading.Event(), [], targets.letters.read

    def late(*given: Any) -> Any:
        asked.append(given)
        go.wait(60)
        return read(*given)

    monkeypatch.setattr(targets.letters, "read", late)
    monkeypatch.setattr(targets, "EVERY_S", 60.0)
    monkeypatch.setattr(targets, "PATIENCE_S", 0.3)
    assert "cannot be read: it has not answered yet." in get(app, path).text
    go.set()
    wait_until(lambda: "ValueError in to_order" in get(app, path).text)
    assert 1 == len(asked)
