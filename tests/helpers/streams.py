"""A small streaming job in a folder: numbered input files, a checkpoint, an SQLite target, and eyes on all of them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fencepost as fp
from fencepost.protocol.records import decode

BRIDGES = ("jvm", "foreach_batch")
OLDEST_S = 1_700_000_000
"""Spark takes files in the order of their times, so each gets its own."""


def drop(folder: Path, text: str) -> Path:
    """Move a whole file into a watched folder; it comes after all that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(os.listdir(folder))
    temp = folder.parent / f".{folder.name}-{number}.tmp"
    temp.write_text(text)
    os.utime(temp, (OLDEST_S + number, OLDEST_S + number))
    return temp.rename(folder / f"{number:04d}.txt")


def drop_json(folder: Path, *rows: dict[str, Any]) -> Path:
    """The same, a row a line."""
    return drop(folder, "".join(json.dumps(row) + "\n" for row in rows))


def table(database: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of an SQLite table as a reader sees them, sorted."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return sorted(connection.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)  # noqa: S608


def dump(database: Path) -> list[str]:
    """Everything an SQLite file says, as text."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


def records(checkpoint: Path) -> list[dict[str, Any]]:
    """The ledger as plain JSON, in order; each record was checked on the way."""
    files = sorted(checkpoint.glob("fencepost/*/ledger/*.json"))
    for file in files:
        decode(file.read_bytes())
    return [json.loads(file.read_bytes()) for file in files]


def decisions(checkpoint: Path) -> list[dict[str, Any]]:
    """What was decided, epoch by epoch."""
    return [record["body"] for record in records(checkpoint) if record["kind"] == "decision"]


@dataclass(frozen=True)
class Place:
    """The folder of one job."""

    root: Path
    watched: Path | None = None

    @property
    def input(self) -> Path:
        return self.watched or self.root / "in"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def database(self) -> Path:
        return self.root / "out.db"

    def say(self, *lines: str) -> None:
        """One input file per line of words."""
        for line in lines:
            drop(self.input, line + "\n")

    def job(self, spark: Any, bridge: str | None = None, **settings: Any) -> fp.Job:
        """A job on this folder's checkpoint; its branches are the test's."""
        return fp.Job(**{"name": "job", "checkpoint": self.checkpoint, "spark": spark, "bridge": bridge} | settings)

    def text(self, job: fp.Job) -> Any:
        """The input as lines, one file per epoch."""
        return job.read(fp.Files(str(self.input), format="text", max_files_per_epoch=1))

    def counting(self, spark: Any, bridge: str | None = None, **settings: Any) -> fp.Job:
        """Count words into a keyed table."""
        job = self.job(spark, bridge, **settings)
        words = self.text(job).selectExpr("explode(split(value, ' ')) AS word")
        return job.write(words.groupBy("word").count(), self.counts_sink())

    def counts_sink(self) -> fp.SQLite:
        """Where the counts go."""
        return fp.SQLite(self.database, table="counts", key="word")

    def counts(self) -> dict[str, int]:
        """What a reader sees."""
        return dict(table(self.database, "counts"))

    def expected(self) -> dict[str, int]:
        """What an exact count of all input is."""
        return dict(Counter(word for file in self.input.iterdir() for word in file.read_text().split()))

    def copy(self, root: Path) -> Place:
        """This folder again, elsewhere. Spark remembers absolute paths of the input, so that stays where it is."""
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("in"))
        return Place(root, self.input)

    def damaged(self, name: str) -> Path:
        """A file of the checkpoint by its short name: `ledger/3` stands for the record of that number."""
        folder, _, number = name.rpartition("/")
        if folder == "ledger":
            return next(self.checkpoint.glob(f"fencepost/*/ledger/{int(number):020d}.json"))
        return self.checkpoint / name
