"""Which branch takes whose place, by their notes alone: no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import CheckpointRefused, OperatorNeeded
from fencepost.protocol.format import seal, unseal
from fencepost.runtime.arrangement import accepted, arrange, check
from fencepost.store import LocalStore
from fencepost.store.notes import BranchNote, SourceNote, plan_folder, read_plan, write_plan

COUNT = "Aggregate by word: count(1)"
SUM = "Aggregate by word: sum(n)"


def branch(
    sink: str, *operators: str, reads: str = "text path file:/in", name: str = "", folder: int = 0, **more: Any
) -> BranchNote:
    below = [more.pop("below", "stream")] * len(operators)
    return BranchNote(sink, list(operators), [SourceNote(reads, name, folder, **{"chosen": {}} | more)], below)


def of_format_1(note: BranchNote) -> BranchNote:
    """As it was noted before there was more to note."""
    return replace(note, below=None, sources=[replace(one, chosen=None, how="") for one in note.sources])


def order(noted: Sequence[BranchNote], *now: BranchNote) -> list[str]:
    return arrange(noted, {one.sink: one for one in now}, "job")


def refusal(noted: Sequence[BranchNote], now: Sequence[BranchNote], *, accepts: bool = False) -> str:
    with pytest.raises(CheckpointRefused) as caught:
        check(noted, now, "job", accepts=accepts)
    return caught.value.code


class TestOrder:
    def test_known_names_keep_their_places(self) -> None:
        noted = [branch("z", COUNT), branch("a", COUNT)]
        assert order(noted, *reversed(noted)) == ["z", "a"]

    def test_a_new_name_takes_the_place_of_the_one_that_it_matches(self) -> None:
        noted = [branch("a", COUNT), branch("b", SUM), branch("c")]
        assert order(noted, branch("x", SUM), branch("y", COUNT), branch("c")) == ["y", "x", "c"]

    def test_one_that_matches_none_comes_last(self) -> None:
        noted = [branch("b", COUNT), branch("c")]
        assert order(noted, branch("a"), *noted) == ["b", "c", "a"]

    @pytest.mark.parametrize("gone", [["a"], ["a", "b"]])
    def test_two_that_match_are_not_guessed(self, gone: list[str]) -> None:
        noted = [branch(name, COUNT) for name in gone]
        with pytest.raises(CheckpointRefused, match=r"branch_unclear(.|\n)*name='a'"):
            order(noted, branch("x", COUNT), branch("y", COUNT))

    def test_what_lies_below_tells_branches_apart(self) -> None:
        noted = [branch("errors", COUNT, below="errors"), branch("all", COUNT)]
        assert order(noted, branch("x", COUNT), branch("y", COUNT, below="errors")) == ["y", "x"]

    def test_one_that_is_made_from_other_rows_stands_where_it_stood_so_that_no_other_moves(self) -> None:
        noted = [branch("errors", COUNT, below="errors"), branch("all", COUNT)]
        now = [branch("warnings", COUNT, below="warnings"), branch("all", COUNT)]
        assert order(noted, *now) == ["warnings", "all"]
        assert refusal(noted, now) == "state_made_otherwise"

    def test_a_note_of_format_1_does_not_say_what_a_renamed_branch_was_made_from(self) -> None:
        noted = [of_format_1(branch("a", COUNT)), of_format_1(branch("b"))]
        with pytest.raises(CheckpointRefused, match="plan_not_noted"):
            order(noted, branch("x", COUNT), branch("b"))
        assert order(noted, branch("a", COUNT), branch("y")) == ["a", "y"]

    def test_options_tell_branches_without_state_apart(self) -> None:
        noted = [branch("a", how="semicolons"), branch("b", how="commas")]
        assert order(noted, branch("x", how="commas"), branch("y", how="semicolons")) == ["y", "x"]

    def test_without_state_and_with_the_same_positions_any_may_take_any_place(self) -> None:
        assert order([branch("a"), branch("b")], branch("x"), branch("y")) == ["x", "y"]
        with pytest.raises(CheckpointRefused, match="branch_unclear"):
            order([branch("a"), branch("b", folder=1)], branch("x"), branch("y"))

    def test_where_sources_have_names_a_place_without_state_is_none(self) -> None:
        noted = [branch("a", name="left"), branch("b", name="right")]
        assert order(noted, branch("x", name="left"), branch("b", name="right")) == ["b", "x"]


class TestRefusals:
    NOTED = (branch("a", COUNT), branch("b", SUM, reads="text path file:/other", folder=1))

    def test_the_same_plan_goes_on(self) -> None:
        check(self.NOTED, self.NOTED, "job")

    def test_every_way_to_move_a_number(self) -> None:
        one, two = self.NOTED
        assert refusal(self.NOTED, [two, one]) == "operator_changed"
        assert refusal(self.NOTED, [one]) == "operator_changed"
        assert refusal(self.NOTED, [one, two, branch("c", COUNT)]) == "operator_changed"
        assert refusal(self.NOTED, [one, two, branch("c")]) == "sources_changed"
        assert refusal(self.NOTED, [one, branch("b", SUM)]) == "sources_changed"
        assert refusal([branch("a"), branch("b")], [branch("a"), branch("b", folder=1)]) == "sources_changed"
        assert refusal([branch("a", name="in")], [branch("a", name="in", reads="rate")]) == "sources_changed"

    def test_state_goes_on_only_from_the_same_rows(self) -> None:
        was, now = branch("a", COUNT), branch("a", COUNT, below="stream where n > 0")
        assert refusal([was], [now]) == "state_made_otherwise"
        check([was], [now], "job", accepts=True)
        check([of_format_1(was)], [now], "job")
        # Under another name it is another branch, whatever the user accepts.
        assert refusal([was], [replace(now, sink="b")], accepts=True) == "state_made_otherwise"
        check([was], [replace(was, sink="b")], "job")

    @pytest.mark.parametrize(
        ("below", "goes_on"),
        [
            ("[a] stream\n[b] stream where n > 0\n[c] stream where n > 1", True),
            ("[b] stream where n > 0\n[a] stream", True),
            ("[b] stream where n > 0", True),
            ("[c] stream", True),
            ("[b] stream where n > 1", False),
            ("[a] stream\n[a] stream where n > 0", False),
            ("[a, b] inner join of stream a, stream b", False),
            ("[a, c] inner join of stream a, stream c\n[a] stream\n[b] stream where n > 0", True),
            ("stream", False),
        ],
    )
    def test_sources_with_names_come_and_go_with_their_sides(self, below: str, goes_on: bool) -> None:
        was = branch("sum", COUNT, name="a", below="[a] stream\n[b] stream where n > 0")
        now = branch("sum", COUNT, name="a", below=below)
        if goes_on:
            check([was], [now], "job")
        else:
            assert refusal([was], [now]) == "state_made_otherwise"

    def test_what_is_accepted_is_said(self) -> None:
        was, now = branch("a", COUNT, below="stream where n < 0"), branch("a", COUNT)
        (said,) = accepted([was], [now])
        assert ("state 0" in said, "made from stream where n < 0" in said) == (True, True)
        assert accepted([was], [was]) == []
        assert accepted([of_format_1(was)], [now]) == []

    def test_other_files_of_the_folder_are_another_source_unless_the_user_accepts_it(self) -> None:
        csv, text = (branch("a", chosen={"pathglobfilter": end}) for end in ("*.csv", "*.txt"))
        assert refusal([csv], [text]) == "sources_changed"
        check([csv], [text], "job", accepts=True)
        check([of_format_1(csv)], [text], "job")

    @pytest.mark.parametrize("accepts", [False, True])
    def test_swapped_sources_of_one_folder_are_never_accepted(self, accepts: bool) -> None:
        one, two = SourceNote("csv", "", 0, {}, "semicolons"), SourceNote("csv", "", 1, {}, "commas")
        was = BranchNote("a", [], [one, two], [])
        swapped = replace(was, sources=[replace(one, how=two.how), replace(two, how=one.how)])
        assert refusal([was], [swapped], accepts=accepts) == "sources_changed"
        check([was], [replace(was, sources=[replace(one, how="tabs"), two])], "job")  # a mistake is fixed
        check([of_format_1(was)], [swapped], "job")

    @pytest.mark.parametrize(
        ("less", "more"),
        [
            ("subscribe a,b", "subscribe a,b,c"),
            ("subscribepattern a.*", "subscribepattern b.*|a.*"),
            ('assign {"a":[0]}', 'assign {"b": [0], "a": [1, 0]}'),
        ],
    )
    def test_a_subscription_may_grow(self, less: str, more: str) -> None:
        """Spark reads what is new from its beginning, and fails if something is missing."""
        few, many = (branch("a", reads=f"kafka {reads}") for reads in (less, more))
        check([few], [many], "job")
        assert refusal([many], [few]) == "sources_changed"

    @pytest.mark.parametrize("other", ["b", "(a|b|c)d", "a.*", "[a|b]"])
    def test_another_pattern_may_match_less(self, other: str) -> None:
        was, now = (branch("a", reads=f"kafka subscribepattern {pattern}") for pattern in ("a", other))
        assert refusal([was], [now]) == "sources_changed"


class TestNotes:
    def test_the_newest_writers_counts_whenever_another_one_writes(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        write_plan(store, "L", 7, [branch("new")])
        write_plan(store, "L", 5, [branch("old")])  # it slept
        assert read_plan(store, ("L",)) == [branch("new")]
        write_plan(store, "L", 8, [branch("newer")])
        assert store.list(plan_folder("L")) == (f"{8:020}",)

    def test_one_of_format_1_is_read(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        note = of_format_1(branch("a", COUNT))
        write_plan(store, "L", 3, [note])
        name = f"{plan_folder('L')}/{3:020}"
        plain = unseal(store.read(name) or b"")
        (one,) = plain["branches"]
        del one["below"], one["sources"][0]["chosen"], one["sources"][0]["how"]
        store.replace(name, seal({**plain, "format": 1}))
        assert read_plan(store, ("L",)) == [note]
        store.replace(name, seal({**plain, "format": 2}))
        with pytest.raises(OperatorNeeded, match="note_damaged"):
            read_plan(store, ("L",))

    def test_a_lineage_without_one_has_its_parents(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        assert read_plan(store, ("child", "parent")) is None
        write_plan(store, "parent", 3, [branch("a")])
        assert read_plan(store, ("child", "parent")) == [branch("a")]

    def test_a_damaged_one_is_refused(self, tmp_path: Path) -> None:
        store = LocalStore(tmp_path)
        write_plan(store, "L", 3, [branch("a", COUNT)])
        file = tmp_path / plan_folder("L") / f"{3:020}"
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"word", b"ward"))
        with pytest.raises(OperatorNeeded, match="note_damaged"):
            read_plan(store, ("L",))
        file.rename(file.with_name(f"{4:020}")).write_bytes(whole)  # whole, and of another writer
        with pytest.raises(OperatorNeeded, match="note_damaged"):
            read_plan(store, ("L",))
