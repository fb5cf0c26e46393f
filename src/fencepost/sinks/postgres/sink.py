"""PostgreSQL: rows and epoch row in one transaction of one database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

from fencepost.errors import BadConfig
from fencepost.sinks.contract import Capabilities, Session, Sink, WriteInTask
from fencepost.sinks.postgres.names import BadName, read_name
from fencepost.sinks.staged import FEW, Staging
from fencepost.sinks.tables import TableMode, key_of, problem_of, table_capabilities, upserts

__all__ = ["Postgres"]


@dataclass(frozen=True)
class Postgres(Sink):
    """A table in PostgreSQL 14 or newer.

    With `key`, a row replaces the row of the same key, so output mode update works; of two rows with one key in an
    epoch the last one wins (rows of one source partition keep their order). Without a key, rows are appended. An
    epoch becomes visible all at once, and once.

    The mistake people make: a `dsn` of a pooler in transaction mode, or of a standby. The vote holds a transaction open
    until the decision; connect to the primary itself.

    Names are taken as written, case and all: `sales.orders`, or `"Sales"."odd.name"`. Beside the table, its schema
    gets `fencepost_epoch` and `fencepost_target`. The least that a role needs is in `role.sql` beside this module; in
    `role_without_create.sql`, for one that may create nothing.
    """

    table: str
    _: KW_ONLY
    dsn: str = field(repr=False)
    """As libpq reads it: `host=… dbname=… user=…` or `postgresql://…`. Passwords are better kept in a pgpass file. TLS
    is used where the server offers it; `sslmode=verify-full` also checks whose server it is."""
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
    """`postgres:<table>` unless told. The ledger knows the sink by it."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, where the user wrote it."""
        object.__setattr__(self, "name", self.name or f"postgres:{self.table}")
        if problem := _problem(self):
            raise BadConfig("bad_sink", f"Postgres: {problem[0]}.", next=problem[1]).at(sink=self.name)

    @property
    def capabilities(self) -> Capabilities:
        """The epoch row makes commits repeatable, if the server keeps it."""
        return table_capabilities(self, durable=self.durable)

    def session(self, job: str) -> Session:
        """Open the driver's side."""
        _check_dsn(self)
        with client_needed():
            from fencepost.sinks.postgres.session import PostgresSession  # noqa: PLC0415 - psycopg is an extra
        return PostgresSession(self, job)

    def in_tasks(self, job: str) -> WriteInTask | None:
        """The tasks' side, unless the driver is to write everything."""
        if self.staging == "checkpoint":
            return None
        _check_dsn(self)
        with client_needed():
            from fencepost.sinks.postgres.parallel import PostgresTask  # noqa: PLC0415 - as above
        few = FEW if self.staging == "auto" else 0
        return PostgresTask(job, self.name, key_of(self) if upserts(self) else (), few, self.table, self.dsn)


@contextmanager
def client_needed() -> Iterator[None]:
    """Around an import of psycopg, which is an extra."""
    try:
        yield
    except ImportError as error:
        raise BadConfig(
            "no_postgres_client", "psycopg is not installed.", next="pip install 'fencepost[postgres]'"
        ) from error


def _check_dsn(sink: Postgres) -> None:
    """libpq's own error of a dsn that it cannot read quotes it, with the password."""
    with client_needed():
        import psycopg  # noqa: PLC0415 - as above
    try:
        psycopg.conninfo.conninfo_to_dict(sink.dsn)
    except psycopg.Error:
        pass
    else:
        return
    raise BadConfig(
        "bad_dsn",
        "Postgres: the dsn cannot be read (it is not shown, as it may hold a password).",
        next="Write host=… dbname=… user=…, with values that have spaces or quotes in single quotes, or a URL "
        "postgresql://user@host/dbname with percent signs for special characters.",
    ).at(sink=sink.name)


def _problem(sink: Postgres) -> tuple[str, str] | None:
    """What is wrong with the settings, and the cure."""
    try:
        read_name(sink.table)
    except BadName as error:
        return "the table's name cannot be read", f"{str(error)[:1].upper()}{str(error)[1:]}."
    if sink.staging not in ("auto", "checkpoint", "target"):
        return f"staging {sink.staging!r} is not known", 'Use "auto", "checkpoint" or "target".'
    return problem_of(sink)
