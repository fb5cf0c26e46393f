"""What a user's function is given and may return, and how often the state is touched: no Spark runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fencepost.errors import EpochFailed
from fencepost.spark.worker import (
    KeyedSettings,
    KeyedState,
    Misfit,
    maker,
    packer,
    receiver,
    row_kind,
    sender,
    unpacker,
)

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HIDDEN = "a value that no log may show"


class Pair(NamedTuple):
    count: int
    user: str


@pytest.mark.parametrize("given", [("u", 2), {"count": 2, "user": "u"}, Row(count=2, user="u"), Pair(2, "u")])
def test_a_row_may_be_a_tuple_by_place_or_anything_that_has_names(given: Any) -> None:
    row = maker(row_kind(["user", "count"]))(given)
    assert ("u", 2) == row
    assert (2, 2, 2) == (row.count, row["count"], row[1])
    assert ("u", 3) == row._replace(count=3)
    assert {"user": "u", "count": 2} == row.asDict(True)


@pytest.mark.parametrize("given", [("u",), ("u", 2, 3), {"user": "u"}, {"user": "u", "count": 1, HIDDEN: 2}, "u", 7])
def test_a_row_that_is_not_complete_is_refused_without_its_values(given: Any) -> None:
    with pytest.raises(Misfit) as caught:
        maker(row_kind(["user", "count"]))(given)
    assert HIDDEN not in str(caught.value)


def struct(**fields: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


STATE = struct(
    n=LongType(),
    x=DoubleType(),
    at=TimestampType(),
    d=DecimalType(4, 2),
    seen=ArrayType(TimestampType()),
    m=MapType(StringType(), IntegerType()),
    s=struct(count=IntegerType(), at=TimestampType()),
)


def test_times_are_stored_in_utc_and_come_back_with_their_zone() -> None:
    local = NOON.astimezone(timezone(timedelta(hours=-4)))
    stored = packer(STATE)((1, 2, local, Decimal("1.5"), [local, None], {"a": None}, {"count": 1, "at": local}))
    plain = NOON.replace(tzinfo=None)
    assert (1, 2.0, plain, Decimal("1.5"), [plain, None], {"a": None}, (1, plain)) == stored
    assert isinstance(stored[1], float)  # Spark would store null for an int
    back = tuple.__new__(row_kind(STATE.names), unpacker(STATE)(stored))
    assert (NOON, [NOON, None], NOON, 1) == (back.at, back.seen, back.s.at, back.s.count)


def test_times_of_a_record_are_in_utc_where_an_hour_is_an_hour_all_year() -> None:
    schema = struct(at=TimestampType(), m=MapType(StringType(), TimestampType()), s=struct(count=IntegerType()))
    second_half_past_one = datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York"))
    at, m, s = receiver(schema)((second_half_past_one, [("a", second_half_past_one)], {"count": 1}))
    assert datetime(2024, 11, 3, 5, 30, tzinfo=UTC) == at - timedelta(hours=1)
    assert ({"a": at}, 1) == (m, s.count)


def test_nested_values_of_an_output_are_what_arrow_takes() -> None:
    schema = struct(m=MapType(StringType(), LongType()), s=struct(n=LongType()), a=ArrayType(struct(n=LongType())))
    assert [[("a", 1)], {"n": 2}, [{"n": 3}, None]] == sender(schema)(({"a": 1}, (2,), [Row(n=3), None]))
    with pytest.raises(Misfit, match="field at is timestamp, but got a datetime"):
        sender(struct(at=TimestampType()))((datetime(2024, 5, 1),))  # noqa: DTZ001 - no zone is the point


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", HIDDEN),
        ("n", 2**63),
        ("x", HIDDEN),
        ("at", datetime(2024, 5, 1)),  # noqa: DTZ001 - no zone is the point
        ("at", HIDDEN),
        ("d", Decimal("1.234")),
        ("d", Decimal(100)),
        ("d", Decimal("NaN")),
        ("seen", [HIDDEN]),
        ("seen", 7),
        ("m", {HIDDEN: HIDDEN}),
        ("m", [HIDDEN]),
        ("s", (1,)),
    ],
)
def test_a_state_of_another_type_is_refused_where_spark_would_store_null(field: str, value: Any) -> None:
    row = [value if name == field else None for name in STATE.names]
    with pytest.raises(Misfit, match=f"field {field} is ") as caught:
        packer(STATE)(row)
    assert HIDDEN not in str(caught.value)


class Store:
    """One key's state and timers, with every call counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.value: Any = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: Any, ttl_ms: int | None) -> Store:  # noqa: N802 - Spark's name
        return self

    def get(self) -> Any:
        self.calls["get"] += 1
        return self.value

    def update(self, value: Any) -> None:
        self.calls["update"] += 1
        self.value = value

    def clear(self) -> None:
        self.calls["clear"] += 1
        self.value = None

    def listTimers(self) -> Iterator[int]:  # noqa: N802 - as above
        self.calls["list"] += 1
        return iter(self.timers)

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802 - as above
        self.calls["register"] += 1
        self.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:  # noqa: N802 - as above
        self.calls["delete"] += 1
        self.timers.remove(at_ms)

    def taken(self) -> dict[str, int]:
        """The calls since the last time."""
        calls, self.calls = dict(self.calls), Counter()
        return calls


