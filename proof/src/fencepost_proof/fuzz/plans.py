"""Jobs made from a seed. The same functions build a branch of a stream and the batch that it is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fencepost as fp

SCHEMA = "id BIGINT, k INT, v INT, w STRING, t TIMESTAMP"
BEGIN = 1_750_000_000
"""The time of record 0, in seconds since 1970."""
PACE_S = 3
"""Between two records."""
LATE = "3 minutes"
"""How far a source may be behind itself: more than the jitter of `Feed`, so that no record is late."""

Frame = Any
"""A DataFrame, of a stream or of a batch."""


@dataclass(frozen=True)
class Place:
    """Where a job has its files, and the servers it may use."""

    root: Path
    kafka: str = ""
    """The address of a broker, if there is one."""
    postgres: str = ""
    """The DSN of a database, if there is one."""

    def topic(self, name: str) -> str:
        """Topics of one job have its own prefix."""
        return f"{self.root.name}-{name}"

    def table(self, name: str) -> str:
        """Tables in a shared database likewise."""
        return f"{self.root.name}-{name}"


@dataclass(frozen=True)
class Shape:
    """What a branch makes of its rows."""

    build: Callable[[Frame], Frame]
    key: tuple[str, ...] = ()
    """The key of its table, if it has one."""
    told: dict[str, Any] = field(default_factory=dict)
    """More settings of the sink."""
    timed: bool = False
    """Does it wait for the watermark?"""
    sure: bool = True
    """May it stand above values that vary?"""


def _sums(rows: Frame) -> Frame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.max("id").alias("newest"))


def _marked(rows: Frame) -> Frame:
    """What `filtered counts` does, for a table from which rows are removed."""
    counts = rows.groupBy("k").count()
    return counts.selectExpr("*", "count % 3 != 1 AS gone") if rows.isStreaming else counts.where("count % 3 = 1")


def _windows(rows: Frame) -> Frame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return rows.groupBy(F.window("t", "2 minutes"), "k").count().selectExpr("window.start AS s", "k", "count")


def _sessions(rows: Frame) -> Frame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return rows.groupBy(F.session_window("t", "10 seconds"), "k").count().selectExpr("session_window.end AS s", "k")


def _distinct(rows: Frame) -> Frame:
    """In SQL it is another operator than in Python."""
    return rows.sparkSession.sql("SELECT DISTINCT k FROM {rows}", rows=rows)


def _within(rows: Frame) -> Frame:
    rows = rows.select("id", "k", "v", "t")
    rows = rows.dropDuplicatesWithinWatermark(["id"]) if rows.isStreaming else rows.dropDuplicates(["id"])
    return rows.select("id", "k", "v")


SHAPES: dict[str, Shape] = {
    "rows": Shape(lambda rows: rows.select("id", "k", "v")),
    "words": Shape(lambda rows: rows.selectExpr("id", "explode(split(w, ' ')) AS word")),
    "counts": Shape(lambda rows: rows.groupBy("k").count(), ("k",)),
    "counts, no key": Shape(lambda rows: rows.groupBy("k").count()),
    "sums": Shape(_sums, ("k",)),
    "filtered counts": Shape(lambda rows: rows.groupBy("k").count().where("count % 3 = 1"), ("k",)),
    "marked counts": Shape(_marked, ("k",), {"deletes": "gone"}),
    "distinct": Shape(lambda rows: rows.select("k").distinct(), ("k",)),
    "distinct, no key": Shape(lambda rows: rows.select("k").distinct()),
    "select distinct": Shape(_distinct, ("k",)),
    "select distinct, no key": Shape(_distinct),
    "deduplicated": Shape(lambda rows: rows.select("id", "k", "v").dropDuplicates(["id"])),
    "by id": Shape(lambda rows: rows.select("id", "k", "v"), ("id",)),
    "by id, unique": Shape(lambda rows: rows.select("id", "k", "v"), ("id",), {"unique_key": True}),
    "newest": Shape(lambda rows: rows.select("k", "id", "v"), ("k",)),
    "newest, ordered": Shape(lambda rows: rows.select("k", "id", "v"), ("k",), {"order_by": "id"}),
    "windows": Shape(_windows, ("s", "k"), timed=True),
    "windows, no key": Shape(_windows, timed=True),
    "sessions": Shape(_sessions, timed=True),
    "deduplicated, timed": Shape(_within, timed=True),
}
JOINS = ("inner", "left_outer")
STATELESS = ("rows", "words", "by id", "by id, unique", "newest", "newest, ordered")
CUTS = ("true", "v % 3 = 1", "k < 4", "id % 2 = 0")
FILTERED = "filtered"
"""The folder that several sources read, each some of its files."""
SINKS = {
    "rows": ("sqlite", "duckdb", "files", "kafka", "postgres"),
    "words": ("sqlite", "files", "kafka"),
    "deduplicated": ("sqlite", "files", "postgres"),
    "counts": ("sqlite", "duckdb", "kafka", "postgres"),
    "marked counts": ("sqlite", "duckdb", "postgres"),
    "windows": ("sqlite", "postgres"),
    "newest, ordered": ("sqlite", "duckdb", "postgres"),
}
"""Where the rows of a shape may go; the others go to SQLite."""


@dataclass(frozen=True)
class Branch:
    """One DataFrame and its sink."""

    name: str
    over: str
    """`all` that is below the fork, the name of one source, or `inner` or `left_outer`: a join of the first two."""
    cut: str
    """A condition on its rows."""
    shape: str
    sink: str

    @property
    def key(self) -> tuple[str, ...]:
        """The key of its table, if it has one."""
        return SHAPES[self.shape].key

    @property
    def timed(self) -> bool:
        """Does it wait for the watermark?"""
        return SHAPES[self.shape].timed or self.over in JOINS

    @property
    def has_state(self) -> bool:
        """Does Spark remember something for it?"""
        return self.shape not in STATELESS or self.over in JOINS

    def build(self, base: Frame, sources: dict[str, Frame]) -> Frame:
        """The plan above the fork."""
        if self.over in JOINS:
            first, second = list(sources.values())[:2]
            return _join(first.where(self.cut), second, self.over)
        rows = base if self.over == "all" else sources[self.over]
        return SHAPES[self.shape].build(rows.where(self.cut))

    def target(self, place: Place) -> fp.Sink:
        """A new sink at every call, as a new process would make it."""
        if self.sink == "files":
            return fp.Files(place.root / self.name, format="json", name=self.name)
        if self.sink == "kafka":
            (key,) = self.key or (None,)
            return fp.Kafka(place.topic(self.name), servers=place.kafka, key=key, name=self.name)
        told: dict[str, Any] = {"name": self.name, **SHAPES[self.shape].told}
        if self.key:
            told["key"] = list(self.key)
        if self.sink == "postgres":
            return fp.Postgres(place.table(self.name), dsn=place.postgres, **told)
        if self.sink == "duckdb":
            return fp.DuckDB(place.root / "out.duckdb", table=self.name, **told)
        return fp.SQLite(place.root / "out.db", table=self.name, **told)


def _join(first: Frame, second: Frame, how: str) -> Frame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    other = second.selectExpr("id AS other", "k AS ok", "t AS ot")
    near = "k = ok AND ot BETWEEN t - INTERVAL 20 SECONDS AND t + INTERVAL 20 SECONDS"
    return first.join(other, F.expr(near), how).select("id", "other", "v")


ALIKE = ("rows", "words", "deduplicated", "by id, unique", "newest, ordered", "windows", "distinct")
FAMILIES: dict[str, tuple[str, ...]] = {
    "update": (*ALIKE, "counts", "sums", "filtered counts", "marked counts", "select distinct"),
    "append": (*ALIKE, "distinct, no key", "windows, no key", "sessions", "deduplicated, timed", *JOINS),
    "any": (*SHAPES, *JOINS),
}
"""Shapes that go together in one job; of `any` most are refused."""

DETERMINISTIC = ("plain", "computed", "joined", "udf, trusted")
SHARED = ("fp.rand, shared", "udf, shared")
REFUSED = ("rand", "fp.rand", "udf", "rand, shared")
"""What lies below the fork; the last are refused."""


@dataclass(frozen=True)
class Plan:
    """A whole job."""

    seed: int
    below: str
    sources: tuple[tuple[str, str], ...]
    """Name and kind of each: `folder`, `glob`, `filter` (some files of a folder that others read too) or `kafka`."""
    union: tuple[str, ...]
    """The sources below the fork, in this order."""
    branches: tuple[Branch, ...]
    bridge: str
    tiny: bool = False
    """Is each file read by several tasks?"""
    changes_sinks: bool = False
    order: tuple[int, ...] = field(default=())
    """In which order the branches are written; by default as they are."""
    apart: bool = False
    """Does every branch read for itself, as in older releases?"""
    name: str = "fuzz"
    """Of the job and its checkpoint: a fork has others."""

    @property
    def is_deterministic(self) -> bool:
        """Can each sink be compared with a batch?"""
        return self.below in DETERMINISTIC

    @property
    def timed(self) -> bool:
        """Does a branch wait for the watermark?"""
        return any(branch.timed for branch in self.branches)

    def job(self, place: Place, spark: Any) -> fp.Job:
        """The job as a user writes it."""
        told: dict[str, Any] = {"deterministic_udfs": True} if self.below == "udf, trusted" else {}
        job = fp.Job(
            f"{place.root.name}-{self.name}",  # of its own: the marks in a shared database are known by it
            checkpoint=place.root / f"checkpoint-{self.name}",
            spark=spark,
            bridge=self.bridge,  # type: ignore[arg-type]
            allow_sink_changes=self.changes_sinks,
            quiet=True,
            **told,
        )
        streams = {name: self._timed(self._stream(name, kind, job, place)) for name, kind in self.sources}
        base = self.base([streams[name] for name in self.union], job)
        for at in self.order or range(len(self.branches)):
            branch = self.branches[at]
            job.write(branch.build(base, streams), branch.target(place))
        return job

    def _stream(self, name: str, kind: str, job: fp.Job, place: Place) -> Frame:
        if kind == "kafka":
            read = job.read(fp.Kafka(place.topic(name), servers=place.kafka, max_records_per_epoch=100))
            return read.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS row").select("row.*")
        told = {"pathGlobFilter": f"{name}-*"} if kind == "filter" else {}
        path = place.root / "in" / {"glob": f"{name}*", "filter": FILTERED}.get(kind, name)
        return job.read(fp.Files(path, format="json", schema=SCHEMA, max_files_per_epoch=2, options=told))

    def _timed(self, rows: Frame) -> Frame:
        return rows.withWatermark("t", LATE) if self.timed else rows

    def batch(self, fed: dict[str, list[dict[str, Any]]], spark: Any) -> dict[str, Frame]:
        """What each branch should have given by now, computed by Spark alone from all the rows that there were."""
        frames = {name: _frame(fed[name], spark) for name, _ in self.sources}
        base = self.base([frames[name] for name in self.union], None)
        return {branch.name: branch.build(base, frames) for branch in self.branches}

    def base(self, frames: list[Frame], job: fp.Job | None) -> Frame:
        """What lies below the fork."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

        rows = frames[0]
        for other in frames[1:]:
            rows = rows.unionAll(other)
        below, _, share = self.below.partition(", ")
        if below == "computed":
            rows = rows.withColumn("v", F.expr("v * 2 + length(w)"))
        elif below == "joined":
            names = rows.sparkSession.createDataFrame([(0, 1), (1, 0)], "k INT, keep INT")
            rows = rows.join(names, "k", "left").selectExpr("id", "k", "v", "w", "t")
        elif below == "udf" and share == "trusted":
            rows = rows.withColumn("v", _doubled()("v"))
        elif below in ("rand", "fp.rand"):
            rows = rows.withColumn("r", F.rand() if below == "rand" else fp.rand())
        elif below == "udf":
            rows = rows.withColumn("r", _chance()("id"))
        if share == "shared" and job is not None:
            rows = job.share(rows)
        return rows


