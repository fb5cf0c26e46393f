"""Writes the table of sinks in GUARANTEES.md, from what the sinks themselves declare.

    python docs/matrix.py

A test compares; nobody edits the table by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import fencepost as fp
from fencepost.guarantee import sink_link

BEGIN, END = "<!-- made by docs/matrix.py -->\n", "<!-- end -->"


class Yours(fp.TwoPhaseCommit[None]):
    """Stands for a user's own."""

    name = "yours"

    def identity(self) -> str:
        """None."""
        raise NotImplementedError

    def begin(self, unit: object) -> None:
        """Never called."""

    def write(self, transaction: None, batch: pa.RecordBatch) -> None:
        """Never called."""

    def pre_commit(self, transaction: None) -> Mapping[str, Any]:
        """Never called."""
        raise NotImplementedError

    def commit(self, body: Mapping[str, Any]) -> None:
        """Never called."""

    def abort(self, body: Mapping[str, Any]) -> None:
        """Never called."""

    def recover_orphans(self, before: int) -> Iterable[Mapping[str, Any]]:
        """Never called."""
        raise NotImplementedError


def send(*_: object) -> None:
    """Stands for a user's own."""


SINKS: tuple[tuple[str, fp.Sink], ...] = (
    ("Postgres(key=…)", fp.Postgres("t", dsn="", key="k")),
    ("Postgres()", fp.Postgres("t", dsn="")),
    ('Postgres(mode="replace")', fp.Postgres("t", dsn="", mode="replace")),
    ("MySQL(key=…)", fp.MySQL("t", user="u", database="d", key="k")),
    ("MySQL()", fp.MySQL("t", user="u", database="d")),
    ('MySQL(mode="replace")', fp.MySQL("t", user="u", database="d", mode="replace")),
    ("SQLite(key=…)", fp.SQLite("f", table="t", key="k")),
    ("SQLite()", fp.SQLite("f", table="t")),
    ('SQLite(mode="replace")', fp.SQLite("f", table="t", mode="replace")),
    ("DuckDB(key=…)", fp.DuckDB("f", table="t", key="k")),
    ("DuckDB()", fp.DuckDB("f", table="t")),
    ('DuckDB(mode="replace")', fp.DuckDB("f", table="t", mode="replace")),
    ("Delta()", fp.Delta("t")),
    ("Delta(key=…)", fp.Delta("t", key="k")),
    ('Delta(mode="replace")', fp.Delta("t", mode="replace")),
    ("Delta(keep_rows=False)", fp.Delta("t", keep_rows=False)),
    ("Iceberg()", fp.Iceberg("d.t", catalog="c")),
    ("Iceberg(key=…)", fp.Iceberg("d.t", catalog="c", key="k")),
    ('Iceberg(mode="replace")', fp.Iceberg("d.t", catalog="c", mode="replace")),
    ("Iceberg(keep_rows=False)", fp.Iceberg("d.t", catalog="c", keep_rows=False)),
    ("Postgres(durable=False)", fp.Postgres("t", dsn="", durable=False)),
    ("MySQL(durable=False)", fp.MySQL("t", user="u", database="d", durable=False)),
    ("Redis(shape=…)", fp.Redis("redis://h", key="k")),
    ('Redis(shape="counter")', fp.Redis("redis://h", key="k", shape="counter")),
    ("Redis(durable=False)", fp.Redis("redis://h", key="k", durable=False)),
    ("Cassandra()", fp.Cassandra("k.t")),
    ("Cassandra(durable=False)", fp.Cassandra("k.t", durable=False)),
    ("Kafka()", fp.Kafka("t", servers="h:1")),
    ("Kafka(keep_rows=False)", fp.Kafka("t", servers="h:1", keep_rows=False)),
    ("Kafka(parallel=True)", fp.Kafka("t", servers="h:1", parallel=True)),
    ("Files()", fp.Files("f", format="json")),
    ('Files(visible="manifest")', fp.Files("f", format="json", visible="manifest")),
    ("TwoPhaseCommit", Yours()),
    ("WriteAheadLog(idempotent=True)", fp.WriteAheadLog(send, name="w", idempotent=True)),
    ("WriteAheadLog()", fp.WriteAheadLog(send, name="w")),
)


def table() -> str:
    """In Markdown."""
    rows = [
        "| sink | at best | shape | an epoch is seen | output modes | rows wait for the decision |",
        "|---|---|---|---|---|---|",
    ]
    for name, sink in SINKS:
        can = sink.capabilities
        best = sink_link(name, can).best.word.replace("_", " ")
        seen = "whole" if can.atomic else "part by part"
        lost = "in the target, which may lose them" if can.perishable else "in the target"
        wait = "in the checkpoint" if can.keeps_rows else lost
        rows.append(f"| `{name}` | {best} | {can.shape} | {seen} | {', '.join(sorted(can.modes))} | {wait} |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """The document with the table of now."""
    return re.sub(f"{re.escape(BEGIN)}.*?{END}", lambda _: BEGIN + table() + END, text, flags=re.DOTALL)


if __name__ == "__main__":
    document = Path(__file__).with_name("GUARANTEES.md")
    document.write_text(with_table(document.read_text()))
