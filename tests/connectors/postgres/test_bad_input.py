"""What people give a sink: wrong tables, wrong rows, odd names. Refused in our words, which never hold a value."""

# ruff: noqa: S608 - names of tables are what is tested

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import refusals

from fencepost.connectors.table import deletion
from fencepost.errors import BadConfig, EpochFailed, FencepostError, TargetRefused
from fencepost.protocol.records import Epoch

CANARY = "canary-4711"
WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})
LATE = """CREATE CONSTRAINT TRIGGER t AFTER INSERT ON words DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.v > 1) EXECUTE FUNCTION complain()"""
COMPLAIN = """CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'bad row % %', NEW.k, NEW.v USING DETAIL = NEW.k, HINT = NEW.k; END $$"""


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


def refusal(driver: Any, epoch: int, rows: pa.Table) -> FencepostError:
    """The vote's no; nothing of the rows is in its text, and nothing of them is there."""
    with pytest.raises(EpochFailed) as refused:
        driver.vote(epoch, driver.pre_commit(epoch, rows))
    assert CANARY not in str(refused.value)
    assert driver.sink.name == refused.value.where.sink
    assert driver.sink.table in str(refused.value)
    return refused.value


class TestColumns:
    def test_a_missing_table_is_made_only_if_asked_and_the_statement_is_shown(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match=r'(?s)target_missing.*CREATE TABLE "words" \("k" text NOT NULL'):
            place.started(place.sink(create=False, key="k"), WORDS)
        assert [] == place.query(
            f"SELECT 1 FROM pg_class WHERE relname = 'words' AND relnamespace::regnamespace::text = '{place.schema}'"
        )

    def test_everything_that_does_not_fit_is_said_at_once(self, place: Any) -> None:
        place.run('CREATE TABLE words ("K" text, v text, must int NOT NULL)')
        with pytest.raises(TargetRefused) as refused:
            place.started(place.sink(), WORDS)
        for part in (
            "'words'",
            "'k' is missing (did you mean 'K'?)",
            "'v' is text",
            "'must' is NOT NULL and has no default",
        ):
            assert part in str(refused.value)

    def test_a_schema_that_is_not_there_is_named_as_the_trouble(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match="invalid schema name"):
            place.started(place.sink("nowhere.words"), WORDS)

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "CREATE UNIQUE INDEX ON words (k) WHERE v > 0",
            "CREATE UNIQUE INDEX ON words (k, v)",
            "CREATE UNIQUE INDEX ON words (lower(k))",
            "ALTER TABLE words ADD UNIQUE (k) DEFERRABLE",
        ],
    )
    def test_a_key_without_an_index_that_can_be_used_is_refused_with_the_statement(self, place: Any, key: str) -> None:
        place.run(f"CREATE TABLE words (k text, v bigint); {key}")
        with pytest.raises(TargetRefused, match=r'(?s)key_not_unique.*CREATE UNIQUE INDEX ON "words" \("k"\)'):
            place.started(place.sink(key="k"), WORDS)

    def test_a_unique_index_on_the_key_in_another_order_will_do(self, place: Any) -> None:
        place.run("CREATE TABLE words (k text, v bigint, w int); CREATE UNIQUE INDEX ON words (v, k) INCLUDE (w)")
        place.started(place.sink(key=("k", "v")), WORDS).run(0, words(("a", 1), ("a", 1)))
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_rule_is_refused_because_copy_would_not_follow_it(self, place: Any) -> None:
        place.run("CREATE TABLE words (k text, v bigint); CREATE RULE r AS ON INSERT TO words DO INSTEAD NOTHING")
        with pytest.raises(TargetRefused, match="ON INSERT rule"):
            place.started(place.sink(), WORDS)

    def test_a_column_with_the_name_of_one_of_ours_is_refused(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match="'fencepost_n' is reserved by fencepost"):
            place.started(place.sink(), pa.schema({"k": pa.string(), "fencepost_n": pa.int64()}))


