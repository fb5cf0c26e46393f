"""The log as lines of JSON, for machines that collect logs: events have the keys that they have in the journal.

    {"at": …, "level": "INFO", "logger": "fencepost", "message": …, "thread": …}
    {"at": …, "level": "DEBUG", "logger": "fencepost.events", "message": …, "kind": "decided", "job": …, "epoch": 7, …}

Takes from a record only its text, its names and our own event: what else a library hangs on it stays out.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Final

STYLE: Final = "FENCEPOST_LOG"
"""The environment variable that a supervisor sets for its drivers."""
JSON: Final = "json"


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record. The mistake people make: adding it to a handler and leaving `fencepost.events`
    at its level; all but a few events are said at DEBUG.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        event = getattr(record, "fencepost", None)
        if isinstance(event, dict):
            said.update(event)
        if record.exc_info and record.exc_info[0] is not None:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


def follow_environment() -> None:
    """Log as the supervisor of this process was told to."""
    if os.environ.get(STYLE) == JSON:
        use_json()


def use_json() -> None:
    """Everything that Python logs goes to stderr as JSON, with all of our events."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("fencepost").setLevel(logging.DEBUG)
    # Py4J tells of every call, at INFO too.
    logging.getLogger("py4j").setLevel(logging.WARNING)
