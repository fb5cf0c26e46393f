"""`fencepost state`: look into what a job remembers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fencepost.admin.state import Inside, Operator, View, check_target, count, differences, export, look, read_state
from fencepost.cli.frame import quiet
from fencepost.cli.lookup import JOB
from fencepost.spark.spark_session import make_session
from fencepost.store import Place

_checkpoint = click.argument("checkpoint", metavar="JOB", type=JOB)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_epoch = click.option("--epoch", type=click.IntRange(min=0), help="The state after this epoch; by default the newest.")
_operator = click.option("--operator", type=int, help="Which operator, if there are several; `ls` lists them.")
_view = click.option(
    "--side", "--var", "--store", "part", help="Which part of the operator's state; `ls` lists them: left, right, …"
)
SESSION = {"spark.master": "local[*]", "spark.ui.enabled": "false"}


@click.group()
def state() -> None:
    """Look into a job's state; the job may be running.

    JOB is its file, its name or its checkpoint folder.

    Nothing is written to the checkpoint. Only complete epochs are shown. Times are UTC. Exit code 1: the key is not
    there; 2: the command could not be done.
    """


@state.command("ls")
@_checkpoint
@click.option("--count", "counted", is_flag=True, help="Also count the keys; this starts Spark and reads all of them.")
@_json
def list_command(checkpoint: Place, counted: bool, as_json: bool) -> None:
    """List the operators with state: parts, partitions, bytes, skew, and the epochs that can be read."""
    found = look(checkpoint)
    keys = _count(found) if counted and found.operators else {}
    if as_json:
        click.echo(json.dumps(_listed(found, keys), indent=1))
        return
    epochs = f"{found.epochs[0]} to {found.epochs[-1]}" if found.epochs else "none yet"
    click.echo(f"job {found.ledger.lineage.job}, epochs that can be read: {epochs}")
    for operator in found.operators:
        skew = "" if operator.skew is None else f", largest partition {operator.skew} × the median"
        click.echo(f"operator {operator.id}  {operator.name}, {sum(operator.bytes)} bytes{skew}")
        for view in operator.views:
            counted_keys = keys.get((operator.id, view.name))
            click.echo(f"  {view.name}  ({view.kind})" + ("" if counted_keys is None else f"  {counted_keys} keys"))
        for number, size in enumerate(operator.bytes):
            click.echo(f"  partition {number}  {size} bytes")
    if not found.operators:
        click.echo("The job keeps no state.", err=True)


@state.command()
@_checkpoint
@click.argument("key", nargs=-1, required=True)
@_epoch
@_operator
@_view
@_json
def get(  # noqa: PLR0917 - click calls it by keyword
    checkpoint: Place, key: tuple[str, ...], epoch: int | None, operator: int | None, part: str | None, as_json: bool
) -> None:
    """Show what is kept under KEY: COLUMN=VALUE …, or the values in the order of the key's columns.

    Columns that you leave out match anything: `get JOB user=anna` shows all of anna's windows.
    """
    found, chosen, number = _chosen(checkpoint, operator, epoch)
    views = found.views(chosen, part)
    spark = _spark()
    rows = {view.name: read_state(spark, found, chosen, view, epoch=number, key=key) for view in views}
    if as_json:
        said = {name: [{"key": k, "value": v} for k, v in mine] for name, mine in rows.items()}
        click.echo(json.dumps({"operator": chosen.id, "epoch": number, "state": said}, indent=1))
    else:
        click.echo(f"operator {chosen.id} ({chosen.name}) after epoch {number}", err=True)
        for name, mine in rows.items():
            for row in mine:
                click.echo("  ".join([*([name] if len(views) > 1 else []), *map(_text, row)]))
    if not any(rows.values()):
        click.echo("No such key.", err=True)
        sys.exit(1)


@state.command()
@_checkpoint
@click.option("--epochs", nargs=2, type=click.IntRange(min=0), required=True, metavar="A B", help="Before and after.")
@_operator
@_view
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many keys to show.")
@_json
def diff(  # noqa: PLR0917 - click calls it by keyword
    checkpoint: Place, epochs: tuple[int, int], operator: int | None, part: str | None, limit: int, as_json: bool
) -> None:
    """Show which keys were added, removed and changed from epoch A to epoch B."""
    found, chosen, _ = _chosen(checkpoint, operator, None)
    pair = (found.epoch(epochs[0]), found.epoch(epochs[1]))
    spark = _spark()
    told = {}
    for view in found.views(chosen, part):
        told[view.name] = differences(spark, found, chosen, view, pair, limit=limit)
    if as_json:
        said = {
            name: {
                **one.counts,
                "keys": [dict(zip(("what", "key", "before", "after"), row, strict=True)) for row in one.rows],
            }
            for name, one in told.items()
        }
        click.echo(json.dumps({"operator": chosen.id, "epochs": pair, "state": said}, indent=1))
        return
    for name, one in told.items():
        click.echo(f"{name}: " + ", ".join(f"{number} {what}" for what, number in one.counts.items()))
        for what, key, before, after in one.rows:
            click.echo(f"  {what}  {_text(key)}  {_text(before)} → {_text(after)}")
        left = sum(one.counts.values()) - len(one.rows)
        if left:
            click.echo(f"  … and {left} more (--limit)", err=True)


@state.command("export")
@_checkpoint
@click.option("--to", type=click.Path(path_type=Path), required=True, help="FILE.parquet, FILE.json or FILE.csv.")
@_epoch
@_operator
@_view
def export_command(checkpoint: Place, to: Path, epoch: int | None, operator: int | None, part: str | None) -> None:
    """Write the state of one operator into a new file. Prints the file's name."""
    found, chosen, number = _chosen(checkpoint, operator, epoch)
    view = found.one_view(chosen, part)
    check_target(found, to)
    export(_spark(), found, chosen, view, epoch=number, to=to)
    click.echo(f"operator {chosen.id} ({chosen.name}), {view.name}, after epoch {number}", err=True)
    click.echo(to)


def _chosen(checkpoint: Place, operator: int | None, epoch: int | None) -> tuple[Inside, Operator, int]:
    found = look(checkpoint)
    return found, found.operator(operator), found.epoch(epoch)


def _listed(found: Inside, keys: dict[tuple[int, str], int]) -> dict[str, Any]:
    def part(operator: Operator, view: View) -> dict[str, Any]:
        counted = keys.get((operator.id, view.name))
        return {"name": view.name, "kind": view.kind} | ({} if counted is None else {"keys": counted})

    return {
        "job": found.ledger.lineage.job,
        "epochs": list(found.epochs),
        "operators": [
            {
                "id": one.id,
                "name": one.name,
                "partitions": one.partitions,
                "bytes": list(one.bytes),
                "skew": one.skew,
                "parts": [part(one, view) for view in one.views],
            }
            for one in found.operators
        ],
    }


def _count(found: Inside) -> dict[tuple[int, str], int]:
    spark, epoch = _spark(), found.epoch(None)
    return {
        (operator.id, view.name): count(spark, found, operator, view, epoch)
        for operator in found.operators
        for view in operator.views
    }


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spark() -> Any:
    with quiet():
        return make_session("fencepost state", SESSION)