class TestRows:
    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize(
        ("column", "row", "said"),
        [
            ("v bigint NOT NULL", (CANARY, None), 'column "v"'),
            ("v bigint CONSTRAINT positive CHECK (v > 0)", (CANARY, -4711), 'constraint "positive"'),
            ("v bigint REFERENCES others", (CANARY, 4711), 'constraint "words_v_fkey"'),
            ("v bigint", (CANARY + "\0", 1), "column 'k' has a NUL byte"),
        ],
    )
    def test_a_row_that_the_table_refuses_fails_the_vote(
        self, place: Any, key: str | None, column: str, row: Any, said: str
    ) -> None:
        place.run(f"CREATE TABLE others (id bigint PRIMARY KEY); CREATE TABLE words (k text PRIMARY KEY, {column})")
        driver = place.started(place.sink(key=key), WORDS)
        assert said in str(refusal(driver, 0, words(("a", 1), row)))
        place.run("INSERT INTO others VALUES (1)")
        driver.run(0, words(("a", 1)))
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_column_is_named_when_copy_finds_the_fault_but_never_by_a_text_of_the_row(self, place: Any) -> None:
        place.run("CREATE TABLE words (k uuid, v bigint)")
        driver = place.started(place.sink(), WORDS)
        assert 'column "k"' in str(refusal(driver, 0, words((CANARY, 1))))
        place.run("ALTER TABLE words ALTER k TYPE text; ALTER TABLE words ADD more int CHECK (more IS NOT NULL)")
        for sly in (f"x, line 3, column {CANARY}: ", f"x\nCOPY words, line 1, column {CANARY}: y"):
            refusal(driver, 0, words((sly, 1)))

    def test_text_that_is_not_utf8_is_refused(self, place: Any) -> None:
        broken = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28")]
        )
        driver = place.started(place.sink(), WORDS)
        rows = pa.Table.from_arrays([broken, pa.array([1])], schema=WORDS)
        assert "column 'k' has text that is not UTF-8" in str(refusal(driver, 0, rows))

    def test_a_server_that_cannot_store_a_letter_refuses_it(self, place: Any) -> None:
        place.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        driver = place.started(place.sink(dsn=place.server.dsn_of("latin")), WORDS)
        refusal(driver, 0, words((CANARY + "🐘", 1)))
        driver.run(0, words(("ä", 1)))
        driver.session.close()
        place.run("DROP DATABASE latin")

    def test_an_encoding_in_the_dsn_does_not_garble_the_text(self, place: Any) -> None:
        driver = place.started(place.sink(dsn=place.dsn + " client_encoding=latin1"), WORDS)
        driver.run(0, words(("ä🐘", 1)))
        assert [("ä🐘", 1)] == place.query("SELECT k, v FROM words")

    def test_settings_of_the_role_do_not_change_how_rows_are_read(self, place: Any) -> None:
        role = f"r{place.schema}"
        place.run(f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA {place.schema} TO {role}")
        for setting in (
            "array_nulls = off",
            "DateStyle = 'SQL, DMY'",
            "TimeZone = 'Asia/Tokyo'",
            "default_transaction_read_only = on",
            "default_transaction_isolation = 'serializable'",
            "client_encoding = latin1",
            "synchronous_commit = off",
            "standard_conforming_strings = off",
        ):
            place.run(f"ALTER ROLE {role} SET {setting}")
        place.user = role
        schema = pa.schema({"k": pa.list_(pa.string()), "v": pa.timestamp("us", "UTC")})
        place.started(place.sink(), schema).run(0, pa.table({"k": [["ä\\n'", None]], "v": [0]}, schema))
        assert [('{"ä\\\\n\'",NULL}', 0)] == place.query("SELECT k::text, extract(epoch FROM v)::int FROM words")

    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize(
        "made",
        [
            "ALTER TABLE words ADD UNIQUE (v) DEFERRABLE INITIALLY DEFERRED",
            "ALTER TABLE words ADD FOREIGN KEY (v) REFERENCES others DEFERRABLE INITIALLY DEFERRED",
            LATE,
        ],
    )
    def test_what_is_checked_at_commit_is_checked_in_the_vote(self, place: Any, made: str, key: str | None) -> None:
        place.run(
            "CREATE TABLE others (id bigint PRIMARY KEY); INSERT INTO others VALUES (1);"
            f"CREATE TABLE words (k text PRIMARY KEY, v bigint); {COMPLAIN}; {made}"
        )
        driver = place.started(place.sink(key=key), WORDS)
        refusal(driver, 0, words(("a", 4711), (CANARY, 4711)))
        driver.run(0, words(("a", 1)))

    def test_a_trigger_that_quotes_the_row_is_not_quoted(self, place: Any) -> None:
        place.run(
            f"CREATE TABLE words (k text, v bigint); {COMPLAIN};"
            "CREATE TRIGGER t BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION complain()"
        )
        driver = place.started(place.sink(), WORDS)
        assert "a trigger or a function raised an error" in str(refusal(driver, 0, words((CANARY, 1))))

    def test_a_plain_write_that_is_refused_quotes_nothing_either(self, place: Any) -> None:
        place.run("CREATE TABLE words (k text, v bigint CHECK (v > 0))")
        driver = place.started(place.sink(), WORDS)
        with pytest.raises(EpochFailed) as refused:
            driver.session.write(Epoch(0), driver.rows(0, words((CANARY, -4711))))
        assert "words_v_check" in str(refused.value)
        assert CANARY not in str(refused.value)
        assert [] == place.query("SELECT * FROM words")


class TestSizes:
    def test_many_columns_and_many_rows(self, place: Any) -> None:
        wide = pa.table({"k": ["a"], **{f"c{n}": [n] for n in range(300)}})
        place.started(place.sink("wide", key="k"), wide.schema).run(0, wide)
        assert [(44850,)] == place.query("SELECT " + "+".join(f"c{n}" for n in range(300)) + " FROM wide")
        driver = place.started(place.sink(key="k"), WORDS)
        driver.run(0, words(*((f"k{n}", n) for n in range(100_000))))
        driver.run(1, words(("large", 1)))
        assert [(100_001, 100_001)] == place.query("SELECT count(*), count(DISTINCT k) FROM words")

    def test_one_row_of_ten_megabytes(self, place: Any) -> None:
        driver = place.started(place.sink(), WORDS)
        driver.run(0, words(("ä\n\\" * 2_500_000, 1)))
        assert [(7_500_000,)] == place.query("SELECT length(k) FROM words")

    def test_more_columns_than_a_table_can_have_are_refused(self, place: Any) -> None:
        schema = pa.schema([(f"c{n}", pa.int64()) for n in range(1601)])
        with pytest.raises(TargetRefused, match="too many columns"):
            place.started(place.sink(), schema)

    def test_an_epoch_without_rows_still_moves_the_mark(self, place: Any) -> None:
        driver = place.started(place.sink(), WORDS)
        driver.run(0, words(("a", 1)))
        assert () == driver.session.verify(Epoch(1), ())
        assert {} == driver.session.commit(Epoch(1), ())
        driver.run(2, words(("b", 2)))
        assert [("a", 1), ("b", 2)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_of_rows_with_one_key_the_one_with_the_greatest_order_stays(self, place: Any) -> None:
        driver = place.started(place.sink(key="k", order_by="v", staging="checkpoint"), WORDS)
        driver.run(0, words(("a", 3), ("b", 1), ("a", 9), ("a", 4), ("b", 0)))
        assert [("a", 9), ("b", 1)] == place.query("SELECT k, v FROM words ORDER BY k")
        driver.run(1, words(("a", 2), ("a", 1)))
        assert [("a", 9), ("b", 1)] == place.query("SELECT k, v FROM words ORDER BY k"), "also over a later epoch"

    def test_of_rows_with_one_key_in_an_epoch_the_last_one_wins(self, place: Any) -> None:
        driver = place.started(place.sink(key="k"), WORDS)
        rows = words(*((f"k{n % 7}", n) for n in range(25_000)))  # three batches
        driver.run(0, rows)
        assert sorted((f"k{n % 7}", n) for n in range(24_993, 25_000)) == place.query(
            "SELECT k, v FROM words ORDER BY k"
        )
        driver.run(1, rows.select(["k", "v"]).slice(0, 3))
        assert [("k0", 0), ("k1", 1), ("k2", 2)] == place.query("SELECT k, v FROM words ORDER BY k LIMIT 3")


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ['"; DROP TABLE x;--', 'we"ird.Name', "select", "Case", "spa ce", "per%cent%s", "{brace}", "ü" * 31, "a'b"],
    )
    def test_a_name_is_never_a_statement(self, place: Any, name: str) -> None:
        quoted = '"' + name.replace('"', '""') + '"'
        place.run(f'CREATE SCHEMA {quoted[:-1]}_{place.schema[:6]}"' if len(name) < 31 else "SELECT 1")
        schema = pa.schema({name: pa.string(), "v": pa.int64()})
        where = f'{quoted[:-1]}_{place.schema[:6]}".{quoted}' if len(name) < 31 else quoted
        driver = place.started(place.sink(where, key=name), schema)
        driver.run(0, pa.table({name: ["a", "a"], "v": [1, 2]}, schema))
        driver.run(1, pa.table({name: ["b"], "v": [3]}, schema))
        assert [("a", 2), ("b", 3)] == place.query(f"SELECT * FROM {where} ORDER BY 1")
        again = place.driver(place.sink(where, key=name), writer=2, held=Epoch(9))
        with pytest.raises(FencepostError, match="target_behind") as behind:
            again.start(schema)
        place.run(behind.value.next.partition("may stay lost: ")[2])
        again.start(schema)
        again.run(10, pa.table({name: ["c"], "v": [4]}, schema))

    @pytest.mark.parametrize("name", ["", "a.b.c", 'a"b', '"a', "a.", "x" * 64, "ü" * 32, "a\0b", "fencepost_epoch"])
    def test_a_name_that_postgresql_would_cut_or_misread_is_refused_where_it_is_written(
        self, place: Any, name: str
    ) -> None:
        with pytest.raises(BadConfig, match="bad_sink"):
            place.sink(name)

    def test_a_column_whose_name_is_too_long_is_refused(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match=r"column 'x+' is missing"):
            place.started(place.sink(), pa.schema({"x" * 64: pa.int64()}))
        with pytest.raises(TargetRefused):
            place.started(place.sink(), pa.schema({"y" * 63 + "1": pa.int64(), "y" * 63 + "2": pa.int64()}))


@pytest.mark.parametrize("keyed", [False, True], ids=["appended", "by key"])
def test_it_names_the_rows_that_it_refuses(place: Any, keyed: bool) -> None:
    place.run(f"CREATE TABLE words ({refusals.TABLE.format(key='PRIMARY KEY' if keyed else '')})")
    settings = {"key": "k", "unique_key": True, "deletes": "gone"} if keyed else {}
    schema = refusals.SCHEMA if keyed else deletion.without(refusals.SCHEMA, "gone")
    refusals.check(place.started(place.sink(staging="checkpoint", **settings), schema), keyed=keyed, long=30)
