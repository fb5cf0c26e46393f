"""What people give a sink: wrong tables, wrong rows, odd names. Refused in our words, which never hold a value."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import refusals
from removals import SCHEMA, epochs

from fencepost.connectors.table import deletion
from fencepost.errors import BadConfig, EpochFailed, FencepostError, TargetRefused
from fencepost.protocol.records import Epoch

CANARY = "canary-4711"
WORDS = pa.schema({"k": pa.string(), "v": pa.int64()})


def words(*rows: tuple[Any, Any]) -> pa.Table:
    return pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]}, WORDS)


def refusal(driver: Any, epoch: int, rows: pa.Table) -> str:
    """The vote's no; nothing of the rows is in its text."""
    with pytest.raises(EpochFailed) as refused:
        driver.vote(epoch, driver.pre_commit(epoch, rows))
    assert "rows_refused" == refused.value.code
    assert CANARY not in str(refused.value)
    return str(refused.value)


class TestColumns:
    def test_a_missing_table_is_made_only_if_asked_and_the_statement_is_shown(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match=r"(?s)target_missing.*CREATE TABLE `words` \(`k` varchar\(255\)"):
            place.started(place.sink(create=False, key="k"), WORDS)
        assert [] == place.query("SHOW TABLES LIKE 'words'")

    def test_everything_that_does_not_fit_is_said_at_once(self, place: Any) -> None:
        place.run("CREATE TABLE words (`K` text, v text, must int NOT NULL, t datetime, f float(7,4))")
        schema = pa.schema({**dict(zip(WORDS.names, WORDS.types, strict=True)), "t": pa.timestamp("us"), "f": "float"})
        with pytest.raises(TargetRefused) as refused:
            place.started(place.sink(), schema)
        for part in (
            "'k' is missing (did you mean 'K'?)",
            "'v' is text",
            "'must' is NOT NULL and has no default",
            "'t' is datetime, which",
            "'f' is float(7,4)",
        ):
            assert part in str(refused.value)

    @pytest.mark.parametrize("made", ["TABLE words (k text, v bigint) ENGINE=MyISAM", "VIEW words AS SELECT 1 AS k"])
    def test_what_cannot_be_undone_is_refused(self, place: Any, made: str) -> None:
        place.run(f"CREATE {made}")
        with pytest.raises(TargetRefused, match=r"MyISAM, which has no transactions|is a view"):
            place.started(place.sink(), WORDS)

    @pytest.mark.parametrize(
        "key", ["v bigint", "v bigint, UNIQUE (k(5))", "v bigint, UNIQUE (k, v)", "v bigint UNIQUE"]
    )
    def test_a_key_without_an_index_on_all_of_it_is_refused_with_the_statement(self, place: Any, key: str) -> None:
        place.run(f"CREATE TABLE words (k varchar(20), {key})")
        with pytest.raises(TargetRefused, match=r"(?s)key_not_unique.*ALTER TABLE `words` ADD UNIQUE \(`k`\)"):
            place.started(place.sink(key="k"), WORDS)

    def test_another_unique_index_is_refused_because_it_would_replace_too(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(20) PRIMARY KEY, v bigint, UNIQUE other (v))")
        with pytest.raises(TargetRefused, match="unique index 'other', a row could replace one with another key"):
            place.started(place.sink(key="k"), WORDS)

    def test_an_index_on_a_number_that_the_server_counts_is_no_other_key(self, place: Any) -> None:
        place.run(
            "CREATE TABLE words (id int unsigned AUTO_INCREMENT PRIMARY KEY, k varchar(20) NOT NULL UNIQUE, v bigint)"
        )
        driver = place.started(place.sink(key="k"), WORDS)
        driver.run(0, words(("a", 1), ("b", 2), ("a", 3)))
        assert [("a", 3), ("b", 2)] == place.query("SELECT k, v FROM words ORDER BY k")

    def test_what_cannot_be_a_key_is_refused(self, place: Any) -> None:
        with pytest.raises(TargetRefused, match="'v' has type double, which cannot be a key"):
            place.started(place.sink(key="v"), pa.schema({"v": pa.float64()}))


