"""Stores whose answers say too little: what was asked may be done all the same."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from fencepost.admin import folder
from fencepost.errors import BadConfig
from fencepost.store import LocalStore, RemotePath, Unanswered, path, read_only
from fencepost.store.base import Remote, altered
from fencepost.store.hdfs import WebHdfsRemote
from fencepost.store.path import place, whole_url
from fencepost.store.probe import check_store
from fencepost.store.retry import at_most, patient, surely_created


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
    monkeypatch.setattr(folder, "store_at", lambda _: made)
    return made


HERE = RemotePath("s3a://bucket/here")


def test_a_place_is_claimed_filled_and_finished(store: LocalStore) -> None:
    with folder.making(HERE) as half:
        assert half is not None
        assert half.finish("last", b"mine")
    assert store.list("") == ("last",)


def test_what_another_finished_since_the_look_is_left_alone(store: LocalStore) -> None:
    store.replace("a", b"theirs")
    store.replace("last", b"theirs")
    with folder.making(HERE) as half:
        assert half is None
    assert store.list("") == ("a", "last")


def test_a_maker_whose_claim_was_removed_finishes_nothing(store: LocalStore) -> None:
    with folder.making(HERE) as half:
        assert half is not None
        store.delete(folder.BEGUN)
        assert not half.finish("last", b"mine")
    assert store.list("") == ()


def test_a_maker_that_fails_removes_what_it_made(store: LocalStore) -> None:
    with suppress(RuntimeError), folder.making(HERE) as half:
        assert half is not None
        store.replace("a", b"mine")
        raise RuntimeError
    assert store.list("") == ()


def test_a_scheme_is_written_in_one_way_only() -> None:
    assert whole_url("S3A://bucket/orders", None) == str(place("S3A://bucket/orders/")) == "s3a://bucket/orders"


def test_the_way_that_is_provided_comes_before_a_client_and_only_while_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provided: list[Remote] = []
    monkeypatch.setattr(path, "_provider", lambda: None)
    path.provide(lambda: provided[0] if provided else None)
    client = path.remote_for("hdfs://namenode/orders")
    provided.append(altered(client))
    assert provided[0] is path.remote_for("hdfs://namenode/orders") is not client
    provided.clear()
    assert client is path.remote_for("hdfs://namenode/orders")


def test_a_store_that_is_only_read_answers_as_if_and_changes_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.replace("old", b"old")
    looked = read_only(store)
    assert (True, False, b"old") == (looked.create("new", b""), looked.create("old", b""), looked.read("old"))
    looked.replace("old", b"new")
    looked.delete("old")
    looked.unlink("old")
    looked.sweep("")
    assert (("old",), b"old", None) == (store.list(""), store.read("old"), looked.read("new"))


def test_what_is_not_answered_is_asked_again_but_never_a_create() -> None:
    asked: list[str] = []

    def ask(what: str, url: str, *_: object) -> bytes:
        asked.append(what)
        if len(asked) < 3:
            raise Unanswered(errno.EIO, "lost", url)
        return b"there"

    remote = altered(WebHdfsRemote(), read=partial(ask, "read"), create=partial(ask, "create"))
    assert patient(remote).read("hdfs://namenode/one") == b"there"
    asked.clear()
    with pytest.raises(Unanswered):
        patient(remote).create("hdfs://namenode/one", b"")
    assert asked == ["create"]
