"""The files of Spark's own log: reading them, checking them, rewriting them.

    metadata                 {"id": "<lineage>"}
    offsets/N  commits/N     barrier and completion of epoch N
    sources/<source>/<k>     the file source's own list of files, by its log offset
    state/<operator>/<partition>/<N+1>_<id>.*

Never decides what belongs in the log: the ledger does. Needs no pyspark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from fencepost.protocol.effects import Identity, StrayFile
from fencepost.protocol.format import digest
from fencepost.protocol.records import Epoch
from fencepost.store import Store, place, way
from fencepost.store.base import ledger_folder
from fencepost.store.notes import DepartedSource, read_note
from fencepost.store.path import is_remote, scheme_of

_ENTRY = re.compile(r"(\d+)(\.compact)?$")
_LISTED_IN = re.compile(r'"batchId":(\d+)}$')
"""The end of a line of such an entry. A compact one has the lines of all before it, and few of them are wanted."""

_LISTED = re.compile(r'\{"path":"([^"\\]*)","timestamp":(-?\d+),"batchId":(\d+)\}')
"""A whole line, if its path has nothing that JSON escapes."""

DEPARTED = "fencepost/departed"
"""By name, the last offset of every named source that the job once read and no longer does."""

NO_OFFSET = "-"
"""What Spark writes for a source that it has not read yet."""

_SIGNED = re.compile(r"state/.*/\d+_[^/]+")
"""State files that carry the id of the attempt that wrote them."""

_OWNED = re.compile(r"\d+_(?P<generation>\d+)-(?P<writer>\d+)\.(?P<kind>delta|snapshot)")
"""State files on the heap that carry the number of the driver that wrote them."""


class SourceFile(NamedTuple):
    """A file that Spark listed for an epoch."""

    source: str
    entry: int
    """The entry of the source's own log that lists it."""
    url: str
    """With `%20` for a space."""
    changed_ms: int
    """Its modification time in that listing."""
    is_new: bool = True
    """Certainly after the first of two barriers; else perhaps before it, see `ends`."""

    def has_time(self, changed_ms: int) -> bool:
        """Is this the same modification time? An object store may round it to seconds in one of two answers."""
        exact = not is_remote(self.url) or scheme_of(self.url) in ("hdfs", "viewfs")
        return abs(changed_ms - self.changed_ms) <= (0 if exact else 999)


