"""`fencepost explain`: what an error code means and what to do, in the words of the code that raises it."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict
from itertools import groupby
from typing import Any

import click

from fencepost.cli.codes import UNKNOWN, Entry, load
from fencepost.errors import UNCHANGED, BadConfig


@click.command()
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
            f"Unknown error code {code!r}.",
            safe=UNCHANGED,
            next=f"Did you mean: {meant}?" if meant else "`fencepost explain` lists them all.",
        )
    if as_json:
        click.echo(json.dumps(_plain(entry), indent=1))
    else:
        _show(entry)


def _show(entry: Entry) -> None:
    """The note, then every text of the error; `…` stands for what only the error itself knows."""
    kinds = dict.fromkeys(told.kind for told in entry.told)
    click.echo(f"{entry.code} ({', '.join(kinds)})")
    if entry.more:
        click.echo(click.wrap_text(entry.more, 100, "  ", "  "))
    for told in entry.told:
        click.echo()
        for word, text in (("says", told.says), ("data", told.data), ("next", told.next)):
            if text != UNKNOWN:
                click.echo(click.wrap_text(f"{word}:  {text}", 100, "  ", "         "))


def _list(entries: list[Entry], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_plain(entry) for entry in entries], indent=1))
        return
    for number, (theme, group) in enumerate(groupby(entries, key=lambda entry: entry.theme)):
        click.echo(f"{'' if number == 0 else chr(10)}{theme}")
        for entry in group:
            first = (entry.more or entry.told[0].says).partition(". ")[0].rstrip(".")
            click.echo(f"  {entry.code:<30}{first if len(first) <= 85 else first[:84] + '…'}")


def _plain(entry: Entry) -> dict[str, Any]:
    told = [
        {name: text for name, text in asdict(each).items() if name not in ("code", "module")} for each in entry.told
    ]
    return {"code": entry.code, "theme": entry.theme, "more": entry.more, "told": told}


def near(wanted: str, codes: list[str]) -> list[str]:
    """Codes that may have been meant: by their letters, or by a word of theirs."""
    alike = difflib.get_close_matches(wanted, codes, 5, 0.6)
    return alike or [code for code in codes if set(wanted.split("_")) & set(code.split("_"))][:5]
