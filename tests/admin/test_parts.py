"""Which files an epoch rests on: all of them, no others, and each damage to one of them is seen."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from attack import emptied, walk
from kinds import KINDS
from streams import Place

from fencepost.admin.restore import relocate
from fencepost.errors import CheckpointRefused
from fencepost.protocol.order import State
from fencepost.store.base import record_name
from fencepost.store.ledger import read
from fencepost.store.parts import Kind, _by_table, crc32c_of, parts_of, problems, schema_paths, sizes

pytestmark = [pytest.mark.spark]

Grown = Callable[[str], tuple[Place, int]]
Copied = Callable[[str], tuple[Path, int]]

OTHER = {"count": "join", "heap": "count", "join": "count", "keyed": "count"}
"""Whose files take the place of ours."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_whole(kind: str, grown: Grown) -> None:
    place, epoch = grown(kind)
    parts = parts_of(place.checkpoint, epoch)
    assert [] == problems(place.checkpoint, parts)
    assert len(parts) == len({part.name for part in parts})
    assert {"log", "source", "state", "schema", "ledger"} <= {part.kind for part in parts}
    assert {("0", 0), ("0", 1)} == set(sizes(place.checkpoint, parts))
    assert all(sizes(place.checkpoint, parts).values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_is_damaged_is_named(kind: str, grown: Grown, copied: Copied) -> None:
    root, epoch = copied(kind)
    parts = {part.name: part for part in parts_of(root, epoch)}
    other, state = grown(OTHER[kind])[0].checkpoint, read(root)
    # A join has so many files that one partition has to do.
    only = {name for name in parts if name.startswith("state/0/0/")} if kind == "join" else None
    for name, attack in walk(root, other, lambda: seen(root, epoch), only=only):
        part = parts.get(name)
        if part is None:
            assert does_not_matter(name, set(parts), epoch), (name, attack)
        elif attack == "deleted":
            assert may_be_missing(name, epoch, state) or is_compacted(name, set(parts)), name
        else:
            # Nobody keeps a sum of these: Spark writes them when it has time, and checks their blocks on loading.
            assert "heap" == kind, (name, attack)
            assert name.endswith(".snapshot"), (name, attack)
            assert not part.known
            assert "emptied" != attack, name


def seen(root: Path, epoch: int, without: str | None = None) -> bool:
    try:
        return bool(problems(root, [part for part in parts_of(root, epoch) if part.kind != without]))
    except CheckpointRefused:
        return True


def does_not_matter(name: str, parts: set[str], epoch: int) -> bool:
    """What an epoch does not rest on: locks, journal, pulse, rows that are in the sinks, state before its snapshot."""
    if re.fullmatch(r"fencepost/(lock|pulse)/.*|fencepost/journal(\.1)?\.jsonl|fencepost/[^/]+/staged/.*", name):
        return True
    if match := re.fullmatch(r"(state/\d+/\d+(?:/[^/]+)?)/SSTs/\.?(.+?)(\.crc)?", name):
        return f"{match[1]}/SSTs/{match[2]}" not in parts  # of an older snapshot
    match = re.fullmatch(r"(state/\d+/\d+(?:/[^/]+)?)/\.?(\d+)[_.].*", name)
    assert match, name
    begins = [
        int(found[1])
        for part in parts
        if (found := re.fullmatch(rf"{match[1]}/(\d+)(?:_[^.]+)?\.(?:zip|snapshot)", part))
    ]
    return int(match[2]) <= begins[0] <= epoch + 1


def may_be_missing(name: str, epoch: int, state: State) -> bool:
    """What retention takes, what recovery writes anew, and a snapshot without which an older one is taken."""
    folder, _, file = name.rpartition("/")
    return (
        (folder in ("offsets", "commits") and int(file) < epoch - 1)
        or (state.open is None and name == record_name(state.lineage_id, state.last))  # as before `done` was written
        or (folder.startswith("fencepost/") and folder.endswith("/plan"))  # as before there were notes of it
        or (folder.startswith("state/") and re.fullmatch(r"\d+.*\.(zip|zip\.crc|snapshot)", file) is not None)
    )


def is_compacted(name: str, parts: set[str]) -> bool:
    """A later entry of the source repeats it; Spark deletes it when it has time."""
    folder, _, file = name.rpartition("/")
    later = [part for part in parts if part.startswith(f"{folder}/") and part.endswith(".compact")]
    return folder.startswith("sources/") and any(
        int(part.rsplit("/", 1)[1].split(".")[0]) > int(file) for part in later
    )


@pytest.mark.parametrize("kind", sorted({*get_args(Kind)} - {"ledger", "topics", "other", "sum"}))
def test_a_list_that_forgets_a_kind_of_file_is_caught(kind: str, grown: Grown, copied: Copied) -> None:
    """Records are not here: without them there is no list at all."""
    root, epoch = copied("count")
    forgotten = {part.name for part in parts_of(root, epoch) if part.kind == kind}
    other = grown("join")[0].checkpoint
    unseen = walk(root, other, lambda: seen(root, epoch, without=kind), (emptied,), only=forgotten)
    assert forgotten
    assert forgotten == {name for name, _ in unseen}


def test_of_a_sum_that_spark_wrote_only_time_and_maker_may_change(copied: Copied) -> None:
    root, epoch = copied("count")
    part = next(part for part in parts_of(root, epoch) if part.spark_side)
    side = root / (part.side or "")
    data = side.read_bytes()
    matters = (
        len(data)
        - len(json.dumps(json.loads(data)["creator"], separators=(",", ":")))
        - len('"timestampMs":,"creator":}')
    )
    matters -= len(str(json.loads(data)["timestampMs"]))
    for place in range(matters):
        side.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert problems(root, [part]), data[: place + 1]


@pytest.mark.parametrize("kind", ["count", "heap"])
def test_a_copy_of_the_parts_alone_goes_on_elsewhere(kind: str, grown: Grown, spark: Any, tmp_path: Path) -> None:
    """With the original gone: no part is missing."""
    place, epoch = grown(kind)
    moved = Place(tmp_path / "moved", place.input)
    for part in parts_of(place.checkpoint, epoch):
        target = moved.checkpoint / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place.checkpoint / part.name, target)
    shutil.copy(place.database, moved.database)
    assert [] == problems(moved.checkpoint, parts_of(moved.checkpoint, epoch))
    assert [] == relocate(moved.checkpoint)
    hidden = place.checkpoint.rename(tmp_path / "hidden")
    try:
        place.say("a z")
        KINDS[kind](moved, spark).run(until="available")
        assert read(moved.checkpoint).done_through > epoch
        assert moved.expected() == moved.counts()
    finally:
        hidden.rename(place.checkpoint)


