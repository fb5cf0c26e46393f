"""PostgreSQL: rows and epoch row in one transaction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from fencepost import credential
from fencepost.connectors.postgres.columns import BadName, read_name
from fencepost.connectors.table.database import Dialect
from fencepost.connectors.table.sink import Staging, TableMode, TableSink
from fencepost.contract import Dataset
from fencepost.errors import BadConfig, require

__all__ = ["Postgres"]


@dataclass(frozen=True)
class Postgres(TableSink):
    """A table in PostgreSQL 14 or newer.

        job.write(counts, fp.Postgres("counts", dsn="env:PG_DSN", key="word"))

    With `key`, a row replaces the row with the same key, so output mode update works; if an epoch has several rows
    with the same key, `order_by` says which one stays. Without a key, rows are
    appended. All rows of an epoch become visible at once, and only once.

    Note: `dsn` must not point to a pooler in transaction mode, or to a standby. The vote holds a transaction open
    until the decision, so connect to the primary directly.

    Names are case-sensitive and used as written: `sales.orders`, or `"Sales"."odd.name"`. The tables `fencepost_epoch`
    and `fencepost_target` are created in the same schema. The minimum grants for a role are in `role.sql` next to this
    module, and in `role_without_create.sql` for a role that may not create tables.
    """

    table: str
    _: KW_ONLY
    dsn: str
    """A libpq connection string, `host=… dbname=… user=…` or `postgresql://…`; or where to find it: `env:PG_DSN`,
    `file:/run/secrets/pg`. TLS is used if the server offers it; `sslmode=verify-full` also verifies the server's
    certificate."""
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
    """By default `postgres:<table>`. The ledger identifies the sink by this name."""

    def __post_init__(self) -> None:
        credential.hide(self, "dsn")
        cure = ""
        try:
            read_name(self.table)
        except BadName as error:
            cure = str(error)
        self._check(
            "Postgres",
            f"postgres:{self.table}",
            (cure, f"invalid table name {self.table!r}", f"{cure[:1].upper()}{cure[1:]}"),
        )

    def dialect(self) -> Dialect:
        require("no_postgres_client", "psycopg", extra="postgres")
        dsn = credential.resolve(self.dsn, f"dsn= of sink {self.name!r}")
        _check_dsn(self, dsn)
        from fencepost.connectors.postgres.dialect import PostgresDialect  # noqa: PLC0415 - psycopg is an extra

        return PostgresDialect(dsn, read_name(self.table).schema or "")

    def with_secrets(self) -> Postgres:
        """As it goes to the tasks."""
        return replace(self, dsn=credential.resolve(self.dsn, f"dsn= of sink {self.name!r}"))

    def dataset(self) -> Dataset | None:
        """By the first server of the dsn; without a schema it is taken to be `public`."""
        import psycopg  # noqa: PLC0415 - as above

        dsn = psycopg.conninfo.conninfo_to_dict(self.with_secrets().dsn)
        host, port, database = (
            str(dsn.get(word) or os.environ.get(variable) or "").split(",")[0]
            for word, variable in (("host", "PGHOST"), ("port", "PGPORT"), ("dbname", "PGDATABASE"))
        )
        if not database or dsn.get("service"):
            return None
        server = "localhost" if not host or host.startswith("/") else host
        table = read_name(self.table)
        return Dataset(f"postgres://{server}:{port or 5432}", f"{database}.{table.schema or 'public'}.{table.table}")


def _check_dsn(sink: Postgres, dsn: str) -> None:
    """Check it here: libpq's own error about a bad dsn quotes it, with the password."""
    import psycopg  # noqa: PLC0415 - as above

    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        pass
    else:
        return
    raise BadConfig(
        "bad_dsn",
        "Postgres: invalid dsn (not shown, because it may contain a password).",
        next="Write host=… dbname=… user=…, with single quotes around values that contain spaces or quotes, or a URL "
        "postgresql://user@host/dbname with special characters percent-encoded.",
    ).at(sink=sink.name)