class TestRows:
    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_row_that_the_table_refuses_fails_the_vote(self, place: Any, key: str | None) -> None:
        place.run(
            "CREATE TABLE others (id bigint PRIMARY KEY)",
            "CREATE TABLE words (k varchar(20) COLLATE utf8mb4_bin PRIMARY KEY, v bigint)",
        )
        driver = place.started(place.sink(key=key), WORDS)
        for change, row, said in (
            ("MODIFY v bigint NOT NULL", (CANARY, None), "column `v`"),
            ("MODIFY v bigint, ADD CONSTRAINT positive CHECK (v > 0)", (CANARY, -4711), "constraint `positive`"),
            (
                "DROP CONSTRAINT positive, ADD CONSTRAINT parent FOREIGN KEY (v) REFERENCES others (id)",
                (CANARY, 4711),
                "constraint `parent`",
            ),
            ("DROP FOREIGN KEY parent, MODIFY v bigint unsigned", (CANARY, -1), "out of range, column `v`"),
            ("MODIFY v bigint", (CANARY + "x" * 20, 1), "column `k`"),
            ("MODIFY v bigint", (CANARY + " " * 20, 1), "column `k`"),
            ("MODIFY v smallint", (CANARY, 4711), "'v' is smallint"),
        ):
            place.run(f"ALTER TABLE words {change}")
            assert said in refusal(driver, 0, words(("a", 1), row)), change
        place.run("ALTER TABLE words MODIFY v bigint")
        driver.run(0, words(("a", 1)))
        assert [("a", 1)] == place.query("SELECT k, v FROM words")

    def test_a_duplicate_is_refused_and_not_skipped_and_its_index_is_named(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(20), v bigint, UNIQUE only_one (k))")
        driver = place.started(place.sink(), WORDS)
        sly = f"{CANARY}' for key 'x'"
        assert "duplicate key, constraint `only_one`" in refusal(driver, 0, words((sly[:20], 1), (sly[:20], 2)))
        assert [] == place.query("SELECT * FROM words")

    def test_two_keys_that_the_collation_takes_for_one_are_refused(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v bigint)")
        driver = place.started(place.sink(key="k"), WORDS)
        assert "treats keys that differ" in refusal(driver, 0, words(("a", 1), ("A", 2)))
        driver.run(0, words(("a", 1), ("b", 2), ("a", 3)))
        for other in ("B", "b ", "ä"):
            assert "treats keys that differ" in refusal(driver, 1, words(("c", 1), (other, 2)))
        driver.run(1, words(("b", 4)))
        assert [("a", 3), ("b", 4)] == place.query("SELECT k, v FROM words")

    def test_a_row_is_not_removed_by_a_key_that_the_collation_takes_for_its_own(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v bigint NOT NULL)")
        schema = WORDS.append(pa.field("gone", pa.bool_()))
        driver = place.started(place.sink(key="k", deletes="gone"), schema)

        def removing(key: str) -> pa.Table:
            return pa.table({"k": [key], "v": [None], "gone": [True]}, schema)

        driver.run(0, pa.table({"k": ["a", "b"], "v": [1, 2], "gone": [False, False]}, schema))
        for other in ("A", "a ", "ä"):
            assert "treats keys that differ" in refusal(driver, 1, removing(other))
        driver.run(1, removing("a"))
        assert [("b", 2)] == place.query("SELECT k, v FROM words")

    @pytest.mark.parametrize("infile", [True, False])
    def test_a_table_holds_what_a_plain_loop_over_all_rows_leaves(
        self, place: Any, infile: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        place.run(f"SET GLOBAL local_infile = {infile}")
        request.addfinalizer(lambda: place.run("SET GLOBAL local_infile = 1"))
        monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 7)
        driver = place.started(place.sink(key=("a", "b"), deletes="gone"), SCHEMA)
        for epoch, (rows, expected) in enumerate(epochs(3)):
            driver.run(epoch, rows)
            assert expected == place.query("SELECT a, b, at, v FROM words ORDER BY a, b")

    def test_a_uuid_or_an_address_as_a_key_has_one_spelling(self, place: Any) -> None:
        place.run(
            "CREATE TABLE words (k uuid PRIMARY KEY, v bigint)", "CREATE TABLE hosts (k inet6 PRIMARY KEY, v bigint)"
        )
        driver = place.started(place.sink(key="k"), WORDS)
        good = "0a0e7f0c-9a0b-4b2e-8a44-3f0d0f6a1b2c"
        driver.run(0, words((good, 1)))
        assert "lower case" in refusal(driver, 1, words((good.upper(), 2)))
        with pytest.raises(TargetRefused, match="keys_merge"):
            place.started(place.sink("hosts", key="k"), WORDS)

    def test_minus_zero_is_zero_as_in_spark(self, place: Any) -> None:
        place.run("CREATE TABLE words (k double PRIMARY KEY, v bigint)")
        schema = pa.schema({"k": pa.float64(), "v": pa.int64()})
        driver = place.started(place.sink(key="k"), schema)
        driver.run(0, pa.table({"k": [0.0, -0.0], "v": [1, 2]}, schema))
        driver.run(1, pa.table({"k": [-0.0], "v": [3]}, schema))
        assert [(0.0, 3)] == place.query("SELECT k, v FROM words")

    def test_a_table_that_we_make_tells_all_keys_apart(self, place: Any) -> None:
        rows = [("a", 1), ("A", 2), ("a ", 3), ("ä", 4), ("", 5), ("😀", 6)]
        place.started(place.sink(key="k"), WORDS).run(0, words(*rows))
        assert sorted(rows) == sorted(place.query("SELECT k, v FROM words"))

    def test_what_the_server_would_change_without_a_word_is_refused(self, place: Any) -> None:
        place.run(
            "CREATE TABLE odd (id bigint AUTO_INCREMENT PRIMARY KEY, c char(9), e enum('a','it''s'), b binary(2))"
        )
        schema = pa.schema({"id": pa.int64(), "c": pa.string(), "e": pa.string(), "b": pa.binary()})
        driver = place.started(place.sink("odd"), schema)
        good = {"id": 0, "c": "x", "e": "it's", "b": b"ab"}
        for bad in ({"id": None}, {"c": "x "}, {"e": "2"}, {"e": "A"}, {"b": b"a"}):
            refusal(driver, 0, pa.Table.from_pylist([good | bad], schema))
        driver.run(0, pa.Table.from_pylist([good], schema))
        assert [(0, "x", "it's", b"ab")] == place.query("SELECT * FROM odd")

    def test_text_that_is_not_utf8_or_has_no_letter_for_it_is_refused(self, place: Any) -> None:
        place.run("CREATE TABLE words (k varchar(40) CHARACTER SET utf8mb3, v bigint)")
        driver = place.started(place.sink(), WORDS)
        assert "column `k`" in refusal(driver, 0, words((CANARY + "🐬", 1)))
        offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28")
        broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
        rows = pa.Table.from_arrays([broken, pa.array([1])], schema=WORDS)
        assert "column 'k' has text that is not UTF-8" in refusal(driver, 0, rows)

    def test_a_trigger_that_quotes_the_row_is_not_quoted(self, place: Any) -> None:
        place.run(
            "CREATE TABLE words (k text, v bigint)",
            "CREATE TRIGGER t BEFORE INSERT ON words FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = NEW.k",
        )
        with pytest.raises(FencepostError) as refused:
            place.started(place.sink(), WORDS).run(0, words((CANARY, 1)))
        assert CANARY not in str(refused.value)
        assert "a trigger raised an error" in str(refused.value)

    @pytest.mark.parametrize("infile", [True, False])
    def test_every_type_comes_back_as_it_was(self, place: Any, infile: bool, request: pytest.FixtureRequest) -> None:
        place.run(f"SET GLOBAL local_infile = {infile}")
        request.addfinalizer(lambda: place.run("SET GLOBAL local_infile = 1"))
        zoned, plain = pa.timestamp("us", "UTC"), pa.timestamp("us")
        at = datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001
        nasty = "\\'\"\t\n\r\0\x1a%s😀`;--"
        columns = {
            "i": (pa.int64(), [-(2**63), 0, None], [-(2**63), 0, None]),
            "s": (pa.string(), [nasty, "", None], [nasty, "", None]),
            "b": (pa.binary(), [bytes(range(256)), b"", None], [bytes(range(256)), b"", None]),
            "d": (pa.decimal128(38, 18), [Decimal("-1E-18")] * 3, [Decimal("-1E-18")] * 3),
            "f": (pa.float64(), [0.1, 1.7976931348623157e308, -5e-324], [0.1, 1.7976931348623157e308, -5e-324]),
            "y": (pa.bool_(), [True, False, None], [1, 0, None]),
            "a": (
                pa.date32(),
                [date(1000, 1, 1), date(9999, 12, 31), None],
                [date(1000, 1, 1), date(9999, 12, 31), None],
            ),
            "z": (zoned, [at.replace(tzinfo=UTC)] * 3, [at] * 3),
            "p": (plain, [at, datetime(1000, 1, 1), None], [at, datetime(1000, 1, 1), None]),  # noqa: DTZ001
            "t": (
                pa.time64("us"),
                [time(1, 2, 3, 4)] * 3,
                [timedelta(hours=1, minutes=2, seconds=3, microseconds=4)] * 3,
            ),
            "n": (pa.list_(pa.string()), [["x'", None], [], None], ['["x\'",null]', "[]", None]),
        }
        table = pa.table({name: pa.array(values, kind) for name, (kind, values, _) in columns.items()})
        place.started(place.sink("every"), table.schema).run(0, table)
        found = place.query("SELECT * FROM every")
        assert list(zip(*(read for _, _, read in columns.values()), strict=True)) == found


