"""Times as people write them: '500 ms', '10 seconds', '1 minute 30 seconds', '30 days'."""

from __future__ import annotations

import re
from datetime import UTC, datetime

UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1,
    "second": 1,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "day": 86400,
    "week": 604800,
}
TIME = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(sorted(UNITS, key=len, reverse=True))})s?\b")


def seconds(text: object) -> float | None:
    """The seconds that a text says; None if it is no time."""
    if not isinstance(text, str) or re.fullmatch(f"({TIME.pattern})+", text.strip()) is None:
        return None
    return sum(float(number) * UNITS[unit] for number, unit in TIME.findall(text))


def now() -> str:
    """UTC, for people who read ledger and journal."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
