"""A cluster that refuses the log-in or a right is refused at once, everywhere; one that is down is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra import AlreadyExists, AuthenticationFailed, Unauthorized
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable
from fencepost_proof.rig.cassandra import Cassandra as Server

from fencepost import Cassandra
from fencepost.connectors.cassandra.server import _in_our_words
from fencepost.connectors.table.database import Denied, NotAllowed, Silent
from fencepost.contract import Session
from fencepost.errors import EpochFailed, FencepostError, Retryable, TargetRefused
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": ["a"], "v": [1]})
LOG_IN = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    **dict.fromkeys(("roles_validity", "permissions_validity", "credentials_validity"), "0ms"),
}
REFUSED = dict.fromkeys(("start", "check", "open", "vote"), (TargetRefused, "target_unusable"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "server", settings=LOG_IN) as running:
        yield running


def as_admin(server: Server, *statements: str) -> None:
    end = time.monotonic() + 60
    left = list(statements)
    while left:
        log_in = PlainTextAuthProvider("cassandra", "cassandra")
        with Cluster(["127.0.0.1"], port=server.port, auth_provider=log_in, protocol_version=5) as cluster:
            try:
                session = cluster.connect()
                while left:
                    session.execute(left[0], timeout=30)
                    left.pop(0)
            except NoHostAvailable:  # the first start makes this user a moment later; a busy node turns requests away
                assert time.monotonic() < end
                time.sleep(0.2)
            except AlreadyExists:  # it was done before it was turned away
                left.pop(0)


def everywhere(sink: Cassandra, running: SinkDriver) -> dict[str, tuple[type[FencepostError], str]]:
    """What every way to the cluster says: a start, `fencepost check`, a session that opens, a vote."""

    def said(ask: Callable[[Session], object]) -> tuple[type[FencepostError], str]:
        session = sink.session("job")
        try:
            with pytest.raises(FencepostError) as error:
                ask(session)
        finally:
            session.close()
        assert f" at 127.0.0.1:{sink.port} " in error.value.what, "it does not say which cluster"
        return type(error.value), error.value.code

    handle = running.pre_commit(1, TABLE)
    return {
        "start": said(lambda session: session.preflight(TABLE.schema, "append")),
        "check": said(lambda session: session.rehearse(TABLE.schema, "append")),
        "open": said(lambda session: session.open(running.owner)),
        "vote": said(lambda _: running.vote(1, handle)),
    }


@pytest.mark.server
def test_a_wrong_password_and_a_missing_right_are_refused_everywhere_and_a_cluster_that_is_down_is_waited_for(
    server: Server, tmp_path: Path
) -> None:
    as_admin(
        server,
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE ROLE app WITH PASSWORD = 'right' AND LOGIN = true",
        "GRANT ALL ON KEYSPACE shop TO app",
        "GRANT SELECT ON system_views.settings TO app",
    )

    def sink(user: str | None = "app", password: str | None = "right") -> Cassandra:  # noqa: S107 - a test's
        return Cassandra("shop.words", port=server.port, key="k", user=user, password=password)

    driver = SinkDriver(sink(), tmp_path)
    driver.start(TABLE.schema)
    handle = driver.run(0, TABLE)

    tables = ("words", "fencepost_epoch", "fencepost_target")  # who makes a table has all rights to it
    as_admin(server, *(f"REVOKE ALL ON {what} FROM app" for what in ("KEYSPACE shop", *(f"shop.{t}" for t in tables))))
    assert REFUSED == everywhere(sink(), driver)
    assert "it cannot be used: this user lacks a permission" == driver.look({0: handle}).why

    as_admin(server, "GRANT ALL ON KEYSPACE shop TO app", "ALTER ROLE app WITH PASSWORD = 'other'")
    driver.session.close()  # a connection that was let in stays in
    assert REFUSED == everywhere(sink(), driver)
    for user, password in (("nobody", "right"), (None, None)):
        assert REFUSED == everywhere(sink(user, password), driver)
    assert "it cannot be used: it refused the login" == driver.look({0: handle}).why

    other = sink(password="other")  # noqa: S106 - a test's
    driver = SinkDriver(other, tmp_path, writer=2)
    driver.start(TABLE.schema)
    server.kill()
    silent = dict.fromkeys(("start", "check", "open"), (Retryable, "target_silent"))
    assert silent | {"vote": (EpochFailed, "target_silent")} == everywhere(other, driver)
    assert driver.look({0: handle}).why.startswith("no node answers")
    driver.session.close()


def no_host(cause: Exception) -> NoHostAvailable:
    return NoHostAvailable("Unable to connect to any servers", {"127.0.0.1": cause})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (no_host(AuthenticationFailed("Provided username app and/or password are incorrect")), Denied),
        (no_host(AuthenticationFailed("Remote end requires authentication")), Denied),
        (no_host(AuthenticationFailed("Unable to perform authentication: Cannot achieve consistency")), Silent),
        (no_host(ConnectionRefusedError()), Silent),
        (Unauthorized(), NotAllowed),
    ],
)
def test_what_an_error_of_the_client_means(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as found, _in_our_words():
        raise error
    assert kind is found.type
