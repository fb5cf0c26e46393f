"""The weakest link of source × engine × sink: which end-to-end guarantee a job really has.

Never promises more than the links declare; a job that asks for more is refused, with the link, the reason and the fix.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from fencepost.contract import Capabilities
from fencepost.errors import BadConfig, GuaranteeTooHigh, Where


class Guarantee(enum.IntEnum):
    """What happens to a record when something crashes."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2

    @property
    def word(self) -> str:
        """As it is written in code, in the ledger and in messages."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str | Guarantee, *, job: str | None = None) -> Guarantee:
        """The guarantee that a user names, as a word or as itself."""
        if isinstance(text, cls):
            return text
        levels = {level.word: level for level in cls}
        if text not in levels:
            raise BadConfig(
                "unknown_guarantee",
                f"Unknown guarantee {text!r}.",
                where=Where(job=job),
                next="Use 'exactly_once', 'at_least_once' or 'at_most_once'.",
            )
        return levels[text]


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a job, the best guarantee it allows, why, and how to raise it."""

    part: str
    best: Guarantee
    reason: str
    cure: str = ""


def source_link(name: str, *, replayable: bool | None, vouched: bool = False) -> Link:
    """A source that can be read again allows everything; one that cannot, or that we do not know, at_most_once."""
    part = f"source {name}"
    if replayable:
        word = " (your word: replayable=True)" if vouched else ""
        return Link(part, Guarantee.EXACTLY_ONCE, f"a range of offsets can be read again{word}")
    if replayable is None:
        return Link(
            part,
            Guarantee.AT_MOST_ONCE,
            "fencepost does not know whether it returns the same records when a range of offsets is read again",
            "if it does, also in a new process, say so: job.read(frame, replayable=True); otherwise put the records "
            "into Kafka or files first, or set guarantee='at_most_once'",
        )
    return Link(
        part,
        Guarantee.AT_MOST_ONCE,
        "records cannot be read again after a crash",
        "put the records into Kafka or files first, or set guarantee='at_most_once'",
    )


def sink_link(name: str, sink: Capabilities) -> Link:
    """A sink whose commit may be repeated allows everything."""
    if sink.repeatable:
        whole = "readers see an epoch whole" if sink.atomic else "readers may see part of an epoch"
        return Link(f"sink {name}", Guarantee.EXACTLY_ONCE, f"a commit can be repeated, and {whole}")
    return Link(
        f"sink {name}",
        Guarantee.AT_LEAST_ONCE,
        "after a crash an epoch is sent again, and the target cannot tell that it already has it",
        sink.remedy or "choose a sink with an epoch row, or set guarantee='at_least_once'",
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What `fencepost check` and a notebook show: the links, the guarantee they give, and other notes."""

    job: str
    asked: Guarantee
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Does the job get the guarantee it asks for?"""
        return self.asked <= weakest(self.links).best

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Part, level, reason; the job itself last."""
        limit = weakest(self.links)
        level = min(self.asked, limit.best)
        end = "as asked" if self.holds else f"asked for {self.asked.word}, but {limit.part} is the weakest link"
        return [*((link.part, link.best.word, link.reason) for link in self.links), ("end to end", level.word, end)]


def weakest(links: Iterable[Link]) -> Link:
    """The link that limits the job; if there are several, the first."""
    return min(links, key=lambda link: link.best)


def check(asked: Guarantee, links: Iterable[Link], *, job: str) -> None:
    """Refuse a job that asks for more than its links give.

    The two weaker levels are not an order: a source that cannot be replayed gives at_most_once, so even at_least_once
    is too much for it.
    """
    limit = weakest(links)
    if asked > limit.best:
        raise GuaranteeTooHigh(
            "guarantee_too_high",
            f"The job asks for {asked.word}, but {limit.part} allows {limit.best.word} at best: {limit.reason}.",
            where=Where(job=job),
            next=limit.cure[:1].upper() + limit.cure[1:].rstrip(".") + ".",
        )
