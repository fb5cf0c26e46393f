"""`fencepost ui`: every job of this machine in a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache

import click

from fencepost.cli.codes import load
from fencepost.cli.lookup import JOB
from fencepost.errors import require
from fencepost.store import Place


@click.command()
@click.argument("checkpoints", metavar="[JOB]...", type=JOB, nargs=-1)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9180,
    show_default=True,
    help="The port on this machine; 0: any that is free.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open it in the browser.")
def ui(checkpoints: Sequence[Place], port: int, is_opened: bool) -> None:
    """Show jobs in a browser: epochs, sinks, starts, failures, state; running, stopped or dead.

    Shown are the jobs that were started on this machine, and every JOB that is named: a file, a name or a checkpoint
    (a folder, or its URL). Only this machine can open the pages (through `ssh -L 9180:127.0.0.1:9180 HOST` yours can
    too). Only files are read: nothing is changed, no sink is asked, and no row is shown. Ctrl-C ends it.
    """
    require("ui_missing", "starlette", "uvicorn", "jinja2", extra="ui", purpose="for `fencepost ui`")
    from fencepost.ui import api, listener  # noqa: PLC0415 - of an extra
    from fencepost.ui.application import Explained, application  # noqa: PLC0415 - as above
    from fencepost.ui.shelf import Shelf  # noqa: PLC0415 - as above

    @cache
    def codes() -> Sequence[Explained]:
        return [
            Explained(entry.code, entry.theme, entry.more, [asdict(told) for told in entry.told])
            for entry in load().values()
        ]

    shelf = Shelf(checkpoints)
    app = application(shelf, codes, api.routes(shelf, codes))
    with listener.listen(port) as opened:
        address = f"http://{listener.LOOPBACK}:{opened.getsockname()[1]}/"
        click.echo(address)
        click.echo("Ctrl-C ends it.", err=True)
        if is_opened:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # how it is meant to end
            listener.serve(app, opened)
