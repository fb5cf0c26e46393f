"""`fencepost explain`: what an error code means and what to do."""

from __future__ import annotations

import json
from itertools import groupby

import click

from fencepost.cli.catalogue import Entry, load, near
from fencepost.errors import UNCHANGED, BadConfig


@click.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def explain(code: str | None, as_json: bool) -> None:
    """Say what an error code means and what to do.

    CODE is the word in brackets at the beginning of an error: [target_silent]. Without it, all codes are listed.
    """
    known = load()
    if code is None:
        _list(list(known.values()), as_json=as_json)
        return
    entry = known.get(code.strip("[] ").lower())
    if entry is None:
        meant = ", ".join(near(code.lower(), list(known)))
        raise BadConfig(
            "unknown_code",
            f"There is no error code {code!r}.",
            safe=UNCHANGED,
            next=f"Did you mean: {meant}?" if meant else "`fencepost explain` lists them all.",
        )
    if as_json:
        click.echo(json.dumps(_plain(entry), indent=1))
        return
    click.echo(entry.code)
    click.echo(click.wrap_text(f"means: {entry.means}", 100, "  ", "         "))
    click.echo(click.wrap_text(f"do:    {entry.do}", 100, "  ", "         "))


def _list(entries: list[Entry], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_plain(entry) for entry in entries], indent=1))
        return
    for number, (theme, group) in enumerate(groupby(entries, key=lambda entry: entry.theme)):
        click.echo(f"{'' if number == 0 else chr(10)}{theme}")
        for entry in group:
            first = entry.means.partition(". ")[0].rstrip(".")
            click.echo(f"  {entry.code:<30}{first if len(first) <= 85 else first[:84] + '…'}")


def _plain(entry: Entry) -> dict[str, str]:
    return {"code": entry.code, "means": entry.means, "do": entry.do, "theme": entry.theme}
