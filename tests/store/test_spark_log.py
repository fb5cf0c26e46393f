"""Spark's own log as files; no Spark is needed to read or rebuild it."""

from __future__ import annotations

from pathlib import Path

from fencepost.protocol.records import Epoch
from fencepost.store import LocalStore
from fencepost.store.spark_log import SparkLog, source_offsets, state_ids

V1 = 'v1\n{"conf":{}}\n{"logOffset":4}\n-\n{"topic":{"0":17}}'
V2 = 'v2\n{"conf":{}}\nclicks:{"logOffset":4}\nviews:{"topic":{"0":17}}'


def put(folder: Path, files: dict[str, str]) -> SparkLog:
    """A checkpoint with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SparkLog(LocalStore(folder))


def names(folder: Path) -> set[str]:
    """All files under a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_source_offsets_are_read_in_both_versions() -> None:
    assert {"0": 4, "1": None, "2": None} == source_offsets(V1)
    assert {"clicks": 4, "views": None} == source_offsets(V2)


def test_state_ids_of_stateless_and_broken_texts_are_none() -> None:
    assert {} == state_ids('v1\n{"nextBatchWatermarkMs":0}')
    assert {} == state_ids("")
    assert {"0": [["a"], ["b", "c"]]} == state_ids('v2\n{"stateUniqueIds":{"0":[["a"],["b","c"]]}}')


def test_what_a_file_source_noted_after_the_last_decision_is_discarded_and_nothing_else(tmp_path: Path) -> None:
    entry = 'v1\n{"path":"file:///x","timestamp":1,"batchId":5}'
    log = put(
        tmp_path,
        {
            "sources/0/4": entry,
            "sources/0/5": entry,
            "sources/0/.5.crc": "",
            "sources/0/9.compact": "",
            "sources/1/0": entry,
            "sources/2/0": '\0v1\n{"path":{"0":3}}',  # a Kafka topic of that name
        },
    )
    log.discard(log.strays(Epoch(9), V1))
    assert {"sources/0/4", "sources/2/0"} == names(tmp_path)
    log.discard(log.strays(Epoch(9), None))
    assert {"sources/2/0"} == names(tmp_path)


def test_a_stray_that_another_driver_replaced_meanwhile_stays(tmp_path: Path) -> None:
    log = put(tmp_path, {"sources/0/5": "old"})
    strays = log.strays(Epoch(9), V1)
    (tmp_path / "sources/0/5").unlink()
    put(tmp_path, {"sources/0/5": "old"})
    log.discard(strays)
    assert {"sources/0/5"} == names(tmp_path)


def test_where_two_branches_share_a_source_nothing_decided_is_touched(tmp_path: Path) -> None:
    """Spark writes a line per use and has a folder per source: three lines, two folders."""
    offsets = 'v1\n{}\n{"logOffset":2}\n{"logOffset":2}\n{"logOffset":7}'
    files = {f"sources/1/{n}": "" for n in range(8)} | {f"sources/0/{n}": f"entry {n}" for n in range(3)}
    log = put(tmp_path, files)
    assert () == log.strays(Epoch(9), offsets)
    assert {f"sources/{source}/{n}" for source in "01" for n in range(3)} == set(log.source_files(None, offsets))


def test_where_two_branches_share_files_and_a_topic_no_entries_of_the_topic_are_missed(tmp_path: Path) -> None:
    offsets = 'v1\n{}\n{"topic":{"0":3}}\n{"logOffset":1}\n{"topic":{"0":3}}\n{"logOffset":1}'
    entry = 'v1\n{"path":"file:///x","timestamp":1,"batchId":0}'
    log = put(tmp_path, {"sources/0/0": '\0v1\n{"topic":{"0":0}}', "sources/1/0": entry, "sources/1/1": entry})
    assert (-1, -1) == log.ends("0", offsets)
    assert (1, 1) == log.ends("1", offsets)
    assert () == log.strays(Epoch(9), offsets)


def test_sums_cover_the_entries_of_one_epoch_and_find_a_changed_byte(tmp_path: Path) -> None:
    log = put(tmp_path, {f"sources/0/{n}": f"entry {n}" for n in range(6)})
    before, now = (f'v1\n{{}}\n{{"logOffset":{n}}}' for n in (2, 4))
    sums = log.sums(log.source_files(before, now))
    assert {"sources/0/3", "sources/0/4"} == set(sums)
    assert {f"sources/0/{n}" for n in range(3)} == set(log.source_files(None, before))
    assert {"sources/0/1"} == set(log.source_files('v1\n{}\n{"logOffset":0}', 'v1\n{}\n{"logOffset":1}'))
    assert () == log.lost_files(Epoch(1), "", sums)
    (tmp_path / "sources/0/3").write_text("entrY 3")
    assert ("sources/0/3",) == log.lost_files(Epoch(1), "", sums)


def test_an_entry_that_spark_compacted_away_is_not_missing(tmp_path: Path) -> None:
    log = put(tmp_path, {"sources/0/3": "x"})
    sums = log.sums(log.source_files(None, 'v1\n{}\n{"logOffset":3}'))
    (tmp_path / "sources/0/3").unlink()
    assert ("sources/0/3",) == log.lost_files(Epoch(1), "", sums)
    put(tmp_path, {"sources/0/9.compact": "all of them"})
    assert () == log.lost_files(Epoch(1), "", sums)


def test_a_state_file_that_the_snapshot_names_is_missed(tmp_path: Path) -> None:
    snapshot = 'v2\n{"stateUniqueIds":{"0":[["a"],["b"]]}}'
    log = put(tmp_path, {"state/0/0/8_a.changelog": "", "state/0/1/8_other.zip": ""})
    assert ("state/0/1/8_b",) == log.lost_files(Epoch(7), snapshot, {})