class SparkLog:
    """The log of one checkpoint directory."""

    def __init__(self, store: Store, uses: Sequence[int] = ()) -> None:
        """`uses`: by line of `offsets`, the folder of its source, if a plan says so."""
        self._store = store
        self._uses = uses
        self._has_state = True
        self._is_summed: bool | None = None
        """Does Spark write sums beside its state? None: not seen yet."""
        self._is_owned = False
        """Do the files of state on the heap carry a driver's number?"""

    def identity(self) -> Identity:
        """Which lineage this directory belongs to."""
        data = self._store.read("metadata")
        ledgers = tuple(name for name in self._store.list("fencepost") if self._has_records(name))
        epochs = tuple(sorted({*self.names("offsets"), *self.names("commits")}))
        return Identity(None if data is None else _query_id(data), ledgers, epochs)

    def _has_records(self, lineage: str) -> bool:
        """A driver that died before record 0 left a folder, perhaps with a temporary file, but no ledger."""
        return any(name.endswith(".json") for name in self._store.list(ledger_folder(lineage)))

    def has_state_of_format_1(self) -> bool:
        """Are there state files without the id of the attempt that wrote them?"""
        newest = self.names("commits")[-1:]
        text = self.read("commits", Epoch(newest[0])) if newest else None
        return bool(self._store.list("state")) and not state_ids(text or "")

    def name_lineage(self, lineage: str) -> str:
        """Set Spark's query id, or use the one that another driver set just before us."""
        text = metadata(lineage)
        if not self._store.create("metadata", text):
            found = _query_id(self._store.read("metadata") or b"")
            if found:
                return found
            self._store.replace("metadata", text)  # it is unreadable: lost or incomplete files are rewritten
        self._store.delete(".metadata.crc")
        return lineage

    def switch_lineage(self, sealed: str, lineage: str) -> None:
        """Make `metadata` name the successor of a sealed lineage, unless it already names another one."""
        if _query_id(self._store.read("metadata") or b"") in (sealed, ""):
            self._store.delete(".metadata.crc")
            self._store.replace("metadata", metadata(lineage))

    def names(self, log: str) -> tuple[int, ...]:
        """Epochs in `offsets` or `commits`, ascending."""
        return tuple(sorted(int(name) for name in self._store.list(log) if name.isdigit()))

    def read(self, log: str, epoch: Epoch) -> str | None:
        """One entry; bytes that are not text count as empty."""
        data = self._store.read(f"{log}/{epoch}")
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return ""

    def write(self, log: str, epoch: Epoch, text: str) -> None:
        """Write one entry as Spark would, durably; its old Hadoop checksum is deleted first."""
        self._store.delete(f"{log}/.{epoch}.crc")
        self._store.replace(f"{log}/{epoch}", text.encode())

    def delete(self, log: str, epoch: Epoch) -> None:
        """Remove one entry."""
        self._store.delete(f"{log}/{epoch}")
        self._store.delete(f"{log}/.{epoch}.crc")

    def forget(self, sources: Sequence[str]) -> None:
        """Take the offsets of these sources out of the two entries that a query starts from: they begin again.

        For sources that count from each start of the query: with the old offsets Spark would drop as many records of
        the new count as it read of the old one, and then fail. Recovery has put the range of a claimed epoch there; a
        crash right after this starts with recovery again.
        """
        for epoch in map(Epoch, self.names("offsets")[-2:] if sources else ()):
            text = self.read("offsets", epoch) or ""
            if (without := _without(text, sources)) != text:
                self.write("offsets", epoch, without)

    def strays(self, epoch: Epoch, offsets: str | None) -> tuple[StrayFile, ...]:
        """File-source entries after `offsets`; not what other kinds of source keep there (Kafka: its start).

        Also schemas that apply only from an epoch after `epoch` on.
        """
        found = []
        for name in self.schema_files():
            counts_from = re.match(r"state/\d+/(?:_metadata/v2|_stateSchema/[^/]+)/(\d+)", name)
            if counts_from and int(counts_from[1]) > epoch and (stamp := self._store.stamp(name)):
                found.append(StrayFile(name, stamp))
        return (*found, *self.source_strays(offsets))

    def source_strays(self, offsets: str | None) -> Iterator[StrayFile]:
        """File-source entries after `offsets`."""
        for source in self._store.list("sources"):
            _, highest = self.ends(source, offsets)
            for number, entry in self.source_entries(source):
                name = f"sources/{source}/{entry}"
                stamp = self._store.stamp(name) if number > highest else None
                if stamp and (highest >= 0 or _names_files(self._store.read(name) or b"")):
                    yield StrayFile(name, stamp)

    def discard(self, strays: tuple[StrayFile, ...]) -> None:
        """Delete them, if they are still the same files."""
        for stray in strays:
            if self._store.stamp(stray.name) == stray.stamp:
                folder, _, entry = stray.name.rpartition("/")
                self._store.delete(stray.name)
                self._store.delete(f"{folder}/.{entry}.crc")

    def source_files(self, before: str | None, offsets: str) -> Iterator[str]:
        """The file-source entries between two barriers; without `before`, those from the newest compact one on."""
        if before is not None and all(end is None for end in source_offsets(offsets).values()):
            return  # no file source, so there is nothing to look for
        folders = self._store.list("sources")
        for source in folders:
            began, _ = self.ends(source, before, folders)
            ended, _ = self.ends(source, offsets, folders)
            entries = [(n, name) for n, name in self.source_entries(source) if n <= ended]
            compact = max((n for n, name in entries if name.endswith(".compact")), default=-1)
            first = began + 1 if before is not None else compact
            yield from (f"sources/{source}/{name}" for n, name in entries if n >= first)

    def files_read(self, before: str | None, offsets: str) -> list[SourceFile]:
        """The files that Spark listed between two barriers.

        If the text does not say where a source began (see `ends`), some of earlier epochs are among them.
        """
        if all(end is None for end in source_offsets(offsets).values()):
            return []
        found: dict[SourceFile, None] = {}
        folders = self._store.list("sources")
        for source in folders:
            began, perhaps = self.ends(source, before, folders)
            _, ended = self.ends(source, offsets, folders)
            # A compact one after the end may be the only one left.
            for name in (name for number, name in self.source_entries(source) if number > began):
                for entry in _listed(self._store.read(f"sources/{source}/{name}") or b"", began, ended):
                    number, url, time = entry["batchId"], entry["path"], entry["timestamp"]
                    found[SourceFile(source, number, url, time, is_new=number > perhaps)] = None
        return list(found)

    def files_ever_read(self, offsets: str) -> Iterator[SourceFile]:
        """All files that Spark listed up to a barrier, each at its last listing."""
        if all(end is None for end in source_offsets(offsets).values()):
            return
        folders = self._store.list("sources")
        for source in folders:
            ended, _ = self.ends(source, offsets, folders)
            entries = self.source_entries(source)
            whole = max((number for number, name in entries if name.endswith(".compact")), default=-1)
            # The newest compact entry has all before it, and perhaps some that are not decided.
            for name in (name for number, name in entries if number >= whole and ended >= 0):
                yield from _files(source, self._store.read(f"sources/{source}/{name}") or b"", ended)

    def unsigned_files(self, epoch: Epoch, snapshot: str, *, whole: bool) -> Iterator[str]:
        """State files without Spark's checksum: those of the heap backend, adopted ones, and all that Spark 4.0 writes.

        Those of one epoch; with `whole`, also the snapshots, which Spark writes in the background (those of RocksDB
        contain checksums).
        """
        if whole:
            self._has_state = bool(self._store.list("state"))
            self._is_summed = None
            self._is_owned = any(self._found("state/*/0/**/*_*-*.delta"))
        if not self._has_state:
            return
        if ids := state_ids(snapshot):
            if not self._is_summed:
                yield from self._unsummed_files(epoch, ids)
        elif self._is_owned:
            yield from self._owned_files(epoch)
            yield from self._found("state/*/[0-9]*/**/*.snapshot") if whole else ()
        else:
            # By complete names, so that folders with a hundred versions are not listed in every epoch.
            for store in ("", "*/"):
                for end in ("delta", "changelog", "zip"):
                    yield from self._found(f"state/*/[0-9]*/{store}{epoch + 1}.{end}")
            yield from self._found("state/*/[0-9]*/**/*.snapshot") if whole else ()

    def _unsummed_files(self, epoch: Epoch, ids: Mapping[str, list[list[str]]]) -> Iterator[str]:
        """Files of this epoch's attempts beside which Spark wrote no sum; it writes all of them, or none."""
        wanted = {f"{epoch + 1}_{one}" for partitions in ids.values() for each in partitions for one in each}
        files = {name for store in ("", "*/") for name in self._found(f"state/*/[0-9]*/{store}{epoch + 1}_*.*")}
        ours = {name for name in files if PurePosixPath(name).stem in wanted}
        unsummed = sorted(name for name in ours if f"{name}.crc" not in files)
        self._is_summed = not unsummed
        yield from unsummed

    def _owned_files(self, epoch: Epoch) -> Iterator[str]:
        """This epoch's changes on the heap, of the driver that counts."""
        folders: dict[str, list[str]] = {}
        for store in ("", "*/"):
            for name in self._found(f"state/*/[0-9]*/{store}{epoch + 1}_*-*.delta"):
                folder, _, file = name.rpartition("/")
                folders.setdefault(folder, []).append(file)
        yield from (f"{folder}/{owned(files)['delta']}" for folder, files in folders.items())

    def schema_files(self) -> Iterator[str]:
        """The state's schemas; Spark keeps no checksums of these either."""
        for pattern in ("_metadata/**/*", "_stateSchema/**/*", "0/**/_metadata/*"):
            yield from self._found(f"state/[0-9]*/{pattern}")

    def _found(self, pattern: str) -> Iterator[str]:
        root = place(self._store.root)
        paths = (path for path in root.glob(pattern) if path.is_file())
        yield from (way(path, root) for path in paths if not path.name.startswith("."))

    def sums(self, names: Iterable[str]) -> dict[str, str]:
        """Checksums of the files that exist."""
        found = {name: self._store.read(name) for name in names}
        return {name: digest(data) for name, data in found.items() if data is not None}

    def ends(self, source: str, offsets: str | None, folders: Sequence[str] | None = None) -> tuple[int, int]:
        """The last entry of a source's log that is certainly in `offsets`, and the last that may be; -1 if none.

        Spark writes a line per *use* of a source but a folder per source. If two branches read one source, only the
        plan says which line belongs to which folder; without it, both answers are conservative. A named source has its
        own folder and line; if the line is missing, the source was removed from the job, or nothing of it is decided
        yet.
        """
        ends = source_offsets(offsets) if offsets else {}
        if not source.isdigit():
            departed = None if source in ends else read_note(self._store, f"{DEPARTED}/{source}", DepartedSource)
            end = ends[source] if source in ends else _log_offset(departed.position if departed else "")
            return (-1, -1) if end is None else (end, end)
        if int(source) >= len(ends):
            return (-1, -1)  # there are never more sources than lines: an earlier start with more sources left it
        if len(self._uses) == len(ends):
            end = ends[str(self._uses.index(int(source)))] if int(source) in self._uses else None
            return (-1, -1) if end is None else (end, end)
        there = self._store.list("sources") if folders is None else folders
        if source in ends and len(ends) == sum(name.isdigit() and int(name) < len(ends) for name in there):
            end = ends[source]
            return (-1, -1) if end is None else (end, end)
        known = [end for end in ends.values() if end is not None]
        return (min(known), max(known)) if known and self._is_of_files(source) else (-1, -1)

    def _is_of_files(self, source: str) -> bool:
        """Not where another kind of source keeps something (Kafka: its start)."""
        first = next((name for _, name in self.source_entries(source)), None)
        return first is None or _names_files(self._store.read(f"sources/{source}/{first}") or b"")

    def lost_files(self, epoch: Epoch, snapshot: str, files: Mapping[str, str]) -> tuple[str, ...]:
        """What is missing or changed of the state files in the snapshot and the files with checksums in decisions."""
        return (*self._lost_state(epoch, snapshot), *self._lost_others(files))

    def _lost_state(self, epoch: Epoch, snapshot: str) -> Iterator[str]:
        for operator, partitions in state_ids(snapshot).items():
            folder = place(self._store.root) / "state" / operator
            # One listing for all partitions: on a remote store each costs a request.
            files = folder.rglob(f"{epoch + 1}_*")
            there = {(way(file, folder).split("/")[0], file.name.partition(".")[0]) for file in files}
            for partition, ids in enumerate(partitions):
                for unique in ids:
                    if (str(partition), f"{epoch + 1}_{unique}") not in there:
                        yield f"state/{operator}/{partition}/{epoch + 1}_{unique}"

    def _lost_others(self, files: Mapping[str, str]) -> Iterator[str]:
        for name, expected in files.items():
            if _SIGNED.fullmatch(name):
                continue  # of a hundred epochs and all partitions; those that matter are looked at before the start
            data = self._store.read(name)
            if data is None and self._superseded(name):
                continue
            if data is None or digest(data) != expected:
                yield name

    def _superseded(self, name: str) -> bool:
        """Spark deletes an entry some time after a later one made it unnecessary.

        A source's entry is repeated in a compact file, the heap backend's changes in a snapshot; a schema has a newer
        version.
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


def metadata(lineage: str) -> bytes:
    """Spark's `metadata`, whose text is always the same for a lineage, whether we or Spark write it."""
    return json.dumps({"id": lineage}, separators=(",", ":")).encode()


