"""The weakest link of source × engine × sink: which end-to-end guarantee a job really has.

Never promises more than the links declare; a job that asks for more is refused, with the link, the reason and the cure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from fencepost.errors import BadConfig, GuaranteeTooHigh, Where
from fencepost.sinks.contract import Capabilities

READS_UNCOMMITTED = (
    "source kafka is read with isolation read_uncommitted (Spark's default): rows that their writer takes back are "
    "counted all the same, so the result is exact for the topic, not for what its writers meant; "
    "use fp.Kafka, or the option kafka.isolation.level=read_committed"
)


class Guarantee(enum.IntEnum):
    """What happens to a record when something crashes."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2

    @property
    def word(self) -> str:
        """As it is written in code, ledger and messages."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str | Guarantee, *, job: str | None = None) -> Guarantee:
        """Read a user's word."""
        if isinstance(text, cls):
            return text
        levels = {level.word: level for level in cls}
        if text not in levels:
            raise BadConfig(
                "unknown_guarantee",
                f"There is no guarantee {text!r}.",
                where=Where(job=job),
                next="Use 'exactly_once', 'at_least_once' or 'at_most_once'.",
            )
        return levels[text]


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a job, the best level it allows, why, and what would lift it."""

    part: str
    best: Guarantee
    reason: str
    cure: str = ""


def source_link(name: str, *, replayable: bool) -> Link:
    """A source that can be read again allows everything; one that cannot allows only at_most_once."""
    if replayable:
        return Link(f"source {name}", Guarantee.EXACTLY_ONCE, "a range of positions can be read again")
    return Link(
        f"source {name}",
        Guarantee.AT_MOST_ONCE,
        "what was read once cannot be read again after a crash",
        "put the records into Kafka or files first, or ask for guarantee='at_most_once'",
    )


def sink_link(name: str, sink: Capabilities) -> Link:
    """A sink whose commit may be repeated allows everything."""
    if sink.repeatable:
        whole = "an epoch is seen whole" if sink.atomic else "an epoch is not seen all at once"
        return Link(f"sink {name}", Guarantee.EXACTLY_ONCE, f"a commit can be repeated, and {whole}")
    return Link(
        f"sink {name}",
        Guarantee.AT_LEAST_ONCE,
        "after a crash an epoch is sent again, and nothing in the target tells that it was there",
        sink.remedy or "choose a sink with an epoch row, or ask for guarantee='at_least_once'",
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What `fencepost check` and a notebook show: the links, the level they give, and what else is worth knowing."""

    job: str
    asked: Guarantee
    links: tuple[Link, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Is the asked level given?"""
        return self.asked <= weakest(self.links).best

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Part, level, reason; the job itself last."""
        limit = weakest(self.links)
        level = min(self.asked, limit.best)
        end = "as asked" if self.holds else f"asked for {self.asked.word}, but {limit.part} is the weakest link"
        return [*((link.part, link.best.word, link.reason) for link in self.links), ("end to end", level.word, end)]


def weakest(links: Iterable[Link]) -> Link:
    """The link that limits the job; the first one, if several do."""
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
