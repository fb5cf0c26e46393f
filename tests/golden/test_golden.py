"""Checkpoints made by an older fencepost are opened, judged and finished by this one. No engine and no server here.

`test_servers.py` has those whose targets are in servers, `test_jobs.py` goes on with the jobs themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from golden import (
    BEFORE,
    GOLDENS,
    HOST,
    LAST,
    PACKED,
    ROOT,
    counted,
    fencepost,
    held,
    last_decision,
    ledger,
    published,
    recover,
    unpacked,
)
from streams import Place

import fencepost as fp
from fencepost.protocol.records import decode, encode

KILLED = [name for name, one in GOLDENS.items() if one.fault]
DECIDED = [name for name in KILLED if name != "undecided"]
IN_SQLITE = ("stopped", "decided", "undecided", "heap")
"""Counts of words."""


@pytest.fixture(params=GOLDENS)
def place(request: pytest.FixtureRequest) -> Any:
    with unpacked(request.param) as found:
        yield found


def counts_of(place: Place) -> fp.Sink:
    return place.counts_sink()


def words_in(place: Place) -> fp.Sink:
    return fp.Files(str(place.root / "out"), format="json", name="words")


# --- the files


def test_they_are_those_that_were_made() -> None:
    """Made again by newer code they would prove nothing."""
    sums = dict(reversed(line.split()) for line in (PACKED / "SHA256SUMS").read_text().splitlines())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PACKED.glob("*.tar.gz")}
    assert sums == found
    assert {f"{name}.tar.gz" for name in GOLDENS} == found.keys()


@pytest.mark.parametrize("name", GOLDENS)
def test_nothing_in_them_tells_of_the_machine_that_made_them(name: str) -> None:
    paths = re.compile(rb"(?:file:|[\"' ])/+(?!tmp/fencepost-golden)\w+/[\w/.-]+")
    with tarfile.open(PACKED / f"{name}.tar.gz") as tar:
        members = [member for member in tar if member.isfile()]
        texts = {member.name: tar.extractfile(member).read() for member in members}
        assert {("", "", 0, 0)} == {(m.uname, m.gname, m.uid, m.gid) for m in tar}
    assert {} == {file: found for file, data in texts.items() if (found := paths.findall(data))}
    writers = [json.loads(data) for file, data in texts.items() if "/ledger/" in file and b'"kind":"writer"' in data]
    assert {HOST} == {record["body"]["host"] for record in writers}


def test_every_record_is_read_and_written_to_the_same_bytes(place: Place) -> None:
    files = ledger(place.checkpoint)
    assert len(files) > 4
    for file in files:
        assert file.read_bytes() == encode(decode(file.read_bytes()))


# --- what is said of them


def test_status_and_epochs_say_what_they_said(place: Place) -> None:
    name = place.root.name
    ended = {"stopped": (0, "stopped"), "undecided": (1, "dead")}
    code, said = fencepost("status", place.checkpoint)
    assert ended.get(name, (1, "dead")) == (code, said["condition"])
    flight = said["in_flight"] and (said["in_flight"]["epoch"], said["in_flight"]["step"])
    assert {"stopped": None, "undecided": (2, "voted")}.get(name, (2, "decided")) == flight
    code, said = fencepost("epochs", "list", place.checkpoint)
    standings = [(one["epoch"], one["standing"]) for one in said["epochs"]]
    assert code == 0
    if name == "stopped":
        assert standings == [(number, "complete") for number in range(len(standings))]
    else:
        last = {"undecided": "begun"}.get(name, "decided")
        assert standings == [(0, "complete"), (1, "complete"), (2, last)]


def test_verify_and_doctor_say_what_they_said(place: Place) -> None:
    name = place.root.name
    code, said = fencepost("verify", place.checkpoint)
    verdicts = [one["verdict"] for one in said["jobs"][0]["epochs"]]
    if name in DECIDED:
        assert (3, "unfinished", ["agrees", "agrees", "unfinished"]) == (code, said["verdict"], verdicts)
        assert "missing" == said["jobs"][0]["epochs"][-1]["commits"]
    else:
        assert (0, "agrees", {"agrees"}) == (code, said["verdict"], set(verdicts))
    code, said = fencepost("doctor", place.checkpoint)
    findings = sorted(one["code"] for one in said["findings"])
    wanted = {"stopped": [], "undecided": []}.get(name, ["open_decision", "spark_log_differs"])
    assert (bool(wanted), wanted) == (bool(code), findings)
    assert {"start"} >= {one["fix"] for one in said["findings"]}


def test_a_savepoint_is_whole_and_can_be_restored() -> None:
    with unpacked("stopped") as place:
        code, said = fencepost("savepoint", "list", place.checkpoint)
        [made] = said["savepoints"]
        assert (0, "running", []) == (code, Path(made["path"]).name, said["damaged"])
        assert (0, True) == check_savepoint(made["path"])
        damaged = next(Path(made["path"]).rglob("*.changelog"))
        damaged.write_bytes(flipped(damaged.read_bytes()))
        assert (1, False) == check_savepoint(made["path"])


def check_savepoint(path: str) -> tuple[int, bool]:
    code, said = fencepost("savepoint", "verify", path)
    return code, said["whole"]


def flipped(data: bytes) -> bytes:
    """One bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


