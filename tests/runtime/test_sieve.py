"""Rows that a sink refuses become dead letters of the same epoch: each is in one of the two targets, whatever crashes.

Run as a script, this file is the job that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.kafka import Broker

import fencepost as fp
from fencepost import faults
from fencepost.config import Checkpoint, RunConfig
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.contract import Sink
from fencepost.errors import FencepostError, Retryable
from fencepost.runtime.driver import Driver, Plan
from fencepost.runtime.sieve import DeadLetters, Sieve, _told
from fencepost.store import LocalStore
from fencepost.store.staging import TAG, Staging

ROWS = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
LETTERS = pa.schema([(name, pa.string()) for name in ("source", "position", "record", "error")])
EPOCHS = (
    [(1, 10), (2, None), (3, 30)],
    [(4, -1), (5, None), (6, 60), (7, None)],
    [(8, None)],
    [(9, 90)],
)
PARSED = "not a JSON object"
GOOD, BAD = [1, 3, 6, 9], [2, 4, 5, 7, 8, 100, 101, 102, 103]


def tagged(rows: list[tuple[int, int | None]], *parsed: int) -> pa.Table:
    """As `spark/branches.py` has it: branch 1 are the dead letters, some from a `parse`; branch 2 the rows."""
    letters = [{"record": json.dumps({"id": n}), "error": PARSED} for n in parsed]
    good = [dict(zip(ROWS.names, row, strict=True)) for row in rows]
    tags = pa.array([1] * len(letters) + [2] * len(good), pa.int32())
    dead = pa.array([*letters, *[None] * len(good)], pa.struct(list(LETTERS)))
    columns = [tags, dead, pa.array([*[None] * len(letters), *good], pa.struct(list(ROWS)))]
    return pa.table(columns, names=[TAG, "dead", "rows"])


def run(
    folder: Path,
    *,
    apart: bool,
    aside: bool = True,
    sink: Sink | None = None,
    dead: Sink | None = None,
    **settings: Any,
) -> None:
    """A job over `EPOCHS`, from where it was; `apart`: the dead letters are in another file."""
    sinks = {
        "dead": dead or SQLite(folder / ("dead.db" if apart else "rows.db"), table="dead", name="dead"),
        "rows": sink or SQLite(folder / "rows.db", table="rows", name="rows", **settings),
    }
    driver = Driver(
        Plan(
            config=RunConfig(job="job", checkpoint=Checkpoint(folder / "ck")),
            store=LocalStore(folder / "ck"),
            sinks=sinks,
            schemas={"dead": LETTERS, "rows": ROWS},
            modes=dict.fromkeys(sinks, "append"),
            aside={"rows": DeadLetters("dead", "a list")} if aside else {},
        )
    )
    driver.recover()
    for log in ("offsets", "commits"):
        (folder / "ck" / log).mkdir(exist_ok=True)
    snapshot = 'v1\n{"nextBatchWatermarkMs":0}'
    for epoch, rows in enumerate(EPOCHS):
        if not (folder / "ck/commits" / str(epoch)).exists():
            (folder / "ck/offsets" / str(epoch)).write_text(f'v1\n{{"conf":{{}}}}\n{{"position":{epoch}}}')
            driver.run_epoch(epoch, driver.stage(epoch, tagged(rows, 100 + epoch)), lambda: snapshot)
            (folder / "ck/commits" / str(epoch)).write_text(snapshot)
    driver.close()


def with_table(folder: Path, rest: str = "") -> Path:
    with closing(sqlite3.connect(folder / "rows.db")) as database:
        database.execute(
            f"CREATE TABLE rows (id INTEGER, amount INTEGER NOT NULL CHECK (amount BETWEEN 1 AND 99){rest})"
        )
        database.commit()
    return folder


def found(folder: Path, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    file = folder / f"{name}.db"
    with closing(sqlite3.connect(file if file.exists() else folder / "rows.db")) as database:
        return database.execute(f"SELECT {columns} FROM {name}").fetchall()  # noqa: S608 - our own


def places(folder: Path) -> tuple[list[int], list[int]]:
    """The ids in the rows and in the dead letters."""
    records = [json.loads(record) for (record,) in found(folder, "dead", "record")]
    return sorted(n for (n,) in found(folder, "rows", "id")), sorted(record["id"] for record in records)


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "two files"])
def test_refused_rows_are_in_the_dead_letters_and_the_others_in_the_table(
    tmp_path: Path, apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run(with_table(tmp_path), apart=apart)
    assert (GOOD, BAD) == places(tmp_path)
    assert (
        "a list",
        None,
        '{"id":2,"amount":null}',
        "sink rows refused it: NOT NULL constraint failed: rows.amount",
    ) in found(tmp_path, "dead")
    assert [("sink rows refused it: CHECK constraint failed: amount BETWEEN 1 AND 99",)] == [
        row for row in found(tmp_path, "dead", "error") if "CHECK" in row[0]
    ]
    assert "epoch 1: sink rows refused 3 rows, which go to the dead letters in dead" in caplog.text
    assert 4 == sum('"kind":"decision"' in path.read_text() for path in tmp_path.glob("ck/fencepost/*/ledger/*.json"))


def test_without_dead_letters_the_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Retryable) as refused:
        run(with_table(tmp_path), apart=True, aside=False)
    assert "rows_refused" == refused.value.code
    assert ([], []) == places(tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_what_is_wrong_with_the_table_or_between_two_rows_is_no_ones_row(tmp_path: Path, kept: bool) -> None:
    """A duplicate, or a trigger: a single row says nothing, so the epoch is refused as a whole."""
    with closing(sqlite3.connect(with_table(tmp_path, ", UNIQUE (id)") / "rows.db")) as database:
        if kept:
            database.execute("INSERT INTO rows VALUES (6, 1)")
        else:
            database.execute(
                "CREATE TRIGGER no BEFORE INSERT ON rows WHEN NEW.id = 6 BEGIN SELECT RAISE(ABORT, 'secret'); END"
            )
        database.commit()
    with pytest.raises(Retryable) as refused:
        run(tmp_path, apart=True)
    assert ("rows_refused", 1) == (refused.value.code, refused.value.where.epoch)
    assert [2, 100] == places(tmp_path)[1], "nothing of the second epoch, not even its dead letters"


def test_a_refused_last_row_of_a_key_leaves_the_row_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the refused record had not come. The order is that of `order_by`, not of the rows."""
    monkeypatch.setattr(sys.modules[__name__], "EPOCHS", ([(1, 10), (1, 30), (1, 20)], [(1, 500), (None, 5), (1, 35)]))
    run(with_table(tmp_path, ", PRIMARY KEY (id)"), apart=True, key="id", order_by="amount")
    assert [(1, 35)] == found(tmp_path, "rows")
    assert {'{"id":1,"amount":500}', '{"id":null,"amount":5}'} == {
        record for record, error in found(tmp_path, "dead", "record, error") if error != PARSED
    }
    assert "key column 'id' is NULL or NaN in some rows" in str(found(tmp_path, "dead", "error"))


