"""State and positions keep their owners when sinks are renamed, added or removed, and when the plan is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from streams import Place, drop, drop_json, records, table

import fencepost as fp
from fencepost import faults
from fencepost.admin import savepoint
from fencepost.admin.restore import restore, rewind
from fencepost.errors import CheckpointRefused
from fencepost.protocol.format import seal, unseal
from fencepost.runtime import driver
from fencepost.runtime.checks import look
from fencepost.spark.jvm import release
from fencepost.spark.plan import NAMED_SINCE
from fencepost.store import savepoints, store_at
from fencepost.store.ledger import read
from fencepost.store.notes import read_plan, write_plan

F = pytest.importorskip("pyspark.sql.functions")

LINES = ("ant bee bee", "bear ant cow")


def job_of(place: Place, spark: Any, words: str = "counts", letters: str = "letters", **more: Any) -> fp.Job:
    """Counts by word and by first letter, each into a table of this name."""
    out = more.pop("out", "out.db")
    sinks = more.pop("sinks", {})
    job = place.job(spark, **more)
    split = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
    by_letter = split.selectExpr("substring(word, 1, 1) AS letter").groupBy("letter").count()
    to = {"table": words, "key": "word", "name": sinks.get("words")}
    job.write(split.groupBy("word").count(), fp.SQLite(place.root / out, **to))
    to = {"table": letters, "key": "letter", "name": sinks.get("letters")}
    job.write(by_letter, fp.SQLite(place.root / out, **to))
    return job


def run(place: Place, spark: Any, **more: Any) -> None:
    job_of(place, spark, **more).run(until="available")


def note_of(place: Place) -> list[dict[str, Any]]:
    """The branches of its only note, in order."""
    (note,) = place.checkpoint.glob("fencepost/*/plan/*")
    return json.loads(note.read_bytes())["branches"]


def noted(place: Place) -> list[str]:
    """Their sinks."""
    return [branch["sink"] for branch in note_of(place)]


def refuses(job: fp.Job, code: str, *words: str) -> None:
    """`fencepost check` and a start say it alike, and the ledger is as before."""
    place = Path(job.checkpoint)
    before = records(place)
    (found,) = [problem for problem in look(job._launch(looks=True)).problems if problem.code == code]
    with pytest.raises(CheckpointRefused, match=code) as caught:
        job.run(until="available")
    assert str(found) == str(caught.value)
    assert [word for word in words if word in str(found)] == list(words)
    assert before == records(place)


@pytest.fixture(scope="module")
def two_epochs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A stopped job, a savepoint of it, and one more file to read."""
    place = Place(tmp_path_factory.mktemp("identity"))
    place.say(*LINES)
    run(place, spark)
    savepoint.create(place.checkpoint, name="second")
    place.say("ant bee")
    return place


@pytest.fixture
def stopped(two_epochs: Place, tmp_path: Path) -> Place:
    return two_epochs.copy(tmp_path / "copy")


WORDS = {"ant": 3, "bee": 3}
LETTERS = {"a": 3, "b": 4}
"""What the last file changes."""