def _frame(rows: list[dict[str, Any]], spark: Any) -> Frame:
    text = spark.createDataFrame([(row["id"], row["k"], row["v"], row["w"], row["t"]) for row in rows], _as_text())
    return text.selectExpr("id", "k", "v", "w", "CAST(t AS TIMESTAMP) AS t")


def _as_text() -> str:
    return SCHEMA.replace("TIMESTAMP", "STRING")


def _doubled() -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    return F.udf(lambda v: v * 2, "int", useArrow=False)


def _chance() -> Any:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name

    def chance(_: int) -> float:
        import random as of_worker  # noqa: PLC0415 - in the worker

        return of_worker.random()

    return F.udf(chance, "double", useArrow=False)


def make(seed: int, place: Place) -> Plan:
    """A job. The same seed with the same servers makes the same one."""
    rng = random.Random(seed)
    below = rng.choice(rng.choices((DETERMINISTIC, SHARED, REFUSED), (7, 2, 1))[0])
    kinds = ["folder", "glob", *(["kafka", "kafka"] if place.kafka else [])]
    sources = tuple((name, rng.choice(kinds)) for name in "abc"[: rng.choice([1, 2, 2, 3])])
    names = [name for name, _ in sources]
    union = tuple(rng.sample(names, rng.randint(1, len(names))))
    if below in DETERMINISTIC:
        family = FAMILIES[rng.choices(list(FAMILIES), (3, 4, 2))[0]]
        shapes = [shape for shape in family if shape not in JOINS or len(names) > 1]
        drawn = [_drawn(rng, rng.choice(shapes), names) for _ in range(rng.randint(1, 4))]
    else:
        drawn = [("all", "r < 0.5", "rows"), ("all", "NOT r < 0.5", "rows")]
    called = rng.sample(["alpha", "beta", "gamma", "delta", "zeta"], len(drawn))
    there = {
        "sqlite",
        "duckdb",
        "files",
        *(["kafka"] if place.kafka else []),
        *(["postgres"] if place.postgres else []),
    }
    branches = tuple(
        Branch(name, over, cut, shape, rng.choice([sink for sink in SINKS.get(shape, ("sqlite",)) if sink in there]))
        for name, (over, cut, shape) in zip(called, drawn, strict=True)
    )
    used = {*union, *(branch.over for branch in branches)}
    if used & set(JOINS):
        used |= set(names[:2])
    sources = tuple((name, kind) for name, kind in sources if name in used)
    if _luck("filters", seed).random() < 0.3:
        sources = tuple((name, "filter" if kind in ("folder", "glob") else kind) for name, kind in sources)
    return Plan(seed, below, sources, union, branches, rng.choice(["jvm", "foreach_batch"]), tiny=rng.random() < 0.3)


