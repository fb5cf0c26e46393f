"""Spark's own log, as files: read, verified, rebuilt from the ledger.

    metadata                 {"id": "<lineage>"}
    offsets/N  commits/N     barrier and completion of epoch N
    sources/<source>/<k>     the file source's own list of files, by its log offset
    state/<operator>/<partition>/<N+1>_<id>.*

Never judges: what belongs into the log is the ledger's word. No pyspark is needed to read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fencepost.ledger import Store
from fencepost.protocol.effects import Identity, Stray
from fencepost.protocol.records import Epoch, digest

_ENTRY = re.compile(r"(\d+)(\.compact)?$")


class SparkLog:
    """The log of one checkpoint directory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def identity(self) -> Identity:
        """Who this directory says it is."""
        data = self._store.read("metadata")
        ledgers = tuple(name for name in self._store.list("fencepost") if self._has_records(name))
        epochs = tuple(sorted({*self.names("offsets"), *self.names("commits")}))
        return Identity(None if data is None else _query_id(data), ledgers, epochs)

    def _has_records(self, lineage: str) -> bool:
        """A driver that died before number 0 left a folder, perhaps with a temporary file, but no ledger."""
        return any(name.endswith(".json") for name in self._store.list(f"fencepost/{lineage}/ledger"))

    def has_state_of_format_1(self) -> bool:
        """State files without the id of the attempt that wrote them."""
        newest = self.names("commits")[-1:]
        text = self.read("commits", Epoch(newest[0])) if newest else None
        return bool(self._store.list("state")) and not state_ids(text or "")

    def name_lineage(self, lineage: str) -> str:
        """Fix Spark's query id, or take the one that another driver fixed just before us."""
        text = json.dumps({"id": lineage}, separators=(",", ":")).encode()
        if not self._store.create("metadata", text):
            found = _query_id(self._store.read("metadata") or b"")
            if found:
                return found
            self._store.replace("metadata", text)  # it cannot be read: a lost or torn file is written anew
        self._store.delete(".metadata.crc")
        return lineage

    def names(self, log: str) -> tuple[int, ...]:
        """Epochs in `offsets` or `commits`, rising."""
        return tuple(sorted(int(name) for name in self._store.list(log) if name.isdigit()))

    def read(self, log: str, epoch: Epoch) -> str | None:
        """One entry; bytes that are not text read as an empty one."""
        data = self._store.read(f"{log}/{epoch}")
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return ""

    def write(self, log: str, epoch: Epoch, text: str) -> None:
        """Write one entry as Spark would, durably; its stale Hadoop checksum goes first."""
        self._store.delete(f"{log}/.{epoch}.crc")
        self._store.replace(f"{log}/{epoch}", text.encode())

    def delete(self, log: str, epoch: Epoch) -> None:
        """Remove one entry."""
        self._store.delete(f"{log}/{epoch}")
        self._store.delete(f"{log}/.{epoch}.crc")

    def strays(self, offsets: str | None) -> tuple[Stray, ...]:
        """File-source entries after `offsets`. What other kinds of source keep here (Kafka: its start) is none."""
        found = []
        for source in self._store.list("sources"):
            _, highest = self._ends(source, offsets)
            for number, entry in self._source_entries(source):
                name = f"sources/{source}/{entry}"
                stamp = self._store.stamp(name)
                if number > highest and stamp and (highest >= 0 or _names_files(self._store.read(name) or b"")):
                    found.append(Stray(name, stamp))
        return tuple(found)

    def discard(self, strays: tuple[Stray, ...]) -> None:
        """Delete them, if they are still the same files."""
        for stray in strays:
            if self._store.stamp(stray.name) == stray.stamp:
                folder, _, entry = stray.name.rpartition("/")
                self._store.delete(stray.name)
                self._store.delete(f"{folder}/.{entry}.crc")

    def source_sums(self, before: str | None, offsets: str) -> dict[str, str]:
        """Sums of the file-source entries that one epoch added."""
        sums = {}
        for source in self._store.list("sources"):
            began, _ = self._ends(source, before)
            ended, _ = self._ends(source, offsets)
            for number in range(began + 1, ended + 1):
                for name in (f"{number}", f"{number}.compact"):
                    data = self._store.read(f"sources/{source}/{name}")
                    if data is not None:
                        sums[f"{source}/{name}"] = digest(data)
        return sums

    def _ends(self, source: str, offsets: str | None) -> tuple[int, int]:
        """The last entry of a source's log that is surely in `offsets`, and the last that may be; -1 if none.

        Spark writes a line per *use* of a source but has a folder per source: where two branches read one source, which
        line belongs to which folder cannot be told from the text. Both answers are then on the safe side.
        """
        ends = source_offsets(offsets) if offsets else {}
        if source in ends and len(ends) == len(self._store.list("sources")):
            end = ends[source]
            return (-1, -1) if end is None else (end, end)
        known = [end for end in ends.values() if end is not None]
        return (min(known), max(known)) if known else (-1, -1)

    def lost_files(self, epoch: Epoch, snapshot: str, sources: Mapping[str, str]) -> tuple[str, ...]:
        """State files that the snapshot names, and source entries that decisions name: missing or changed ones."""
        return (*self._lost_state(epoch, snapshot), *self._lost_sources(sources))

    def _lost_state(self, epoch: Epoch, snapshot: str) -> Iterator[str]:
        root = Path(self._store.root) / "state"
        for operator, partitions in state_ids(snapshot).items():
            for partition, ids in enumerate(partitions):
                folder = root / operator / str(partition)
                files = [file.name for file in folder.rglob(f"{epoch + 1}_*")] if folder.is_dir() else []
                for unique in ids:
                    if not any(name.startswith(f"{epoch + 1}_{unique}.") for name in files):
                        yield f"state/{operator}/{partition}/{epoch + 1}_{unique}"

    def _lost_sources(self, sources: Mapping[str, str]) -> Iterator[str]:
        for name, expected in sources.items():
            data = self._store.read(f"sources/{name}")
            if data is None and self._compacted(name):
                continue
            if data is None or digest(data) != expected:
                yield f"sources/{name}"

    def _compacted(self, name: str) -> bool:
        """Spark deletes an entry some time after a later one repeated it in a compact file."""
        source, _, entry = name.rpartition("/")
        number = int(entry.split(".")[0])
        return any(n > number and file.endswith(".compact") for n, file in self._source_entries(source))

    def _source_entries(self, source: str) -> list[tuple[int, str]]:
        names = self._store.list(f"sources/{source}")
        return [(int(match[1]), name) for name in names if (match := _ENTRY.match(name))]