def test_whole_paths_in_keyed_state_follow_a_copy(copied: Copied) -> None:
    """Only they change, and doing it twice is doing it once."""
    root, _ = copied("keyed")
    name = "state/0/_metadata/v2/0"
    before = (root / name).read_text()
    [old] = {path.split("/state/0/")[0] for path in schema_paths(root / name)}
    assert f"file:{root}" != old
    assert ([name], []) == (relocate(root), relocate(root))
    assert before.replace(f"{old}/state/", f"file:{root}/state/") == (root / name).read_text()
    assert all(Path(path.removeprefix("file:")).is_file() for path in schema_paths(root / name))


def test_crc32c_is_the_same_by_folding_and_by_table() -> None:
    assert 0xE3069283 == crc32c_of(b"123456789")
    chance = random.Random(6)
    for length in (0, 1, 1420, 1421, 1422, 2502, 4999, 100_003):
        data = chance.randbytes(length)
        expected = _by_table(data, 0)
        assert expected == crc32c_of(data)
        cut = length // 3
        assert expected == crc32c_of(data[cut:], crc32c_of(data[:cut]))


def test_a_file_that_may_not_be_read_is_said_to_be_so(copied: Copied) -> None:
    root, epoch = copied("count")
    part = next(part for part in parts_of(root, epoch) if part.kind == "state")
    (root / part.name).unlink()
    (root / part.name).mkdir()
    assert ["unreadable"] == [problem.what for problem in problems(root, [part])]
