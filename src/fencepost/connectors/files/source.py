"""Reading folders: Spark's own file source, kept to reading each file once, whatever its modification time.

    options            refuse those with which Spark forgets, skips or confuses files
    at a start         are the files that were read still those that Spark listed?
    before a decision  are those of the epoch? did Spark read each of them once?
    a failed read      say which file is missing or damaged

Spark knows a file by its path, but forgets the path once the file is older than `maxFileAge` (a week) compared with the
newest one. A file that vanishes between listing and reading is skipped with a warning. So this is checked for every
plan that reads files, even one built without `fp.Files` (see `fencepost.connectors`). Never reads a file's content.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from fencepost.errors import LATER, EpochFailed, FencepostError, OperatorNeeded, Where
from fencepost.protocol.format import digest
from fencepost.spark.jvm import finds_class, java_class_of
from fencepost.store import Unanswered
from fencepost.store.base import together
from fencepost.store.notes import ReportedFiles, encode_note, read_note
from fencepost.store.path import is_remote, scheme_of
from fencepost.store.spark_log import SourceFile, SparkLog

if TYPE_CHECKING:
    from fencepost.store import Store

FOREVER = "106751991167d"
"""The longest `maxFileAge` in days that Spark can count: it then never forgets a file."""
FOREVER_MS = 106_751_991_167 * 86_400_000

SKIPS: Mapping[str, str] = {
    "ignoreCorruptFiles": "files that are damaged",
    "ignoreMissingFiles": "files that are gone",
    "ignoreInvalidPartitionPaths": "files in folders that are not named like a partition",
}
"""Options of Spark that skip files without a word; as `spark.sql.files.…` they are also settings of a session."""

PATTERN = re.compile(r"[*?\[\]{}\\]|%(2A|3F|5B|5C|5D|7B|7D)", re.IGNORECASE)
"""In the URL of a file whose path Spark takes for a pattern, although it lists the file itself."""
LOOKED_AT = 1000
"""How many files a start looks at one by one, on a remote store that it cannot list at once."""
DROPPED = "Safe: the epoch was dropped before its decision; nothing of it is visible, and what is decided is complete."
MOVE_WHOLE = "Write files elsewhere and move them into the folder once they are complete"


class Weakness(NamedTuple):
    """Why a source may lose or repeat a file, and what to change."""

    reason: str
    cure: str


def weaknesses(spark: Any, options: Mapping[str, str]) -> list[Weakness]:
    """What keeps a file source with these options (names in lower case) from reading each file once."""
    return [*_forgets(spark, options), *_confuses(options), *_skips(spark, options)]


def _forgets(spark: Any, options: Mapping[str, str]) -> Iterator[Weakness]:
    limited = {"maxfilespertrigger", "maxbytespertrigger"} & set(options)
    if limited and options.get("latestfirst", "").lower() == "true":
        return  # Spark then ignores the age
    age = options.get("maxfileage")
    if _milliseconds(spark, age or "7d") < FOREVER_MS:
        yield Weakness(
            f"with maxFileAge={age or '7d (the default)'}, a file whose modification time is that much older than "
            "the newest one's is never read, and one that was read and is touched later is read again",
            "read the folder with job.read(fp.Files(…)), which sets the option, or set it on the reader: "
            f".option('maxFileAge', '{FOREVER}')",
        )


def _milliseconds(spark: Any, age: str) -> int:
    try:
        return int(spark._jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(age))
    except Exception as error:
        if java_class_of(error) is None:
            raise
        return -1  # Spark cannot read it either


def _confuses(options: Mapping[str, str]) -> Iterator[Weakness]:
    if options.get("filenameonly", "").lower() == "true":
        yield Weakness(
            "with fileNameOnly=true, two files of one name in different folders count as one, and the second is never "
            "read",
            "remove the option fileNameOnly",
        )
    cleans = options.get("cleansource", "off").lower()
    if cleans != "off":
        yield Weakness(
            f"with cleanSource={cleans}, Spark removes files by name: one that was replaced meanwhile, or that another "
            "reader of the folder or a rewind still needs, is gone unread",
            "remove the option cleanSource, and delete or archive files yourself once you will not rewind beyond them",
        )


def _skips(spark: Any, options: Mapping[str, str]) -> Iterator[Weakness]:
    for name, what in SKIPS.items():
        option, setting = options.get(name.lower()), f"spark.sql.files.{name}"
        if option is not None and option.lower() == "true":
            yield Weakness(f"with {name}=true, Spark skips {what}", f"remove the option {name}")
        elif option is None and str(spark.conf.get(setting, "false")).lower() == "true":
            cure = f"remove {setting} from the session's settings, or set the source's option {name} to false"
            yield Weakness(f"with {setting}=true, Spark skips {what}", cure)
    if options.get("mode", "").upper() == "DROPMALFORMED":
        yield Weakness(
            "with mode=DROPMALFORMED, Spark drops records that it cannot parse",
            "use mode=FAILFAST, or read the files as text and parse them with job.parse(…), which can keep bad records "
            "as dead letters",
        )


class FileCheck:
    """Before each decision: are the files that the epoch read still those that Spark listed? One per driver.

    One look per file, many at a time on a remote store, and once more in the next epoch: a file that is still being
    written often changes a moment later. A change within the resolution of the modification time (a millisecond; a
    second on an object store) is not seen.
    """

    def __init__(self, spark: Any, job: str) -> None:
        self._spark = spark
        self._job = job
        self._conf: Any = None
        self._epoch: int | None = None
        self._passed: Sequence[SourceFile] = ()
        """The files of the epoch that was checked last."""
        self._decided: Sequence[SourceFile] = ()
        """Those of the epoch before that."""
        self._ends: dict[str, int] = {}
        """By source, the last entry of its log that is decided."""
        self._is_first = True
        self._is_quiet = False

    def __call__(self, epoch: int, files: Sequence[SourceFile], is_quiet: bool = False) -> None:
        """Raise if one of them is gone or changed, or one of the epoch before is changed."""
        if self._epoch not in (None, epoch):  # else it is the first, or the same one again from its staged rows
            self._is_first, self._decided = False, () if self._is_quiet else self._passed
            self._ends |= {file.source: file.entry for file in sorted(self._passed)}
        self._epoch = epoch
        files = [file for file in files if file.entry > self._ends.get(file.source, -1)]
        # In a driver's first epoch some of them may be older, and decided.
        gone, changed = ([one for one in found if one.is_new or not self._is_first] for found in self._compare(files))
        if gone:
            raise missing(_decoded(gone[0].url), self._job, len(gone))
        # A quiet epoch keeps the listing of its first run. The command compared the times before it sealed anything; a
        # file that was touched or copied back since would stop the job at every start.
        if changed and not is_quiet:
            raise self._changed(changed)
        if not is_quiet:
            self._check_names(files)
        if late := self._compare(self._decided)[1]:
            raise self._changed_late(late)
        self._passed, self._is_quiet = files, is_quiet

    def _check_names(self, files: Sequence[SourceFile]) -> None:
        """Refuse a name with which Spark reads other files of the epoch again. One that is alone does no harm."""
        if not (odd := [file for file in files if PATTERN.search(file.url) and (file.is_new or not self._is_first)]):
            return
        number = Counter(file.source for file in files)
        if odd := [file for file in odd if number[file.source] > 1]:
            raise OperatorNeeded(
                "source_file_pattern",
                f"Source file {_decoded(odd[0].url)}{_more(len(odd))} has a path that Spark takes for a pattern: it "
                "read the other files of the epoch twice.",
                where=Where(job=self._job),
                safe=DROPPED,
                next="Rename the file (or its folder), without any of * ? [ ] { } \\ in the name; or read one file per "
                "epoch: max_files_per_epoch=1. Then start the job again.",
            )

    def look_back(self, files: Iterable[SourceFile], reported: Collection[str]) -> list[SourceFile]:
        """Those of decided epochs that changed since, with their new times; not those of which a person was told."""
        there: list[SourceFile] = []
        changed: list[SourceFile] = []
        for file in files:
            if is_remote(file.url):
                there.append(file)
            elif (time := _local_time(file.url)) is not None and time != file.changed_ms:
                changed.append(file._replace(changed_ms=time))
        for file, there_ms in self._remote_times(there):
            if there_ms is not None and not file.has_time(there_ms):
                changed.append(file._replace(changed_ms=there_ms))
        return [file for file in changed if change(file) not in reported]

    def _remote_times(self, files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, int | None]]:
        """A folder at a time; where our jar is not in the session, each of the last files."""
        if not files or not finds_class(self._spark, "fencepost.Listing"):
            last = files[-LOOKED_AT:]
            yield from zip(last, together(self._remote_time, last) if last else [], strict=True)
            return
        folders: dict[str, list[SourceFile]] = {}
        for file in files:
            folders.setdefault(file.url.rpartition("/")[0], []).append(file)
        for times, inside in zip(together(self._listed, folders), folders.values(), strict=True):
            for file in inside:
                yield file, times.get(unquote(file.url.rpartition("/")[2]))

    def _listed(self, folder: str) -> dict[str, int]:
        """Times in milliseconds by name; nothing if the folder is gone."""
        with self._asking(folder):
            lines = str(self._spark._jvm.fencepost.Listing.names(*self._at(folder))).splitlines()
        return {unquote(name): int(time) for name, _, _, time, _ in (line.split("\t") for line in lines)}

    def _at(self, url: str) -> tuple[Any, Any]:
        jvm = self._spark._jvm
        if self._conf is None:
            self._conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(url))
        return path.getFileSystem(self._conf), path

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = java_class_of(error)
            if kind is None:
                raise
            if kind == "FileNotFoundException":
                raise FileNotFoundError(errno.ENOENT, "no such file", url) from None
            raise Unanswered(errno.EIO, f"cannot look at a source file ({kind})", url) from None

    def _compare(self, files: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
        """Those that are gone, and those that changed."""
        here = [(file, _local_time(file.url)) for file in files if not is_remote(file.url)]
        there = [file for file in files if is_remote(file.url)]
        times = [*here, *zip(there, together(self._remote_time, there) if there else [], strict=True)]
        gone = [file for file, time in times if time is None]
        return gone, [file for file, time in times if time is not None and not file.has_time(time)]

    def _remote_time(self, file: SourceFile) -> int | None:
        """In milliseconds; None: it is gone; -1: it is being written."""
        try:
            with self._asking(file.url):
                system, path = self._at(file.url)
                time = int(system.getFileStatus(path).getModificationTime())
                # HDFS shows a file while it is being written, and sets its time only when it is closed.
                return time if scheme_of(file.url) != "hdfs" or system.isFileClosed(path) else -1
        except FileNotFoundError:
            return None

    def _changed(self, changed: Sequence[SourceFile]) -> OperatorNeeded:
        return OperatorNeeded(
            "source_file_changed",
            f"Source file {_decoded(changed[0].url)}{_more(len(changed))} was changed after the epoch began to read "
            "it, or is still being written.",
            where=Where(job=self._job),
            safe=DROPPED,
            next="Start the job again once the file is complete: it is then read as it is, once. "
            f"{MOVE_WHOLE}; never append to one.",
        )

    def _changed_late(self, changed: Sequence[SourceFile]) -> OperatorNeeded:
        return changed_late(changed, self._job)


def check_read(spark: Any, store: Store, lineages: Sequence[str], offsets: str, job: str) -> None:
    """Refuse a start, once, if files of decided epochs changed since; `lineages` is this one, then those before it."""
    mine, *older = (f"fencepost/{lineage}/changed" for lineage in lineages)
    notes = [read_note(store, name, ReportedFiles) for name in (mine, *older)]
    reported = {change for note in notes if note is not None for change in note.changes}
    if late := FileCheck(spark, job).look_back(SparkLog(store).files_ever_read(offsets), reported):
        store.replace(mine, encode_note(ReportedFiles(sorted({*reported, *map(change, late)}))))
        raise changed_late(late, job)


def change(file: SourceFile) -> str:
    """A file with its new time, as a note has it."""
    return digest(f"{file.url} {file.changed_ms}".encode())[:16]


def changed_late(changed: Sequence[SourceFile], job: str) -> OperatorNeeded:
    """A file that was read was changed, or replaced by another one of its name."""
    return OperatorNeeded(
        "source_file_changed_late",
        f"Source file {_decoded(changed[0].url)}{_more(len(changed))} was changed after its epoch was decided: its "
        "modification time is different now.",
        where=Where(job=job),
        safe="Safe: what the file held when it was read is in the sinks, once. What changed since is not read.",
        next="Put the records that are missing into a new file (none, if the file was only touched or copied), then "
        f"start the job again; it does not stop for this change again. {MOVE_WHOLE}; never append to one.",
    )


def _local_time(url: str) -> int | None:
    try:
        path = url.removeprefix("file:")
        return os.stat(unquote(path) if "%" in path else path).st_mtime_ns // 1_000_000  # noqa: PTH116 - Path is slower
    except FileNotFoundError:
        return None


def _decoded(url: str) -> str:
    return re.sub(r"^file:/+", "file:/", unquote(url))


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def missing(path: str, job: str, count: int = 1) -> OperatorNeeded:
    """A file that Spark listed was gone before its epoch was decided."""
    return OperatorNeeded(
        "source_file_missing",
        f"Source file {path}{_more(count)} was moved or deleted before the epoch that lists it was decided.",
        where=Where(job=job),
        safe=DROPPED,
        next="Bring the file back and start the job again. If you start without it, its records are not read. Move or "
        "delete files only after their epoch is complete.",
    )


READ_FAILED = re.compile(
    r"\[FAILED_READ_FILE\.(NO_HINT|CANNOT_READ_FILE_FOOTER|FILE_NOT_EXIST)\] Encountered error while reading file (\S+)"
)


def explain(text: str, job: str) -> FencepostError | None:
    """Does Spark say that it could not read a file? Its path is all that is taken from the text."""
    found = READ_FAILED.search(text)
    if found is None:
        return None
    path = _decoded(found[2].rstrip("."))
    if found[1] == "FILE_NOT_EXIST":
        return missing(path, job)
    return EpochFailed(
        "source_file_unreadable",
        f"File {path} cannot be read: it is truncated, damaged or of another format, or its store failed.",
        where=Where(job=job),
        safe=LATER,
        next="Replace the file with a complete one, or move it out of the folder (its records are then not read), and "
        f"start the job again. {MOVE_WHOLE}. Spark's own message is in its log.",
    )
