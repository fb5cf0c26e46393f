"""What can be asked for on the pages, with `--actions` alone: stop, cancel, savepoint, verify, doctor.

    GET  /jobs/KEY/actions         the forms, and what came of what was asked; without a session, the form for the token
    POST /token                    the token that was printed at the start: opens a session
    POST /jobs/KEY/actions/NAME    one action: noted in the job's journal, then done in a thread of its own

A session is a random number in a cookie that no script sees and that no other site sends. Ports of one machine are one
site to a browser, so this is not enough: every form also carries a number made for this session, job and action, and
the Origin has to be the page's own (application.py). Never puts the token into a page, a journal or an error.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fencepost.errors import UNCHANGED, BadConfig, FencepostError, Where, now
from fencepost.observe import journal
from fencepost.observe.events import Event, Kind
from fencepost.observe.terminal import Tell
from fencepost.store import Place
from fencepost.store.refusal import unreadable
from fencepost.ui.shelf import Shelf, ShownJob

SHORTEST: Final = 16
"""Characters of a token that somebody chose."""
LONGEST_FORM: Final = 4096
FORM_S: Final = 10.0
"""How long a form may take to arrive."""
SESSIONS: Final = 100
"""The oldest one has to give the token again."""
KEPT: Final = 20
"""Of what was asked for a job."""
NAMED: Final = 60
"""Characters of a person's name."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One action: the command of the same name."""

    name: str
    title: str
    command: str
    """The same in a terminal, without the job."""
    what: str
    """What it does, for somebody who is about to ask for it."""
    do: Callable[[Place, Tell, Say], bool]
    """False: it found something, or did not come to its end."""
    must_confirm: bool = False


@dataclass(slots=True, kw_only=True)
class Task:
    """One that was asked for."""

    deed: Deed
    by: str
    at: float
    lines: list[str] = field(default_factory=list)
    progress: str = ""
    error: FencepostError | None = None
    is_over: bool = False
    is_fine: bool = False

    def tell(self, what: str, done: int, total: int) -> None:
        """How far it is."""
        self.progress = f"{what}: {done:,} of {total:,} files" if total else what

    @property
    def tone(self) -> str:
        """Its colour."""
        return "busy" if not self.is_over else "good" if self.is_fine else "bad" if self.error else "warn"


class Desk:
    """Who may ask, and what was asked."""

    def __init__(self, deeds: Sequence[Deed], token: str) -> None:
        self.deeds: Mapping[str, Deed] = {deed.name: deed for deed in deeds}
        self.cookie = f"fencepost-{secrets.token_hex(4)}"
        """Cookies do not know ports: another `fencepost ui` of this machine has one of its own."""
        self._token = token
        self._seed = secrets.token_bytes(32)
        self._sessions: dict[str, str] = {}
        self._tasks: dict[str, deque[Task]] = {}
        self._change = threading.Lock()

    def enter(self, token: str, name: str) -> str:
        """A session for whoever has the token."""
        if not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise BadConfig(
                "token_wrong",
                "This is not the token.",
                safe=UNCHANGED,
                next="Copy it from where `fencepost ui --actions` was started, or from the file of --token-file.",
            )
        made = secrets.token_urlsafe(32)
        with self._change:
            self._sessions[made] = _name(name)
            while len(self._sessions) > SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return made

    def who(self, session: str | None) -> str | None:
        """The name of whoever has this session."""
        return self._sessions.get(session or "")

    def seal(self, session: str | None, *purpose: str) -> str:
        """What only a form made for this session and purpose carries."""
        text = "\0".join((session or "", *purpose))
        return hmac.new(self._seed, text.encode(), hashlib.sha256).hexdigest()

    def check(self, given: str | None, session: str | None, *purpose: str) -> None:
        """Is it a form of ours?"""
        if not hmac.compare_digest((given or "").encode(), self.seal(session, *purpose).encode()):
            raise BadConfig(
                "form_refused",
                "This form was not made by this page for you, or `fencepost ui` was started again since.",
                safe=UNCHANGED,
                next="Load the page again and use the form there.",
            )

    def tasks(self, key: str) -> list[Task]:
        """What was asked for a job, newest first."""
        with self._change:
            return list(reversed(self._tasks.get(key, ())))

    def ask(self, job: ShownJob, deed: Deed, by: str) -> Task:
        """Note it in the journal and begin; the same action of a job once at a time."""
        with self._change:
            asked = self._tasks.setdefault(job.key, deque(maxlen=KEPT))
            if any(task.deed is deed and not task.is_over for task in asked):
                raise BadConfig(
                    "action_runs",
                    f"{deed.title} was asked for already, and is not over.",
                    safe=UNCHANGED,
                    next="Wait until it is; the page shows how far it is.",
                )
            task = Task(deed=deed, by=by, at=time.time())
            root = job.archive.root
            journal.begin(root)
            said = f"{deed.name}, asked by {by} on the pages of {_user()}"
            event = Event(kind=Kind.ASKED, job=job.name, at=now(), pid=os.getpid(), what=said)
            if not journal.Journal(root).note(event):
                raise BadConfig(
                    "journal_unwritable",
                    f"{deed.title} was not done: the job's journal cannot be written, and it has to say who asked.",
                    where=Where(job=job.name, path=str(root)),
                    safe=UNCHANGED,
                    next=f"Make the journal writable, or type it in a terminal: {deed.command} {root}",
                )
            threading.Thread(target=_do, args=(task, root), name=f"fencepost {deed.name}", daemon=True).start()
            asked.append(task)
        return task


