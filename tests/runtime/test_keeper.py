"""A job is kept running in its process: what is tried again, what is not, and who is told."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

import fencepost as fp
from fencepost.config import Failures, Strategy
from fencepost.errors import (
    EpochFailed,
    Fenced,
    FencepostError,
    GaveUp,
    OperatorNeeded,
    Policy,
    Reason,
    RecoveryNeeded,
    Refused,
    Tolerance,
)
from fencepost.observe.events import Event, Kind
from fencepost.observe.journal import Observer
from fencepost.runtime.keeper import Keeper

AT_ONCE = fp.FixedDelay(attempts=2, delay="0 s")


class Query:
    """A query that ends at once, as it is told to."""

    def __init__(self, error: FencepostError | None, *, can_go_on: bool = True) -> None:
        self.error = error
        self.can_go_on = can_go_on
        self.stopped = False

    def wait(self, seconds: float) -> bool:
        return True

    def wish(self) -> Literal["stop", "cancel"] | None:
        return None

    def stop(self) -> None:
        self.stopped = True

    def abort(self) -> None:
        self.stopped = True

    def end(self) -> None:
        if self.error is not None:
            raise self.error


class Place:
    """A job whose queries end in turn as they are told to."""

    def __init__(
        self, *queries: Any, strategy: Strategy | None = None, tolerance: int = 0, failures: Failures = ()
    ) -> None:
        self.queries = list(queries)
        self.starts = 0
        self.stop = threading.Event()
        self.events: list[Event] = []
        self.told: list[FencepostError] = []
        observer = Observer("j")
        observer.call(self.events.append, *Kind)
        self.keeper = Keeper(
            self.start,
            lambda: None,
            self.stop,
            observer,
            strategy=strategy,
            tolerance=Tolerance(tolerance),
            failures=failures,
            tell=self.told.append,
        )

    def start(self) -> Any:
        self.starts += 1
        query = self.queries.pop(0)
        if isinstance(query, FencepostError):
            raise query
        return query


def not_decided() -> EpochFailed:
    return EpochFailed("vote_failed", "It failed.", next="Again.")


def ended() -> EpochFailed:
    return EpochFailed("spark_failed", "Spark ended the query.", next="Mend it.")


def test_a_job_that_ends_in_order_is_over() -> None:
    place = Place(Query(None))
    place.keeper.run()
    assert 1 == place.starts


def test_without_a_strategy_the_first_failure_is_raised_as_it_is() -> None:
    failure = ended()
    place = Place(Query(failure))
    with pytest.raises(EpochFailed) as raised:
        place.keeper.run()
    assert failure is raised.value


def test_a_failed_query_is_started_again_and_the_supervisor_told() -> None:
    place = Place(Query(ended()), ended(), Query(None), strategy=AT_ONCE)
    place.keeper.run()
    assert 3 == place.starts
    assert 2 == len(place.told)
    assert [1, 2] == [event.attempt for event in place.events if event.kind is Kind.RESTARTED]


def test_a_spent_budget_says_what_failed_how_often_and_whether_the_data_is_safe() -> None:
    place = Place(*(Query(ended()) for _ in range(3)), strategy=AT_ONCE)
    with pytest.raises(GaveUp, match="3 failures: fixed_delay:attempts=2,delay=0 s") as spent:
        place.keeper.run()
    assert "[spark_failed]" in spent.value.what
    assert ended().safe == spent.value.safe


def test_failures_of_earlier_processes_count() -> None:
    with pytest.raises(GaveUp):
        Place(Query(ended()), strategy=AT_ONCE, failures=(1.0, 2.0)).keeper.run()


@pytest.mark.parametrize("kind", [Fenced, OperatorNeeded, Refused])
def test_no_strategy_retries_what_is_final(kind: type[FencepostError]) -> None:
    place = Place(Query(kind("x", "X.", next="Y.")), strategy=fp.ExponentialDelay(initial="0 s"))
    with pytest.raises(kind):
        place.keeper.run()
    assert 1 == place.starts


def test_a_start_that_finds_no_jvm_is_not_repeated_in_this_process() -> None:
    place = Place(Query(ended()), EpochFailed("jvm_lost", "Gone.", next="Anew."), strategy=AT_ONCE)
    with pytest.raises(EpochFailed, match="jvm_lost"):
        place.keeper.run()
    assert 2 == place.starts


def test_where_no_restart_is_wanted_nobody_counts_the_failure_twice() -> None:
    place = Place(Query(ended()), strategy=fp.NoRestart())
    with pytest.raises(EpochFailed):
        place.keeper.run()
    assert [] == place.told, "the supervisor counts the end of the process"


def test_without_a_jvm_only_a_new_process_helps() -> None:
    place = Place(Query(EpochFailed("jvm_lost", "Gone.", next="Anew."), can_go_on=False), strategy=AT_ONCE)
    with pytest.raises(EpochFailed):
        place.keeper.run()
    assert [] == place.told, "the supervisor counts the death itself"


def test_a_run_of_failed_epochs_is_borne_before_the_strategy_is_asked() -> None:
    place = Place(Query(not_decided()), Query(not_decided()), Query(None), tolerance=2)
    place.keeper.run()
    assert [] == place.told
    with pytest.raises(EpochFailed):
        Place(*(Query(not_decided()) for _ in range(3)), tolerance=2).keeper.run()


def test_a_tolerance_is_for_epochs_that_were_not_decided_only() -> None:
    for error in (ended(), RecoveryNeeded("x", "X.", next="Y.")):
        with pytest.raises(type(error)):
            Place(Query(error), tolerance=5).keeper.run()


def test_nothing_is_started_again_that_was_asked_to_stop() -> None:
    place = Place(Query(ended()), Query(None), strategy=fp.FixedDelay(attempts=5, delay="1 hour"))
    threading.Timer(0.2, place.stop.set).start()
    place.keeper.run()
    assert 1 == place.starts


def test_every_reason_has_a_policy_and_every_error_a_reason() -> None:
    assert len({reason.word for reason in Reason}) == len(Reason)
    assert {Policy.FINAL} == {
        Reason.of(kind("x", "X.", next="Y.")).policy for kind in (Fenced, OperatorNeeded, Refused, GaveUp)
    }
    assert Policy.TOLERATED is Reason.of(EpochFailed("epoch_timeout", "Late.", next="Y.")).policy
    assert all(reason is Reason.named(reason.word) for reason in Reason)