# --- recovery


@pytest.mark.parametrize("name", IN_SQLITE)
def test_counts_are_finished_once(name: str) -> None:
    with unpacked(name) as place:
        assert {"held"} == set.union(*held(place, counts_of(place))[:2])
        for _ in range(2):  # what one start has finished, the next one leaves alone
            recover(place, counts_of(place), job="job")
            if name == "undecided":
                assert counted(*BEFORE) == place.counts()
                assert not (place.checkpoint / "offsets/2").exists()
            else:
                assert place.expected() == place.counts()
            assert {"held"} == set.union(*held(place, counts_of(place)))
        assert "agrees" == fencepost("verify", place.checkpoint)[1]["verdict"]
        decided = last_decision(place.checkpoint)
        assert decided["snapshot"] == (place.checkpoint / "commits" / str(decided["epoch"])).read_text()


def test_files_are_published_once() -> None:
    with unpacked("files") as place:
        assert counted(*BEFORE) == published(place)
        assert [{"held"}, {"held"}, {"missing"}] == held(place, words_in(place))
        for _ in range(2):
            recover(place, words_in(place))
            assert counted(*BEFORE, LAST) == published(place)
            assert [{"held"}, {"held"}, {"held"}] == held(place, words_in(place))
        assert "agrees" == fencepost("verify", place.checkpoint)[1]["verdict"]


# --- sabotage: what is not as it was made is refused


def test_a_changed_byte_in_any_record_is_refused() -> None:
    with unpacked("decided") as place:
        for file in ledger(place.checkpoint):
            right = file.read_bytes()
            file.write_bytes(flipped(right))
            with pytest.raises(fp.FencepostError) as refused:
                recover(place, counts_of(place), job="job")
            assert "ledger_damaged" == refused.value.code
            code, said = fencepost("verify", place.checkpoint)
            assert (1, "differs") == (code, said["verdict"])
            file.write_bytes(right)
        recover(place, counts_of(place), job="job")


def test_a_changed_byte_in_the_kept_rows_is_refused() -> None:
    with unpacked("decided") as place:
        [kept] = place.checkpoint.glob("fencepost/*/staged/*/*.arrow")
        kept.write_bytes(flipped(kept.read_bytes()))
        with pytest.raises(fp.FencepostError):
            recover(place, counts_of(place), job="job")
        assert counted(*BEFORE) == place.counts()


def test_a_target_without_its_mark_is_refused() -> None:
    with unpacked("decided") as place:
        with closing(sqlite3.connect(place.database)) as database:
            database.execute("DELETE FROM fencepost_epoch")
            database.commit()
        with pytest.raises(fp.FencepostError) as refused:
            recover(place, counts_of(place), job="job")
        assert "target_behind" == refused.value.code
        assert counted(*BEFORE) == place.counts()


def test_a_folder_that_is_another_is_refused() -> None:
    with unpacked("files") as place:
        (place.root / "out/_fencepost/identity").write_text("0" * 32)
        with pytest.raises(fp.FencepostError) as refused:
            recover(place, words_in(place))
        assert "target_replaced" == refused.value.code
        assert counted(*BEFORE) == published(place)


def test_they_are_where_they_were_made_only_while_somebody_looks() -> None:
    with unpacked("decided") as place:
        assert ROOT / "decided" == place.root
        assert place.checkpoint.is_dir()
    assert not place.root.exists()