POINTS = [
    "vote.during",
    "vote.after@2",
    "precommit.after@2",
    "decide.before",
    "decide.after",
    "commit.before",
    "commit.after",
]


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_each_row_is_in_one_place(tmp_path: Path, point: str) -> None:
    with_table(tmp_path)
    name, _, visit = point.partition("@")
    armed = os.environ | {faults.ARM: f"{name}=kill" + (f"@{visit}" if visit else "")}
    killed = subprocess.run([sys.executable, __file__, tmp_path], env=armed, check=False)
    assert -signal.SIGKILL == killed.returncode
    run(tmp_path, apart=True)
    assert (GOOD, BAD) == places(tmp_path)


def test_a_target_that_goes_away_while_its_rows_are_tried_fails_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then which rows it would take: none of them may be called bad."""
    monkeypatch.setattr("fencepost.connectors.sqlite.dialect.PATIENT", "PRAGMA busy_timeout = 10")
    real = Staging.stage_batches
    with closing(sqlite3.connect(with_table(tmp_path) / "rows.db", isolation_level=None)) as other:

        def locked(self: Staging, *args: Any, **named: Any) -> Any:
            if len(args) > 3 and not isinstance(args[3], list):  # the sieve's
                other.execute("BEGIN IMMEDIATE")
            return real(self, *args, **named)

        monkeypatch.setattr(Staging, "stage_batches", locked)
        with pytest.raises(FencepostError) as failed:
            run(tmp_path, apart=True)
        monkeypatch.undo()
    assert "target_silent" == failed.value.code
    run(tmp_path, apart=True)
    assert (GOOD, BAD) == places(tmp_path)


def test_a_message_that_is_too_large_is_a_dead_letter(tmp_path: Path, broker: Broker) -> None:
    """A topic's transaction was open when the row was found: it is aborted, and another one holds the others."""
    from topics import read  # noqa: PLC0415 - not for the script

    topic = broker.create_topic(f"sieve-{tmp_path.name}", partitions=1, max_message_bytes=2000)

    def value(row: dict[str, Any]) -> bytes:
        return b"x" * max(1, row["amount"] or 5000)

    run(tmp_path, apart=True, sink=fp.Kafka(topic, servers=broker.servers, name="rows", serializer=value))
    assert [10, 30, 1, 60, 90] == [len(message.value() or b"") for message in read(broker.servers, topic)]
    assert [100, 2, 101, 5, 7, 102, 8, 103] == [
        json.loads(record)["id"] for (record,) in found(tmp_path, "dead", "record")
    ]
    assert {f"sink rows refused it: its message is refused (MSG_SIZE_TOO_LARGE, topic '{topic}', 5,000 bytes)"} == {
        error for (error,) in found(tmp_path, "dead", "error") if error != PARSED
    }