class Clock:
    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802 - as above
        return 1000

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802 - as above
        return 2000


def keyed(fn: Any, state: StructType, **more: Any) -> tuple[KeyedState, Store]:
    told = {
        "keys": ("k",),
        "record": struct(k=StringType(), n=LongType()),
        "state": state,
        "output": struct(k=StringType(), n=LongType()),
        "order": (),
        "ttl_ms": None,
        "fn": fn,
        "fn_takes_timers": False,
        "on_timer": None,
        "on_timer_takes_timers": False,
    }
    work, store = KeyedState(KeyedSettings(**told | more)), Store()
    work.init(store)
    return work, store


def fed(work: KeyedState, *numbers: int | None) -> list[Any]:
    return list(work.handleInputRows(("a",), iter([Row(k="a", n=n) for n in numbers]), Clock()))


def total(record: Any, state: Any) -> Any:
    n = (state.n if state else 0) + record.n
    return (record.k, n), (n,)


def test_the_state_is_read_and_written_once_for_all_records_of_a_key() -> None:
    work, store = keyed(total, struct(n=LongType()))
    assert [("a", 1), ("a", 3), ("a", 6)] == fed(work, 1, 2, 3)
    assert {"get": 1, "update": 1} == store.taken()
    assert [("a", 6)] == fed(work, 0)
    assert {"get": 1} == store.taken()  # nothing changed


def test_each_record_begins_a_ttl_anew_though_the_state_is_the_same() -> None:
    work, store = keyed(total, struct(n=LongType()), ttl_ms=1000)
    fed(work, 1)
    fed(work, 0)
    assert {"get": 2, "update": 2} == store.taken()


def test_a_state_changed_in_place_is_written() -> None:
    def remember(record: Any, state: Any) -> Any:
        if state is None:
            return None, ([record.n],)
        state.seen.append(record.n)
        return None, state

    work, store = keyed(remember, struct(seen=ArrayType(LongType())))
    fed(work, 1)
    fed(work, 2)
    assert ([1, 2],) == store.value


def test_none_forgets_a_key() -> None:
    work, store = keyed(lambda record, state: (None, None if record.n is None else (record.n,)), struct(n=LongType()))
    fed(work, 1)
    fed(work, 2, None)
    assert ({"get": 2, "update": 1, "clear": 1}, None) == (store.taken(), store.value)
    fed(work, None)
    assert {"get": 1} == store.taken()


def test_records_are_sorted_by_order_with_nulls_first() -> None:
    work, _ = keyed(lambda record, state: ((record.k, record.n), state), struct(n=LongType()), order=("n",))
    assert [None, 1, 2, 3] == [row.n for row in fed(work, 3, 1, None, 2)]


