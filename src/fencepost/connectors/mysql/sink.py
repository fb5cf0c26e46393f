"""MySQL and MariaDB: rows and epoch row in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from fencepost import credential
from fencepost.connectors.mysql.columns import problem_of_name
from fencepost.connectors.table.database import Dialect
from fencepost.connectors.table.sink import Staging, TableMode, TableSink
from fencepost.contract import Dataset
from fencepost.errors import require

if TYPE_CHECKING:
    from fencepost.connectors.mysql.connection import Address

__all__ = ["MySQL"]


@dataclass(frozen=True)
class MySQL(TableSink):
    """A table in MySQL 8 (8.0.17 or newer) or MariaDB 10.11 or newer.

        job.write(counts, fp.MySQL("counts", host="db", user="app", password=…, database="shop", key="word"))

    With `key`, a row replaces the row with the same key, so output mode update works; if an epoch has several rows
    with the same key, `order_by` says which one stays. Without a key, rows are
    appended. All rows of an epoch become visible at once, and only once.

    Note: a key column needs a case-sensitive collation, which is not MySQL's default. "a" and "A" are two keys in
    Spark; if they are one row in the table, the epoch is refused. Tables that we create distinguish them, and their
    text key columns have 255 characters.

    The table must use InnoDB. With a key, it may have no other unique index, because MySQL would also replace rows that
    match that one. Times are stored in UTC. The tables `fencepost_epoch` and `fencepost_target` are created in the same
    database; docs/DATABASES.md has the statements for a user that may not create tables. Connect to the primary
    directly, not through a proxy that shares sessions: the vote holds a transaction open until the decision.
    """

    table: str
    """The exact name; a dot is part of it."""
    _: KW_ONLY
    database: str
    host: str | None = None
    """By default localhost."""
    port: int | None = None
    """By default 3306."""
    user: str | None = None
    password: str | None = None
    """Itself, or where it is: `env:NAME`, `file:/path`."""
    unix_socket: str | None = None
    """Instead of host and port."""
    defaults_file: str | None = None
    """An option file, as MySQL's own programs read it: settings that are not given here, such as the password, come
    from its [client] section. It must exist on every machine that writes."""
    tls: bool | str | None = None
    """None: use TLS if the server offers it, without verifying its certificate. True: require it, with a certificate
    that Python trusts. A path: require a certificate signed by a CA in that file (on every machine that writes).
    False: never use TLS."""
    key: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    """Of several rows with the same key, the one with the greatest value of this column, or of these, stays, whatever
    the order in which they come. Needed unless the plan aggregates by the key: `fencepost.contract.Keyed`."""
    unique_key: bool = False
    """No two rows have the same key, so no order is needed. Nothing checks this."""
    deletes: str | None = None
    """A boolean column, which is not written: a row in which it is true removes the row with its key. See
    docs/DATABASES.md, "Rows that leave the result"."""
    mode: TableMode | None = None
    """By default "upsert" with a key and "append" without one. An explicit "append" also allows output mode update:
    every change becomes a new row. "replace", for output mode complete: each epoch replaces the whole table."""
    staging: Staging = "checkpoint"
    """Where an epoch's rows wait for the decision. "checkpoint": in Arrow files, which the driver loads; on a single
    machine this was the fastest at every size. "target": in staging tables next to the table, which the tasks fill in
    parallel, for clusters whose driver is the bottleneck. "auto": like "target" for tasks with many rows."""
    create: bool = True
    """Create the table if it does not exist."""
    durable: bool | None = None
    """None: the server's settings are checked, and a server that may lose acknowledged commits is refused. True: skip
    the check, because you know that commits are durable. False: they may be lost; the job is at least once at best."""
    name: str = ""
    """By default `mysql:<table>`. The ledger identifies the sink by this name."""

    def __post_init__(self) -> None:
        credential.hide(self, "password")
        bad_table, bad_database = problem_of_name(self.table), problem_of_name(self.database)
        self._check(
            "MySQL",
            f"mysql:{self.table}",
            (not self.database, "database is empty", "Name a database"),
            (bad_table, f"invalid table name {self.table!r}", f"{bad_table}"),
            (bad_database, f"invalid database name {self.database!r}", f"{bad_database}"),
            (
                not (self.user or self.defaults_file),
                "user= is missing",
                "Give user=, or a defaults_file= that names one",
            ),
            (
                self.unix_socket and (self.host or self.port),
                "unix_socket= cannot be combined with host= or port=",
                "Give one or the other",
            ),
        )

    @property
    def address(self) -> Address:
        """The connection settings, without those of the table."""
        require("no_mysql_client", "pymysql", extra="mysql")
        from fencepost.connectors.mysql.connection import Address  # noqa: PLC0415 - PyMySQL is an extra

        return Address(
            database=self.database,
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.with_secrets().password,
            unix_socket=self.unix_socket,
            tls=self.tls,
            defaults_file=self.defaults_file,
        )

    def with_secrets(self) -> MySQL:
        """As it goes to the tasks."""
        if self.password is None:
            return self
        return replace(self, password=credential.resolve(self.password, f"password= of sink {self.name!r}"))

    def dialect(self) -> Dialect:
        address = self.address
        from fencepost.connectors.mysql.dialect import MySQLDialect  # noqa: PLC0415 - as above

        return MySQLDialect(address)

    def dataset(self) -> Dataset | None:
        """By its server; of a defaults_file nothing is read."""
        if self.defaults_file and not self.host:
            return None
        return Dataset(f"mysql://{self.host or 'localhost'}:{self.port or 3306}", f"{self.database}.{self.table}")