class TestSizes:
    @pytest.mark.parametrize("infile", [True, False])
    def test_one_row_of_ten_megabytes_and_one_that_is_too_large(
        self, place: Any, infile: bool, request: pytest.FixtureRequest
    ) -> None:
        place.run(f"SET GLOBAL local_infile = {infile}")
        request.addfinalizer(lambda: place.run("SET GLOBAL local_infile = 1"))
        driver = place.started(place.sink(), WORDS)
        driver.run(0, words(("ä\nb" * 2_500_000, 1), ("c", 2)))
        assert [(7_500_000,), (1,)] == place.query("SELECT char_length(k) FROM words")
        if not infile:
            assert "max_allowed_packet" in refusal(driver, 1, words(("x" * 17_000_000, 1)))

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

    @pytest.mark.parametrize("infile", [True, False])
    def test_of_rows_with_one_key_in_an_epoch_the_last_one_wins(
        self, place: Any, infile: bool, request: pytest.FixtureRequest
    ) -> None:
        place.run(f"SET GLOBAL local_infile = {infile}")
        request.addfinalizer(lambda: place.run("SET GLOBAL local_infile = 1"))
        driver = place.started(place.sink(key="k"), WORDS)
        rows = words(*((f"k{n % 7}", n) for n in range(25_000)))  # three batches
        driver.run(0, rows)
        assert sorted((f"k{n % 7}", n) for n in range(24_993, 25_000)) == place.query(
            "SELECT k, v FROM words ORDER BY k"
        )
        driver.run(1, rows.slice(0, 3))
        assert [("k0", 0), ("k1", 1), ("k2", 2)] == place.query("SELECT k, v FROM words ORDER BY k LIMIT 3")

    def test_a_key_alone_is_a_row_too(self, place: Any) -> None:
        only = pa.table({"k": ["a", "b", "a"]})
        driver = place.started(place.sink(key="k"), only.schema)
        driver.run(0, only)
        driver.run(1, only)
        assert [("a",), ("b",)] == place.query("SELECT k FROM words ORDER BY k")


