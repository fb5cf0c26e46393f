"""The contract suite is worth what it catches: each of these sinks is wrong in one way, and must fail it."""

from __future__ import annotations

import inspect
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fencepost.connectors.files.session import FilesSession
from fencepost.connectors.files.sink import Files
from fencepost.connectors.sqlite import dialect
from fencepost.connectors.sqlite.sink import SQLite
from fencepost.connectors.table.database import Table
from fencepost.connectors.table.mark import Mark
from fencepost.connectors.table.session import TableSession
from fencepost.contract import Asked, Examined, Holding, Instant, Rehearsal, alike
from fencepost.errors import EpochFailed
from fencepost.protocol.effects import Outcome
from fencepost.protocol.records import Epoch, Handle, WriterNumber
from fencepost.store.staging import Rows
from fencepost.testing import SinkContract


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "PATIENT", "PRAGMA busy_timeout = 50")
    monkeypatch.setattr(dialect, "IMPATIENT", "PRAGMA busy_timeout = 50")


@contextmanager
def locked(path: Path) -> Any:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


class OnSqlite(SinkContract):
    notices_a_setback = True
    tells = True
    finds_strays = True
    session: type[TableSession] = TableSession
    key: str | None = None

    def make_sink(self, tmp_path: Path) -> SQLite:
        session = self.session

        class Sabotaged(SQLite):
            def session(self, job: str) -> TableSession:
                return session(self, job)

        return Sabotaged(tmp_path / "t.db", table="t", key=self.key, name="t")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
            return connection.execute("SELECT k, v FROM t").fetchall()

    def silence(self, tmp_path: Path) -> AbstractContextManager[object]:
        return locked(tmp_path / "t.db")

    def forget(self, tmp_path: Path) -> bool:
        with closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as connection:
            connection.execute("DELETE FROM fencepost_epoch")
        return True

    def misfit(self) -> pa.Schema:
        return pa.schema({"k": pa.string(), "v": pa.int64(), "more": pa.int64()})


class OnKeyed(OnSqlite):
    key = "k"

    def refused_table(self) -> pa.Table:
        return pa.table({"k": ["a secret", None], "v": [1, 2]})


class OnFiles(SinkContract):
    session: type[FilesSession] = FilesSession
    lists_orphans = True
    tells = True
    finds_strays = True

    def make_sink(self, tmp_path: Path) -> Files:
        session = self.session

        class Sabotaged(Files):
            def session(self, job: str) -> FilesSession:
                return session(self, job)

        return Sabotaged(tmp_path / "out", format="json", name="files")

    def visible(self, tmp_path: Path) -> list[tuple[Any, ...]]:
        lines = [line for f in (tmp_path / "out").iterdir() if f.is_file() for line in f.read_text().splitlines()]
        return [tuple(json.loads(line).values()) for line in lines]