def _luck(what: str, seed: int) -> random.Random:
    """For draws that came later: those of before, and so the jobs of their seeds, stay as they were."""
    return random.Random(f"{what} {seed}")


def _drawn(rng: random.Random, shape: str, names: list[str]) -> tuple[str, str, str]:
    """What a branch reads, its condition, its shape."""
    cut = rng.choice(CUTS)
    return (shape, cut, "rows") if shape in JOINS else (rng.choice(["all", "all", "all", names[0]]), cut, shape)


def changed(plan: Plan, rng: random.Random) -> tuple[str, Plan]:
    """The job after somebody edited its file, and what was done to it."""
    branches, at = plan.branches, rng.randrange(len(plan.branches))
    mine = branches[at]
    name = {"alpha": "omega", "beta": "aaa"}.get(mine.name, f"new_{mine.name}")
    edits = {
        "same": plan,
        "reordered": replace(plan, order=tuple(rng.sample(range(len(branches)), len(branches)))),
        "renamed": _with(plan, at, replace(mine, name=name)),
        "added": _with(plan, len(branches), Branch("aaa_added", "all", "true", "counts", "sqlite")),
        "forked": _forked(plan, rng),
    }
    if len(branches) > 1:
        edits["removed"] = _with(plan, at)
    if len(plan.union) > 1:
        edits["swapped"] = replace(plan, union=plan.union[::-1])
        edits["one source twice"] = replace(plan, union=(plan.union[0],) * len(plan.union))
    if mine.shape == "counts":
        edits["other key"] = _with(plan, at, replace(mine, shape="distinct"))
    what = rng.choice(list(edits))
    return what, edits[what]


