"""PostgreSQL keeps no older state: a table is the instant of the epoch that its mark names."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
from fencepost_proof.rig.postgres import Postgres as Server

from fencepost.connectors.postgres.sink import Postgres
from fencepost.testing import SinkDriver

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


def test_the_newest_epoch_is_the_table_as_it_is_and_older_ones_are_gone(place: Any) -> None:
    driver = place.started(place.sink(), TABLE.schema)
    handles = {epoch: driver.run(epoch, TABLE) for epoch in range(3)}
    found = [driver.as_of(epoch, handles) for epoch in range(3)]
    assert [(False, ""), (False, ""), (True, "as it is now")] == [(one.exact, one.text) for one in found]
    assert ["it has moved on to generation 0, epoch 2, and keeps no older state"] * 2 == [one.why for one in found[:2]]
    assert [{"generation": 0, "epoch": 2}] * 3 == [dict(one.facts) for one in found]


def test_a_reader_without_the_right_to_write_may_ask_and_one_without_any_right_is_not_heard(place: Any) -> None:
    handle = place.started(place.sink(), TABLE.schema).run(0, TABLE)
    place.run(f"CREATE ROLE reader_{place.schema} LOGIN")
    place.user = f"reader_{place.schema}"
    asking = SinkDriver(place.sink(), place.folder)
    assert not asking.as_of(0, {0: handle}).exact
    place.run(f"GRANT USAGE ON SCHEMA {place.schema} TO {place.user}")
    place.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {place.schema} TO {place.user}")
    assert asking.as_of(0, {0: handle}).exact


def test_a_table_that_is_locked_and_a_server_that_is_away_are_not_heard(place: Any, own_server: Server) -> None:
    driver = place.started(place.sink(), TABLE.schema)
    handle = driver.run(0, TABLE)
    with psycopg.connect(place.dsn) as connection:
        connection.execute("LOCK TABLE fencepost_epoch IN ACCESS EXCLUSIVE MODE")
        found = driver.as_of(0, {0: handle})
    assert (False, False, True) == (found.heard, found.exact, found.why.startswith("it does not answer"))
    assert driver.as_of(0, {0: handle}).exact
    nowhere = Postgres("words", dsn=own_server.dsn.replace(f"port={own_server.port}", "port=1"))
    found = SinkDriver(nowhere, place.folder).as_of(0, {0: handle})
    assert (False, False) == (found.heard, found.exact)
