"""An OpenLineage server on this machine, which keeps the events that it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OK = 201


@dataclass
class LineageServer:
    """What came, in order."""

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    status: int = OK

    @property
    def states(self) -> list[str]:
        return [event["eventType"] for event in self.events]

    def rows(self, state: str) -> list[int]:
        """Of the first output, in the events of this state."""
        outputs = [event["outputs"][0]["outputFacets"] for event in self.events if event["eventType"] == state]
        return [facets["outputStatistics"]["rowCount"] for facets in outputs]

    def positions(self, state: str) -> list[tuple[str, str, str]]:
        """The same of the first input."""
        inputs = [event["inputs"][0]["inputFacets"] for event in self.events if event["eventType"] == state]
        found = [facets["fencepost_positions"] for facets in inputs]
        return [(one["source"], one["begin"], one["end"]) for one in found]


@contextmanager
def receiving_lineage() -> Iterator[LineageServer]:
    made = LineageServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert ("/api/v1/lineage", "application/json") == (self.path, self.headers["Content-Type"])
            if made.status == OK:
                made.events.append(json.loads(body))
                made.keys.add(self.headers["Authorization"])
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            server.shutdown()
