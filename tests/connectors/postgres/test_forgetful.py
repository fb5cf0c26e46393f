"""PostgreSQL that may forget what it acknowledged, and other ways to lose what one was sure of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fencepost_proof.rig.postgres import Postgres as Server

from fencepost.connectors.postgres.sink import Postgres
from fencepost.errors import EpochFailed, OperatorNeeded, TargetRefused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch
from fencepost.testing import SinkDriver
from fencepost.testing.sink_driver import ANOTHER

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})


def rows(**values: int) -> pa.Table:
    return pa.table({"k": list(values), "v": list(values.values())}, SCHEMA)


@pytest.mark.parametrize("definition", ["", "PARTITION BY LIST (k)"])
def test_an_unlogged_table_is_refused(place: Any, definition: str) -> None:
    if definition:
        place.run(f"CREATE TABLE words (k text, v bigint) {definition}")
        place.run("CREATE UNLOGGED TABLE part PARTITION OF words DEFAULT")
    else:
        place.run("CREATE UNLOGGED TABLE words (k text, v bigint)")
    with pytest.raises(TargetRefused, match=r"(?s)target_forgets.*UNLOGGED"):
        place.started(place.sink(), SCHEMA)
    assert [] == place.query("SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'fence%'")
    place.started(place.sink(durable=False), SCHEMA).run(0, rows(a=1))


@pytest.mark.server
def test_a_server_without_fsync_is_refused_and_lowers_the_guarantee_if_it_is_taken(tmp_path: Path) -> None:
    with Server(tmp_path / "server", settings={"fsync": "off"}) as server:
        driver = SinkDriver(Postgres("words", dsn=server.dsn), tmp_path)
        with pytest.raises(TargetRefused, match=r"(?s)target_forgets.*fsync is off"):
            driver.start(SCHEMA)
        driver.session.close()
    assert not Postgres("words", dsn="", durable=False).capabilities.repeatable


@pytest.mark.parametrize("settings", [{"key": "k"}, {"mode": "replace"}], ids=["upsert", "replace"])
def test_a_plain_write_of_an_older_epoch_stops_the_job(place: Any, settings: dict[str, Any]) -> None:
    driver = place.driver(place.sink(**settings))
    driver.start(SCHEMA, "complete" if "mode" in settings else "append")
    driver.session.write(Epoch(3), driver.rows(3, rows(a=3)))
    driver.session.write(Epoch(3), driver.rows(3, rows(a=33)))
    with pytest.raises(OperatorNeeded, match="target_ahead"):
        driver.session.write(Epoch(2), driver.rows(2, rows(a=2)))
    assert [("a", 33)] == place.query("SELECT * FROM words")


def test_an_empty_result_empties_a_table_that_is_replaced(place: Any) -> None:
    driver = place.driver(place.sink(mode="replace"))
    driver.start(SCHEMA, "complete")
    driver.run(0, rows(a=1, b=2))
    nothing = driver.owner.staging.rows((), driver.sink.name)
    [handle] = driver.session.handles(Epoch(1), nothing)
    assert (0, ()) == (handle.rows, handle.kept)
    driver.session.rollback()
    again = place.driver(place.sink(mode="replace"), writer=2, held=Epoch(0))
    again.start(SCHEMA, "complete")
    assert Outcome.DONE == again.commit(1, handle)
    assert [] == place.query("SELECT * FROM words")


def test_two_checkpoints_of_one_job_name_in_one_process_do_not_share_a_vote(place: Any) -> None:
    one = place.started(place.sink("one", name="one"), SCHEMA)
    two = place.started(place.sink("two", name="two"), SCHEMA, lineage=ANOTHER)
    first = one.pre_commit(0, rows(a=1))
    one.vote(0, first)
    with pytest.raises(EpochFailed, match="newer run of the job"):
        two.vote(0, two.pre_commit(0, rows(b=1)))
    assert [(0, 0)] == place.query("SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")
    assert Outcome.DONE == one.commit(0, first)
    two.run(0, rows(b=1))
    assert [(1, 1)] == place.query("SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)")


def test_two_keyed_sinks_on_one_table_do_not_mix_their_rows(place: Any) -> None:
    place.run("CREATE TABLE words (k text PRIMARY KEY, v bigint)")
    place.run("CREATE TABLE seen (n bigserial)")
    place.run(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN INSERT INTO seen DEFAULT VALUES; RETURN NEW; END'"
    )
    place.run("CREATE TRIGGER see BEFORE INSERT ON words FOR EACH ROW EXECUTE FUNCTION see()")
    drivers = [place.started(place.sink("words", key="k", name=name), SCHEMA) for name in ("a", "b")]
    handles = [driver.pre_commit(0, table) for driver, table in zip(drivers, (rows(x=1, y=1), rows(z=2)), strict=True)]
    for driver, handle in zip(drivers, handles, strict=True):
        driver.vote(0, handle)
    assert [Outcome.DONE] * 2 == [d.commit(0, h) for d, h in zip(drivers, handles, strict=True)]
    assert [(3,)] == place.query("SELECT count(*) FROM seen")