class ForgetsTheEpochRow(TableSession):
    def _set_mark(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        pass


class AppliesAgain(TableSession):
    def is_there(self, found: Mark | None, epoch: Epoch, handles: tuple[Handle, ...]) -> bool:
        return False


class CommitsInTheVote(TableSession):
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        dead = super().verify(epoch, handles)
        self._end()
        return dead


class SaysGoneWhenBusy(TableSession):
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        answers = super().commit(epoch, handles)
        return {i: Outcome.GONE if answer is Outcome.IN_DOUBT else answer for i, answer in answers.items()}


class SaysDoneWhenBusy(TableSession):
    def commit(self, epoch: Epoch, handles: tuple[Handle, ...]) -> Mapping[str, Outcome]:
        return dict.fromkeys(super().commit(epoch, handles), Outcome.DONE)


class KeepsTheLastAttempt(TableSession):
    def _let_go(self) -> None:
        pass

    def _begin(self, *, patient: bool) -> None:
        with suppress(Exception):
            self.database.begin(patient=patient)


class LetsAnyLineageIn(TableSession):
    def _is_foreign(self, found: Mark) -> bool:
        return False


class TakesAncestorsForStrangers(TableSession):
    def _is_foreign(self, found: Mark) -> bool:
        return found.lineage != self.owner.lineage


class TakesAheadForDone(TableSession):
    def check_before_vote(self, found: Mark | None, epoch: Epoch) -> None:
        pass


class ForgetsWhatItHeld(TableSession):
    def _check_not_behind(self, found: Mark | None, epoch: Epoch | None = None) -> None:
        pass


class QuotesValues(TableSession):
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        handle = super().pre_commit(epoch, rows)
        if handle is None:
            return None
        row = next(rows.batches()).to_pylist()[0]
        return Handle(handle.id, handle.sink, handle.rows, handle.kept, {"first": row})


class HandlesNothing(TableSession):
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        return super().pre_commit(epoch, rows) or Handle(self.owner.handle_id(epoch), self.sink, 0)


class UsesOneId(TableSession):
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        handle = super().pre_commit(epoch, rows)
        return handle and Handle(f"epoch-{epoch}", handle.sink, handle.rows, handle.kept)


class InventsAnIdentity(TableSession):
    def preflight(self, schema: pa.Schema, mode: Any) -> str:
        super().preflight(schema, mode)
        return uuid.uuid4().hex


class NamesTheIdentityAfterThePath(TableSession):
    def preflight(self, schema: pa.Schema, mode: Any) -> str:
        super().preflight(schema, mode)
        return "t.db"


class ChecksNoColumns(TableSession):
    def _fit(self, schema: pa.Schema, *, only_look: bool = False) -> None:
        if not self.database.columns("t"):
            super()._fit(schema, only_look=only_look)


class SwallowsRefusals(TableSession):
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        try:
            return super().verify(epoch, handles)
        except EpochFailed:
            return ()


class QuotesRefusedRows(TableSession):
    def verify(self, epoch: Epoch, handles: tuple[Handle, ...]) -> tuple[str, ...]:
        try:
            return super().verify(epoch, handles)
        except EpochFailed as error:
            error.what += str(next(self.owner.staging.rows_again(handles[0]).batches()).to_pylist())
            raise


class KeepsTheFirstRow(TableSession):
    def _apply(self, rows: Rows, *how: Any) -> None:
        there = {key for (key,) in self.database.run("SELECT k FROM t")}
        if not there & {row["k"] for batch in rows.batches() for row in batch.to_pylist()}:
            super()._apply(rows, *how)


class ReplacesWhateverIsThere(TableSession):
    """Rows of an epoch are in order, and the last of them replaces a greater one."""

    def _compared(self, schema: pa.Schema, order: Sequence[str]) -> Table:
        return super()._compared(schema, ())


class RemovesNothing(TableSession):
    def _delete(self, keys: pa.RecordBatch, table: Table) -> None:
        pass


class RemovesBeforeItWrites(TableSession):
    """Two passes over an epoch: a row that is written and then removed stays."""

    def _put(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], deletes: str | None, *how: Any) -> None:
        if deletes is None:
            super()._put(schema, batches, deletes, *how)
            return
        rows = list(batches)
        for gone in (True, False):
            for batch in rows:
                mine = batch.filter(pc.equal(batch.column(deletes), gone))
                if gone:
                    self._delete(mine.select(["k"]), self.table)
                else:
                    self._insert(batch.schema.remove(2), iter([mine.drop_columns([deletes])]), self.table)


class TakesNullForFalse(TableSession):
    def _put(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], deletes: str | None, *how: Any) -> None:
        if deletes is None:
            super()._put(schema, batches, deletes, *how)
            return
        for batch in batches:
            self._insert(batch.schema.remove(2), iter([batch.drop_columns([deletes])]), self.table)


class LosesWhatItHeld(TableSession):
    def _finish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        pass


class LosesWhatIsWritten(TableSession):
    def write(self, epoch: Epoch, rows: Rows) -> None:
        self._begin(patient=True)
        self._apply(rows, None, ())


class CommitsTwice(TableSession):
    def _apply(self, rows: Rows, *how: Any) -> None:
        super()._apply(rows, *how)
        super()._apply(rows, *how)


class RaisesOnClose(TableSession):
    def close(self) -> None:
        if not self.database.users:
            raise RuntimeError("closed twice")
        super().close()


class AlwaysSaysHeld(TableSession):
    def examine(self, asked: Asked) -> Examined:
        return replace(super().examine(asked), holdings=alike(asked, Holding.HELD))


class SaysNothing(TableSession):
    def examine(self, asked: Asked) -> Examined:
        return Examined(holdings=alike(asked, Holding.UNKNOWN))


class LooksAtAnotherTarget(TableSession):
    def examine(self, asked: Asked) -> Examined:
        return replace(super().examine(asked), identity="another:t")


class SeesOnlyWhatItIsAskedFor(TableSession):
    def examine(self, asked: Asked) -> Examined:
        return replace(super().examine(asked), strays=())


