"""`fencepost ui`: every job of this machine in a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencepost.admin import savepoint as savepoints
from fencepost.admin.doctor import diagnose
from fencepost.admin.verify import compare
from fencepost.cli import doctor, savepoint, stop, verify
from fencepost.cli.codes import load
from fencepost.cli.frame import quiet
from fencepost.cli.lookup import JOB, find, told
from fencepost.cli.status import lines_of as lines_of_health
from fencepost.errors import UNCHANGED, BadConfig, CheckpointRefused, Exit, Where, require
from fencepost.observe import registry
from fencepost.observe.archive import JobArchive
from fencepost.observe.commands import Wish
from fencepost.observe.terminal import Tell
from fencepost.spark import gateway
from fencepost.store import Place, place

if TYPE_CHECKING:
    from fencepost.job import Job
    from fencepost.ui.actions import Deed
    from fencepost.ui.targets import Targets

PATIENCE = "60s"
"""How long a page waits for a job to end; the request stands, also after that."""
Say = Callable[[str], object]


@click.command()
@click.argument("named", metavar="[JOB]...", shell_complete=JOB.shell_complete, nargs=-1)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9180,
    show_default=True,
    help="The port on this machine; 0: any that is free.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open it in the browser.")
@click.option(
    "--actions", "has_actions", is_flag=True, help="Also stop, cancel, savepoint, verify and doctor, with a token."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="The token, in a file that only you can read; without it one is made and printed.",
)
def ui(named: Sequence[str], port: int, is_opened: bool, has_actions: bool, token_file: Path | None) -> None:
    """Show jobs in a browser: epochs, sinks, starts, failures, state; running, stopped or dead.

    Shown are the jobs that were started on this machine, and every JOB that is named: a file, a name or a checkpoint
    (a folder, or its URL). Only this machine can open the pages (through `ssh -L 9180:127.0.0.1:9180 HOST` yours can
    too). Nothing is changed, and no row is shown. Ctrl-C ends it.

    Without a FILE only checkpoints are read. A FILE is run without arguments to find its jobs and their sinks, for
    which Spark is started and ended again; then the pages ask these sinks what they hold, and where dead letters were
    read.

    With --actions whoever gives the token that is printed can stop or cancel a job, make a savepoint, and run verify
    (without its sinks) and doctor; the job's journal notes who asked.
    """
    require("ui_missing", "starlette", "uvicorn", "jinja2", extra="ui", purpose="for `fencepost ui`")
    from fencepost.ui import actions, api, listener  # noqa: PLC0415 - of an extra
    from fencepost.ui.application import Explained, application  # noqa: PLC0415 - as above
    from fencepost.ui.shelf import Shelf  # noqa: PLC0415 - as above

    @cache
    def codes() -> Sequence[Explained]:
        return [
            Explained(entry.code, entry.theme, entry.more, [asdict(told) for told in entry.told])
            for entry in load().values()
        ]

    if token_file is not None and not has_actions:
        raise BadConfig(
            "token_unused",
            "--token-file is for --actions, which is not given.",
            safe=UNCHANGED,
            next="Add --actions, or leave --token-file out.",
        )
    shown = jobs_named(named)
    token = actions.new_token() if token_file is None else actions.token_of(token_file)
    desk = actions.Desk(deeds(), token) if has_actions else None
    shelf = Shelf(shown[0], targets=shown[1])
    app = application(shelf, codes, api.routes(shelf, codes), desk)
    with listener.listen(port) as opened:
        address = f"http://{listener.LOOPBACK}:{opened.getsockname()[1]}/"
        click.echo(address)
        if has_actions and token_file is None:
            click.echo(f"The token for actions: {token}")
        click.echo("Ctrl-C ends it.", err=True)
        if is_opened:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):  # how it is meant to end
            listener.serve(app, opened)


def jobs_named(named: Sequence[str]) -> tuple[list[Place], dict[str, Targets]]:
    """The checkpoints that are meant; and by key, the sinks of the jobs whose files are."""
    from fencepost.ui.targets import Targets  # noqa: PLC0415 - as below

    places: list[Place] = []
    targets: dict[str, Targets] = {}
    files: dict[str, str] = {}
    for text in named:
        if not Path(text).is_file():
            places.append(find(text))
            continue
        for job in _jobs_in(Path(text)):
            where = place(job.checkpoint)
            _check_is_its_own(job.name, where, text)
            key = registry.key_of(where)
            if key in files:
                raise BadConfig(
                    "checkpoint_twice",
                    f"Job {job.name!r} in {text} has the checkpoint of another one that was named, in {files[key]}.",
                    where=Where(job=job.name, path=str(where)),
                    safe=UNCHANGED,
                    next="Name one FILE for each checkpoint. Two jobs need a checkpoint of their own each.",
                )
            files[key] = text
            places.append(where)
            targets[key] = Targets(job._sinks, job._dead)
    return places, targets


def _jobs_in(file: Path) -> list[Job]:
    """The file is run for them. Spark is ended: no sink needs it to be asked, and the pages may be open for weeks."""
    from fencepost.cli.check import jobs_of  # noqa: PLC0415 - Spark is wanted by nothing else here

    with quiet():
        jobs = jobs_of(file)
        gateway.end()
    return jobs


def _check_is_its_own(job: str, where: Place, file: str) -> None:
    """Refuse a checkpoint that another job has, or that no job has begun: its sinks would be asked in vain."""
    try:
        with told(where):
            owner = JobArchive(where).ledger().lineage.job
    except CheckpointRefused as error:
        if error.code != "no_ledger":
            return  # damaged: its page says so
        raise BadConfig(
            "not_started",
            f"Job {job!r} has this checkpoint in {file}, and no job was ever started on it.",
            where=Where(job=job, path=str(where)),
            safe=UNCHANGED,
            next="Start the job once. If it runs on another checkpoint, set that one in FILE, or name the checkpoint "
            "in place of FILE: then its sinks are not asked.",
        ) from error
    if owner != job:
        raise BadConfig(
            "another_job",
            f"Job {job!r} has this checkpoint in {file}, but the checkpoint belongs to job {owner!r}.",
            where=Where(job=job, path=str(where)),
            safe=UNCHANGED,
            next=f"Name the file of job {owner!r}, or the checkpoint in place of FILE: then its sinks are not asked.",
        )


def deeds() -> list[Deed]:
    """The commands that the pages offer: the same functions, with a page instead of a terminal."""
    from fencepost.ui.actions import Deed  # noqa: PLC0415 - of an extra

    return [
        Deed(
            name="stop",
            title="Stop",
            command="fencepost stop",
            what="Lets the job finish its epoch, then ends it and its supervisor. The next start continues after it.",
            do=partial(_end, "stop"),
            must_confirm=True,
        ),
        Deed(
            name="cancel",
            title="Cancel",
            command="fencepost cancel",
            what="Ends the job at once. An epoch whose tasks are running is dropped and reruns at the next start. "
            'The checkpoint stays, unless the job has on_cancel="delete".',
            do=partial(_end, "cancel"),
            must_confirm=True,
        ),
        Deed(
            name="savepoint",
            title="Savepoint",
            command="fencepost savepoint create",
            what="Copies the newest complete epoch beside the checkpoint, and verifies the copy. The job goes on.",
            do=_save,
        ),
        Deed(
            name="verify",
            title="Verify",
            command="fencepost verify",
            what="Compares the ledger with Spark's own log, epoch by epoch. Sinks are not asked: the command does "
            "that with the job's FILE.",
            do=_verify,
        ),
        Deed(
            name="doctor",
            title="Doctor",
            command="fencepost doctor",
            what="Checks every file of the checkpoint for damage, and says what to do. Nothing is changed.",
            do=_diagnose,
        ),
    ]


def _end(wish: Wish, root: Place, tell: Tell, say: Say) -> bool:
    def show(health: Any) -> None:
        for line in lines_of_health(health):
            say(line)

    with told(root):
        return stop.end(root, wish, PATIENCE, stop.Voice(say, say, show)) is Exit.FINE


def _save(root: Place, tell: Tell, say: Say) -> bool:
    made = savepoints.create(root, tell=tell)
    say(savepoint.line_of(made))
    say(str(made.path))
    return True


def _verify(root: Place, tell: Tell, say: Say) -> bool:
    found = compare(root, None, None, tell)
    for line in (*verify.lines_of(found), *verify.hints_of(found)):
        say(line)
    return verify.EXITS[found.verdict] is Exit.FINE


def _diagnose(root: Place, tell: Tell, say: Say) -> bool:
    found = diagnose(root, (), tell)
    for line in doctor.lines_of(found):
        say(line)
    return found.is_whole
