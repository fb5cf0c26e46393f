"""MySQL and MariaDB: rows and epoch row in one transaction of one database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from fencepost.errors import BadConfig
from fencepost.sinks.contract import Capabilities, Session, Sink, WriteInTask
from fencepost.sinks.mysql.names import problem_of_name
from fencepost.sinks.staged import FEW, Staging
from fencepost.sinks.tables import TableMode, key_of, problem_of, table_capabilities, upserts

if TYPE_CHECKING:
    from fencepost.sinks.mysql.connection import Address

__all__ = ["MySQL"]


@dataclass(frozen=True)
class MySQL(Sink):
    """A table in MySQL 8 (8.0.17 or newer) or MariaDB 10.11 or newer.

        job.write(counts, fp.MySQL("counts", host="db", user="app", password=…, database="shop", key="word"))

    With `key`, a row replaces the row of the same key, so output mode update works; of two rows with one key in an
    epoch the last one wins (rows of one source partition keep their order). Without a key, rows are appended. An
    epoch becomes visible all at once, and once.

    The mistake people make: a key in a column whose collation passes over case, as they do by default. "a" and "A" are
    two keys in Spark and one row there: such an epoch is refused. A table that we make tells them apart; its key
    columns of text have 255 characters.

    The table has to be kept by InnoDB. With a key, it may have no other unique index: MySQL would replace by that one
    too. Times are stored in UTC. Beside the table, the database gets `fencepost_epoch` and `fencepost_target`;
    docs/DATABASES.md has the statements for a user that may not create tables. Connect to the primary itself, not
    through a proxy that shares sessions: the vote holds a transaction open until the decision.
    """

    table: str
    """As it is called, dots and all."""
    _: KW_ONLY
    database: str
    host: str | None = None
    """localhost unless told."""
    port: int | None = None
    """3306 unless told."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    unix_socket: str | None = None
    """Instead of host and port."""
    defaults_file: str | None = None
    """As MySQL's own programs read it: whatever is not said here, password and all, comes from its [client]. It has to
    be on every machine that writes."""
    tls: bool | str | None = None
    """None: used where the server offers it, whoever it is. True: the server must have a certificate for its name that
    Python trusts; a path: one that the authorities in that file signed (on every machine that writes). False: never."""
    key: str | Sequence[str] | None = None
    mode: TableMode | None = None
    """Upsert if there is a key. "append", said aloud, takes output mode update too: every change becomes a row. With
    "replace", for output mode complete, the table is what the last epoch said."""
    staging: Staging = "checkpoint"
    """Where an epoch's rows wait for the decision. "checkpoint": in Arrow files, which the driver loads; on one machine
    that was the fastest at every size. "target": in tables beside the table, which the tasks fill in parallel, for
    clusters whose driver has too much to do. "auto": a task with many rows does the latter."""
    create: bool = True
    """Make the table if it is not there."""
    durable: bool | None = None
    """None: the server is asked whether it keeps what it acknowledged. True: you know that it does, though it does not
    say so. False: it may forget, and the job is at least once at best."""
    name: str = ""
    """`mysql:<table>` unless told. The ledger knows the sink by it."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        object.__setattr__(self, "name", self.name or f"mysql:{self.table}")
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"MySQL: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """The epoch row makes commits repeatable, if the server keeps it."""
        return table_capabilities(self, durable=self.durable)

    @property
    def address(self) -> Address:
        """Where, and as whom."""
        with client_needed():
            from fencepost.sinks.mysql.connection import Address  # noqa: PLC0415 - PyMySQL is an extra
        return Address(
            database=self.database,
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            unix_socket=self.unix_socket,
            tls=self.tls,
            defaults_file=self.defaults_file,
        )

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        with client_needed():
            from fencepost.sinks.mysql.session import MySQLSession  # noqa: PLC0415 - as above
        return MySQLSession(self, job)

    def in_tasks(self, job: str) -> WriteInTask | None:
        """The tasks' side, unless the driver is to write everything."""
        if self.staging == "checkpoint":
            return None
        with client_needed():
            from fencepost.sinks.mysql.parallel import MySQLTask  # noqa: PLC0415 - as above
        few = FEW if self.staging == "auto" else 0
        return MySQLTask(job, self.name, key_of(self) if upserts(self) else (), few, self.table, self.address)


@contextmanager
def client_needed() -> Iterator[None]:
    """Around an import of PyMySQL, which is an extra."""
    try:
        yield
    except ImportError as error:
        raise BadConfig(
            "no_mysql_client", "PyMySQL is not installed.", next="pip install 'fencepost[mysql]'"
        ) from error


def _problem(sink: MySQL) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    problems = (
        (not sink.database, "database is empty", "Name a database"),
        (bool(problem_of_name(sink.table)), "the table cannot be called so", f"{problem_of_name(sink.table)}"),
        (bool(problem_of_name(sink.database)), "the database cannot be called so", f"{problem_of_name(sink.database)}"),
        (not (sink.user or sink.defaults_file), "user= is missing", "Name a user, or a defaults_file= that does"),
        (
            bool(sink.unix_socket) and bool(sink.host or sink.port),
            "unix_socket goes without host and port",
            "Give one or the other",
        ),
        (
            sink.staging not in ("auto", "checkpoint", "target"),
            f"staging {sink.staging!r} is not known",
            'Use "auto", "checkpoint" or "target"',
        ),
    )
    return next(((what, cure + ".") for wrong, what, cure in problems if wrong), None) or problem_of(sink)