def test_dead_letters_may_go_to_a_topic(tmp_path: Path, broker: Broker) -> None:
    """Its transaction is open when the table says no: it is aborted, and another one has all letters."""
    from topics import read  # noqa: PLC0415 - not for the script

    topic = broker.create_topic(f"letters-{tmp_path.name}", partitions=1)
    run(with_table(tmp_path), apart=True, dead=fp.Kafka(topic, servers=broker.servers, name="dead", value="record"))
    assert [100, 2, 101, 4, 5, 7, 102, 8, 103] == [
        json.loads(message.value() or b"")["id"] for message in read(broker.servers, topic)
    ]
    assert GOOD == [n for (n,) in found(tmp_path, "rows", "id")]


def test_the_last_row_of_a_key_is_found_where_the_target_sees_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB writes one row per key, the last by `order_by`: here the refused one, which stands first."""
    import duckdb  # noqa: PLC0415 - not for the script

    monkeypatch.setattr(sys.modules[__name__], "EPOCHS", ([(1, 500), (1, 20), (2, 30)],))
    with closing(duckdb.connect(str(tmp_path / "rows.duckdb"))) as database:
        database.execute("CREATE TABLE rows (id BIGINT PRIMARY KEY, amount BIGINT CHECK (amount < 100))")
    sink = fp.DuckDB(tmp_path / "rows.duckdb", table="rows", name="rows", key="id", order_by="amount")
    run(tmp_path, apart=True, sink=sink)
    with closing(duckdb.connect(str(tmp_path / "rows.duckdb"))) as database:
        assert [(1, 20), (2, 30)] == database.execute("SELECT * FROM rows ORDER BY id").fetchall()
    assert '{"id":1,"amount":500}' in [record for (record,) in found(tmp_path, "dead", "record")]


def test_an_outage_of_a_serializer_makes_no_dead_letters(tmp_path: Path, broker: Broker) -> None:
    topic = broker.create_topic(f"outage-{tmp_path.name}", partitions=1)

    def value(row: dict[str, Any]) -> bytes:
        raise ConnectionError("the registry is down")

    with pytest.raises(FencepostError) as failed:
        run(tmp_path, apart=True, sink=fp.Kafka(topic, servers=broker.servers, name="rows", serializer=value))
    assert "bad_message" == failed.value.code
    assert [] == found(tmp_path, "dead")


def test_values_that_python_does_not_have_are_told() -> None:
    text = pa.array([b"\xff", b"a", None], pa.binary()).view(pa.string())
    assert ["base64:/w==", "base64:YQ==", None] == _told(text)
    assert ["10000-01-01"] == [one[:11] for one in _told(pa.array([2932897], pa.int32()).cast(pa.date32()))]


def test_no_batch_loses_a_row_or_its_order() -> None:
    batches = tagged([(n, None if n % 3 == 0 else n) for n in range(20)]).to_batches(max_chunksize=7)
    sieve = Sieve(
        "rows",
        DeadLetters("dead", "a list"),
        lambda batch: {
            place: "NULL" for place, amount in enumerate(batch.column("amount").to_pylist()) if amount is None
        },
    )
    sifted = pa.Table.from_batches(list(sieve.sift(iter(batches)))).to_pylist()
    assert 7 == sieve.moved
    assert [n for n in range(20) if n % 3] == [row["rows"]["id"] for row in sifted if row[TAG] == 2]
    assert [n for n in range(20) if n % 3 == 0] == [
        json.loads(row["dead"]["record"])["id"] for row in sifted if row[TAG] == 1
    ]


if __name__ == "__main__":
    run(Path(sys.argv[1]), apart=True)
