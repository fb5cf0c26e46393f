"""The catalog of an Iceberg table: connecting, one compare-and-set per commit, and errors in our own words.

    load ─► transaction on what was loaded ─► commit: is main still there, and the table itself? ─► pointer moves

Never uses the library's own `commit_transaction`: that one retries on a newer state, so that an epoch whose answer was
lost would be committed again. Never creates anything unless told to. Never lets a library's error out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError as NotMetadata
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchPropertyException,
    NotInstalledError,
    OAuthError,
    RESTError,
    SignError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.utils.config import Config
from sqlalchemy import exc, inspect
from sqlalchemy.engine import make_url

from fencepost import faults
from fencepost.connectors.iceberg.location import local_path, sync
from fencepost.connectors.table.database import Broken, Conflict, Denied, NotAllowed, RowsRefused, Silent
from fencepost.errors import FencepostError
from fencepost.store.local import make_folder

log = logging.getLogger(__name__)

NAME = "default"
"""Of a catalog that is given by its properties, unless one of them is `name`. A database has several, by name."""


# --- connecting


def name_and_properties(given: str | Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The name of a catalog, and all properties that we know of it."""
    if isinstance(given, str):
        found = Config().get_catalog_config(given) or {}
        return given, {key: value for key, value in found.items() if isinstance(value, str)}
    properties = dict(given)
    return properties.pop("name", NAME), properties


Stamp = tuple[int, int]
"""Of a file: another one under the same name has another."""


def stamp_of(properties: Mapping[str, str]) -> Stamp | None:
    """Of a catalog that is a file; None for a server. `FileNotFoundError`: to look into it would make it."""
    uri = properties.get("uri", "")
    if not uri.startswith("sqlite"):
        return None
    database = make_url(uri).database
    if not database or ":memory:" in database:
        raise Denied("its catalog is in memory, which does not survive a crash: name a file")
    path = Path(database.removeprefix("file:").partition("?")[0])
    if not path.parent.is_dir():
        raise Denied("the folder of the catalog's file does not exist")
    found = path.stat()
    return found.st_dev, found.st_ino


def connected(given: str | Mapping[str, str]) -> Catalog:
    """The catalog, with nothing created in it, and durable on a local disk."""
    name, properties = name_and_properties(given)
    ours = {"pool_pre_ping": "true"} | properties | {"init_catalog_tables": "false"}
    catalog = load_catalog(name, **ours)
    if isinstance(catalog, MetastoreCatalog):
        catalog._write_metadata = DurableMetadata(catalog._write_metadata)  # type: ignore[method-assign]
    if isinstance(catalog, RestCatalog):
        catalog._session.post = CompleteRequests(catalog._session.post)  # type: ignore[assignment,method-assign]
    return catalog


def has_tables(catalog: Catalog) -> bool:
    """Does a database have the tables of a catalog?"""
    return not isinstance(catalog, SqlCatalog) or inspect(catalog.engine).has_table(IcebergTables.__tablename__)


def make_tables(catalog: Catalog, given: str | Mapping[str, str]) -> None:
    """Make those tables, unless the user forbade it."""
    _, properties = name_and_properties(given)
    if isinstance(catalog, SqlCatalog) and properties.get("init_catalog_tables", "true").lower() != "false":
        catalog.create_tables()