class ClaimsAnInstantWithoutAText(TableSession):
    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        return replace(super().as_of(asked, epoch), text="", exact=True)


class TakesAnyEpochForNow(TableSession):
    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        return super().as_of(asked, max(asked.epochs))


class CommitsWhenAsked(TableSession):
    def as_of(self, asked: Asked, epoch: Epoch) -> Instant:
        self._end()
        return super().as_of(asked, epoch)


class MakesWhatItRehearses(TableSession):
    def rehearse(self, schema: pa.Schema, mode: Any) -> Rehearsal | None:
        found = super().rehearse(schema, mode)
        self.preflight(schema, mode)
        return found


class AbortsEqualWriters(FilesSession):
    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        return super().orphans(WriterNumber(before + 1))


class FindsNoOrphans(FilesSession):
    def orphans(self, before: WriterNumber, *, at_leisure: bool = False) -> tuple[Handle, ...]:
        return ()


class CopiesAgain(FilesSession):
    def _publish(self, epoch: Epoch, handles: tuple[Handle, ...]) -> None:
        for handle in handles:
            source = self._waiting(handle)
            if not source.exists():
                source = self._folder / handle.body["file"]
            (self._folder / self.owner.handle_id(epoch)).write_bytes(source.read_bytes())


class ShowsWhatIsPreCommitted(FilesSession):
    def pre_commit(self, epoch: Epoch, rows: Rows) -> Handle | None:
        handle = super().pre_commit(epoch, rows)
        if handle is not None:
            self._move((handle,))
        return handle


SABOTAGED: list[tuple[type, type[SinkContract], str]] = [
    (ForgetsTheEpochRow, OnSqlite, "a_repeated_commit_changes_nothing"),
    (ForgetsTheEpochRow, OnKeyed, "an_older_epoch_committed_again_changes_nothing"),
    (AppliesAgain, OnSqlite, "a_repeated_commit_changes_nothing"),
    (AppliesAgain, OnKeyed, "an_older_epoch_committed_again_changes_nothing"),
    (CommitsInTheVote, OnSqlite, "nothing_is_visible_before_the_commit_nor_after_a_rollback"),
    (SaysGoneWhenBusy, OnSqlite, "a_silent_target_is_in_doubt_and_done_once_it_answers"),
    (SaysDoneWhenBusy, OnSqlite, "a_silent_target_is_in_doubt_and_done_once_it_answers"),
    (KeepsTheLastAttempt, OnSqlite, "rows_of_a_failed_attempt_do_not_ride_along_with_the_next"),
    (LetsAnyLineageIn, OnSqlite, "a_second_lineage_is_refused"),
    (TakesAncestorsForStrangers, OnSqlite, "a_restored_lineage_goes_on_in_its_ancestors_target"),
    (TakesAheadForDone, OnSqlite, "a_target_that_holds_an_epoch_unknown_to_the_ledger_needs_an_operator"),
    (ForgetsWhatItHeld, OnSqlite, "a_target_that_was_set_back_needs_an_operator"),
    (ForgetsWhatItHeld, OnSqlite, "a_target_that_is_set_back_after_the_vote_needs_an_operator"),
    (QuotesValues, OnSqlite, "a_handle_is_json_and_holds_no_value"),
    (HandlesNothing, OnSqlite, "an_epoch_without_rows_gives_no_handle"),
    (UsesOneId, OnSqlite, "a_handle_is_json_and_holds_no_value"),
    (InventsAnIdentity, OnSqlite, "the_identity_is_the_same_at_every_start_and_another_for_a_new_target"),
    (NamesTheIdentityAfterThePath, OnSqlite, "the_identity_is_the_same_at_every_start_and_another_for_a_new_target"),
    (ChecksNoColumns, OnSqlite, "columns_that_do_not_fit_are_refused_before_any_row"),
    (SwallowsRefusals, OnKeyed, "a_failed_vote_leaves_nothing_and_quotes_no_value"),
    (QuotesRefusedRows, OnKeyed, "a_failed_vote_leaves_nothing_and_quotes_no_value"),
    (KeepsTheFirstRow, OnKeyed, "in_update_mode_a_later_row_replaces_an_earlier_one"),
    (ReplacesWhateverIsThere, OnKeyed, "a_row_does_not_replace_a_greater_one_whatever_the_epochs"),
    (RemovesNothing, OnKeyed, "a_row_marked_as_deleted_removes_the_row_of_its_key"),
    (RemovesBeforeItWrites, OnKeyed, "a_row_marked_as_deleted_removes_the_row_of_its_key"),
    (AppliesAgain, OnKeyed, "a_removed_row_stays_removed_whatever_is_committed_again"),
    (LosesWhatItHeld, OnKeyed, "a_removed_row_stays_removed_whatever_is_committed_again"),
    (TakesNullForFalse, OnKeyed, "a_row_that_does_not_say_whether_it_is_deleted_is_refused"),
    (LosesWhatItHeld, OnSqlite, "a_second_driver_commits_what_the_first_left_when_it_vanished"),
    (LosesWhatIsWritten, OnSqlite, "a_plain_write_is_visible_at_once"),
    (CommitsTwice, OnSqlite, "a_commit_makes_every_row_visible_once"),
    (RaisesOnClose, OnSqlite, "rollback_and_close_never_raise"),
    (AlwaysSaysHeld, OnSqlite, "a_look_finds_what_is_committed_and_no_more_and_changes_nothing"),
    (SaysNothing, OnSqlite, "a_look_finds_what_is_committed_and_no_more_and_changes_nothing"),
    (AlwaysSaysHeld, OnSqlite, "a_look_misses_what_the_target_forgot"),
    (SeesOnlyWhatItIsAskedFor, OnSqlite, "a_look_names_an_epoch_that_the_ledger_does_not_know"),
    (LooksAtAnotherTarget, OnSqlite, "a_look_takes_no_other_identity_for_the_targets_own"),
    (ClaimsAnInstantWithoutAText, OnSqlite, "an_instant_can_be_read_or_says_why_not_and_asking_changes_nothing"),
    (TakesAnyEpochForNow, OnSqlite, "an_instant_can_be_read_or_says_why_not_and_asking_changes_nothing"),
    (CommitsWhenAsked, OnSqlite, "an_instant_can_be_read_or_says_why_not_and_asking_changes_nothing"),
    (MakesWhatItRehearses, OnSqlite, "a_rehearsal_makes_nothing_and_refuses_what_a_start_refuses"),
    (ChecksNoColumns, OnSqlite, "a_rehearsal_makes_nothing_and_refuses_what_a_start_refuses"),
    (AbortsEqualWriters, OnFiles, "orphans_are_those_of_older_writers_only"),
    (FindsNoOrphans, OnFiles, "an_aborted_orphan_never_becomes_visible"),
    (CopiesAgain, OnFiles, "the_first_driver_wakes_up_and_repeats_the_commit_in_vain"),
    (ShowsWhatIsPreCommitted, OnFiles, "nothing_is_visible_before_the_commit_nor_after_a_rollback"),
]