def test_records_are_sorted_by_what_time_it_was_not_by_what_the_clock_showed() -> None:
    """In the night when New York's clock goes back, 1:58 comes before 1:16."""
    zone = ZoneInfo("America/New_York")
    times = [datetime(2024, 11, 3, hour, tzinfo=UTC) + timedelta(minutes=58 - 42 * (hour - 5)) for hour in (5, 6)]
    record = struct(k=StringType(), at=TimestampType())
    found: list[datetime] = []

    def note(record: Any, state: Any) -> Any:
        found.append(record.at)
        return None, state

    work, _ = keyed(note, struct(n=LongType()), record=record, order=("at",))
    work.handleInputRows(("a",), iter([Row(k="a", at=at.astimezone(zone)) for at in reversed(times)]), Clock())
    assert times == found


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "bad_answer"),
        (("a", 1, (1,)), "bad_answer"),
        ((("a", 1, HIDDEN), None), "bad_output"),
        (([("a", 1), HIDDEN], None), "bad_output"),
        (({"k": "a", HIDDEN: 1}, None), "bad_output"),
        ((None, (1, HIDDEN)), "bad_state"),
        ((None, (HIDDEN,)), "bad_state"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_that_names_the_key_columns_only(answer: Any, code: str) -> None:
    work, _ = keyed(lambda record, state: answer, struct(n=LongType()))
    with pytest.raises(EpochFailed) as caught:
        fed(work, 1)
    assert code == caught.value.code
    assert "(Keyed state by k.)" in str(caught.value)
    assert HIDDEN not in str(caught.value)


def at_second(n: int) -> datetime:
    return datetime.fromtimestamp(n, UTC)


def test_timers_are_listed_once_and_only_what_changed_is_told() -> None:
    def move(record: Any, state: Any, timers: Any) -> Any:
        timers.cancel()
        timers.at(at_second(record.n) + timedelta(microseconds=1))
        return None, (record.n,)

    def fire(key: Any, state: Any, when: datetime) -> Any:
        return (key.k, state.n), None

    work, store = keyed(move, struct(n=LongType()), fn_takes_timers=True, on_timer=fire)
    fed(work, 1, 2, 3)
    assert ({"get": 1, "update": 1, "list": 1, "register": 1}, {3001}) == (store.taken(), store.timers)
    fed(work, 4)
    assert ({"get": 1, "update": 1, "list": 1, "register": 1, "delete": 1}, {4001}) == (store.taken(), store.timers)


class Due:
    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def getExpiryTimeInMs(self) -> int:  # noqa: N802 - Spark's name
        return self.at_ms


def test_a_key_that_is_forgotten_loses_its_timers_even_those_due_in_this_epoch() -> None:
    fired = []

    def set_two(record: Any, state: Any, timers: Any) -> Any:
        timers.at(at_second(1))
        timers.at(at_second(2))
        return None, (1,)

    def fire(key: Any, state: Any, when: datetime, timers: Any) -> Any:
        fired.append((key.k, when, timers.now, timers.watermark))
        return None, None

    work, store = keyed(set_two, struct(n=LongType()), fn_takes_timers=True, on_timer=fire, on_timer_takes_timers=True)
    fed(work, 1)
    for at_ms in (1000, 2000):  # both were listed as due before the first was handled
        assert [] == list(work.handleExpiredTimer(("a",), Clock(), Due(at_ms)))
    assert [("a", at_second(1), at_second(1), at_second(2))] == fired
    assert {1000} == store.timers  # the one that fires is removed by Spark


@pytest.mark.parametrize(
    ("when", "code"),
    [(datetime(2024, 5, 1), "bad_timer"), (5, "bad_timer"), (at_second(1), "timer_again")],  # noqa: DTZ001
)
def test_a_timer_needs_a_zone_and_a_time_other_than_its_own(when: Any, code: str) -> None:
    def again(key: Any, state: Any, due: datetime, timers: Any) -> Any:
        timers.at(when)

    work, store = keyed(total, struct(n=LongType()), on_timer=again, on_timer_takes_timers=True)
    store.timers = {1000}
    with pytest.raises(EpochFailed) as caught:
        work.handleExpiredTimer(("a",), Clock(), Due(1000))
    assert code == caught.value.code
