"""Dead letters for people who must not see records: where each was read, and why it is one.

    what a letter says                                      what is shown
    the record is null                                      the same
    sink orders refused it: NULL in a column …              the same
    ValueError: invalid literal for int(): 'x' (f, line 3)  ValueError in f, line 3

A function of the user's may raise any text, and most quote the value that they could not read; so of those errors only
the class and the place are shown. An error of a form that is not known here is not shown at all. Never reads a record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from fencepost.contract import LETTERS_SAMPLED, LONGEST_ERROR, Letter, Letters, LettersWanted, Sink, place_of
from fencepost.errors import UNCHANGED, BadConfig, FencepostError

OTHER: Final = "an error of another form, which is not shown here"
HOW: Final = {
    "Cassandra": "query its table with cqlsh",
    "Delta": "query its table with any engine that reads Delta",
    "Files": "read the files that fp.list_published(path) lists",
    "Iceberg": "query its table with any engine that reads Iceberg",
    "Kafka": "consume its topic with isolation.level=read_committed",
    "Redis": "get the keys that begin with its prefix",
}
"""By the name of the sink, how people read what these functions do not."""
SAFE: Final = re.compile(
    r"the record is null|the record is not a JSON object of .*|the record has no .+, which is NOT NULL"
    r"|sink .+ refused it: .+|column .+ is not UTF-8|field .+ is .+, but got a \w+(?: \([\w ]+\))?"
    r"|[\w.<>]+ returned null for [^:\n]+, which is NOT NULL"
    r"|[\w.<>]+ returned a \w+ for [^:\n]+, which cannot hold it"
)
"""Errors of fencepost's own, which name columns and types: `spark.bad_records`, `spark.worker`, `runtime.sieve`. What a
function raised has a colon after its class, whatever follows."""
CUT: Final = re.compile(r"(?P<safe>[\w.<>]+ returned a \w+ for [^:\n]+, which cannot hold it): .*", re.DOTALL)
"""Arrow's own words follow, which quote the value."""
RAISED: Final = re.compile(r"(?P<kind>\w+)(?:: .*)? \((?P<place>[\w.<>]+(?:, line \d+)?)\)", re.DOTALL)
SHOWN: Final = re.compile(r"(?P<kind>\w+)(?: in (?P<place>[\w.<>]+(?:, line \d+)?))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPage:
    """Some dead letters of one sink, without anything of their records."""

    found: tuple[Letter, ...] = ()
    more: bool = False
    """Are there more of them?"""
    sources: Mapping[str, int] = field(default_factory=dict)
    """How many came from each, of the letters that were counted."""
    errors: Mapping[str, int] = field(default_factory=dict)
    counted: int = 0
    is_all: bool = True
    """Were all letters counted?"""
    is_late: bool = False
    """Were there too many to sort in time? Then none was found, but they were counted."""
    heard: bool = True
    why: str = ""
    readable: bool = True
    """Can this kind of target be read here at all?"""
    how: str = ""
    """If not, how people read it."""


def read(sink: Sink, job: str, wanted: LettersWanted) -> LetterPage:
    """Ask a sink; never raises, because a page shows all sinks."""
    session = None
    try:
        session = sink.session(job)
        answer = session.letters(wanted)
    except FencepostError as error:
        return LetterPage(heard=False, why=error.what.rstrip("."))
    except Exception as error:  # noqa: BLE001 - a user's own sink may raise anything, and its text may quote a row
        return LetterPage(heard=False, why=place_of(error))
    finally:
        if session is not None:
            with suppress(Exception):  # of a user's own sink, too
                session.close()
    if answer is None:
        return LetterPage(readable=False, how=HOW.get(type(sink).__name__, "use the target's own client"))
    return _without_records(answer, wanted)


def _without_records(answer: Letters, wanted: LettersWanted) -> LetterPage:
    shown = [letter._replace(error=shown_error(letter.error)) for letter in answer.found]
    sample = answer.sample[:LETTERS_SAMPLED]
    return LetterPage(
        found=tuple(shown[: wanted.most]),
        more=len(shown) > wanted.most,
        sources=_counted([letter.source or "" for letter in sample]),
        errors=_counted([shown_error(letter.error) for letter in sample]),
        counted=len(sample),
        is_all=len(answer.sample) <= LETTERS_SAMPLED,
        is_late=answer.is_late,
        heard=answer.heard,
        why=answer.why,
    )


def _counted(values: Sequence[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def shown_error(error: str | None) -> str:
    """What may be shown of a dead letter's error: nothing that could be of its record."""
    if error is None:
        return OTHER
    if SAFE.fullmatch(error):
        return error
    if found := CUT.fullmatch(error):
        return found["safe"]
    if len(error) >= LONGEST_ERROR:  # it was cut, so what it ends with may be anything
        kind = re.match(r"\w+(?=: )", error)
        return kind[0] if kind else OTHER
    found = RAISED.fullmatch(error)
    return f"{found['kind']} in {found['place']}" if found else OTHER


def ends_of(shown: str) -> tuple[str, str]:
    """How errors begin and end that are shown as this text; refuses any other, which could be a guess at a value."""
    if SAFE.fullmatch(shown):
        return shown, ""
    if found := SHOWN.fullmatch(shown):
        return (f"{found['kind']}:", "") if found["place"] is None else (found["kind"], f" ({found['place']})")
    raise BadConfig(
        "bad_query",
        "error is not valid.",
        safe=UNCHANGED,
        next="Give an error as the page shows it: choose one from its list.",
    )


def of_error(wanted: LettersWanted, shown: str) -> LettersWanted:
    """Only those whose error is shown as this text; all of them for an empty one."""
    return replace(wanted, error=ends_of(shown)) if shown else wanted