class TestNames:
    @pytest.mark.parametrize("name", ["`; DROP TABLE x;--", "a.b", "select", "Case", "per%cent%s", "ü" * 64, "a'b\\"])
    def test_a_name_is_never_a_statement(self, place: Any, name: str) -> None:
        quoted = "`" + name.replace("`", "``") + "`"
        schema = pa.schema({name: pa.string(), "v": pa.int64(), "b": pa.binary()})
        driver = place.started(place.sink(name, key=name, staging="auto"), schema)
        driver.run(0, pa.table({name: ["a", "a"], "v": [1, 2], "b": [b"x", b"y"]}, schema))
        assert [("a", 2, b"y")] == place.query(f"SELECT * FROM {quoted}")  # noqa: S608
        again = place.driver(place.sink(name, key=name), writer=2, held=Epoch(9))
        with pytest.raises(FencepostError, match="target_behind") as behind:
            again.start(schema)
        cure = behind.value.next.partition("may stay lost: ")[2]
        place.run(*re.split("(?<=;) (?=INSERT INTO fencepost_epoch)", cure))
        again.start(schema)
        again.run(10, pa.table({name: ["c"], "v": [4], "b": [b"z"]}, schema))

    @pytest.mark.parametrize("name", ["", "x" * 65, "a ", "a\0b", "😀", "fencepost_epoch"])
    def test_a_name_that_mysql_does_not_take_is_refused_where_it_is_written(self, place: Any, name: str) -> None:
        with pytest.raises(BadConfig, match="bad_sink"):
            place.sink(name)

    @pytest.mark.parametrize(
        "settings",
        [
            {"user": None},
            {"database": ""},
            {"unix_socket": "s"},
            {"staging": "x"},
            {"mode": "x"},
            {"mode": "upsert"},
            {"key": ("k", "k")},
        ],
    )
    def test_settings_that_cannot_work_are_refused_where_they_are_written(self, place: Any, settings: Any) -> None:
        with pytest.raises(BadConfig, match="bad_sink"):
            place.sink(**settings)


@pytest.mark.parametrize("keyed", [False, True], ids=["appended", "by key"])
def test_it_names_the_rows_that_it_refuses(place: Any, keyed: bool) -> None:
    table = refusals.TABLE.format(key="PRIMARY KEY" if keyed else "")
    table = table.replace(" DEFAULT 1 UNIQUE", "") if keyed else table  # a keyed table may have no other unique index
    place.run(f"CREATE TABLE words ({table.replace('varchar(8)', 'varchar(8) COLLATE utf8mb4_nopad_bin')})")
    settings = {"key": "k", "unique_key": True, "deletes": "gone"} if keyed else {}
    schema = refusals.SCHEMA if keyed else deletion.without(refusals.SCHEMA, "gone")
    refusals.check(place.started(place.sink(staging="checkpoint", **settings), schema), keyed=keyed, long=30)