def source_offsets(offsets: str) -> dict[str, int | None]:
    """The file-source log offset of every source in an `offsets/N` text; None for a source of another kind.

    Version 1 has one line per source in plan order, version 2 `name:{…}`.
    """
    version, _, *lines = offsets.rstrip("\n").split("\n")
    found: dict[str, int | None] = {}
    for index, line in enumerate(lines):
        name, text = (str(index), line) if version == "v1" else tuple(line.split(":", 1))
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        offset = parsed.get("logOffset") if isinstance(parsed, dict) else None
        found[name] = offset if isinstance(offset, int) else None
    return found


def state_ids(snapshot: str) -> dict[str, list[list[str]]]:
    """Operator → partition → ids of the state files, from a `commits/N` text; none for a stateless job."""
    _, _, text = snapshot.partition("\n")
    try:
        ids = json.loads(text).get("stateUniqueIds") or {}
    except (ValueError, AttributeError):
        return {}
    return {operator: [list(stores) for stores in partitions] for operator, partitions in ids.items()}


def _names_files(data: bytes) -> bool:
    """An entry of a file source, or one that is too damaged to be of any other."""
    try:
        _, *lines = data.decode().split("\n")
        return b'"path":"' in data or not [json.loads(line) for line in lines if line]
    except ValueError:
        return True


def _query_id(data: bytes) -> str:
    try:
        found = json.loads(data)["id"]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""
