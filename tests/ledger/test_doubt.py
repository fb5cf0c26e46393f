"""Stores whose answers say too little: what was asked may be done all the same."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from fencepost.checkpoints import claimed as claims
from fencepost.errors import BadConfig
from fencepost.ledger import LocalStore, RemotePath, Unanswered
from fencepost.ledger.patience import at_most, surely_created
from fencepost.ledger.places import place, whole_url
from fencepost.ledger.trial import check_store


class Repeating(LocalStore):
    """A client that asks a second time by itself, and is told that the name is taken: by its own first try."""

    def create(self, name: str, data: bytes) -> bool:
        super().create(name, data)
        return super().create(name, data)


class Losing(LocalStore):
    """Does what it is asked, and its answer is lost."""

    def create(self, name: str, data: bytes) -> bool:
        super().create(name, data)
        raise Unanswered(errno.EIO, "lost", name)


class Deaf(LocalStore):
    """Can be read, and takes nothing: HDFS in its safe mode."""

    def create(self, name: str, data: bytes) -> bool:
        raise Unanswered(errno.EIO, "safe mode", name)


class Overwriting(LocalStore):
    """Ignores the condition."""

    def create(self, name: str, data: bytes) -> bool:
        self.replace(name, data)
        return True


@pytest.mark.parametrize("kind", [Repeating, Losing])
def test_what_is_ours_is_ours_whatever_was_answered(kind: type[LocalStore], tmp_path: Path) -> None:
    store = kind(tmp_path)
    assert surely_created(store, "one", b"mine")
    assert not surely_created(store, "one", b"another's")


def test_a_store_that_takes_nothing_is_not_asked_for_ever(tmp_path: Path) -> None:
    with at_most(1), pytest.raises(Unanswered):
        surely_created(Deaf(tmp_path), "one", b"mine")


@pytest.mark.parametrize("kind", [Repeating, Losing])
def test_a_store_that_only_says_too_little_passes_its_trial(kind: type[LocalStore], tmp_path: Path) -> None:
    check_store(kind(tmp_path), "job")


def test_a_store_that_overwrites_fails_it(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as refused:
        check_store(Overwriting(tmp_path), "job")
    assert refused.value.code == "store_unfit"


@pytest.fixture(params=[LocalStore, Repeating, Losing])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    made: LocalStore = request.param(tmp_path)
    monkeypatch.setattr(claims, "store_at", lambda _: made)
    return made


HERE = RemotePath("s3a://bucket/here")


def test_a_place_is_claimed_filled_and_finished(store: LocalStore) -> None:
    with claims.claimed(HERE) as claim:
        assert claim is not None
        assert claim.finish("last", b"mine")
    assert store.list("") == ("last",)


def test_what_another_finished_since_the_look_is_left_alone(store: LocalStore) -> None:
    store.replace("a", b"theirs")
    store.replace("last", b"theirs")
    with claims.claimed(HERE) as claim:
        assert claim is None
    assert store.list("") == ("a", "last")


def test_a_maker_whose_claim_was_removed_finishes_nothing(store: LocalStore) -> None:
    with claims.claimed(HERE) as claim:
        assert claim is not None
        store.delete(claims.BEGUN)
        assert not claim.finish("last", b"mine")
    assert store.list("") == ()


def test_a_maker_that_fails_removes_what_it_made(store: LocalStore) -> None:
    with suppress(RuntimeError), claims.claimed(HERE) as claim:
        assert claim is not None
        store.replace("a", b"mine")
        raise RuntimeError
    assert store.list("") == ()


def test_a_scheme_is_written_in_one_way_only() -> None:
    assert whole_url("S3A://bucket/orders", None) == str(place("S3A://bucket/orders/")) == "s3a://bucket/orders"
