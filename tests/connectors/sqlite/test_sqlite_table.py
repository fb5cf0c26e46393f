"""SQLite: which tables, columns and values fit, and what is said when they do not."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fencepost.connectors.sqlite.sink import SQLite
from fencepost.errors import BadConfig, FencepostError, Refused, TargetRefused
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def script(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


def started(sink: SQLite, folder: Path, schema: pa.Schema = TABLE.schema) -> SinkDriver:
    driver = SinkDriver(sink, folder)
    driver.start(schema)
    return driver


def test_every_type_that_spark_delivers_comes_back(tmp_path: Path) -> None:
    aware = pa.timestamp("us", tz="America/New_York")
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {
        "byte": (pa.int8(), -128, -128),
        "long": (pa.int64(), 2**63 - 1, 2**63 - 1),
        "float": (pa.float32(), 0.5, 0.5),
        "double": (pa.float64(), 0.1, 0.1),
        "infinite": (pa.float64(), float("inf"), float("inf")),
        "nan": (pa.float64(), float("nan"), None),
        "yes": (pa.bool_(), True, 1),
        "text": (pa.string(), "ä\0'\"☃", "ä\0'\"☃"),
        "bytes": (pa.binary(), b"\0\xff", b"\0\xff"),
        "decimal": (
            pa.decimal128(38, 10),
            Decimal("12345678901234567890.0000000001"),
            "12345678901234567890.0000000001",
        ),
        "small": (pa.decimal128(20, 18), Decimal("0.000000000000000001"), "0.000000000000000001"),
        "date": (pa.date32(), date(1582, 10, 15), "1582-10-15"),
        "local": (
            pa.timestamp("us"),
            datetime(2024, 5, 6, 7, 8, 9, 10),  # noqa: DTZ001 - Spark's timestamp_ntz
            "2024-05-06T07:08:09.000010",
        ),
        "aware": (aware, datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "2024-05-06T07:08:09+00:00"),
        "time": (pa.time64("ns"), time(1, 2, 3, 4), "01:02:03.000004"),
        "interval": (pa.duration("us"), timedelta(days=1, microseconds=1), 86_400_000_001),
        "struct": (
            pa.struct({"a": pa.int32(), "b": pa.list_(pa.float64())}),
            {"a": None, "b": [1.5, float("nan")]},
            '{"a":null,"b":[1.5,"NaN"]}',
        ),
        "list": (pa.list_(pa.decimal128(5, 2)), [Decimal("1.50"), None], '["1.50",null]'),
        "map": (
            pa.map_(pa.string(), aware),
            [("k", datetime(2024, 1, 1, tzinfo=UTC))],
            '{"k":"2024-01-01T00:00:00+00:00"}',
        ),
        "pairs": (pa.map_(pa.int32(), pa.binary()), [(1, b"x")], '[[1,"eA=="]]'),
        "void": (pa.null(), None, None),
    }
    schema = pa.schema({name: kind for name, (kind, _, _) in columns.items()})
    table = pa.table([[value, None] for _, value, _ in columns.values()], schema=schema)
    driver = started(SQLite(tmp_path / "t.db", table="t"), tmp_path, schema)
    driver.run(0, table)
    driver.session.close()
    expected = [tuple(stored for _, _, stored in columns.values()), (None,) * len(columns)]
    assert expected == query(tmp_path / "t.db", "SELECT * FROM t")


@pytest.mark.parametrize("name", ['we"ird', "two words", "a.b", "ünïcode☃", "select", "it's", "?", "[x]", "%s"])
def test_any_name_works_for_tables_columns_and_files(tmp_path: Path, name: str) -> None:
    table = pa.table({name: [1, 1, 2], "v": ["a", "b", "c"]})
    path = tmp_path / f"{name}#?%20.db"
    driver = started(SQLite(path, table=name, key=name), tmp_path, table.schema)
    driver.run(0, table)
    driver.session.close()
    quoted = name.replace('"', '""')
    assert [(1, "b"), (2, "c")] == query(path, f'SELECT * FROM "{quoted}" ORDER BY 1')  # noqa: S608
    assert [path.name] == [file.name for file in tmp_path.iterdir() if file.is_file()]


def test_everything_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script(
        path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, price NUMERIC, must TEXT NOT NULL, fine TEXT NOT NULL"
        " DEFAULT '', g INTEGER GENERATED ALWAYS AS (n + 1))",
    )
    schema = pa.schema(
        {"n": pa.string(), "price": pa.decimal128(38, 2), "gone": pa.int64(), "g": pa.int64(), "N": pa.int32()}
    )
    with pytest.raises(TargetRefused) as refused:
        started(SQLite(path, table="t"), tmp_path, schema)
    assert "schema_does_not_fit" == refused.value.code
    for words in (
        "column 'n' has affinity INTEGER, which would change string",
        "column 'price' has affinity NUMERIC, which would change decimal128(38, 2)",
        "column 'gone' is missing",
        "column 'g' is generated",
        "column 'n' appears twice",
        "column 'must' is NOT NULL and has no default",
    ):
        assert words in refused.value.what
    assert "'fine'" not in refused.value.what
    assert "'id'" not in refused.value.what


def test_columns_fit_whatever_their_case_and_order(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script(path, "CREATE TABLE t (V BIGINT, extra TEXT, K VARCHAR(10))")
    driver = started(SQLite(path, table="t"), tmp_path)
    driver.run(0, TABLE)
    driver.session.close()
    assert [(1, None, "a"), (2, None, "b")] == query(path, "SELECT * FROM t")


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v INTEGER)",
        "CREATE TABLE t (k TEXT COLLATE RTRIM UNIQUE, v INTEGER)",
        "CREATE TABLE t (k TEXT, v INTEGER); CREATE UNIQUE INDEX i ON t (K COLLATE nocase)",
        "CREATE TABLE t (k TEXT COLLATE NOCASE, v INTEGER, PRIMARY KEY (v, k)) WITHOUT ROWID",
    ],
)
def test_a_table_that_calls_different_keys_equal_is_refused_before_data_flows(tmp_path: Path, table: str) -> None:
    script(tmp_path / "t.db", f"{table};")
    session = SQLite(tmp_path / "t.db", table="t", key=["k", "v"] if "(v, k)" in table else "k").session("job")
    for look in (session.rehearse, session.preflight):
        with pytest.raises(TargetRefused, match="COLLATE BINARY") as refused:
            look(TABLE.schema, "update")
        assert "keys_merge" == refused.value.code
    session.close()


def test_a_column_that_ignores_case_with_an_index_that_does_not_is_accepted(tmp_path: Path) -> None:
    script(
        tmp_path / "t.db",
        "CREATE TABLE t (k TEXT COLLATE NOCASE, v INTEGER); CREATE UNIQUE INDEX i ON t (k COLLATE BINARY);"
        "CREATE UNIQUE INDEX j ON t (v, k)",
    )
    driver = started(SQLite(tmp_path / "t.db", table="t", key="k"), tmp_path)
    driver.run(0, pa.table({"k": ["a", "A", "a "], "v": [1, 2, 3]}))
    driver.session.close()
    assert [("a",), ("A",), ("a ",)] == query(tmp_path / "t.db", "SELECT k FROM t ORDER BY v")


def test_a_key_that_is_not_unique_comes_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script(path, "CREATE TABLE t (k TEXT, v INTEGER); CREATE UNIQUE INDEX some ON t (k) WHERE v > 0;")
    sink = SQLite(path, table="t", key="k")
    with pytest.raises(TargetRefused) as refused:
        started(sink, tmp_path)
    assert "key_not_unique" == refused.value.code
    script(path, refused.value.next)
    driver = started(sink, tmp_path)
    driver.run(0, TABLE)
    driver.session.close()


def test_a_view_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script(path, "CREATE TABLE real (k TEXT, v INTEGER); CREATE VIEW t AS SELECT * FROM real")
    with pytest.raises(TargetRefused, match="it is a view"):
        started(SQLite(path, table="t"), tmp_path)


def test_a_key_that_is_not_a_column_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="key= names 'K'"):
        started(SQLite(tmp_path / "t.db", table="t", key="K"), tmp_path)


def test_update_mode_without_a_key_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    session = SQLite(tmp_path / "t.db", table="t").session("job")
    with pytest.raises(BadConfig, match="mode_does_not_fit"):
        session.preflight(TABLE.schema, "update")


@pytest.mark.parametrize(
    "settings",
    [
        {"path": ":memory:"},
        {"path": ""},
        {"table": ""},
        {"table": "fencepost_epoch"},
        {"table": "SQLite_master"},
        {"mode": "overwrite"},
        {"mode": "upsert"},
        {"key": ("a", "a")},
        {"key": ""},
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any]) -> None:
    arguments = {"path": "x.db", "table": "t"} | settings
    with pytest.raises(BadConfig) as refused:
        SQLite(arguments.pop("path"), **arguments)
    assert "bad_sink" == refused.value.code


def test_building_a_sink_opens_nothing(tmp_path: Path) -> None:
    sink = SQLite(tmp_path / "t.db", table="t")
    sink.session("job")
    assert [] == list(tmp_path.iterdir())
    assert "sqlite:t" == sink.name


def unusable(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("not a database, but long enough to be taken for one\n" * 100)
    elif kind == "nowhere":
        path = path / "deeper" / "t.db"
    return path


@pytest.mark.parametrize("kind", ["folder", "text", "nowhere"])
def test_a_path_that_is_no_database_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(TargetRefused) as refused:
        started(SQLite(unusable(tmp_path, kind), table="t"), tmp_path)
    assert "target_unusable" == refused.value.code


@pytest.mark.parametrize("there", [True, False])
def test_without_create_nothing_is_made(tmp_path: Path, *, there: bool) -> None:
    path = tmp_path / "t.db"
    if there:
        script(path, "CREATE TABLE other (k TEXT)")
    with pytest.raises(TargetRefused) as refused:
        started(SQLite(path, table="t", create=False), tmp_path)
    assert ("target_missing", there) == (refused.value.code, path.exists())
    assert not there or [("other",)] == query(path, "SELECT name FROM sqlite_master")


def test_a_file_that_may_not_be_written_is_refused_before_any_data(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    started(SQLite(path, table="t"), tmp_path).session.close()
    program = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        import pyarrow as pa
        from fencepost.errors import FencepostError
        from fencepost.connectors.sqlite.sink import SQLite
        from fencepost.testing import SinkDriver
        if os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)  # root may write anything
        try:
            folder = Path(sys.argv[1])
            SinkDriver(SQLite(folder / "t.db", table="t"), folder).start(pa.schema({"k": pa.string(), "v": pa.int64()}))
        except FencepostError as error:
            print(error.code, "|", error.what)
        """
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode & ~0o022 | 0o055)
    path.chmod(0o444)
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("target_unusable | The file cannot be used: it ")


