"""The state of one epoch as files: what Spark would load for each store of each partition of each operator.

Version v of a store is what epoch v-1 left. It is loaded from the newest snapshot at or below v, and from what each
version above that changed. With state of format 2 a file's name carries the id of the attempt that wrote it, and
`commits/<v-1>` says whose counts; what other attempts left lies beside it and does not matter.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace

from fencepost.ledger import Place, RemotePath, Unanswered, each, seen, way
from fencepost.spark.checkpoint import state_ids

SNAPSHOTS = (".zip", ".snapshot")
CHANGES = (".changelog", ".delta")
BAD_JSON: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, TypeError, AttributeError)
BAD_ZIP: tuple[type[Exception], ...] = (*BAD_JSON, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What Python raises over damaged ones."""
NOT_STORES = ("SSTs", "logs", "_metadata")


@dataclass(frozen=True, slots=True)
class StateFile:
    """One file under `state/`."""

    name: str
    operator: str
    partition: int | None = None
    schema: bool = False
    size: int | None = None
    side: str | None = None
    spark_side: bool = False


@dataclass(frozen=True, slots=True)
class _Store:
    """One store of one partition: its folder, and the id that each version must have; None with format 1."""

    folder: Place
    operator: str
    partition: int
    ids: Mapping[int, str] | None


def find(root: Place, epoch: int, snapshots: Mapping[int, str]) -> Iterator[StateFile]:
    """Every state file that `epoch` rests on, there or not. `snapshots`: the texts of `commits`, by epoch."""
    root = seen(root)
    by_epoch = {number: state_ids(text) for number, text in snapshots.items() if number <= epoch}
    newest = by_epoch.get(epoch, {})
    summed = _are_tables_summed(root)
    for operator in sorted({*newest, *_numbered(root / "state")}, key=int):
        folder = root / "state" / operator
        yield from _schemas(root, folder, epoch)
        if operator in newest:
            places = ((partition, at) for partition, ids in enumerate(newest[operator]) for at in range(len(ids)))
            stores = (_located(folder, partition, at, by_epoch) for partition, at in places)
        else:
            partitions = sorted(map(int, _numbered(folder)))
            stores = (_Store(one, operator, n, None) for n in partitions for one in _stores(folder / str(n)))
        # A snapshot is read to see what it names: far away, many of them at a time.
        for files in each(root, lambda store: list(_walk(root, store, epoch + 1, summed=summed)), stores):
            yield from files


def tables_of(snapshot: Place) -> dict[str, int] | None:
    """The tables that a snapshot of RocksDB's names, by path beside it, with their sizes; None if it cannot be read."""
    try:
        with snapshot.open("rb") as file, zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return None
            _, _, text = archive.read("metadata").decode().partition("\n")
        said = json.loads(text)
        tables = {f"SSTs/{file['dfsSstFileName']}": file["sizeBytes"] for file in said["sstFiles"]}
        return tables | {f"logs/{file['dfsLogFileName']}": file["sizeBytes"] for file in said.get("logFiles") or ()}
    except Unanswered:
        raise
    except BAD_ZIP:
        return None


def _located(folder: Place, partition: int, place: int, by_epoch: Mapping[int, dict[str, list[list[str]]]]) -> _Store:
    """Which of a partition's stores (a join has several) the ids at this place of the list belong to: the one that has
    files with them.
    """
    ids = {}
    for number, operators in by_epoch.items():
        partitions = operators.get(folder.name, [])
        if partition < len(partitions) and place < len(partitions[partition]):
            ids[number + 1] = partitions[partition][place]
    wanted = {f"{version}_{unique}" for version, unique in ids.items()}
    for store in _stores(folder / str(partition)):
        if store.is_dir() and any(file.name.split(".")[0] in wanted for file in store.iterdir()):
            return _Store(store, folder.name, partition, ids)
    return _Store(folder / str(partition), folder.name, partition, ids)


def _are_tables_summed(root: Place) -> bool:
    """Has Hadoop written a sum beside each table? It does so on a local disk, and nowhere else."""
    return not isinstance(root, RemotePath) and any(root.glob("state/**/SSTs/.*.crc"))


def _walk(root: Place, store: _Store, version: int, *, summed: bool) -> Iterator[StateFile]:
    """From the newest version down to the first that has a snapshot; version 0 is empty."""
    for number in range(version, 0, -1):
        begins = True
        for stem in _stems(store, number):
            begins &= yield from _version(root, store, stem, summed=summed)
        if begins:
            return


