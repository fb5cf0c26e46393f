"""A job is found by its file, its name or its checkpoint; what was noted at its start helps, and never hurts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost.cli.lookup import find
from fencepost.cli.main import cli
from fencepost.errors import BadConfig
from fencepost.observe import registry


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and a folder to be in."""
    monkeypatch.setenv(registry.HOME, str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def checkpoint(name: str) -> Path:
    path = Path(name).absolute()
    path.mkdir(parents=True)
    return path


def test_a_checkpoint_is_taken_as_it_is_also_if_a_job_has_its_name() -> None:
    registry.note("orders", checkpoint("elsewhere"))
    (checkpoint("orders") / "fencepost").mkdir()
    assert Path("orders") == find("orders")


def test_a_folder_that_is_no_checkpoint_gives_way_to_a_job_of_its_name() -> None:
    registry.note("orders", checkpoint("elsewhere"))
    Path("orders").mkdir()
    assert Path("elsewhere").absolute() == find("orders")
    assert Path("orders") == find("./orders")


def test_a_path_that_is_not_there_is_left_to_the_verb() -> None:
    assert Path("no/such/folder") == find("no/such/folder")


def test_a_job_is_found_by_its_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = checkpoint("ck")
    registry.note("orders: 2026/Q4", "ck")
    monkeypatch.chdir(tmp_path)
    assert place == find("orders: 2026/Q4")


def test_a_job_is_found_by_its_file() -> None:
    Path("job.py").write_text("raise SystemExit('a file that was started before need not be run')\n")
    registry.note("orders", checkpoint("ck"), "job.py")
    assert Path("ck").absolute() == find("job.py")
    assert Path("ck").absolute() == find(str(Path("job.py").absolute()))


def test_two_checkpoints_of_one_name_are_listed_and_none_is_chosen() -> None:
    for place in ("one", "two"):
        registry.note("orders", checkpoint(place))
    with pytest.raises(BadConfig) as caught:
        find("orders")
    assert "several_checkpoints" == caught.value.code
    assert all(str(Path(place).absolute()) in caught.value.next for place in ("one", "two"))


def test_a_start_is_noted_once_however_often() -> None:
    place = checkpoint("ck")
    for _ in range(3):
        registry.note("orders", place)
    assert 1 == len(registry.everything())
    assert place == find("orders")


def test_a_checkpoint_that_was_deleted_is_forgotten(home: Path) -> None:
    registry.note("orders", checkpoint("old"))
    Path("old").rmdir()
    assert [] == registry.by_name("orders")
    registry.note("orders", checkpoint("new"))
    assert [str(Path("new").absolute())] == [
        json.loads(file.read_text())["checkpoint"] for file in home.rglob("*.json")
    ]


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    registry.note("orders", checkpoint("ck"))
    with pytest.raises(BadConfig) as caught:
        find("order")
    assert "unknown_job" == caught.value.code
    assert "orders" in caught.value.next


def test_names_that_look_alike_in_a_file_name_are_two() -> None:
    registry.note("a b", checkpoint("one"))
    registry.note("a_b", checkpoint("two"))
    assert [Path("one").absolute(), Path("two").absolute()] == [find("a b"), find("a_b")]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": 1}'])
def test_a_note_that_cannot_be_read_is_passed_over(home: Path, damage: str) -> None:
    registry.note("orders", checkpoint("ck"))
    (home / "jobs" / "orders.000000000000.json").write_text(damage)
    assert Path("ck").absolute() == find("orders")


@pytest.mark.parametrize("where", ["/dev/null/home", "\0"])
def test_a_home_that_cannot_be_written_stops_no_start(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "home", lambda: Path(where))
    registry.note("orders", checkpoint("ck"))
    assert [] == registry.by_name("orders")


def test_the_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(os.environ[registry.HOME]) == registry.home()
    monkeypatch.delenv(registry.HOME)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert Path("/state/fencepost") == registry.home()
    monkeypatch.delenv("XDG_STATE_HOME")
    assert Path.home() / ".local/state/fencepost" == registry.home()


@pytest.mark.parametrize("words", [("doctor",), ("savepoint", "list"), ("savepoint", "create"), ("state", "ls")])
def test_verbs_take_a_name_where_they_took_a_folder(words: tuple[str, ...]) -> None:
    registry.note("orders", checkpoint("ck"))
    by_name = CliRunner().invoke(cli, [*words, "orders"])
    by_path = CliRunner().invoke(cli, [*words, str(Path("ck").absolute())])
    assert (by_path.exit_code, by_path.output, str(by_path.exception)) == (
        by_name.exit_code,
        by_name.output,
        str(by_name.exception),
    )
    assert "unknown_job" not in str(by_name.exception)
