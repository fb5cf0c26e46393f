"""Restart strategies: when a failed job is started again, by an invented clock."""

from __future__ import annotations

import pytest

import fencepost as fp
from fencepost.config import Failures, Strategy, parse
from fencepost.errors import BadConfig


def waits(strategy: Strategy, *times: float) -> list[float | None]:
    """What the strategy says after each of these failures."""
    failures: Failures = ()
    said = []
    for now in times:
        failures = strategy.remember(failures, now)
        said.append(strategy.wait(failures))
    return said


def test_no_restart_never_restarts() -> None:
    assert [None, None] == waits(fp.NoRestart(), 0, 1e6)


def test_a_fixed_delay_is_spent_after_its_attempts_however_far_apart_they_are() -> None:
    assert [10, 10, None] == waits(fp.FixedDelay(attempts=2, delay="10s"), 0, 1e6, 2e6)
    assert [None] == waits(fp.FixedDelay(attempts=0), 0)
    assert 60 == waits(fp.FixedDelay(), *range(61)).count(10)


def test_a_failure_rate_forgets_what_is_older_than_its_interval() -> None:
    rate = fp.FailureRate(max_failures=2, interval="1 minute", delay="1s")
    assert [1, 1, None] == waits(rate, 0, 30, 59)
    assert [1, 1, 1, 1] == waits(rate, 0, 30, 60, 95)
    assert [1, None] == waits(fp.FailureRate(), 0, 59)


def test_an_exponential_delay_grows_to_its_maximum_and_is_short_again_after_a_good_while() -> None:
    delay = fp.ExponentialDelay(initial="1s", maximum="8s", multiplier=2, jitter=0, reset_after="1 hour")
    assert [1, 2, 4, 8, 8, 1, 2] == waits(delay, 0, 10, 20, 30, 40, 40 + 3601, 40 + 3601 + 3600)


def test_an_exponential_delay_never_ends_and_keeps_no_endless_list() -> None:
    failures: Failures = ()
    for now in range(5000):
        failures = fp.ExponentialDelay().remember(failures, now)
    assert len(failures) <= 1000
    assert 60 == fp.ExponentialDelay(jitter=0).wait(failures)
    assert 60 == fp.ExponentialDelay(multiplier=10, jitter=0).wait(failures), "a power of ten would overflow"


def test_jitter_spreads_the_waits_but_never_beyond_the_maximum() -> None:
    delay = fp.ExponentialDelay(initial="10s", maximum="10s", jitter=0.5)
    said = [wait for wait in (delay.wait((0.0,)) for _ in range(200)) if wait is not None]
    assert 5 <= min(said) < max(said) <= 10


@pytest.mark.parametrize(
    "strategy",
    [
        fp.NoRestart(),
        fp.FixedDelay(3, "1 minute 30 seconds"),
        fp.FailureRate(2, "5 min", "0 s"),
        fp.ExponentialDelay("2s"),
    ],
)
def test_the_word_of_a_strategy_says_it_all(strategy: Strategy) -> None:
    assert strategy == parse(strategy.word)


def test_the_command_line_may_write_dashes() -> None:
    assert fp.FixedDelay(3, "10s") == parse("fixed-delay:attempts=3, delay=10s")
    assert fp.ExponentialDelay(reset_after="5min") == parse("exponential-delay:reset-after=5min")


@pytest.mark.parametrize("text", ["", "sometimes", "fixed_delay:3", "fixed_delay:tries=3", "fixed_delay:attempts=x"])
def test_a_word_that_is_no_strategy_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(BadConfig, match="Invalid restart strategy") as refused:
        parse(text)
    assert "fixed-delay:attempts=60,delay=10s" in refused.value.next


def test_all_that_is_wrong_with_a_strategy_is_said_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        fp.FailureRate(max_failures=-1, interval="soon", delay="1s")
    assert "max_failures=-1" in refused.value.what
    assert "interval='soon'" in refused.value.what
    with pytest.raises(BadConfig, match=r"multiplier=0\.5"):
        fp.ExponentialDelay(multiplier=0.5)
    with pytest.raises(BadConfig, match="is longer than"):
        fp.ExponentialDelay(initial="1h")
    with pytest.raises(BadConfig, match="is not a restart strategy"):
        fp.Job("j", checkpoint="ck", restart="often")  # type: ignore[arg-type]