def cut_otherwise(plan: Plan, luck: random.Random) -> tuple[str, Plan] | None:
    """The job after somebody changed what lies between a source and the state; None if nobody did."""
    chance, at = luck.random(), luck.randrange(len(plan.branches))
    mine = plan.branches[at]
    other = luck.choice([cut for cut in CUTS if cut != mine.cut])
    filtered = [name for name, kind in plan.sources if kind == "filter" and name in plan.union]
    if chance < 0.3 and len(filtered) > 1:
        return "filters swapped", replace(plan, union=plan.union[::-1])
    if chance < 0.15 and mine.has_state:
        return "replaced", _with(plan, at, replace(mine, name=f"other_{mine.name}", cut=other))
    if chance < 0.25 and mine.has_state:
        return "filtered otherwise", _with(plan, at, replace(mine, cut=other))
    return None


def _forked(plan: Plan, rng: random.Random) -> Plan:
    """A second job that goes on from the first one's state, with targets of its own in another alphabetical order."""
    letters = rng.sample("abcdefghij", len(plan.branches))
    branches = [
        replace(branch, name=f"{letter}_of_{branch.name}")
        for letter, branch in zip(letters, plan.branches, strict=True)
    ]
    return replace(plan, branches=tuple(branches), name=f"{plan.name}-fork")


def _with(plan: Plan, at: int, *new: Branch) -> Plan:
    """Another branch at this place, or none."""
    branches = (*plan.branches[:at], *new, *plan.branches[at + 1 :])
    return replace(plan, branches=branches, order=(), changes_sinks=True)
