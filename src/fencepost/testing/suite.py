"""Test your own sink with the suite that every sink of fencepost passes.

    class TestMySink(SinkContract):
        def make_sink(self, tmp_path):
            return MySink(tmp_path / "target")

        def visible(self, tmp_path):
            return my_reader(tmp_path / "target")      # a list of (k, v), read without the sink's help

Run it with pytest. What a sink does not claim in its capabilities is skipped, not failed.

Note: `visible` must not ask the sink. A sink that is wrong would be wrong here too.
"""

# ruff: noqa: PT017, SIM300 - expected == actual; pytest is not imported here

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from fencepost.contract import Holding, Rehearsal, Sink
from fencepost.errors import FencepostError, OperatorNeeded, Refused
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, WriterNumber
from fencepost.testing.sink_driver import ANOTHER, LINEAGE, SinkDriver, rows_of


class SinkContract(ABC):
    """What every sink promises. Subclass it, say how to make the sink and how to read its target, run with pytest."""

    remembers_owner = True
    """The target knows which lineage's epochs it holds, and refuses another one."""
    has_identity = True
    """The target can be told from another one of the same name."""
    replaces = True
    """In update mode a row replaces the one with the same key; a log stores every change as a row of its own."""
    notices_a_setback = False
    """The target knows its newest epoch, so that a restore from a backup is noticed (`Owner.held`). The session then
    has a `note_done(epoch)`, which remembers what it committed itself."""
    lists_orphans = False
    """`orphans` finds what older writers left."""
    tells = False
    """`examine` knows what the target holds; otherwise unknown is an acceptable answer."""
    finds_strays = False
    """`examine` finds epochs that it was not asked for."""

    @abstractmethod
    def make_sink(self, tmp_path: Path) -> Sink:
        """The sink, on a target under `tmp_path`; the same target for the same path."""

    @abstractmethod
    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        """The rows that a reader sees, as tuples (k, v)."""

    def make_deleting_sink(self, tmp_path: Path) -> Sink | None:
        """The same with `Keyed.deletes` = "gone", a boolean column beside `k` and `v`; None if it removes no rows.

        By default for a dataclass with a field `deletes`, as all of ours are.
        """
        sink: Any = self.make_sink(tmp_path)
        can = sink.keyed is not None and is_dataclass(sink) and hasattr(sink, "deletes")
        return replace(sink, deletes="gone") if can and not sink.keyed.keeps_all else None

    def make_ordered_sink(self, tmp_path: Path) -> Sink | None:
        """The same with `Keyed.order_by` = "v", if it then compares rows with those in the target (`Keyed.greatest`).

        By default for a dataclass with the fields `order_by` and `unique_key`, as all of ours are.
        """
        sink: Any = self.make_sink(tmp_path)
        can = sink.keyed is not None and is_dataclass(sink) and hasattr(sink, "order_by")
        ordered: Any = replace(sink, order_by="v", unique_key=False) if can and not sink.keyed.keeps_all else None
        return ordered if ordered is not None and ordered.keyed.greatest else None

    def table(self, epoch: int, rows: int = 3) -> pa.Table:
        """Rows of an epoch, without duplicates: text `k` (the key, if the sink has one) and integer `v`."""
        return pa.table({"k": [f"value-{epoch}-{i}" for i in range(rows)], "v": list(range(rows))})

    def refused_table(self) -> pa.Table | None:
        """Rows that fit the columns but that the target rejects; None if it takes everything."""
        return None

    def misfit(self) -> pa.Schema | None:
        """Columns that the target rejects once it holds `table()`; None if it takes everything."""
        return None

    def silence(self, tmp_path: Path) -> AbstractContextManager[object] | None:
        """Inside this context the target does not answer, or its lock is held; None if that cannot be arranged."""
        return None

    def setup_method(self) -> None:
        self._drivers: list[SinkDriver] = []

    def teardown_method(self) -> None:
        for driver in self._drivers:
            driver.session.close()

    def forget(self, tmp_path: Path) -> bool:
        """Make the target forget every epoch (delete its mark, its manifests); False if that cannot be arranged."""
        return False

    def test_a_commit_makes_every_row_visible_once(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        driver.run(0, self.table(0))
        driver.run(1, self.table(1))
        assert sorted(rows_of(self.table(0)) + rows_of(self.table(1))) == self._seen(tmp_path)

    def test_a_repeated_commit_changes_nothing(self, tmp_path: Path) -> None:
        self._needs_repeatable(tmp_path)
        first = self._driver(tmp_path)
        handle = first.run(0, self.table(0))
        assert Outcome.DONE == first.commit(0, handle)
        assert rows_of(self.table(0)) == self._seen(tmp_path)
        first.session.close()
        second = self._driver(tmp_path, writer=2)
        assert Outcome.DONE == second.commit(0, handle)
        assert () == second.session.orphans(WriterNumber(2)), "a committed unit was taken for an orphan"
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_a_second_driver_commits_what_the_first_left_when_it_vanished(self, tmp_path: Path) -> None:
        first = self._driver(tmp_path)
        handle = first.pre_commit(0, self.table(0))
        first.vote(0, handle)
        second = self._driver(tmp_path, writer=2)
        assert Outcome.DONE == second.commit(0, handle)
        assert rows_of(self.table(0)) == self._seen(tmp_path)
        second.run(1, self.table(1))
        assert sorted(rows_of(self.table(0)) + rows_of(self.table(1))) == self._seen(tmp_path)

    def test_the_first_driver_wakes_up_and_repeats_the_commit_in_vain(self, tmp_path: Path) -> None:
        self._needs_repeatable(tmp_path)
        first = self._driver(tmp_path)
        handle = first.pre_commit(0, self.table(0))
        first.vote(0, handle)
        second = self._driver(tmp_path, writer=2)
        second.commit(0, handle)
        second.run(1, self.table(1))
        assert first.commit(0, handle) is not Outcome.GONE
        first.session.rollback()
        second.run(2, self.table(2))
        assert sorted(row for n in range(3) for row in rows_of(self.table(n))) == self._seen(tmp_path)

    def test_an_older_epoch_committed_again_changes_nothing(self, tmp_path: Path) -> None:
        self._needs_repeatable(tmp_path)
        driver = self._driver(tmp_path)
        keyed = self.remembers_owner and "update" in driver.sink.capabilities.modes
        tables = [self.table(0).set_column(1, "v", [[n, n, n]]) if keyed else self.table(n) for n in range(6)]
        handles = [driver.run(epoch, table) for epoch, table in enumerate(tables)]
        seen = self._seen(tmp_path)
        assert Outcome.DONE == driver.commit(0, handles[0])
        driver.session.close()
        later = self._driver(tmp_path, writer=2)
        assert Outcome.DONE == later.commit(1, handles[1])
        assert seen == self._seen(tmp_path)

    def test_a_failed_vote_leaves_nothing_and_quotes_no_value(self, tmp_path: Path) -> None:
        table = self.refused_table()
        if table is None:
            self._skip("the target refuses no rows")
        driver = self._driver(tmp_path)
        try:
            dead = driver.vote(0, driver.pre_commit(0, table))
        except FencepostError as error:
            assert not self._quoted(table, str(error)), "the error quotes a row's value"
        else:
            assert dead, "the target refuses these rows, and the vote did not say so"
        driver.session.rollback()
        assert [] == self._seen(tmp_path)
        driver.run(0, self.table(0))
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_nothing_is_visible_before_the_commit_nor_after_a_rollback(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        handle = driver.pre_commit(0, self.table(0))
        assert [] == self._seen(tmp_path)
        assert () == driver.vote(0, handle)
        assert [] == self._seen(tmp_path)
        driver.session.rollback()
        assert [] == self._seen(tmp_path)
        driver.run(0, self.table(1))
        assert rows_of(self.table(1)) == self._seen(tmp_path)

    def test_rows_of_a_failed_attempt_do_not_ride_along_with_the_next(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        driver.vote(0, driver.pre_commit(0, self.table(0)))
        driver.run(0, self.table(1))
        assert rows_of(self.table(1)) == self._seen(tmp_path)

    def test_an_aborted_orphan_never_becomes_visible(self, tmp_path: Path) -> None:
        orphan = self._driver(tmp_path).pre_commit(0, self.table(0))
        second = self._driver(tmp_path, writer=2)
        found = second.session.orphans(WriterNumber(2))
        if self.lists_orphans:
            assert [orphan.id] == [handle.id for handle in found]
        for handle in found:
            second.session.abort(handle)
            second.session.abort(handle)
        assert () == second.session.orphans(WriterNumber(2))
        assert [] == self._seen(tmp_path)
        second.run(0, self.table(1))
        assert rows_of(self.table(1)) == self._seen(tmp_path)

    def test_orphans_are_those_of_older_writers_only(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path, writer=3)
        handle = driver.pre_commit(0, self.table(0))
        for before in (1, 3):
            for found in driver.session.orphans(WriterNumber(before)):
                driver.session.abort(found)
        assert () == driver.vote(0, handle), "a unit of an equal or newer writer was taken for an orphan"
        assert Outcome.DONE == driver.commit(0, handle)
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_an_epoch_without_rows_gives_no_handle(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        assert driver.session.pre_commit(Epoch(0), driver.owner.staging.rows((), driver.sink.name)) is None
        assert [] == self._seen(tmp_path)

    def test_a_handle_is_json_and_holds_no_value(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        handle = driver.pre_commit(0, self.table(0))
        text = json.dumps(asdict(handle))
        assert not self._quoted(self.table(0), text), "the handle holds a row's value"
        assert (driver.sink.name, 3) == (handle.sink, handle.rows)
        assert handle.id != driver.pre_commit(0, self.table(0)).id, "two attempts got the same handle id"
        assert bool(handle.kept) == driver.sink.capabilities.keeps_rows
        driver.session.rollback()

    def test_the_identity_is_the_same_at_every_start_and_another_for_a_new_target(self, tmp_path: Path) -> None:
        if not self.has_identity:
            self._skip("the target has no identity")
        identities = []
        for folder in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
            folder.mkdir(exist_ok=True)
            driver = self._unstarted(folder)
            identities.append(driver.start(self.table(0).schema))
            driver.session.close()
        assert identities[0] == identities[1]
        assert identities[0] != identities[2]

    def test_a_second_lineage_is_refused(self, tmp_path: Path) -> None:
        if not self.remembers_owner:
            self._skip("the target does not know its owner")
        driver = self._driver(tmp_path)
        driver.run(0, self.table(0))
        driver.session.close()
        other = self._unstarted(tmp_path, lineage=ANOTHER)
        assert self._is_refused(lambda: other.start(self.table(0).schema)), "another lineage was let in"
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_a_restored_lineage_goes_on_in_its_ancestors_target(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        driver.run(7, self.table(0))
        driver.session.close()
        child = self._unstarted(tmp_path, lineage=ANOTHER, generation=1, ancestors=[LINEAGE])
        child.start(self.table(0).schema)
        child.run(3, self.table(1))
        assert sorted(rows_of(self.table(0)) + rows_of(self.table(1))) == self._seen(tmp_path)

    def test_a_target_that_holds_an_epoch_unknown_to_the_ledger_needs_an_operator(self, tmp_path: Path) -> None:
        if not self.remembers_owner:
            self._skip("the target does not know its owner")
        driver = self._driver(tmp_path)
        driver.run(0, self.table(0))
        driver.session.close()
        amnesiac = self._driver(tmp_path, writer=2)
        handle = amnesiac.pre_commit(0, self.table(1))
        for step in (amnesiac.vote, amnesiac.commit):
            try:
                step(0, handle)
            except OperatorNeeded:
                amnesiac.session.rollback()
            else:
                raise AssertionError(f"{step.__name__} took an epoch with other rows for the one that is there")
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_a_target_that_was_set_back_needs_an_operator(self, tmp_path: Path) -> None:
        if not self.notices_a_setback:
            self._skip("the target does not know what it held")
        driver = self._driver(tmp_path)
        driver.run(0, self.table(0))
        driver.session.close()
        self._driver(tmp_path, writer=2, held=Epoch(0)).session.close()
        bereft = self._unstarted(tmp_path, writer=3, held=Epoch(1))
        try:
            bereft.start(self.table(0).schema)
        except OperatorNeeded:
            pass
        else:
            raise AssertionError("the target lacks an epoch that the ledger calls done, and the sink went on")
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_a_target_that_is_set_back_after_the_vote_needs_an_operator(self, tmp_path: Path) -> None:
        if not self.notices_a_setback:
            self._skip("the target does not know what it held")
        driver = self._driver(tmp_path)
        driver.run(0, self.table(0))
        handle = driver.pre_commit(2, self.table(2))
        driver.session.close()
        # Voted, decided, and in doubt; epoch 1 was in the server that failed, and is not in the one that answers now.
        bereft = self._driver(tmp_path, writer=2, held=Epoch(0))
        session: Any = bereft.session
        session.note_done(Epoch(1))
        try:
            bereft.commit(2, handle)
        except OperatorNeeded:
            pass
        else:
            raise AssertionError("an epoch was committed to a target that lost the one before")
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_columns_that_do_not_fit_are_refused_before_any_row(self, tmp_path: Path) -> None:
        schema = self.misfit() or self._skip("the target takes any columns")
        driver = self._driver(tmp_path)
        driver.session.close()
        other = self._unstarted(tmp_path, writer=2)
        assert self._is_refused(lambda: other.start(schema)), "columns that do not fit were let in"

    def test_a_rehearsal_makes_nothing_and_refuses_what_a_start_refuses(self, tmp_path: Path) -> None:
        schema = self.table(0).schema
        driver = self._unstarted(tmp_path)
        before = driver.session.rehearse(schema, "append")
        if before is None:
            self._skip("the sink is not rehearsed")
        assert before == driver.session.rehearse(schema, "append"), "the rehearsal made something"
        identity = driver.start(schema)
        driver.session.close()
        other = self._unstarted(tmp_path, writer=2)
        assert Rehearsal(identity) == other.session.rehearse(schema, "append")
        if (misfit := self.misfit()) is not None:
            assert self._is_refused(lambda: other.session.rehearse(misfit, "append")), "a misfit was not noticed"

    def test_a_silent_target_is_in_doubt_and_done_once_it_answers(self, tmp_path: Path) -> None:
        first = self._driver(tmp_path)
        handle = first.pre_commit(0, self.table(0))
        first.vote(0, handle)
        first.session.rollback(undecided=False)
        silence = self.silence(tmp_path) or self._skip("the target cannot be silenced")
        with silence:
            assert Outcome.IN_DOUBT == first.commit(0, handle)
        assert Outcome.DONE == first.commit(0, handle)
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_in_update_mode_a_later_row_replaces_an_earlier_one(self, tmp_path: Path) -> None:
        if "update" not in self.make_sink(tmp_path).capabilities.modes:
            self._skip("the sink does not take output mode update")
        driver = self._unstarted(tmp_path)
        driver.start(self.table(0).schema, "update")
        driver.run(0, self.table(0))
        driver.run(1, newer := self.table(0).set_column(1, "v", [[7, 8, 9]]))
        older = [] if self.replaces else rows_of(self.table(0))
        assert sorted(older + rows_of(newer)) == self._seen(tmp_path)

    def test_a_row_does_not_replace_a_greater_one_whatever_the_epochs(self, tmp_path: Path) -> None:
        def table(**rows: int | None) -> pa.Table:
            return pa.table({"k": [*rows], "v": [*rows.values()]}, pa.schema({"k": pa.string(), "v": pa.int64()}))

        sink = self.make_ordered_sink(tmp_path) or self._skip("the sink does not compare rows of two epochs")
        driver = self._unstarted(tmp_path, sink)
        driver.start(table().schema)
        driver.run(0, table(a=5, b=1, c=None))
        driver.run(1, pa.concat_tables([table(a=4), table(a=None), table(b=0), table(b=2, c=-1)]))
        assert [("a", 5), ("b", 2), ("c", -1)] == self._seen(tmp_path)
        handle = driver.pre_commit(2, table(a=3, b=3))
        driver.vote(2, handle)
        second = self._unstarted(tmp_path, self.make_ordered_sink(tmp_path), writer=2)
        second.start(table().schema)
        assert Outcome.DONE == second.commit(2, handle)
        second.session.write(Epoch(3), second.rows(3, table(a=6, b=2)))
        assert [("a", 6), ("b", 3), ("c", -1)] == self._seen(tmp_path)

    def test_a_row_marked_as_deleted_removes_the_row_of_its_key(self, tmp_path: Path) -> None:
        driver = self._deleting(tmp_path)
        driver.run(0, self._marked(a=1, b=1, c=1))
        handle = driver.pre_commit(1, self._marked("a", "b", "missing", b=2, d=1))
        driver.vote(1, handle)
        assert [("a", 1), ("b", 1), ("c", 1)] == self._seen(tmp_path)
        assert Outcome.DONE == driver.commit(1, handle)
        assert [("b", 2), ("c", 1), ("d", 1)] == self._seen(tmp_path), "of b the last row counts, which writes"
        both = [self._marked(c=5, e=5), self._marked("e", "c")]
        driver.run(2, pa.concat_tables(both))
        assert [("b", 2), ("d", 1)] == self._seen(tmp_path), "of c and e the last row counts, which removes"
        driver.session.write(Epoch(3), driver.rows(3, self._marked("b", a=3)))
        assert [("a", 3), ("d", 1)] == self._seen(tmp_path)

    def test_a_removed_row_stays_removed_whatever_is_committed_again(self, tmp_path: Path) -> None:
        first = self._deleting(tmp_path)
        handles = [first.run(0, self._marked(a=1, b=1)), first.pre_commit(1, self._marked("a"))]
        first.vote(1, handles[1])
        second = self._deleting(tmp_path, writer=2)
        for epoch in (1, 1, 0):
            assert Outcome.DONE == second.commit(epoch, handles[epoch])
            assert [("b", 1)] == self._seen(tmp_path)
        assert first.commit(0, handles[0]) is not Outcome.GONE
        first.session.rollback()
        second.run(2, self._marked(a=2))
        assert Outcome.DONE == second.commit(1, handles[1])
        assert [("a", 2), ("b", 1)] == self._seen(tmp_path)

    def test_a_row_that_does_not_say_whether_it_is_deleted_is_refused(self, tmp_path: Path) -> None:
        driver = self._deleting(tmp_path)
        driver.run(0, self._marked(a=1))
        unsaid = self._marked("a", b=1).set_column(2, "gone", pa.array([None, False], pa.bool_()))
        try:
            assert driver.vote(1, driver.pre_commit(1, unsaid)), "NULL was taken for an answer"
        except FencepostError:
            driver.session.rollback()
        assert [("a", 1)] == self._seen(tmp_path)

    def test_a_plain_write_is_visible_at_once(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        driver.session.write(Epoch(0), driver.rows(0, self.table(0)))
        assert rows_of(self.table(0)) == self._seen(tmp_path)
        driver.session.write(Epoch(1), driver.owner.staging.rows((), driver.sink.name))
        assert rows_of(self.table(0)) == self._seen(tmp_path)

    def test_rollback_and_close_never_raise(self, tmp_path: Path) -> None:
        unopened = self.make_sink(tmp_path).session("job")
        unopened.rollback()
        unopened.close()
        driver = self._driver(tmp_path)
        for _ in range(2):
            driver.session.rollback()
            driver.session.close()

    # --- examine, as `fencepost verify` does: from another session, without owning anything

    def test_a_look_finds_what_is_committed_and_no_more_and_changes_nothing(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        first = driver.run(0, self.table(0))
        second = driver.pre_commit(1, self.table(1))
        assert () == driver.vote(1, second)
        handles = {0: first, 1: second}
        found = driver.look(handles)
        assert found.heard, found.why
        assert self._fits({0: Holding.HELD, 1: Holding.MISSING}, found.holdings), found
        assert not found.strays, found
        assert Outcome.DONE == driver.commit(1, second), "the look ended what the vote held"
        found = driver.look(handles)
        assert self._fits({0: Holding.HELD, 1: Holding.HELD}, found.holdings), found
        assert not found.strays, found
        assert sorted(rows_of(self.table(0)) + rows_of(self.table(1))) == self._seen(tmp_path)

    def test_a_look_misses_what_the_target_forgot(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        handle = driver.run(0, self.table(0))
        driver.session.close()
        if not self.forget(tmp_path):
            self._skip("the target cannot be made to forget")
        found = driver.look({0: handle})
        assert self._fits({0: Holding.MISSING}, found.holdings), found

    def test_a_look_names_an_epoch_that_the_ledger_does_not_know(self, tmp_path: Path) -> None:
        if not self.finds_strays:
            self._skip("the sink knows only what it is asked for")
        driver = self._driver(tmp_path)
        first, second = driver.run(0, self.table(0)), driver.run(1, self.table(1))
        (stray,) = driver.look({0: first}).strays
        assert second.id in stray.names
        assert stray.epoch in (None, 1)

    def test_a_look_takes_no_other_identity_for_the_targets_own(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        identity = driver.session.preflight(self.table(0).schema, "append")
        assert driver.look({}).identity in (None, identity)

    def test_an_instant_can_be_read_or_says_why_not_and_asking_changes_nothing(self, tmp_path: Path) -> None:
        driver = self._driver(tmp_path)
        first = driver.run(0, self.table(0))
        second = driver.pre_commit(1, self.table(1))
        assert () == driver.vote(1, second)
        identity = driver.look({}).identity
        found = [driver.as_of(0, {0: first})]
        assert rows_of(self.table(0)) == self._seen(tmp_path)
        assert Outcome.DONE == driver.commit(1, second), "asking ended what the vote held"
        found += [driver.as_of(epoch, {0: first, 1: second}) for epoch in (0, 1)]
        for one in found:
            assert one.heard, one.why
            assert one.text if one.exact else one.why, one
            assert one.identity in (None, identity)
            told = json.dumps([one.text, one.why, dict(one.facts)])
            assert [] == self._quoted(self.table(0), told), "it quotes a row"
        _, older, newer = found
        assert not (older.exact and newer.exact and older.text == newer.text), "two epochs are not one instant"

    def _fits(self, expected: dict[int, Holding], actual: Any) -> bool:
        honest = () if self.tells else (Holding.UNKNOWN,)
        return all(actual[epoch] in (holding, *honest) for epoch, holding in expected.items())

    def _driver(self, tmp_path: Path, **owner: Any) -> SinkDriver:
        driver = self._unstarted(tmp_path, **owner)
        driver.start(self.table(0).schema)
        return driver

    def _unstarted(self, tmp_path: Path, sink: Sink | None = None, **owner: Any) -> SinkDriver:
        driver = SinkDriver(sink or self.make_sink(tmp_path), tmp_path, **owner)
        self._drivers.append(driver)
        return driver

    def _deleting(self, tmp_path: Path, **owner: Any) -> SinkDriver:
        sink = self.make_deleting_sink(tmp_path) or self._skip("the sink removes no rows")
        driver = self._unstarted(tmp_path, sink, **owner)
        driver.start(self._marked().schema, "update")
        return driver

    def _marked(self, *gone: str, **rows: int) -> pa.Table:
        """Keys to remove, then rows to write."""
        columns = {"k": [*gone, *rows], "v": [None] * len(gone) + [*rows.values()]}
        marks = [True] * len(gone) + [False] * len(rows)
        schema = pa.schema({"k": pa.string(), "v": pa.int64(), "gone": pa.bool_()})
        return pa.table({**columns, "gone": marks}, schema)

    def _seen(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        return sorted(self.visible(tmp_path))

    def _quoted(self, table: pa.Table, text: str) -> list[str]:
        values = (value for column in table.columns for value in column.to_pylist())
        return [value for value in values if isinstance(value, str) and value in text]

    def _is_refused(self, step: Any) -> bool:
        with suppress(Refused):
            step()
            return False
        return True

    def _needs_repeatable(self, tmp_path: Path) -> None:
        if not self.make_sink(tmp_path).capabilities.repeatable:
            self._skip("the sink's commits are not repeatable")

    def _skip(self, why: str) -> NoReturn:
        import pytest  # noqa: PLC0415 - only who runs the suite needs it

        pytest.skip(why)
