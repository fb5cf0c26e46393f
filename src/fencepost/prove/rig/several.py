"""What is more than one process and started as one thing: a store, a cluster.

Never hides its processes: each is a `Server` that a test kills and starts on its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from fencepost.prove.rig.server import Server


class Several(ABC):
    """Servers that belong together. `start` starts those that do not run, so it is also how a killed one comes back."""

    @property
    @abstractmethod
    def servers(self) -> tuple[Server, ...]:
        """All of them; the first is the one whose port the others have to know."""

    def start(self) -> Self:
        """Start what does not run, at once but for the first time, and wait until all answer."""
        first, *_ = self.servers
        if not first._ports:
            first.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, [server for server in self.servers if not server.runs]))
        return self

    def kill(self) -> None:
        """End all of them like a power switch, but for the page cache."""
        for server in reversed(self.servers):
            server.kill()

    def stop(self) -> None:
        """End all of them in order."""
        for server in reversed(self.servers):
            server.stop()

    def pause(self) -> None:
        """Freeze all that run."""
        for server in self.servers:
            if server.runs:
                server.pause()

    def resume(self) -> None:
        """Let all that are frozen go on."""
        for server in self.servers:
            if server.runs:
                server.resume()

    def __enter__(self) -> Self:
        """Start them; if one does not, none is left."""
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        """Kill them: whoever uses them so has no more need of their data."""
        self.kill()
