"""DuckDB: the contract, and what only DuckDB does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import fencepost as fp
from fencepost.connectors.duckdb import dialect
from fencepost.connectors.duckdb.sink import DuckDB
from fencepost.connectors.table.database import Late, RowsRefused, Silent
from fencepost.errors import BadConfig, EpochFailed, OperatorNeeded, Retryable, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkContract, SinkDriver, rows_of

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})
SECRET = "row-canary-4711"  # noqa: S105


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "PATIENT_S", 0.2)
    monkeypatch.setattr(dialect, "IMPATIENT_S", 0.1)


def query(path: Path, statement: str) -> list[Any]:
    with duckdb.connect(path) as connection:
        return connection.execute(statement).fetchall()


@contextmanager
def opened_elsewhere(path: Path, *, read_only: bool = False) -> Iterator[None]:
    """Another process has the file open."""
    program = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}, read_only={read_only}); print(1); sys.stdin.read()"
    )
    command = [sys.executable, "-uc", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert b"1\n" == other.stdout.readline()
        yield
        other.stdin.close()


def started(sink: DuckDB, folder: Path, schema: pa.Schema = TABLE.schema, **owner: Any) -> SinkDriver:
    driver = SinkDriver(sink, folder, **owner)
    driver.start(schema, "complete" if sink.mode == "replace" else "append")
    return driver


class TestUpsert(SinkContract):
    notices_a_setback = True
    tells = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> DuckDB:
        return DuckDB(tmp_path / "target.db", table="words", key="k", name="words")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return query(tmp_path / "target.db", "SELECT k, v FROM words")

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", None, "secret-2"], "v": [1, 2, 3]})

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})

    def silence(self, tmp_path: Path) -> Any:
        return opened_elsewhere(tmp_path / "target.db")

    def forget(self, tmp_path: Path) -> bool:
        query(tmp_path / "target.db", "DELETE FROM fencepost_epoch")
        return True


class TestAppend(TestUpsert):
    def make_sink(self, tmp_path: Path) -> DuckDB:
        path = tmp_path / "target.db"
        if not path.exists():
            query(path, "CREATE TABLE words (k VARCHAR UNIQUE, v BIGINT CHECK (v >= 0))")
        return DuckDB(path, table="words", name="words", create=False)

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["secret-1", "secret-1"], "v": [1, 2]})


class TestRows:
    def test_the_last_row_of_a_key_within_an_epoch_wins(self, tmp_path: Path) -> None:
        table = pa.table({"a": [1, 1, 1] * 50, "b": ["x", "y", "x"] * 50, "v": range(150)})
        driver = started(DuckDB(tmp_path / "t.db", table="t", key=("a", "b")), tmp_path, table.schema)
        driver.run(0, table)
        driver.run(1, pa.table({"a": [1], "b": ["y"], "v": [7]}))
        assert [(1, "x", 149), (1, "y", 7)] == query(tmp_path / "t.db", "SELECT * FROM t ORDER BY b")

    def test_a_table_that_is_nothing_but_its_key_takes_a_key_twice(self, tmp_path: Path) -> None:
        table = pa.table({"k": ["a", "a"]})
        driver = started(DuckDB(tmp_path / "t.db", table="t", key="k"), tmp_path, table.schema)
        driver.run(0, table)
        driver.run(1, table)
        assert [("a",)] == query(tmp_path / "t.db", "SELECT * FROM t")

    def test_replace_makes_the_table_what_the_last_epoch_said_also_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        query(path, "CREATE TABLE t (k VARCHAR PRIMARY KEY, v BIGINT)")  # a key that is deleted and written again
        driver = started(DuckDB(path, table="t", mode="replace"), tmp_path)
        driver.run(0, TABLE)
        driver.run(1, pa.table({"k": ["a"], "v": [9]}))
        assert [("a", 9)] == query(path, "SELECT * FROM t")
        empty = driver.session.pre_commit(Epoch(2), driver.rows(2, TABLE.slice(0, 0)))
        assert empty is not None
        driver.vote(2, empty)
        driver.commit(2, empty)
        assert [] == query(path, "SELECT * FROM t")

    def test_appended_rows_keep_their_order_over_many_batches(self, tmp_path: Path) -> None:
        table = pa.Table.from_batches(pa.table({"n": range(50_000)}).to_batches(max_chunksize=700))
        driver = started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, table.schema)
        driver.run(0, table)
        assert list(enumerate(range(50_000))) == query(tmp_path / "t.db", "SELECT rowid, n FROM t ORDER BY rowid")

    def test_an_odd_name_is_a_name(self, tmp_path: Path) -> None:
        table = pa.table({'"; DROP TABLE t; --': [1], "select": [2]})
        sink = DuckDB(tmp_path / "t.db", table='my "t"', key="select")
        started(sink, tmp_path, table.schema).run(0, table)
        assert [(1, 2)] == query(tmp_path / "t.db", 'SELECT * FROM "my ""t"""')

    def test_two_sinks_of_a_job_in_one_file_share_one_transaction(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        one, two = (started(DuckDB(path, table=table), tmp_path) for table in ("one", "two"))
        first, second = one.pre_commit(0, TABLE), two.pre_commit(0, TABLE)
        assert ((), ()) == (one.vote(0, first), two.vote(0, second))
        assert [(0,)] == query(path, "SELECT count(*) FROM one")
        assert Outcome.DONE == one.commit(0, first)
        assert [(2,)] == query(path, "SELECT count(*) FROM two"), "they became visible together"
        assert Outcome.DONE == two.commit(0, second)
        assert [(2,), (2,)] == query(path, "SELECT count(*) FROM one UNION ALL SELECT count(*) FROM two")


KINDS: dict[str, tuple[pa.Array, str]] = {
    "int8": (pa.array([-128, None], pa.int8()), "TINYINT"),
    "uint64": (pa.array([2**64 - 1, 0], pa.uint64()), "UBIGINT"),
    "float32": (pa.array([1.5, float("-inf")], pa.float32()), "FLOAT"),
    "float64": (pa.array([5e-324, None]), "DOUBLE"),
    "half": (pa.array([1.5, None], pa.float16()), "FLOAT"),
    "bool": (pa.array([True, None]), "BOOLEAN"),
    "text": (pa.array(["ü\0\n", ""]), "VARCHAR"),
    "words": (pa.array(["a", "b"]).dictionary_encode(), "VARCHAR"),
    "view": (pa.array(["a", None], pa.string_view()), "VARCHAR"),
    "bytes": (pa.array([b"\0\xff", b""]), "BLOB"),
    "decimal": (
        pa.array([Decimal("12345678901234567890.123456789012345678"), None], pa.decimal128(38, 18)),
        "DECIMAL(38,18)",
    ),
    "small": (pa.array([Decimal("0.000001"), Decimal("-9.999999")], pa.decimal128(7, 6)), "DECIMAL(7,6)"),
    "wide": (pa.array([Decimal("1.50"), None], pa.decimal256(20, 2)), "DECIMAL(20,2)"),
    "date": (pa.array([date(1, 1, 1), date(9999, 12, 31)]), "DATE"),
    "clock": (pa.array([clock(23, 59, 59, 999999), None], pa.time64("us")), "TIME"),
    "moment": (pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us")), "TIMESTAMP"),
    "fine": (pa.array([1_000, None], pa.timestamp("ns")), "TIMESTAMP"),
    "zoned": (
        pa.array([datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None], pa.timestamp("us", tz="Europe/Berlin")),
        "TIMESTAMP WITH TIME ZONE",
    ),
    "nothing": (pa.nulls(2), "VARCHAR"),
    "list": (pa.array([[1, None], None], pa.list_(pa.int32())), "INTEGER[]"),
    "lists": (pa.array([[["a"], []], [None]], pa.list_(pa.list_(pa.string()))), "VARCHAR[][]"),
    "three": (pa.array([[1, 2, 3], None], pa.list_(pa.int8(), 3)), "TINYINT[3]"),
    "struct": (
        pa.array([{"a": 1, "Odd name": None}, None], pa.struct({"a": pa.int32(), "Odd name": pa.string()})),
        'STRUCT(a INTEGER, "Odd name" VARCHAR)',
    ),
    "map": (pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64())), "MAP(VARCHAR, BIGINT)"),
    "deep": (
        pa.array([[{"at": [1000]}], None], pa.list_(pa.struct({"at": pa.list_(pa.timestamp("ns"))}))),
        'STRUCT("at" TIMESTAMP[])[]',
    ),
}