def source_offsets(offsets: str) -> dict[str, int | None]:
    """The file-source log offset of every source in an `offsets/N` text; None for a source of another kind.

    Version 1 has one line per source in plan order, version 2 `name:{…}`.
    """
    return {name: _log_offset(text) for name, text in source_lines(offsets).items()}


def source_lines(offsets: str) -> dict[str, str]:
    """The offset of every source in an `offsets/N` text, as Spark wrote it."""
    version, *rest = offsets.rstrip("\n").split("\n")
    found: dict[str, str] = {}
    for index, line in enumerate(rest[1:]):
        name, _, text = (str(index), "", line) if version == "v1" else line.partition(":")
        found[name] = text
    return found


def _without(offsets: str, sources: Sequence[str]) -> str:
    """The same text, in which these sources have no offset yet."""
    lines = offsets.split("\n")
    for line, name in enumerate(source_lines(offsets), start=2):
        if name in sources:
            lines[line] = NO_OFFSET if lines[0] == "v1" else f"{name}:{NO_OFFSET}"
    return "\n".join(lines)


def _log_offset(position: str) -> int | None:
    try:
        parsed = json.loads(position)
    except ValueError:
        return None
    offset = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return offset if isinstance(offset, int) else None


def _listed(data: bytes, began: int, ended: int) -> Iterator[dict[str, Any]]:
    """The lines of an entry, if they are within the range; none if it is not a file source's."""
    for line in data.decode().split("\n"):
        number = _LISTED_IN.search(line)
        if '"path"' in line and (number is None or began < int(number[1]) <= ended):
            yield json.loads(line)