class DurableMetadata:
    """Writes a table's metadata file: the pointer must never move to a file that a power cut can lose."""

    def __init__(self, write: Callable[[TableMetadata, FileIO, str], None]) -> None:
        self._write = write
        self.last: list[str] = []
        """The location of the last one."""

    def __call__(self, metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        if (path := local_path(metadata_path, io)) is not None:
            make_folder(path.parent)
        self.last = [metadata_path]
        self._write(metadata, io, metadata_path)
        sync([metadata_path], io)


class CompleteRequests:
    """Says the highest id of a new schema's columns, too. The library leaves it out, and Nessie 0.99 insists on it."""

    def __init__(self, post: Callable[..., Any]) -> None:
        self._post = post

    def __call__(self, url: str, data: Any = None, **rest: Any) -> Any:
        if isinstance(data, bytes) and b'"add-schema"' in data:
            data = self._complete(data)
        return self._post(url, data=data, **rest)

    @staticmethod
    def _complete(data: bytes) -> bytes:
        request = json.loads(data)
        for update in request.get("updates", ()):
            if update.get("action") == "add-schema":
                update.setdefault("last-column-id", Schema.model_validate(update["schema"]).highest_field_id)
        return json.dumps(request).encode()


# --- committing


def may_ignore_emptiness(catalog: Catalog) -> bool:
    """Might it take a commit to a table without a snapshot although there is one by now? Then that is not a fence.

    The others compare here, in the library, or in one statement of a database. A REST server compares by itself, and
    Nessie 0.99 does not if the commit expects none: the second of two first commits removes the rows of the first.
    """
    return isinstance(catalog, RestCatalog)


class Staged(Transaction):
    """A transaction that computes its metadata once per change; the library's copies all of it at every question, which
    takes a second with a thousand snapshots.
    """

    _known: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._known is None or self._known[0] is not self._updates:
            self._known = self._updates, update_table_metadata(self._table.metadata, self._updates)
        return self._known[1]

    @property
    def added(self) -> list[str]:
        """The files that it wrote beside the data."""
        return [
            location
            for producer in self._snapshot_producers
            for location in (*producer._written_manifests, *producer._written_manifest_lists)
        ]


def create(catalog: Catalog, identifier: str, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> None:
    """Make the table; `TableAlreadyExistsError` or `Conflict` if there is one.

    Where emptiness is not a fence, with a first snapshot without rows, in the same commit: whoever dies in between
    leaves nothing. A catalog that cannot stage a new table gets the two one after the other.
    """
    if not may_ignore_emptiness(catalog):
        catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
        return
    try:
        staged = catalog.create_table_transaction(identifier, schema, partition_spec=spec, properties=properties)
    except (RESTError, NotImplementedError) as error:
        if type(error) not in _CANNOT_STAGE:
            raise
        log.info("the catalog cannot stage a new table (%s)", type(error).__name__)
        table = catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
        first = Staged(table)
        stage_append(first, (), {})
        commit(catalog, table, first, ())
        return
    stage_append(staged, (), {})
    faults.reach("iceberg.creating")
    try:
        catalog.commit_table(staged._table, (AssertCreate(),), staged._updates)
    except CommitFailedException:
        raise Conflict("somebody else has created it") from None


def stage_append(staged: Transaction, entries: Iterable[DataFile], summary: dict[str, str]) -> None:
    """One snapshot more, with these files."""
    with staged._append_snapshot_producer(summary) as producer:
        for entry in entries:
            producer.append_data_file(entry)


def commit(catalog: Catalog, table: Table, staged: Staged, wrote: Sequence[str]) -> Table:
    """One compare-and-set against the table as it was loaded; the table as it is then.

    `Conflict`: nothing was committed, and the data files that were written for this commit are removed. Anything else:
    nobody knows.
    """
    sync(staged.added, table.io)
    durable = getattr(catalog, "_write_metadata", None)
    if isinstance(durable, DurableMetadata):
        durable.last = []
    try:
        response = catalog.commit_table(table, _requirements(table.metadata, staged), staged._updates)
    except (CommitFailedException, ValueError) as error:
        # ValueError: the snapshot does not fit what is there now, because a side branch took its sequence number.
        if isinstance(catalog, SqlCatalog):  # others may say so although an earlier try of theirs went through
            _clean([*wrote, *staged.added, *getattr(durable, "last", ())], table.io)
        raise Conflict(f"another change of the table came first ({type(error).__name__})") from None
    except Exception as error:  # noqa: BLE001 - whatever it was, it may have been after the commit
        raise Silent(f"the catalog did not say whether it committed ({type(error).__name__})") from None
    _forget_old_metadata(catalog, table, response)
    return Table(table.name(), response.metadata, response.metadata_location, table.io, catalog)


def _requirements(loaded: TableMetadata, staged: Staged) -> tuple[TableRequirement, ...]:
    """Main has to be where it was; and schema and partitions, which can change while main stays."""
    main = loaded.refs.get(MAIN_BRANCH)
    ours: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=loaded.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": main.snapshot_id if main else None}),
        AssertCurrentSchemaId.model_validate({"current-schema-id": loaded.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": loaded.default_spec_id}),
    )
    kinds = {type(one) for one in ours}
    return (*ours, *(one for one in staged._requirements if type(one) not in kinds))


def _forget_old_metadata(catalog: Catalog, table: Table, response: CommitTableResponse) -> None:
    """As many as `write.metadata.previous-versions-max` says stay, if the table asks for it."""
    with suppress(Exception):
        catalog._delete_old_metadata(table.io, table.metadata, response.metadata)


def _clean(locations: list[str], io: FileIO) -> None:
    for location in locations:
        with suppress(Exception):
            io.delete(location)


# --- errors


@contextmanager
def explained() -> Iterator[None]:
    """The library's errors in our words: theirs quote rows, and addresses with passwords."""
    try:
        yield
    except (Silent, RowsRefused, FencepostError, AssertionError):
        raise
    except Exception as error:  # noqa: BLE001 - it has no base class of its own
        raise _explained(error) from None


def _explained(error: Exception) -> Exception:
    kind, text = type(error).__name__, str(error)
    if isinstance(error, exc.SQLAlchemyError):
        return _of_database(error)
    if isinstance(error, PermissionError) or any(words in text for words in _FORBIDDEN):
        return NotAllowed("this user may not read or write the table's files")
    missing = error.__cause__ or error.__context__ or error
    if isinstance(error, ModuleNotFoundError | NotInstalledError) and isinstance(missing, ModuleNotFoundError):
        return Denied(f"it needs the Python package {missing.name}, which is not installed")
    for kinds, make, words in _MEANINGS:
        if isinstance(error, kinds):
            return make(f"{words} ({kind})")
    return Silent(f"it failed ({kind})")


def _of_database(error: exc.SQLAlchemyError) -> Exception:
    """The catalog's database. For a refused login, psycopg has only a text."""
    if not isinstance(error, exc.DBAPIError):
        return Denied(f"the catalog's uri cannot be used ({type(error).__name__})")
    cause = error.orig
    text, state = str(cause), getattr(cause, "sqlstate", None) or ""
    if state == "42501" or "permission denied" in text:
        return NotAllowed("the catalog's database refused a permission")
    for words, make, meaning in _DATABASE:
        if words in text and not state:
            return make(f"the catalog's database {meaning}")
    return Silent(f"the catalog's database failed ({type(cause).__name__})")


_CANNOT_STAGE = (BadRequestError, NotImplementedError, RESTError)
"""What servers answer to a request that they do not know: 400, 501, and 406 or 422. Never a subclass of these."""
_FORBIDDEN = ("ACCESS_DENIED", "AccessDenied", "HTTP status 403", "HTTP response code: 403")
_MEANINGS: tuple[tuple[tuple[type[Exception], ...], type[Silent], str], ...] = (
    ((CommitFailedException,), Conflict, "another change of the table came first"),
    ((CommitStateUnknownException,), Silent, "the catalog did not say whether it committed"),
    ((UnauthorizedError, AuthorizationExpiredError, OAuthError, SignError), Denied, "the catalog refused the login"),
    ((ForbiddenError,), Denied, "the catalog refused a permission"),
    ((NotInstalledError,), Denied, "it needs a Python package that is not installed"),
    ((NotImplementedError,), Denied, "it needs what pyiceberg or Arrow cannot do"),
    ((FileNotFoundError,), Broken, "a file of the table's metadata is missing"),
    ((NotMetadata, ValidationError, pa.ArrowInvalid, UnicodeDecodeError), Broken, "its metadata cannot be read"),
    ((OSError, pa.ArrowException), Silent, "its files cannot be reached"),
    ((NoSuchPropertyException, ValueError), Denied, "the catalog's settings, or the table's name, cannot be used"),
)
_DATABASE: tuple[tuple[str, type[Silent], str], ...] = (
    ("database is locked", Silent, "is locked"),
    ("readonly database", Denied, "cannot be written to"),
    ("unable to open database file", Silent, "cannot be opened"),
    ("file is not a database", Broken, "is not an SQLite file"),
    ("disk image is malformed", Broken, "is damaged"),
    ("authentication failed", Denied, "refused the login"),
    ("no password supplied", Denied, "requires a password"),
    ("no pg_hba.conf entry", Denied, "refused the login"),
    ("does not exist", Denied, "refused the login: there is no such database, role or schema"),
)