class TestTypes:
    def test_every_column_comes_back_as_it_was(self, tmp_path: Path) -> None:
        table = pa.table({"n": [0, 1]} | {name: array for name, (array, _) in KINDS.items()})
        sink = DuckDB(tmp_path / "t.db", table="t")
        driver = started(sink, tmp_path, table.schema)
        driver.run(0, table)
        started(sink, tmp_path, table.schema, held=Epoch(0)).session.close()  # the table that it made fits
        with duckdb.connect(tmp_path / "t.db") as connection:
            said = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE t)").fetchall())
            back = connection.sql("SELECT * FROM t ORDER BY n").to_arrow_table()
        assert {name: shown for name, (_, shown) in KINDS.items()} == {name: said[name] for name in KINDS}
        for name, (array, _) in KINDS.items():
            wanted = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
            found = back[name].combine_chunks()
            assert (name, wanted.cast(found.type).to_pylist()) == (name, found.to_pylist())

    def test_nan_stays_nan_and_durations_are_intervals(self, tmp_path: Path) -> None:
        table = pa.table({"f": [float("nan")], "d": pa.array([timedelta(days=-3, microseconds=5)], pa.duration("us"))})
        started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, table.schema).run(0, table)
        found = query(tmp_path / "t.db", "SELECT isnan(f), d FROM t")
        assert [(True, timedelta(days=-3, microseconds=5))] == found

    def test_columns_that_would_change_values_are_refused_all_at_once(self, tmp_path: Path) -> None:
        pairs = [
            (pa.int64(), "INTEGER"),
            (pa.uint64(), "BIGINT"),
            (pa.int64(), "DOUBLE"),
            (pa.float64(), "FLOAT"),
            (pa.float64(), "BIGINT"),
            (pa.decimal128(10, 3), "DECIMAL(10,2)"),
            (pa.decimal128(10, 2), "DOUBLE"),
            (pa.timestamp("us"), "DATE"),
            (pa.timestamp("us"), "TIMESTAMP_S"),
            (pa.timestamp("us"), "TIMESTAMPTZ"),
            (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
            (pa.string(), "INTEGER"),
            (pa.int32(), "VARCHAR"),
            (pa.list_(pa.int64()), "INTEGER[]"),
            (pa.struct({"a": pa.int32()}), "STRUCT(b INTEGER)"),
            (pa.month_day_nano_interval(), "INTERVAL"),
        ]
        columns = ", ".join(f"c{n} {column}" for n, (_, column) in enumerate(pairs))
        query(tmp_path / "t.db", f"CREATE TABLE t ({columns})")
        schema = pa.schema([(f"c{n}", kind) for n, (kind, _) in enumerate(pairs)])
        with pytest.raises(TargetRefused, match="schema_does_not_fit") as refused:
            started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, schema)
        assert schema.names == re.findall(r"column '(c\d+)' is", refused.value.what)

    def test_wider_columns_take_them(self, tmp_path: Path) -> None:
        pairs = [
            (pa.array([1], pa.int8()), "BIGINT"),
            (pa.array([2**64 - 1], pa.uint64()), "HUGEINT"),
            (pa.array([255], pa.uint8()), "SMALLINT"),
            (pa.array([2**31 - 1], pa.int32()), "DOUBLE"),
            (pa.array([2**63 - 1], pa.int64()), "DECIMAL(19,0)"),
            (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), "DECIMAL(7,2)"),
            (pa.array([1.5], pa.float32()), "DOUBLE"),
            (pa.array(["y"]), "ENUM('x', 'y')"),
            (pa.array(['{"a":1}']), "JSON"),
        ]
        columns = ", ".join(f"c{n} {column}" for n, (_, column) in enumerate(pairs))
        query(tmp_path / "t.db", f"CREATE TABLE t ({columns})")
        table = pa.table({f"c{n}": array for n, (array, _) in enumerate(pairs)})
        started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, table.schema).run(0, table)
        assert [tuple(array[0].as_py() for array, _ in pairs)] == query(tmp_path / "t.db", "SELECT * FROM t")

    @pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal256(40, 2), pa.month_day_nano_interval()])
    def test_a_type_without_a_column_is_refused_before_any_row(self, tmp_path: Path, kind: pa.DataType) -> None:
        with pytest.raises(TargetRefused, match="DuckDB has no type for"):
            started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, pa.schema({"c": kind}))

    def test_nanoseconds_are_refused_and_not_cut(self, tmp_path: Path) -> None:
        table = pa.table({"c": pa.array([1_001], pa.timestamp("ns"))})
        driver = started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, table.schema)
        with pytest.raises(EpochFailed, match="column 'c' has a value that cannot be written exactly"):
            driver.vote(0, driver.pre_commit(0, table))
        assert [] == query(tmp_path / "t.db", "SELECT * FROM t")

    @pytest.mark.parametrize(
        ("column", "array", "words"),
        [
            ("v BIGINT CHECK (v < 5)", [7], "check constraint violation"),
            ("v BIGINT NOT NULL", [None], 'NULL in a column that is NOT NULL, column "v"'),
            ("v VARCHAR UNIQUE", [SECRET, SECRET], "duplicate key"),
            ("v ENUM('x')", [SECRET], "a value does not fit the column's type"),
            ("v UUID", [SECRET], "a value does not fit the column's type"),
        ],
    )
    def test_rows_that_it_refuses_are_refused_in_the_vote_and_not_quoted(
        self, tmp_path: Path, column: str, array: list[Any], words: str
    ) -> None:
        query(tmp_path / "t.db", f"CREATE TABLE t ({column})")
        kind = pa.string() if SECRET in array else pa.int64()
        table = pa.table({"v": pa.array(array, kind)})
        driver = started(DuckDB(tmp_path / "t.db", table="t"), tmp_path, table.schema)
        with pytest.raises(EpochFailed) as refused:
            driver.vote(0, driver.pre_commit(0, table))
        assert "rows_refused" == refused.value.code
        assert words in str(refused.value)
        assert SECRET not in repr(refused.value) + str(refused.value)
        assert [] == query(tmp_path / "t.db", "SELECT * FROM t")