def _stems(store: _Store, number: int) -> list[str]:
    """What a version's files are called. Below what is retained nobody says whose count: then all that are there."""
    if store.ids is None:
        return [str(number)]
    if number in store.ids:
        return [f"{number}_{store.ids[number]}"]
    there = {file.name.split(".")[0] for file in store.folder.glob(f"{number}_*")}
    return sorted(there) or [f"{number}_unknown"]


def _version(root: Place, store: _Store, stem: str, *, summed: bool) -> Generator[StateFile, None, bool]:
    """The files of one version; True if it has a snapshot that can be begun with."""
    snapshot = next((stem + end for end in SNAPSHOTS if (store.folder / (stem + end)).is_file()), None)
    change = next((stem + end for end in CHANGES if (store.folder / (stem + end)).is_file()), None)
    if snapshot:
        file = _file(root, store, snapshot)
        # Spark uploads a snapshot when it has time, and its sum in another thread: a job that was killed in between
        # leaves one without. What it rests on otherwise is still there, and is as good.
        unsummed = file.side is not None and change is not None and not (root / file.side).is_file()
        yield replace(file, side=None, spark_side=False) if unsummed else file
        yield from _tables(root, store, snapshot, summed=summed)
        if not unsummed:
            return True
    yield _file(root, store, change or stem + CHANGES[store.ids is None])
    return False


def _tables(root: Place, store: _Store, snapshot: str, *, summed: bool) -> Iterator[StateFile]:
    if snapshot.endswith(".zip"):
        for name, size in (tables_of(store.folder / snapshot) or {}).items():
            table = store.folder / name
            sum_file = table.with_name(f".{table.name}.crc")
            side = way(sum_file, root) if summed or sum_file.is_file() else None
            yield StateFile(way(table, root), store.operator, store.partition, size=size, side=side)


def _file(root: Place, store: _Store, name: str) -> StateFile:
    """With format 2 Spark always writes a sum beside it; Hadoop does if plain Spark wrote to a local disk."""
    path = way(store.folder / name, root)
    if store.ids is not None:
        return StateFile(path, store.operator, store.partition, side=f"{path}.crc", spark_side=True)
    hadoop = store.folder / f".{name}.crc"
    side = way(hadoop, root) if hadoop.is_file() else None
    return StateFile(path, store.operator, store.partition, side=side)


def _schemas(root: Place, operator: Place, epoch: int) -> Iterator[StateFile]:
    """What the rows of the state look like: per operator, and in its first partition per store."""
    found = [operator / "_metadata" / "metadata"]
    if (operator / "_stateSchema").is_dir() or (operator / "_metadata" / "v2").is_dir():
        # transformWithState: a new file whenever the variables change, named by the epoch from which it counts.
        found = [file for folder in ("_metadata/v2", "_stateSchema") for file in _files(operator / folder)]
        found = [file for file in found if int(file.name.split("_")[0]) <= epoch]
        found += [*_named_schemas(operator)] or [operator / "_metadata" / "v2" / "0"]
    else:
        found += [store / "_metadata" / "schema" for store in _stores(operator / "0")]
    for file in dict.fromkeys(found):
        hadoop = file.with_name(f".{file.name}.crc")
        side = way(hadoop, root) if hadoop.is_file() else None
        yield StateFile(way(file, root), operator.name, schema=True, side=side)


def _named_schemas(operator: Place) -> Iterator[Place]:
    """Schema files that an operator's metadata names; the folder before the name may be where it once was."""
    for file in _files(operator / "_metadata" / "v2"):
        for name in schema_paths(file):
            store, base = name.split("/")[-2:]
            yield operator / "_stateSchema" / store / base


def schema_paths(metadata: Place) -> list[str]:
    """The schema files that an operator's metadata of version 2 names: whole paths, as Spark wrote them."""
    try:
        _, _, text = metadata.read_text().partition("\n")
        stores = json.loads(text)["stateStoreInfo"]
        return [path for store in stores for path in store.get("stateSchemaFilePaths", ())]
    except BAD_JSON:
        return []


def _files(folder: Place) -> list[Place]:
    """Whole files below a folder; side files and halves of a write that died begin with a dot."""
    found: Iterator[Place] = folder.rglob("[0-9]*")
    return sorted((file for file in found if file.is_file()), key=str)


def _stores(partition: Place) -> list[Place]:
    if not partition.is_dir():
        return [partition]
    named = [folder for folder in partition.iterdir() if folder.is_dir() and folder.name not in NOT_STORES]
    return sorted(named, key=str) or [partition]


def _numbered(folder: Place) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
