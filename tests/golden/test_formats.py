"""Format 1 is read by the fencepost after ours, which goes on in its own; and ours refuses what that one wrote.

No engine and no server here; `test_servers.py` has the marks in servers, `test_jobs.py` a job that goes on.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from formats import listing, next_format, versions_ignored
from golden import BEFORE, counted, fencepost, ledger, published, recover, unpacked
from streams import Place

import fencepost as fp
from fencepost.admin.rescale import rescale
from fencepost.cli.main import cli
from fencepost.connectors.files.layout import MANIFESTS, OWNER
from fencepost.protocol.format import seal, unseal

NEWER = {"format": 2, "fencepost": "9.1.0"}
WORDS = "was written by fencepost 9.1.0 (format 2); this is fencepost"


def counts_of(place: Place) -> fp.Sink:
    return place.counts_sink()


def words_in(place: Place) -> fp.Sink:
    return fp.Files(str(place.root / "out"), format="json", name="words")


def upgrade(place: Place) -> None:
    """The next fencepost starts on it, and ends."""
    with next_format():
        recover(place, counts_of(place), job="job")


# --- upwards


@pytest.mark.parametrize("name", ["stopped", "decided", "heap"])
def test_the_next_fencepost_goes_on_from_format_1(name: str) -> None:
    with unpacked(name) as place:
        for _ in range(2):
            upgrade(place)
            assert place.expected() == place.counts()
        with next_format():
            assert "agrees" == fencepost("verify", place.checkpoint)[1]["verdict"]
        formats = [json.loads(file.read_text())["format"] for file in ledger(place.checkpoint)]
        assert ({1, 2}, sorted(formats)) == (set(formats), formats)


def test_the_next_fencepost_publishes_what_format_1_decided() -> None:
    with unpacked("files") as place:
        with next_format():
            recover(place, words_in(place))
        found = {json.loads(file.read_text())["format"] for file in (place.root / "out" / MANIFESTS).glob("*.json")}
        assert {1, 2} == found
        with next_format():
            assert place.expected() == published(place)
            recover(place, words_in(place))
            assert place.expected() == published(place)


def test_the_next_fencepost_restores_a_savepoint_of_format_1() -> None:
    with unpacked("stopped") as place, next_format():
        made = place.root / "checkpoint.savepoints/running"
        words = ["savepoint", "restore", made, "--to", place.root / "second", "--fork", "second"]
        assert 0 == CliRunner().invoke(cli, [str(word) for word in words]).exit_code


# --- downwards: refused in words, and not a byte is changed


def refusal(act: Callable[[], object]) -> str:
    """The code that it is refused with."""
    try:
        act()
    except fp.FencepostError as error:
        return error.code
    return "not refused"


def command(*words: object) -> Callable[[], object]:
    """As typed; what it says of the newer ledger counts, whatever its exit code is."""

    def act() -> None:
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exception is None or isinstance(result.exception, SystemExit | fp.FencepostError)
        said = f"{result.output}{result.exception}"
        if result.exit_code and "newer_format" in said:
            raise fp.Refused("newer_format", "", next="")

    return act


def attempts(place: Place) -> dict[str, Callable[[], object]]:
    """All that an older fencepost may be asked to do with a checkpoint."""
    root, second = place.checkpoint, place.root / "second"
    kept = place.root / "checkpoint.savepoints/running"
    return {
        "start": lambda: recover(place, counts_of(place), job="job"),
        "rescale": lambda: rescale(root, 7, lambda: pytest.fail("no session is needed to refuse")),
        "rewind": command("rewind", root, "--epoch", 0, "--sink", "quiet"),
        "create": command("savepoint", "create", root),
        "restore": command("savepoint", "restore", kept, "--to", second, "--parent", root, "--sink", "quiet"),
        "doctor": command("doctor", root, "--repair"),
        "verify": command("verify", root),
        "epochs": command("epochs", "list", root),
        "status": command("status", root),
    }


def complaints(place: Place) -> list[str]:
    """What an older fencepost does wrong with a checkpoint of a newer one."""
    found = []
    before = listing(place.root)
    for name, act in attempts(place).items():
        code = refusal(act)
        if code != "newer_format":
            found.append(f"{name}: {code}")
        if listing(place.root) != before:
            found.append(f"{name} changed {dict(listing(place.root).items() ^ before.items())}")
            before = listing(place.root)
    return found


def test_a_ledger_of_the_next_fencepost_is_refused_and_nothing_is_changed() -> None:
    with unpacked("stopped") as place:
        upgrade(place)
        assert [] == complaints(place)


def test_the_way_back_is_a_savepoint_of_before() -> None:
    with unpacked("stopped") as place:
        upgrade(place)
        made, second = place.root / "checkpoint.savepoints/running", place.root / "second"
        words = ["savepoint", "restore", made, "--to", second, "--parent-lost", "--sink", "overwrite"]
        assert 0 == CliRunner().invoke(cli, [str(word) for word in words]).exit_code
        assert {1} == {json.loads(file.read_text())["format"] for file in ledger(second)}
        assert (0, []) == (fencepost("doctor", second)[0], fencepost("doctor", second)[1]["findings"])


def test_a_reader_that_ignores_the_version_is_noticed() -> None:
    """The sabotaged twin of the test above."""
    with unpacked("stopped") as place:
        upgrade(place)
        with versions_ignored():
            assert [] != complaints(place)


def test_a_savepoint_of_the_next_fencepost_is_refused_and_nothing_is_made() -> None:
    with unpacked("stopped") as place:
        with next_format():
            made = CliRunner().invoke(cli, ["savepoint", "create", str(place.checkpoint), "--name", "newer"])
            assert 0 == made.exit_code
        kept = place.root / "checkpoint.savepoints/newer"
        before = listing(place.root)
        for more in (["--fork", "second"], ["--parent", place.checkpoint, "--sink", "quiet"]):
            act = command("savepoint", "restore", kept, "--to", place.root / "second", *more)
            assert "newer_format" == refusal(act)
        listed = fencepost("savepoint", "list", place.checkpoint)[1]
        assert ([str(kept)], [], 1) == (listed["newer"], listed["damaged"], len(listed["savepoints"]))
        assert before == listing(place.root)


# --- marks and manifests


def set_marks(database: Path, **facts: object) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for name, value in facts.items():
            connection.execute(f"UPDATE fencepost_epoch SET {name} = ?", (value,))  # noqa: S608 - ours
        connection.commit()


@pytest.mark.parametrize("ignored", [False, True], ids=["as it is", "a reader that ignores the version"])
def test_a_mark_of_the_next_fencepost_is_refused(ignored: bool) -> None:
    with unpacked("decided") as place:
        set_marks(place.database, **NEWER)
        with versions_ignored() if ignored else nullcontext():
            act: Any = lambda: recover(place, counts_of(place), job="job")  # noqa: E731 - of this folder
            if ignored:
                act()
                assert place.expected() == place.counts(), "the sabotaged twin writes on"
                return
            with pytest.raises(fp.FencepostError) as refused:
                act()
        assert "newer_format" == refused.value.code
        assert f"The mark in the target {WORDS}" in refused.value.what
        assert ("job", "sqlite:counts") == (refused.value.where.job, refused.value.where.sink)
        assert counted(*BEFORE) == place.counts()
        told = fencepost("verify", place.checkpoint)
        assert told[0] in {1, 3}


def test_a_mark_that_does_not_say_its_format_is_damage() -> None:
    with unpacked("decided") as place:
        set_marks(place.database, format=0)
        assert "mark_damaged" == refusal(lambda: recover(place, counts_of(place), job="job"))
        assert counted(*BEFORE) == place.counts()


def newest_manifest(place: Place) -> Path:
    return max((place.root / "out" / MANIFESTS).glob("*.json"))


def owner_file(place: Place) -> Path:
    return place.root / "out" / OWNER


@pytest.mark.parametrize("file_of", [newest_manifest, owner_file])
@pytest.mark.parametrize("ignored", [False, True], ids=["as it is", "a reader that ignores the version"])
def test_a_folder_of_the_next_fencepost_is_refused(file_of: Callable[[Place], Path], ignored: bool) -> None:
    with unpacked("files") as place:
        file = file_of(place)
        file.write_bytes(seal({**unseal(file.read_bytes()), **NEWER}))
        before = listing(place.root / "out")
        with versions_ignored() if ignored else nullcontext():
            code = refusal(lambda: recover(place, words_in(place)))
        assert ("not refused" if ignored else "newer_format") == code
        assert ignored == (before != listing(place.root / "out"))


@pytest.mark.parametrize("file_of", [newest_manifest, owner_file])
def test_every_flipped_byte_of_a_manifest_is_damage(file_of: Callable[[Place], Path]) -> None:
    with unpacked("files") as place:
        file = file_of(place)
        data = file.read_bytes()
        for at in range(0, len(data), 7):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert "manifest_damaged" == refusal(lambda: recover(place, words_in(place)))
