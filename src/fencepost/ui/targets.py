"""The sinks of a job whose file was named: each is asked what it holds, and for its dead letters.

    mark      every few seconds at most, in a thread of the sink's own; a page waits for it as for a silent store
    letters   when a page asks, one request at a time; the last answers are kept for a few seconds

Only reads, through connections that live as long as a question. A sink that does not answer holds up no other one: its
page says since when, and what it last said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Final

from fencepost.admin import letters, verify
from fencepost.admin.letters import LetterPage
from fencepost.admin.verify import SinkAnswer
from fencepost.contract import LettersWanted, Sink, place_of
from fencepost.errors import FencepostError
from fencepost.protocol.order import State
from fencepost.store import Place
from fencepost.store.retry import Aside

EVERY_S: Final = 5.0
"""A sink is left alone for as long, however many pages are open."""
PATIENCE_S: Final = 3.0
"""How long a page waits for sinks of which nothing is known."""
SHORT_S: Final = 0.5
"""The same if there is something that can be shown meanwhile."""
KEPT: Final = 50
"""Pages of dead letters that are remembered."""
SLOW: Final = "it has not answered yet"
UNREAD: Final = "the checkpoint cannot be read, so there is nothing to compare its answer with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a sink last said about its newest epoch."""

    answer: SinkAnswer | None = None
    """None if it never answered."""
    at: float = 0.0
    """When that was."""
    since: float | None = None
    """Since when it does not answer; None if it does, or was not asked."""
    why: str = ""
    """Why it does not, or was not asked."""


class AskedSink:
    """One sink."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.sink = sink
        self._change = threading.Lock()
        self._turn = threading.Lock()
        self._marks = Aside(f"mark-{name}", PATIENCE_S)
        self._letters = Aside(f"letters-{name}", PATIENCE_S)
        self._last = Look()
        self._next = 0.0
        self._asked = 0.0
        """When the question began that is under way."""
        self._look: Future[None] | None = None
        self._pages: dict[LettersWanted, tuple[float, LetterPage]] = {}

    def begin(self, root: Place, again: Callable[[], State]) -> None:
        """Ask it for its mark, unless it was asked a moment ago; `look` has the answer."""
        with self._change:
            if time.monotonic() >= self._next and (self._look is None or self._look.done()):
                self._asked = time.time()
                self._look = self._marks.begin(lambda: self._ask(root, again))

    def look(self) -> Look:
        """What is known now; never raises, and never waits for long."""
        look, last = self._look, self._last
        if look is not None:
            patience = SHORT_S if last.answer or last.since else PATIENCE_S
            wait([look], max(0.0, self._asked + patience - time.time()))
        last = self._last
        if look is None or look.done() or (last.answer and time.time() - self._asked < PATIENCE_S):
            return last
        return replace(last, since=last.since or self._asked, why=last.why if last.since else SLOW)

    def _ask(self, root: Place, again: Callable[[], State]) -> None:
        try:
            found = verify.ask_one(root, self.name, self.sink, again)
        except (FencepostError, OSError):  # of the checkpoint: the head of the page says more
            if self._last.since is None:
                self._last = replace(self._last, why=UNREAD)
        except BaseException as error:  # noqa: BLE001 - a user's own sink may raise anything, SystemExit too
            self._fell_silent(f"asking it failed: {place_of(error)}")
        else:
            if found.heard:
                self._last = Look(answer=found, at=time.time())
            else:
                self._fell_silent(found.why)
        finally:
            self._next = time.monotonic() + EVERY_S

    def _fell_silent(self, why: str) -> None:
        self._last = replace(self._last, since=self._last.since or self._asked, why=why)

    def letters(self, job: str, wanted: LettersWanted) -> LetterPage:
        """A page of dead letters; never raises."""
        until = time.monotonic() + PATIENCE_S
        silent = LetterPage(heard=False, why=SLOW)
        if not self._turn.acquire(timeout=PATIENCE_S):
            return silent
        try:
            at, known = self._pages.get(wanted, (0.0, None))
            if known is not None and time.monotonic() - at < EVERY_S:
                return known
            left = max(0.0, until - time.monotonic())
            return self._letters.ask(lambda: self._read(job, wanted), left) or silent
        finally:
            self._turn.release()

    def _read(self, job: str, wanted: LettersWanted) -> LetterPage:
        """Remembered also if nobody waits for it any more: whoever loads the page again has it."""
        found = letters.read(self.sink, job, wanted)
        kept = list(self._pages.items())[-KEPT:]
        self._pages = {**dict(kept), wanted: (time.monotonic(), found)}
        return found


class Targets:
    """All sinks of one job."""

    def __init__(self, sinks: Mapping[str, Sink], dead: frozenset[str]) -> None:
        self._asked = {name: AskedSink(name, sink) for name, sink in sinks.items()}
        self.dead = tuple(sorted(dead))
        """The sinks that get dead letters."""

    def looks(self, root: Place, again: Callable[[], State]) -> dict[str, Look]:
        """What each says about its newest epoch; they are asked side by side."""
        for one in self._asked.values():
            one.begin(root, again)
        return {name: one.look() for name, one in self._asked.items()}

    def letters(self, name: str, job: str, wanted: LettersWanted) -> LetterPage:
        """A page of the dead letters of one."""
        return self._asked[name].letters(job, wanted)