def test_no_error_is_without_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(FencepostError) as refused:
        started(SQLite(tmp_path, table="t"), tmp_path)
    assert isinstance(refused.value, Refused)
    text = str(refused.value)
    assert all(part in text for part in ("[target_unusable]", "where: job 'job', sink 'sqlite:t'", "data:", "next:"))


def test_replaced_at_every_epoch_the_table_is_what_the_last_one_said(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    driver = SinkDriver(SQLite(path, table="t", mode="replace"), tmp_path)
    driver.start(TABLE.schema, "complete")
    driver.run(0, TABLE)
    handle = driver.pre_commit(1, pa.table({"k": ["a"], "v": [3]}))
    driver.vote(1, handle)
    assert [("a", 1), ("b", 2)] == query(path, "SELECT * FROM t")
    driver.commit(1, handle)
    driver.session.close()
    assert [("a", 3)] == query(path, "SELECT * FROM t")


def test_a_table_that_is_replaced_takes_whole_results_only(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="mode_does_not_fit"):
        started(SQLite(tmp_path / "t.db", table="t", mode="replace"), tmp_path)


def test_an_empty_result_empties_a_table_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    driver = SinkDriver(SQLite(path, table="t", mode="replace"), tmp_path)
    driver.start(TABLE.schema, "complete")
    driver.run(0, TABLE)
    [handle] = driver.session.handles(Epoch(1), driver.owner.staging.rows((), driver.sink.name))
    driver.vote(1, handle)
    driver.commit(1, handle)
    driver.session.close()
    assert [] == query(path, "SELECT * FROM t")
