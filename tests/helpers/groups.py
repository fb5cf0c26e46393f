"""Which tests may run beside which: the tests of a group run on one worker, one after the other.

A group is a file, whose fixtures are dear to make, unless several files share what two workers cannot. Long ones come
first, so that no worker is left with one when the others are done.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SERVERS = {"broker", "postgres", "mariadb", "mysql", "redis_server", "cassandra", "hdfs", "s3", "standalone", "require"}
"""Who asks for one of these fixtures needs more than Python."""

SERIAL = "serial"
SPLIT = {"proof/test_kill.py"}
"""Files of long tests that share nothing: each is a group."""
TOGETHER = {
    "proof/test_kill_cluster.py": "standalone",  # one cluster, whose parts are killed
    "proof/test_rig_cluster.py": "standalone",
    "spark/test_cluster_start.py": "standalone",
    "connectors/cassandra": "cassandra",  # frozen
    "[cassandra]": "cassandra",
    "connectors/mysql": "mysql",  # settings of the whole server change
    "[mysql]": "mysql",
    "connectors/postgres": "postgres",  # one server, whose sessions are looked at and ended
}
"""Files, folders and targets that share what is not for two workers."""
KILLS = "proof/test_kill.py::test_a_kill_at_any_point_loses_and_doubles_nothing"
LONGEST = (
    "spark/test_kill_kafka.py",
    "spark/test_kill.py",
    "spark/test_kill_state.py",
    "cassandra",
    "standalone",
    "spark/test_state.py",
    "spark/test_dead_letters.py",
    "admin/test_remote.py",
    *(f"{KILLS}[{target}]" for target in ("delta_whole", "delta", "delta_keyed")),  # before others use its library
    *(f"{KILLS}[{target}]" for target in ("kafka", "duckdb", "iceberg_whole", "iceberg", "iceberg_keyed")),
    "spark/test_examples.py",
    "spark/test_docs.py",
    "cli/test_tx.py",
    "spark/test_stores.py",
    "spark/test_supervised.py",
    "proof/test_model.py",
    "spark/test_continuation.py",
    "spark/test_damage.py",
    "supervise/test_supervisor.py",
    "connectors/kafka/test_contract.py",
    "connectors/kafka/test_bad_input.py",
    "spark/test_connector.py",
    "admin/test_doctor.py",
    "spark/test_backends.py",
    "connectors/kafka/test_versions.py",
    "spark/test_kafka_source.py",
    "test_tidy.py",
    "spark/test_refused.py",
)
"""Groups, the longest first; what is not here comes after them."""
SPARK_WORKERS = 2
"""So many take the groups that want a Spark session; the others do so when nothing else is left."""


def group_of(item: pytest.Item) -> str:
    """By its marks, by what it shares with other files, or else its file."""
    if item.get_closest_marker(SERIAL):
        return SERIAL
    file = item.path.relative_to(Path(__file__).parents[1]).as_posix()
    for shared, group in TOGETHER.items():
        if file.startswith(shared) or (file in SPLIT and shared in item.name):
            return group
    return f"{file}::{item.name}" if file in SPLIT else file


class Groups(LoadScopeScheduling):
    """Gives whole groups to workers. xdist's own way changes the ids of tests, which pytest 9.2 does not let it do."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        config.option.loadscopereorder = False  # they come as they should begin
        super().__init__(config, log)
        self.file = file

    @cached_property
    def noted(self) -> Any:
        """As the workers found them; all have found the same."""
        return json.loads(self.file.read_text())

    def _split_scope(self, nodeid: str) -> str:
        return self.noted["groups"][nodeid]

    def _assign_work_unit(self, node: Any) -> None:
        """The next one that suits this worker, or else the next one."""
        has_spark = self.nodes.index(node) < SPARK_WORKERS
        suits = (group for group in self.workqueue if (group in self.noted["spark"]) == has_spark and group != SERIAL)
        self.workqueue.move_to_end(next(suits, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


def note(items: list[pytest.Item], file: Path) -> None:
    """Tell the scheduler, and put the groups in the order in which they should begin."""
    groups = {item.nodeid: group_of(item) for item in items}
    spark = {groups[item.nodeid] for item in items if "spark" in getattr(item, "fixturenames", ())}
    places = {group: place for place, group in enumerate((*LONGEST, None, SERIAL))}
    items.sort(key=lambda item: places.get(groups[item.nodeid], len(LONGEST)))
    whole = file.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps({"groups": groups, "spark": sorted(spark)}))
    whole.rename(file)


@contextmanager
def turn(file: Path, *, alone: bool) -> Iterator[None]:
    """Run beside other tests, or when no other runs."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a child that was forked and stopped has the file open, too
    finally:
        os.close(lock)