def _files(source: str, data: bytes, ended: int) -> Iterator[SourceFile]:
    """The same as files, quickly: there may be a million."""
    for line in data.decode().split("\n"):
        plain = _LISTED.fullmatch(line)
        if plain is not None:
            url, time, number = plain[1], int(plain[2]), int(plain[3])
        elif '"path"' in line:
            entry = json.loads(line)
            url, time, number = entry["path"], entry["timestamp"], entry["batchId"]
        else:
            continue
        if number <= ended:
            yield SourceFile(source, number, url, time)


def state_ids(snapshot: str) -> dict[str, list[list[str]]]:
    """Operator → partition → ids of the state files, from a `commits/N` text; empty for a stateless job."""
    _, _, text = snapshot.partition("\n")
    try:
        ids = json.loads(text).get("stateUniqueIds") or {}
    except (ValueError, AttributeError):
        return {}
    return {operator: [list(stores) for stores in partitions] for operator, partitions in ids.items()}


def owned(names: Iterable[str]) -> dict[str, str]:
    """By kind, the files of one decided version on the heap that count: those of the newest driver that wrote it.

    An older one was replaced before it decided the version, and its snapshot is not that of the change. A newer one
    loaded the version to write a snapshot of it. `java/fencepost/OwnedFiles.java` chooses alike.
    """
    found: dict[str, tuple[int, int, str]] = {}
    for name in names:
        if match := _OWNED.fullmatch(name):
            kind = match["kind"]
            found[kind] = max(found.get(kind, (-1, -1, "")), (int(match["generation"]), int(match["writer"]), name))
    if len(found) > 1 and found["snapshot"][:2] < found["delta"][:2]:
        del found["snapshot"]
    return {kind: name for kind, (_, _, name) in found.items()}


def watermark_ms(snapshot: str) -> int:
    """The watermark of the next epoch, from a `commits/N` text; 0 if there is none, or if it has not moved yet."""
    _, _, text = snapshot.partition("\n")
    try:
        return int(json.loads(text).get("nextBatchWatermarkMs", 0))
    except (ValueError, AttributeError, TypeError):
        return 0


def _names_files(data: bytes) -> bool:
    """Is it an entry of a file source, or too damaged to be anything else?"""
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