class TestBranches:
    def test_a_renamed_table_keeps_its_state(self, spark: Any, stopped: Place) -> None:
        with pytest.raises(CheckpointRefused, match="sink_removed"):
            run(stopped, spark, words="words")  # sorts after `letters`
        run(stopped, spark, words="words", allow_sink_changes=True)
        assert dict(table(stopped.database, "words")) == WORDS
        assert dict(table(stopped.database, "letters")) == {**LETTERS, "c": 1}
        assert noted(stopped) == ["sqlite:words", "sqlite:letters"]
        run(stopped, spark, words="words")  # and from then on without being declared

    def test_after_an_upgrade_of_spark_a_person_may_say_that_the_plan_is_the_same(
        self, spark: Any, stopped: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The note has Spark's own words for an expression, and another release may have others."""
        with monkeypatch.context() as older:
            older.setattr(driver, "_versions", lambda: {"pyspark": "4.2.9"})
            run(stopped, spark)
        store = store_at(stopped.checkpoint)
        (note,) = stopped.checkpoint.glob("fencepost/*/plan/*")
        lineage = note.parent.parent.name
        branches = read_plan(store, (lineage,))
        assert branches is not None
        branches[0].operators[0] = "Aggregate by word: COUNT(ALL 1)"
        write_plan(store, lineage, int(note.name), branches)
        refuses(job_of(stopped, spark), "operator_changed", "last ran on Spark 4.2.9", f"delete {note}")
        note.unlink()
        run(stopped, spark)
        assert "Aggregate by word: count(1)" == note_of(stopped)[0]["operators"][0]

    def test_a_fork_with_other_targets_keeps_the_state(self, spark: Any, stopped: Place, tmp_path: Path) -> None:
        made = savepoints.load(savepoints.home(stopped.checkpoint) / "second")
        restore(made, tmp_path / "fork", fork="second")
        more = {"name": "second", "checkpoint": tmp_path / "fork", "out": "fork.db"}
        run(stopped, spark, words="words", letters="firsts", **more)  # `firsts` sorts first
        assert dict(table(stopped.root / "fork.db", "words")) == WORDS
        assert dict(table(stopped.root / "fork.db", "firsts")) == LETTERS

    def test_a_rewound_job_with_a_renamed_table_keeps_its_state(self, spark: Any, stopped: Place) -> None:
        rewind(stopped.checkpoint, 0, "again")
        run(stopped, spark, words="words", allow_sink_changes=True)
        assert dict(table(stopped.database, "words")) == {**WORDS, "bear": 1, "cow": 1}

    @pytest.mark.parametrize("words", ["words", "counts"], ids=["renamed", "as it was"])
    def test_a_crash_before_the_first_decision_of_a_new_order(self, spark: Any, stopped: Place, words: str) -> None:
        """The note is written, and nothing is decided: the job goes on with its new names and with its old ones."""
        faults.arm({faults.ARM: "decide.before=fail"})
        try:
            with pytest.raises(fp.Retryable):
                run(stopped, spark, words="words", allow_sink_changes=True)
        finally:
            faults.arm({})
        assert noted(stopped) == ["sqlite:words", "sqlite:letters"]
        run(stopped, spark, words=words, allow_sink_changes=True)
        assert WORDS.items() <= dict(table(stopped.database, words)).items()
        assert dict(table(stopped.database, "letters")) == {**LETTERS, "c": 1}

    def test_which_of_two_like_branches_was_renamed_is_not_guessed(self, spark: Any, place: Place) -> None:
        def job_of_two(first: str, second: str, out: str = "out.db", **names: str) -> fp.Job:
            job = place.job(spark, allow_sink_changes=True)
            split = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
            for table_ in (first, second):
                to = fp.SQLite(place.root / out, table=table_, key="word", name=names.get(table_))
                job.write(split.groupBy("word").count(), to)
            return job

        place.say(*LINES)
        job_of_two("all", "again").run(until="available")
        refuses(job_of_two("words", "bits"), "branch_unclear", "name='sqlite:again'")
        place.say("bear ant")
        job_of_two("words", "again").run(until="available")
        assert dict(table(place.database, "words")) == {"ant": 3, "bear": 2}
        place.say("bear ant")
        job_of_two("words", "bits", "new.db", words="sqlite:words", bits="sqlite:again").run(until="available")
        assert dict(table(place.root / "new.db", "words")) == {"ant": 4, "bear": 3}
        assert dict(table(place.root / "new.db", "bits")) == {"ant": 4, "bear": 3}

    def test_two_that_are_renamed_at_once_are_told_apart_by_what_they_filter(self, spark: Any, place: Place) -> None:
        def job_of_two(first: str, second: str) -> fp.Job:
            job = place.job(spark, allow_sink_changes=True)
            split = place.text(job).selectExpr("explode(split(value, ' ')) AS word")
            for table_, rows in ((first, split), (second, split.where("length(word) > 3"))):
                job.write(rows.groupBy("word").count(), fp.SQLite(place.database, table=table_, key="word"))
            return job

        place.say(*LINES)
        job_of_two("all", "long").run(until="available")
        place.say("bear ant")
        job_of_two("words", "bits").run(until="available")
        assert dict(table(place.database, "words")) == {"ant": 3, "bear": 2}
        assert dict(table(place.database, "bits")) == {"bear": 2}

    def test_state_is_neither_added_nor_removed(self, spark: Any, stopped: Place) -> None:
        more = job_of(stopped, spark, allow_sink_changes=True)
        split = stopped.text(more).groupBy("value").count()
        more.write(split, fp.SQLite(stopped.database, table="a_first", key="value"))
        refuses(more, "operator_changed", "Aggregate by value: count(1) is new")
        less = stopped.job(spark, allow_sink_changes=True)
        letters = stopped.text(less).selectExpr("value AS letter").groupBy("letter").count()
        less.write(letters, fp.SQLite(stopped.database, table="letters", key="letter"))
        refuses(less, "operator_changed", "Aggregate by word: count(1)")

    def test_a_branch_without_state_is_added_and_removed_where_sources_have_names(
        self, spark: Any, place: Place
    ) -> None:
        if release(spark.version) < NAMED_SINCE:
            pytest.skip("this Spark has no names for sources")

        def job_with(*tables: str) -> fp.Job:
            job = place.job(spark, allow_sink_changes=True)
            for name in ("counts", *tables):
                text = job.read(fp.Files(str(place.input), format="text", max_files_per_epoch=1), name=f"of_{name}")
                rows, key = (text.groupBy("value").count(), "value") if name == "counts" else (text, None)
                job.write(rows, fp.SQLite(place.database, table=name, key=key))
            return job

        place.say("a", "b")
        job_with("every").run(until="available")
        place.say("a")
        job_with("all").run(until="available")  # sorts before `counts`, which moves up
        assert dict(table(place.database, "counts")) == {"a": 2, "b": 1}
        assert table(place.database, "all") == [("a",), ("a",), ("b",)]

    def test_a_driver_that_was_replaced_during_its_start_is_refused(self, spark: Any, stopped: Place) -> None:
        """The other one accepted another order after our checks and before our recovery."""
        late = job_of(stopped, spark)._launch()
        late.check_noted(late.noted)
        state, store = read(stopped.checkpoint), store_at(stopped.checkpoint)
        branches = read_plan(store, (state.lineage_id,))
        write_plan(store, state.lineage_id, 90, branches[::-1])
        late.recovered = state
        with pytest.raises(CheckpointRefused, match="plan_changed_meanwhile"):
            late.note_plan(91)
        write_plan(store, state.lineage_id, 89, branches)  # and one that slept says nothing
        assert read_plan(store, (state.lineage_id,)) == branches[::-1]


EVENT_LINES = ("web ERROR", "web WARN", "db ERROR")


def counting(place: Place, spark: Any, rows: str = "level = 'ERROR'", table: str = "errors", **told: Any) -> fp.Job:
    """Events by host, of those that pass a condition."""
    key, name, out = told.pop("key", "host"), told.pop("sink", None), told.pop("out", "out.db")
    job = place.job(spark, allow_sink_changes=True, **told)
    event = place.text(job).selectExpr("split(value, ' ')[0] AS host", "split(value, ' ')[1] AS level")
    counts = event.where(rows).withColumn("k", F.expr(key)).groupBy("k").count()
    return job.write(counts, fp.SQLite(place.root / out, table=table, key="k", name=name))


@pytest.fixture(scope="module")
def counted(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Errors by host."""
    place = Place(tmp_path_factory.mktemp("counted"))
    place.say(*EVENT_LINES)
    counting(place, spark).run(until="available")
    place.say("web ERROR", "web WARN")
    return place


@pytest.fixture
def errors(counted: Place, tmp_path: Path) -> Place:
    return counted.copy(tmp_path / "copy")


class TestBelow:
    """State goes on only from the rows that it was made from."""

    def test_a_replaced_branch_does_not_inherit_state(self, spark: Any, errors: Place) -> None:
        other = {"rows": "level = 'WARN'", "table": "warnings"}
        refuses(counting(errors, spark, **other), "state_made_otherwise", "'sqlite:errors'", "name='sqlite:errors'")
        refuses(counting(errors, spark, **other, allow_plan_changes=True), "state_made_otherwise")
        same = {"sink": "sqlite:errors", "out": "new.db", "allow_plan_changes": True}  # as the error advises
        counting(errors, spark, **other, **same).run(until="available")
        assert dict(table(errors.root / "new.db", "warnings")) == {"web": 2}  # an error that was counted, a warning

    @pytest.mark.parametrize(
        "changed",
        [{"rows": "level = 'WARN'"}, {"rows": "level = 'ERROR' AND host = 'db'"}, {"key": "upper(host)"}],
        ids=["filter", "one filter more", "key"],
    )
    def test_changed_rows_are_accepted_only_if_the_user_says_so(
        self, spark: Any, errors: Place, changed: dict[str, str]
    ) -> None:
        refuses(counting(errors, spark, **changed), "state_made_otherwise", "allow_plan_changes=True")
        accepting = counting(errors, spark, **changed, allow_plan_changes=True)
        (said,) = [note for note in look(accepting._launch(looks=True)).notes if "allow_plan_changes" in note]
        assert "stream where" in said
        accepting.run(until="available")
        counting(errors, spark, **changed).run(until="available")  # from then on without being declared

    def test_a_string_in_the_plan_is_not_in_the_note(self, errors: Place) -> None:
        (branch,) = note_of(errors)
        (below,) = branch["below"]
        assert ("stream where" in below, "ERROR" in below) == (True, False)

    def test_an_older_note_is_filled_in_by_the_next_start(self, spark: Any, errors: Place) -> None:
        store, (file,) = store_at(errors.checkpoint), errors.checkpoint.glob("fencepost/*/plan/*")
        plain = unseal(file.read_bytes())
        for branch in plain["branches"]:
            del branch["below"]
            for source in branch["sources"]:
                del source["chosen"], source["how"]
        store.replace(file.relative_to(errors.checkpoint).as_posix(), seal({**plain, "format": 1}))
        refuses(counting(errors, spark, table="mistakes"), "plan_not_noted", "start the job once")
        counting(errors, spark).run(until="available")
        counting(errors, spark, table="mistakes").run(until="available")
        assert dict(table(errors.database, "errors")) == {"web": 2, "db": 1}


def parsed(job: fp.Job, text: Any) -> Any:
    return job.parse(text, schema="a INT, b STRING").where("a > 0")


def shared(job: fp.Job, text: Any) -> Any:
    size = F.udf(lambda value: len(value), "int", useArrow=False)  # noqa: PLW0108 - as users write them
    return job.share(text.withColumn("a", F.length("value")).withColumn("b", size("value")))


def mapped(job: fp.Job, text: Any) -> Any:
    dead = fp.SQLite(Path(job.checkpoint).parent / "dead.db", table="dead")
    rows = job.map(text, lambda row: (len(row.value), row.value), output="a INT, b STRING")
    both = job.map(rows, str, output="a INT, b STRING", on_bad_record="dead_letter", dead_letters=dead)
    return both.withColumn("b", F.concat("b", F.rand()))


def joined(job: fp.Job, text: Any) -> Any:
    table_ = job.spark.createDataFrame([(1, "x")], "a INT, b STRING")
    numbers = text.withColumn("a", F.length("value")).unionByName(text.selectExpr("value", "1 AS a"))
    return numbers.join(table_, "a", "left").repartition(3)


def windowed(job: fp.Job, text: Any) -> Any:
    timed = text.selectExpr("length(value) AS a", "CAST(value AS TIMESTAMP) AS t").withWatermark("t", "1 hour")
    return timed.withColumn("b", F.window("t", "10 minutes", "5 minutes")).sample(0.5)


SPLIT = "explode(split(value, 'd03502c4', -1))"


class TestTexts:
    """What lies below an operator is written the same in every session, and says what changes a row."""

    def below(self, spark: Any, place: Place, build: Any) -> list[list[str]]:
        place.input.mkdir(exist_ok=True)
        job = place.job(spark)
        job.write(build(job, place.text(job)).groupBy("a").agg(F.max("b")), place.counts_sink())
        return [note.below or [] for note in job._launch().fingerprints.values()]

    @pytest.mark.parametrize("build", [parsed, shared, mapped, joined, windowed])
    def test_nothing_that_is_drawn_is_in_it(self, spark: Any, place: Place, build: Any) -> None:
        assert self.below(spark, place, build) == self.below(spark, place, build)

    @pytest.mark.parametrize(
        ("build", "text"),
        [
            (lambda job, text: text.selectExpr("1 AS a", "value AS b"), "stream with a = 1, b = value"),
            (
                lambda job, text: text.selectExpr("value AS b", "length(value) AS n").selectExpr("n + 1 AS a", "b"),
                "stream with a = (length(value) + 1), b = value",
            ),
            (shared, "stream with a = length(value), b = <lambda>(value)"),
            (
                parsed,
                "parsed(value) of stream where (parsed(value).a > 0) with a = parsed(value).a, b = parsed(value).b",
            ),
            (
                lambda job, text: job.map(text, lambda row: (1, "b"), output="a INT, b STRING"),
                "MapInArrow <lambda>(value, __fencepost_position) of stream with a = MapInArrow.a, b = MapInArrow.b",
            ),
            (
                lambda job, text: text.selectExpr("explode(split(value, ',')) AS b", "value").where("b > value"),
                f"{SPLIT} of stream where ({SPLIT} > value) with a = value, b = {SPLIT}",
            ),
        ],
        ids=["columns", "steps", "share", "parse", "map", "explode"],
    )
    def test_it_says_what_the_rows_are(self, spark: Any, place: Place, build: Any, text: str) -> None:
        """Checkpoints hold these texts: written differently, jobs that have run would be refused."""
        with_a = lambda job, lines: _with_column(build(job, lines), "a")  # noqa: E731 - one that all have
        assert [[text]] == self.below(spark, place, with_a)

    def test_columns_that_are_not_used_are_not_in_it(self, spark: Any, place: Place) -> None:
        def plain(job: fp.Job, text: Any) -> Any:
            return text.selectExpr("length(value) AS a", "value AS b").where("a > 1").where("b > 'x'")

        def more(job: fp.Job, text: Any) -> Any:
            columns = text.withColumn("c", F.lit(1)).selectExpr("c", "value AS other", "length(value) AS a")
            return columns.where("other > 'x' AND a > 1").withColumnRenamed("other", "b").withColumn("d", F.rand())

        assert self.below(spark, place, plain) == self.below(spark, place, more)


def _with_column(frame: Any, name: str) -> Any:
    return frame if name in frame.columns else frame.withColumn(name, F.col("value"))


class TestWithoutNote:
    """Checkpoints that were made before there was one."""

    @pytest.fixture
    def older(self, stopped: Place) -> Place:
        (notes,) = stopped.checkpoint.glob("fencepost/*/plan")
        shutil.rmtree(notes)
        return stopped

    def test_the_order_is_the_sorted_one_and_is_noted_then(self, spark: Any, older: Place) -> None:
        run(older, spark)
        assert WORDS.items() <= dict(table(older.database, "counts")).items()
        assert noted(older) == ["sqlite:counts", "sqlite:letters"]

    def test_sinks_are_not_changed_before_it_is_noted(self, spark: Any, older: Place) -> None:
        refuses(job_of(older, spark, words="words", allow_sink_changes=True), "plan_not_noted", "start the job once")


class TestSources:
    @pytest.mark.parametrize("glob", ["", "*"], ids=["folders", "globs"])
    def test_swapped_or_replaced_sources_are_refused(self, spark: Any, place: Place, glob: str) -> None:
        def job_over(*folders: str) -> fp.Job:
            job = place.job(spark)
            one, two = (job.read(fp.Files(f"{place.root / name}{glob}", format="text")) for name in folders)
            return job.write(one.unionAll(two), fp.SQLite(place.database, table="rows"))

        drop(place.root / "left", "1\n")
        drop(place.root / "right", "2\n")
        job_over("left", "right").run(until="available")
        refuses(job_over("right", "left"), "sources_changed", "Source 0 was text path file:", "left", "right")
        refuses(job_over("left", "left"), "sources_changed", "Source 1 was")
        drop(place.root / "right", "3\n")
        job_over("left", "right").run(until="available")
        assert table(place.database, "rows") == [("1",), ("2",), ("3",)]

    @pytest.mark.parametrize("accepts", [False, True])
    def test_two_sources_of_one_folder_do_not_change_places(self, spark: Any, place: Place, accepts: bool) -> None:
        def job_over(*ends: str, **told: Any) -> fp.Job:
            job = place.job(spark, **told)
            reads = (
                job.read(fp.Files(place.input, format="text", options={"pathGlobFilter": f"*.{end}"})) for end in ends
            )
            one, two = reads
            return job.write(one.unionAll(two), fp.SQLite(place.database, table="rows"))

        for end in ("csv", "txt"):
            drop(place.input, f"{end}\n").rename(place.input / f"1.{end}")
        job_over("csv", "txt").run(until="available")
        refuses(job_over("txt", "csv", allow_plan_changes=accepts), "sources_changed")
        other = job_over("csv", "json")
        refuses(other, "sources_changed", "pathglobfilter was *.txt and is now *.json")
        if accepts:
            job_over("csv", "json", allow_plan_changes=True).run(until="available")
        assert table(place.database, "rows") == [("csv",), ("txt",)]

    def test_a_source_that_two_branches_shared_stays_one(self, spark: Any, place: Place) -> None:
        def job_of_copies(*, shared: bool) -> fp.Job:
            job = place.job(spark)
            text = place.text(job)
            job.write(text, fp.SQLite(place.database, table="one"))
            return job.write(text if shared else place.text(job), fp.SQLite(place.database, table="two"))

        place.say("a")
        job_of_copies(shared=True).run(until="available")
        refuses(job_of_copies(shared=False), "sources_changed", "no longer share it")


EVENTS = "id BIGINT, kind STRING, at TIMESTAMP"


def events(place: Place, spark: Any, **changed: Any) -> fp.Job:
    """Windows over rows without duplicates, and rows of their own; each part of it can be changed."""
    what = {"length": "10 minutes", "slide": None, "key": "kind", "unique": ["id"], "sum": "id"} | changed
    job = place.job(spark)
    rows = job.read(fp.Files(str(place.input), format="json", schema=EVENTS)).withWatermark("at", "1 hour")
    unique = rows.dropDuplicates(what["unique"])
    window = F.window("at", what["length"], what["slide"]).alias("w")
    sums = unique.groupBy(window, F.expr(what["key"]).alias("key")).agg(F.sum(F.expr(what["sum"])).alias("total"))
    keyed = sums.select(F.col("w.start").alias("at"), "key", "total")
    job.write(keyed, fp.SQLite(place.database, table="sums", key=["at", "key"]))
    own = rows.where("id > 0").select(what["unique"]).dropDuplicates(what["unique"])
    return job.write(own, fp.SQLite(place.database, table="unique"))


@pytest.fixture(scope="module")
def ran(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("operators"))
    drop_json(place.input, {"id": 1, "kind": "a", "at": "2026-01-01T00:00:00Z"})
    events(place, spark).run(until="available")
    return place


class TestOperators:
    def test_the_numbers_are_those_of_spark(self, ran: Place) -> None:
        """From the first branch to the last, and in each from the top down."""
        operators = [one for branch in note_of(ran) for one in branch["operators"]]
        kinds = [
            json.loads((ran.checkpoint / f"state/{number}/_metadata/metadata").read_text().split("\n")[1])
            for number in range(len(operators))
        ]
        assert [one["operatorInfo"]["operatorName"] for one in kinds] == ["stateStoreSave", "dedupe", "dedupe"]
        assert [one.split()[0] for one in operators] == ["Aggregate", "Deduplicate", "Deduplicate"]

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"length": "20 minutes"}, "600 s"),
            ({"slide": "5 minutes"}, "300 s"),
            ({"unique": ["kind"]}, "Deduplicate by kind"),
            ({"sum": "id * 2"}, "sum(id)"),
            ({"key": "upper(kind)"}, "upper(kind)"),
        ],
        ids=["window", "slide", "dedup key", "function", "key"],
    )
    def test_a_changed_operator_is_refused(self, spark: Any, ran: Place, changed: dict[str, Any], words: str) -> None:
        refuses(events(ran, spark, **changed), "operator_changed", words)