def failures(contract: type[SinkContract], session: type, folder: Path, only: str = "test_") -> list[str]:
    """Names of the contract's tests that a sink fails."""
    failed = []
    for number, (name, test) in enumerate(inspect.getmembers(contract, inspect.isfunction)):
        if not name.startswith(only):
            continue
        suite = type("Suite", (contract,), {"session": session})()
        place = folder / str(number)
        place.mkdir()
        suite.setup_method()
        if not passes(test, suite, place):
            failed.append(name)
        with suppress(Exception):
            suite.teardown_method()
    return failed


def passes(test: Callable[..., None], suite: SinkContract, place: Path) -> bool:
    try:
        test(suite, place)
    except pytest.skip.Exception:
        return True
    except Exception:  # noqa: BLE001 - however it fails, it was caught
        return False
    return True


@pytest.mark.parametrize(("session", "contract", "by"), SABOTAGED, ids=lambda value: getattr(value, "__name__", ""))
def test_the_contract_catches_a_sink_that(session: type, contract: type[SinkContract], by: str, tmp_path: Path) -> None:
    assert [f"test_{by}"] == failures(contract, session, tmp_path, only=f"test_{by}")


@pytest.mark.parametrize(
    ("session", "contract"), [(TableSession, OnSqlite), (TableSession, OnKeyed), (FilesSession, OnFiles)]
)
def test_the_contract_lets_a_right_sink_pass(session: type, contract: type[SinkContract], tmp_path: Path) -> None:
    assert [] == failures(contract, session, tmp_path)


def test_every_test_of_the_contract_has_caught_somebody() -> None:
    tests = {name.removeprefix("test_") for name in dir(SinkContract) if name.startswith("test_")}
    assert tests == {by for _, _, by in SABOTAGED}
