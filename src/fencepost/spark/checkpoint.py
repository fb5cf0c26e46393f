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
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fencepost.ledger import Store, place, way
from fencepost.protocol.effects import Identity, Stray
from fencepost.protocol.records import Epoch, digest

_ENTRY = re.compile(r"(\d+)(\.compact)?$")

DEPARTED = "fencepost/departed"
"""By name, the position of every named source that the job read once and then did without."""


class SparkLog:
    """The log of one checkpoint directory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_state = True

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

    def switch_lineage(self, sealed: str, lineage: str) -> None:
        """Name the lineage that goes on after a sealed one, unless another one is named by now."""
        if _query_id(self._store.read("metadata") or b"") in (sealed, ""):
            self._store.delete(".metadata.crc")
            self._store.replace("metadata", json.dumps({"id": lineage}, separators=(",", ":")).encode())

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

    def strays(self, epoch: Epoch, offsets: str | None) -> tuple[Stray, ...]:
        """File-source entries after `offsets`. What other kinds of source keep here (Kafka: its start) is none.

        And schemas that count from an epoch after `epoch` on.
        """
        found = []
        for name in self.schema_files():
            counts_from = re.match(r"state/\d+/(?:_metadata/v2|_stateSchema/[^/]+)/(\d+)", name)
            if counts_from and int(counts_from[1]) > epoch and (stamp := self._store.stamp(name)):
                found.append(Stray(name, stamp))
        return (*found, *self.source_strays(offsets))

    def source_strays(self, offsets: str | None) -> Iterator[Stray]:
        """File-source entries after `offsets`."""
        for source in self._store.list("sources"):
            _, highest = self.ends(source, offsets)
            for number, entry in self.source_entries(source):
                name = f"sources/{source}/{entry}"
                stamp = self._store.stamp(name) if number > highest else None
                if stamp and (highest >= 0 or _names_files(self._store.read(name) or b"")):
                    yield Stray(name, stamp)

    def discard(self, strays: tuple[Stray, ...]) -> None:
        """Delete them, if they are still the same files."""
        for stray in strays:
            if self._store.stamp(stray.name) == stray.stamp:
                folder, _, entry = stray.name.rpartition("/")
                self._store.delete(stray.name)
                self._store.delete(f"{folder}/.{entry}.crc")

    def source_files(self, before: str | None, offsets: str) -> Iterator[str]:
        """The file-source entries between two barriers; from the beginning, those since the newest compact one."""
        if before is not None and all(end is None for end in source_offsets(offsets).values()):
            return  # no file source, and nothing to look for
        folders = self._store.list("sources")
        for source in folders:
            began, _ = self.ends(source, before, folders)
            ended, _ = self.ends(source, offsets, folders)
            entries = [(n, name) for n, name in self.source_entries(source) if n <= ended]
            compact = max((n for n, name in entries if name.endswith(".compact")), default=-1)
            first = began + 1 if before is not None else compact
            yield from (f"sources/{source}/{name}" for n, name in entries if n >= first)

    def unsigned_files(self, epoch: Epoch, snapshot: str, *, whole: bool) -> Iterator[str]:
        """State files that carry no id and have no sum of Spark's: the heap's, and adopted ones.

        Those of one epoch; with `whole`, the snapshots too, which Spark writes when it has time.
        """
        if whole:
            self._has_state = bool(self._store.list("state"))
        if self._has_state and not state_ids(snapshot):
            # By whole names, so that no folder of a hundred versions is listed in every epoch.
            for store in ("", "*/"):
                for end in ("delta", "changelog", "zip"):
                    yield from self._found(f"state/*/[0-9]*/{store}{epoch + 1}.{end}")
            yield from self._found("state/*/[0-9]*/**/*.snapshot") if whole else ()

    def schema_files(self) -> Iterator[str]:
        """What the state looks like; Spark keeps no sums of these either."""
        for pattern in ("_metadata/**/*", "_stateSchema/**/*", "0/**/_metadata/*"):
            yield from self._found(f"state/[0-9]*/{pattern}")

    def _found(self, pattern: str) -> Iterator[str]:
        root = place(self._store.root)
        paths = (path for path in root.glob(pattern) if path.is_file())
        yield from (way(path, root) for path in paths if not path.name.startswith("."))

    def sums(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the files that are there."""
        found = {name: self._store.read(name) for name in names}
        return {name: digest(data) for name, data in found.items() if data is not None}

    def ends(self, source: str, offsets: str | None, folders: Sequence[str] | None = None) -> tuple[int, int]:
        """The last entry of a source's log that is surely in `offsets`, and the last that may be; -1 if none.

        Spark writes a line per *use* of a source but has a folder per source: where two branches read one source, which
        line belongs to which folder cannot be told from the text. Both answers are then on the safe side. A named
        source has a folder and a line of its own, and where the line is missing it departed, or nothing of it is
        decided yet.
        """
        ends = source_offsets(offsets) if offsets else {}
        if not source.isdigit():
            departed = (self._store.read(f"{DEPARTED}/{source}") or b"").decode()
            end = ends[source] if source in ends else _log_offset(departed)
            return (-1, -1) if end is None else (end, end)
        if int(source) >= len(ends):
            return (-1, -1)  # there are never more sources than lines: left by a start that had more of them
        there = self._store.list("sources") if folders is None else folders
        if source in ends and len(ends) == sum(name.isdigit() and int(name) < len(ends) for name in there):
            end = ends[source]
            return (-1, -1) if end is None else (end, end)
        known = [end for end in ends.values() if end is not None]
        return (min(known), max(known)) if known else (-1, -1)

    def lost_files(self, epoch: Epoch, snapshot: str, files: Mapping[str, str]) -> tuple[str, ...]:
        """State files that the snapshot names, and files whose sums decisions have: missing or changed ones."""
        return (*self._lost_state(epoch, snapshot), *self._lost_others(files))

    def _lost_state(self, epoch: Epoch, snapshot: str) -> Iterator[str]:
        for operator, partitions in state_ids(snapshot).items():
            folder = place(self._store.root) / "state" / operator
            # One look for all partitions: on a remote store each costs a request.
            files = {(way(file, folder).split("/")[0], file.name) for file in folder.rglob(f"{epoch + 1}_*")}
            for partition, ids in enumerate(partitions):
                names = [name for where, name in files if where == str(partition)]
                for unique in ids:
                    if not any(name.startswith(f"{epoch + 1}_{unique}.") for name in names):
                        yield f"state/{operator}/{partition}/{epoch + 1}_{unique}"

    def _lost_others(self, files: Mapping[str, str]) -> Iterator[str]:
        for name, expected in files.items():
            data = self._store.read(name)
            if data is None and self._superseded(name):
                continue
            if data is None or digest(data) != expected:
                yield name

    def _superseded(self, name: str) -> bool:
        """Spark deletes an entry some time after a later one made it needless.

        A source's entry is repeated in a compact file, the heap's changes are in a snapshot, a schema has a newer one.
        """
        folder, _, entry = name.rpartition("/")
        number = re.match(r"\d+", entry)
        if number is None:
            return False
        others = [(int(match[0]), other) for other in self._store.list(folder) if (match := re.match(r"\d+", other))]
        later = [other for found, other in others if found > int(number[0])]
        if name.startswith("sources/"):
            return any(other.endswith(".compact") for other in later)
        if name.endswith((".delta", ".changelog")):
            return any(other.endswith((".snapshot", ".zip")) for _, other in others)
        return bool(later)

    def source_entries(self, source: str) -> list[tuple[int, str]]:
        """A source's own log, by number."""
        names = self._store.list(f"sources/{source}")
        return [(int(match[1]), name) for name in names if (match := _ENTRY.match(name))]


def source_offsets(offsets: str) -> dict[str, int | None]:
    """The file-source log offset of every source in an `offsets/N` text; None for a source of another kind.

    Version 1 has one line per source in plan order, version 2 `name:{…}`.
    """
    return {name: _log_offset(text) for name, text in source_lines(offsets).items()}


def source_lines(offsets: str) -> dict[str, str]:
    """The position of every source in an `offsets/N` text, as Spark wrote it."""
    version, *rest = offsets.rstrip("\n").split("\n")
    found: dict[str, str] = {}
    for index, line in enumerate(rest[1:]):
        name, _, text = (str(index), "", line) if version == "v1" else line.partition(":")
        found[name] = text
    return found


def _log_offset(position: str) -> int | None:
    try:
        parsed = json.loads(position)
    except ValueError:
        return None
    offset = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return offset if isinstance(offset, int) else None


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
