"""`job.lineage`: a real query tells an OpenLineage server what it reads and writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ended import wait_until
from lineage_server import receiving_lineage
from streams import Place, table

import fencepost as fp
from fencepost.errors import BadConfig

pytestmark = [pytest.mark.spark]
CANARY = "canary-8d1f"


def test_a_query_names_its_folder_and_its_table_with_positions_and_rows_and_no_option_or_row(
    spark: Any, place: Place
) -> None:
    place.say(CANARY, "b", "c")
    job = place.job(spark)
    lines = job.read(fp.Files(place.input, format="text", max_files_per_epoch=1, options={"password": CANARY}))
    with receiving_lineage() as server:
        job.lineage(server.url, every="1000 s")
        job.lineage(server.url)  # a second call changes nothing
        job.write(lines, fp.SQLite(place.database, table="lines"))
        job.run(until="available")
        wait_until(lambda: "COMPLETE" in server.states)
    assert ["START", "COMPLETE"] == [state for state in server.states if state != "RUNNING"]
    assert server.states.count("RUNNING") <= 1
    last = server.events[-1]
    assert ("file", str(place.input.resolve())) == (last["inputs"][0]["namespace"], last["inputs"][0]["name"])
    assert ("file", f"{place.database.resolve()}:lines") == (
        last["outputs"][0]["namespace"],
        last["outputs"][0]["name"],
    )
    assert [len(table(place.database, "lines"))] == [3] == server.rows("COMPLETE")
    assert [("0", "-", '{"logOffset":2}')] == server.positions("COMPLETE")
    assert CANARY not in json.dumps(server.events)


def test_an_interval_that_is_not_one_is_refused(spark: Any, place: Place) -> None:
    with pytest.raises(BadConfig, match="bad_lineage_every"):
        place.job(spark).lineage("http://127.0.0.1:1", every="soon")