class TestTheFile:
    def test_between_epochs_anybody_may_open_it(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        handle = driver.pre_commit(0, TABLE)
        for read_only in (True, False):
            with opened_elsewhere(path, read_only=read_only):
                pass
        driver.vote(0, handle)
        assert Outcome.DONE == driver.commit(0, handle)
        with opened_elsewhere(path):
            pass
        driver.run(1, TABLE)

    @pytest.mark.parametrize("read_only", [True, False])
    def test_a_reader_that_keeps_it_open_fails_the_vote_and_loses_nothing(
        self, tmp_path: Path, *, read_only: bool
    ) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        handle = driver.pre_commit(0, TABLE)
        with opened_elsewhere(path, read_only=read_only):
            with pytest.raises(EpochFailed, match=r"target_silent.*another process has it open"):
                driver.vote(0, handle)
            assert Outcome.IN_DOUBT == driver.commit(0, handle)
        assert Outcome.DONE == driver.commit(0, handle)
        assert rows_of(TABLE) == query(path, "SELECT * FROM t ORDER BY k")

    def test_two_jobs_of_one_process_do_not_vote_at_once(self, tmp_path: Path) -> None:
        """DuckDB would let both in, and the second commit of a value that must be unique would fail, decided."""
        path = tmp_path / "t.db"
        query(path, "CREATE TABLE t (k VARCHAR UNIQUE, v BIGINT)")
        sink = DuckDB(path, table="t")
        one, two = (started(sink, tmp_path / job, job=job) for job in ("one", "two"))
        first, second = one.pre_commit(0, TABLE), two.pre_commit(0, TABLE)
        one.vote(0, first)
        with pytest.raises(EpochFailed, match=r"target_silent.*another job in this process has it open"):
            two.vote(0, second)
        assert Outcome.DONE == one.commit(0, first)
        with pytest.raises(EpochFailed, match=r"rows_refused.*duplicate key"):
            two.vote(0, second)
        assert rows_of(TABLE) == query(path, "SELECT * FROM t ORDER BY k")

    def test_a_key_of_a_type_without_an_index_is_refused(self, tmp_path: Path) -> None:
        schema = pa.schema({"k": pa.struct({"a": pa.int64()}), "v": pa.int64()})
        with pytest.raises(TargetRefused, match="target_unusable"):
            started(DuckDB(tmp_path / "t.db", table="t", key="k"), tmp_path, schema)

    def test_a_start_waits_for_it_and_may_be_tried_again(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        started(DuckDB(path, table="t"), tmp_path).session.close()
        with opened_elsewhere(path), pytest.raises(Retryable, match=r"target_silent.*another process has it open"):
            started(DuckDB(path, table="t"), tmp_path)
        started(DuckDB(path, table="t"), tmp_path)

    def test_a_vote_waits_for_a_reader_that_is_about_to_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dialect, "PATIENT_S", 20.0)
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        program = f"import duckdb, time; c = duckdb.connect({str(path)!r}); print(1, flush=True); time.sleep(1)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            driver.run(0, TABLE)

    def test_a_commit_of_a_failed_transaction_is_no_commit(self, tmp_path: Path) -> None:
        """DuckDB answers such a COMMIT without an error."""
        file = dialect.DuckDBDialect(str(tmp_path / "t.db"))
        file.begin(patient=True)
        file.run("CREATE TABLE t (v INTEGER)")
        with pytest.raises(RowsRefused):
            file.run("INSERT INTO t VALUES ('x')")
        with pytest.raises(Silent):
            file.end()
        file.drop()

    def test_a_driver_that_was_killed_in_its_vote_leaves_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        handle = driver.pre_commit(0, TABLE)
        program = textwrap.dedent(
            """
            import json, os, signal, sys
            from pathlib import Path
            from fencepost.connectors.duckdb.sink import DuckDB
            from fencepost.protocol.records import Epoch, Handle, Kept
            from fencepost.testing import SinkDriver
            folder = Path(sys.argv[1])
            driver = SinkDriver(DuckDB(folder / "t.db", table="t"), folder)
            driver.session.open(driver.owner)
            told = json.loads(sys.argv[2])
            driver.vote(0, Handle(told["id"], told["sink"], told["rows"], tuple(Kept(**kept) for kept in told["kept"])))
            if sys.argv[3] == "commit":
                driver.session.database._connection.execute("COMMIT")
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
        kept = [{name: getattr(item, name) for name in item.__slots__} for item in handle.kept]
        told = json.dumps({"id": handle.id, "sink": handle.sink, "rows": handle.rows, "kept": kept})
        for then, rows in (("die", 0), ("commit", 2)):
            subprocess.run([sys.executable, "-c", program, str(tmp_path), told, then], check=False)
            seen = driver.look({0: handle}).holdings[Epoch(0)].value
            assert (rows, "held" if rows else "missing") == (query(path, "SELECT count(*) FROM t")[0][0], seen)
        assert Outcome.DONE == driver.commit(0, handle)
        assert [(2,)] == query(path, "SELECT count(*) FROM t")

    def test_a_file_that_was_deleted_is_not_made_again(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        driver.run(0, TABLE)
        path.unlink()
        with pytest.raises(EpochFailed, match="it no longer exists"):
            driver.vote(1, driver.pre_commit(1, TABLE))
        assert not path.exists()

    def test_an_older_copy_in_its_place_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        driver.run(0, TABLE)
        old = path.read_bytes()
        driver.run(1, TABLE)
        path.write_bytes(old)
        with pytest.raises(OperatorNeeded, match="target_behind"):
            driver.vote(2, driver.pre_commit(2, TABLE))

    def test_another_file_in_its_place_is_not_written_to(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        driver = started(DuckDB(path, table="t"), tmp_path)
        other = started(DuckDB(tmp_path / "o.db", table="t"), tmp_path, job="other")
        other.session.close()
        (tmp_path / "o.db").replace(path)
        with pytest.raises(EpochFailed, match="a different database answers at this address"):
            driver.vote(0, driver.pre_commit(0, TABLE))
        assert [] == query(path, "SELECT * FROM t")

    @pytest.mark.parametrize("kind", ["folder", "text", "nowhere", "sqlite"])
    def test_a_path_that_is_no_database_is_refused(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / kind
        if kind == "folder":
            path.mkdir()
        elif kind == "nowhere":
            path = path / "deeper" / "t.db"
        else:
            path.write_text(("SQLite format 3\0" if kind == "sqlite" else "") + "long enough to be read\n" * 500)
        with pytest.raises(TargetRefused, match=r"target_unusable.*The file cannot be used"):
            started(DuckDB(path, table="t"), tmp_path)

    @pytest.mark.parametrize("there", [True, False])
    def test_without_create_nothing_is_made(self, tmp_path: Path, *, there: bool) -> None:
        path = tmp_path / "t.db"
        if there:
            query(path, "CREATE TABLE other (k VARCHAR)")
        with pytest.raises(TargetRefused) as refused:
            started(DuckDB(path, table="t", create=False), tmp_path)
        assert ("target_missing", there) == (refused.value.code, path.exists())
        assert not there or [("other",)] == query(path, "SELECT table_name FROM duckdb_tables()")

    @pytest.mark.parametrize("name", ["k", "the key"])
    def test_a_table_that_calls_different_keys_equal_is_refused(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "t.db"
        query(path, f'CREATE TABLE t (v BIGINT, "{name}" VARCHAR COLLATE NOCASE.NOACCENT PRIMARY KEY, w VARCHAR)')
        session = DuckDB(path, table="t", key=name).session("job")
        for look in (session.rehearse, session.preflight):
            with pytest.raises(TargetRefused, match=r"(?i)nocase\.noaccent") as refused:
                look(pa.schema({name: pa.string(), "v": pa.int64()}), "update")
            assert "keys_merge" == refused.value.code
        session.close()

    def test_a_collation_of_another_column_does_not_matter_and_minus_zero_is_zero(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        query(path, "CREATE TABLE t (k DOUBLE PRIMARY KEY, v VARCHAR COLLATE NOCASE)")
        rows = pa.table({"k": [0.0, -0.0], "v": ["a", "A"]})
        driver = started(DuckDB(path, table="t", key="k"), tmp_path, rows.schema)
        driver.run(0, rows)
        driver.session.close()
        assert [(0.0, "A")] == query(path, "SELECT * FROM t")

    @pytest.mark.parametrize("statement", ["CREATE TABLE t (k VARCHAR, v BIGINT)", "CREATE VIEW t AS SELECT 1 AS k"])
    def test_a_key_needs_a_table_with_an_index_for_it(self, tmp_path: Path, statement: str) -> None:
        path = tmp_path / "t.db"
        query(path, statement)
        sink = DuckDB(path, table="t", key="k")
        code = "key_not_unique" if "TABLE" in statement else "target_unusable"
        for look in ("rehearse", "preflight"):
            session = sink.session("job")
            with pytest.raises(TargetRefused, match=code):
                getattr(session, look)(TABLE.schema, "update")
            session.close()
        if "TABLE" in statement:
            query(path, 'CREATE UNIQUE INDEX "odd name" ON t (k)')
            assert sink.session("job").rehearse(TABLE.schema, "update") is not None
            started(sink, tmp_path).run(0, TABLE)

    def test_a_rehearsal_changes_no_byte(self, tmp_path: Path) -> None:
        path = tmp_path / "t.db"
        started(DuckDB(path, table="t", key="k"), tmp_path).session.close()
        before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(tmp_path)))
        session = DuckDB(path, table="t", key="k").session("job")
        assert session.rehearse(TABLE.schema, "update") is not None
        session.close()
        assert before == (path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": ":memory:"}, "memory does not survive a crash"),
        ({"path": ""}, "memory does not survive a crash"),
        ({"table": ""}, "table is empty"),
        ({"table": "fencepost_epoch"}, "reserved by fencepost"),
        ({"mode": "upsert"}, "upsert needs key="),
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_written(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        fp.DuckDB(**({"path": "t.db", "table": "t"} | settings))


def test_the_package_is_needed_only_for_a_session() -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "import fencepost as fp\n"
        "sink = fp.DuckDB('t.db', table='t')\n"
        "try: sink.session('job')\n"
        "except fp.Refused as error: print(error.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "no_duckdb_client" == done.stdout.strip()


def test_an_alarm_between_two_statements_ends_the_second(tmp_path: Path) -> None:
    """DuckDB forgets an interrupt that comes while nothing runs."""
    query(tmp_path / "letters.duckdb", "CREATE TABLE letters (source VARCHAR)")
    database = dialect.DuckDBDialect(str(tmp_path / "letters.duckdb"))
    database.only_read()
    database.hurry(0.05)
    time.sleep(0.3)
    with pytest.raises(Late, match="took too long"):
        database.run("SELECT max(md5(i::VARCHAR)) FROM range(30000000) AS n(i)")
    database.drop()