def _do(task: Task, root: Place) -> None:
    try:
        task.is_fine = task.deed.do(root, task.tell, task.lines.append)
    except FencepostError as error:
        task.error = error
    except OSError as error:
        task.error = unreadable(error, str(root))
    except Exception as error:  # noqa: BLE001 - its type alone: a message might quote what it read
        task.error = FencepostError(
            "action_failed",
            f"{task.deed.title} failed: {type(error).__name__}.",
            safe="What is decided is safe; this action only did what its command does.",
            next=f"Run it in a terminal: {task.deed.command} {root}",
        )
    finally:
        task.is_over = True


def _name(given: str) -> str:
    kept = "".join(letter for letter in given if letter.isprintable()).strip()[:NAMED]
    return kept or "somebody"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name
        return f"user {os.getuid()}"


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(24)


def token_of(path: Path) -> str:
    """The first line of a file that nobody else can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise _bad_file(path, why) from error
    if mode & 0o077:
        raise _bad_file(path, "other users may read or change it; chmod 600 keeps them out")
    if len(text) < SHORTEST:
        raise _bad_file(path, f"its first line has fewer than {SHORTEST} characters")
    return text


def _bad_file(path: Path, why: str) -> BadConfig:
    return BadConfig(
        "token_file",
        f"Cannot take the token from {str(path)!r}: {why}.",
        safe=UNCHANGED,
        next="Write a long random text into it that only you can read, or leave --token-file out: then one is made.",
    )


# --- pages


class Frame(Protocol):
    """What makes a page."""

    def __call__(self, template: str, *, status: int = 200, **facts: object) -> Response: ...


class Stream(Protocol):
    """What tells an open page what moves."""

    def __call__(self, request: Request, name: str, parts: Callable[[], dict[str, str]]) -> Response: ...


class ActionPages:
    """The forms, and where they lead."""

    def __init__(  # noqa: PLR0917 - what the other pages have
        self,
        shelf: Shelf,
        desk: Desk,
        page: Frame,
        part: Callable[..., str],
        stream: Stream,
        forget: Callable[[str], object],
    ) -> None:
        self._forget = forget
        self._shelf = shelf
        self._desk = desk
        self._page = page
        self._part = part
        self._stream = stream

    def routes(self) -> list[Route]:
        """The only ones that take a POST."""
        return [
            Route("/token", self.enter, methods=["POST"]),
            Route("/jobs/{key}/actions", self.forms),
            Route("/jobs/{key}/actions/live", self.live),
            Route("/jobs/{key}/actions/{name}", self.ask, methods=["POST"]),
        ]

    async def forms(self, request: Request) -> Response:
        """The page of a job's actions."""
        job = self._shelf.job(request.path_params["key"])
        return await self._forms(job, self._session(request))

    async def live(self, request: Request) -> Response:
        """What comes of them."""
        job = self._shelf.job(request.path_params["key"])
        self._known(request)

        def parts() -> dict[str, str]:
            tasks = self._part("tasks", tasks=self._desk.tasks(job.key))
            return {"live-head": self._part("head", job=job.glance()), "live-tasks": tasks}

        return self._stream(request, _stream_of(job), parts)

    async def enter(self, request: Request) -> Response:
        """The token, once."""
        given = await _form(request)
        job = self._shelf.job(given.get("job", ""))
        self._desk.check(given.get("seal"), None, "token", job.key)
        try:
            session = self._desk.enter(given.get("token", ""), given.get("name", ""))
        except BadConfig as error:
            return await self._forms(job, None, error)
        answer = RedirectResponse(f"/jobs/{job.key}/actions", 303)
        answer.set_cookie(self._desk.cookie, session, path="/", httponly=True, samesite="strict")
        return answer

    async def ask(self, request: Request) -> Response:
        """One action."""
        session, by = self._known(request)
        given = await _form(request)
        job = self._shelf.job(request.path_params["key"])
        deed = self._desk.deeds.get(request.path_params["name"])
        if deed is None:
            raise BadConfig("no_page", "Unknown action.", safe=UNCHANGED, next="Use one of the forms on the page.")
        self._desk.check(given.get("seal"), session, job.key, deed.name)
        if deed.must_confirm and given.get("sure") != "yes":
            raise BadConfig(
                "not_confirmed",
                f"{deed.title} was not confirmed.",
                safe=UNCHANGED,
                next="Mark the box beside the button, and ask again.",
            )
        await run_in_threadpool(self._desk.ask, job, deed, by)
        self._forget(_stream_of(job))  # or the next page would first be told what was there before
        return RedirectResponse(f"/jobs/{job.key}/actions", 303)

    async def _forms(self, job: ShownJob, session: str | None, error: BadConfig | None = None) -> Response:
        glance = await run_in_threadpool(job.glance)
        by = self._desk.who(session)
        seals = {name: self._desk.seal(session, job.key, name) for name in self._desk.deeds} if by else {}
        return self._page(
            "actions.html",
            status=403 if error else 200,
            tab="actions",
            job=glance,
            live=f"/jobs/{job.key}/actions/live" if by else None,
            by=by,
            error=error,
            deeds=list(self._desk.deeds.values()),
            seals=seals,
            entrance=self._desk.seal(None, "token", job.key),
            tasks=self._desk.tasks(job.key) if by else [],
        )

    def _session(self, request: Request) -> str | None:
        return request.cookies.get(self._desk.cookie)

    def _known(self, request: Request) -> tuple[str, str]:
        session = self._session(request)
        by = self._desk.who(session)
        if session is None or by is None:
            raise BadConfig(
                "token_needed",
                "Actions need the token that was printed when these pages were started.",
                safe=UNCHANGED,
                next="Open the page Actions of the job and give the token there.",
            )
        return session, by


def _stream_of(job: ShownJob) -> str:
    return f"{job.key} actions"


async def _form(request: Request) -> dict[str, str]:
    data = b""
    with suppress(ValueError, TimeoutError):
        if request.headers.get("content-type", "").partition(";")[0].strip() == "application/x-www-form-urlencoded":
            async with asyncio.timeout(FORM_S):
                async for piece in request.stream():
                    data += piece
                    if len(data) > LONGEST_FORM:
                        break
                else:
                    return dict(parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=10))
    raise BadConfig("bad_form", "This is not a form of these pages.", safe=UNCHANGED, next="Use the form of the page.")
