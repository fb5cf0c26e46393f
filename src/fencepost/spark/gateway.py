"""Starts Spark's JVM for a session of our own: Java is looked for first, and what Spark prints goes into a file.

    options of the JVM    the user's, wherever they are written  >  ours  >  the JVM's defaults

Never touches a JVM that runs already (spark-submit's, a notebook's): what that prints is its owner's business.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from fencepost.errors import TRACE, BadConfig, Where, also_say
from fencepost.observe import registry
from fencepost.spark import class_archive
from fencepost.spark.class_archive import Archive

OLDEST: Final = 17
"""The Java that Spark 4 needs at least."""
KEPT: Final = 10
"""Logs of one job that stay."""
GIVEN: Final = "PYSPARK_GATEWAY_PORT"
"""Set where a JVM runs already, which started this process."""

_log: Path | None = None
_chosen: Chosen | None = None


def start(conf: Any, job: str, asked: str | None = None) -> None:
    """Start the JVM with these settings, unless one runs; `asked`: options in place of ours, or 'none'."""
    global _chosen  # noqa: PLW0603 - of the process, like its one JVM
    from pyspark import SparkContext  # noqa: PLC0415 - pyspark may be absent when this module is imported

    if SparkContext._gateway is not None or GIVEN in os.environ:
        SparkContext._ensure_initialized(conf=conf)
        return
    check_java(job)
    hide_interruptions()
    _chosen = choose(dict(conf.getAll()), asked)
    if not _launch(conf, job, _chosen, is_last=asked is not None):
        if _chosen.archive is not None:
            _chosen.archive.discard()
        _chosen = Chosen("", note=f"Spark's JVM did not start with {_chosen.options}; started without")
        _launch(conf, job, _chosen, is_last=True)
    _chosen = _chosen.looked_at(SparkContext._jvm)


def end() -> None:
    """End the JVM, if we started one: it takes hundreds of megabytes from a process that goes on without it."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()
    gateway: Any = SparkContext._gateway
    if gateway is not None and (process := getattr(gateway, "proc", None)) is not None:
        gateway.shutdown()
        process.stdin.close()  # which ends it
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


def _launch(conf: Any, job: str, chosen: Chosen, *, is_last: bool) -> bool:
    """True if the JVM runs; False if it could not be created with these options, though perhaps without them."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above

    out = _open_log(job)
    try:
        with _environment(chosen):
            SparkContext._ensure_initialized(gateway=launch_gateway(conf, out and {"stdout": out, "stderr": out}))
    except PySparkRuntimeError as error:
        if chosen.options and not is_last and _says_not_created():
            return False
        raise BadConfig(
            "spark_not_started",
            "Spark did not start: its JVM ended at once.",
            where=Where(job=job, path=None if log() is None else str(log())),
            next="Look at the end of its log: a Spark setting (conf=…, --conf), a package that cannot be downloaded or "
            "too little memory may be the reason.",
        ) from error
    finally:
        if out is not None:
            out.close()
    return True


# --- options of the JVM

SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""The launcher puts these first on the command line, so that every other place to set an option overrides them."""
LAST_JARS: Final = "SPARK_DIST_CLASSPATH"
"""The launcher puts these last on the class path: Spark's own classes come first, as with `spark.jars`."""
CONNECTOR: Final = r"(spark-sql-kafka|spark-token-provider-kafka|kafka-clients|commons-pool2)-\d"
NONE: Final = "none"
FEW_CORES: Final = 2
SMALL_HEAP_GB: Final = 4
LARGE_HEAP_GB: Final = 32
"""From here on Java's pointers are longer, and so another archive fits."""
SERIAL: Final = "-XX:+UseSerialGC"

THEIRS: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", SUBMIT_OPTIONS, "PYSPARK_SUBMIT_ARGS")
"""Variables in which users write options."""
ANY_COLLECTOR: Final = r"-XX:[+-]Use\w*GC\b"
OTHER_ARCHIVE: Final = (
    r"-Xshare|-XX:Shared|-XX:ArchiveClasses|-XX:DumpLoaded|[+-]UseCompressed|ObjectAlignment|-javaagent|-agent|"
    r"-Xbootclasspath|--(patch-module|limit-modules|upgrade-module-path)"
)
"""Options with which an archive of ours does not fit, or is not wanted."""
HEAP: Final = r"(?:driver[.-]memory['\"]?[=\s]+['\"]?|-Xmx)(\d+)([kmgt]?)"


class Chosen(NamedTuple):
    """The options with which we started the JVM."""

    options: str
    left_out: tuple[str, ...] = ()
    """Of ours, because the user's say otherwise."""
    archive: Archive | None = None
    uses_archive: bool = False
    lists_classes: bool = False
    jars: tuple[str, ...] = ()
    """Of `spark.jars`, on the class path too: the JVM archives only what is there."""
    note: str = ""
    """What went otherwise than planned."""

    @property
    def shown(self) -> str:
        """The options without values of system properties: one may be a secret."""
        return re.sub(r"(-D[^=\s]+=)\S+", r"\1…", self.options)

    @property
    def says(self) -> str:
        """For `fencepost check`."""
        left_out = f"; left out in favour of yours: {', '.join(self.left_out)}" if self.left_out else ""
        jars = f" Also on the class path: {', '.join(Path(jar).name for jar in self.jars)}." if self.jars else ""
        archive = "in use" if self.uses_archive else "made when a job runs" if self.lists_classes else "none"
        return f"JVM options of fencepost: {self.shown or 'none'}{left_out}. Class archive: {archive}.{jars}"

    def looked_at(self, jvm: Any) -> Chosen:
        """An archive that the JVM did not map is removed, and made again."""
        if not self.uses_archive or "sharing" in str(jvm.java.lang.System.getProperty("java.vm.info")):
            return self
        assert self.archive is not None, "it is used"
        self.archive.discard()
        return self._replace(
            uses_archive=False, lists_classes=True,
            note="the class archive does not fit this JVM; the start takes longer, and the archive is made again",
        )  # fmt: skip


def chosen() -> Chosen | None:
    """How we started the JVM of this process; None if it is not ours."""
    return _chosen


def make_archive_later() -> None:
    """A job runs: what its JVM loads is worth an archive, unless there is one."""
    global _chosen
    if _chosen is not None and _chosen.lists_classes and _chosen.archive is not None:
        from pyspark import SparkContext  # noqa: PLC0415 - as above

        archive, _chosen = _chosen.archive, _chosen._replace(lists_classes=False)  # once
        with suppress(Exception):  # only a convenience, and the job runs already
            archive.make_later(SparkContext._jvm)


def choose(conf: Mapping[str, str], asked: str | None = None) -> Chosen:
    """Our options for a JVM with these settings, without those about which the user says something."""
    if asked == NONE:
        return Chosen("")
    theirs = "\n".join((*_theirs(conf), asked or ""))
    found: list[str] = []
    left_out: list[str] = []
    if asked is None and len(os.sched_getaffinity(0)) <= FEW_CORES:
        is_theirs = re.search(ANY_COLLECTOR, theirs) or _heap_gb(theirs) > SMALL_HEAP_GB
        (left_out if is_theirs else found).append(SERIAL)
    jars = _connector_jars(conf)
    archive = None if re.search(OTHER_ARCHIVE, theirs) else _archive(conf, theirs, jars)
    option = None if archive is None else archive.option()
    found += filter(None, (asked, option))
    uses = option is not None and "SharedArchiveFile" in option
    lists = option is not None and not uses
    return Chosen(" ".join(found), tuple(left_out), archive, uses, lists, jars if option else ())


def _connector_jars(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The jars of Spark's Kafka connector that `spark.jars` names. Not others: where a jar is loaded may matter."""
    if conf.get("spark.driver.userClassPathFirst") == "true":
        return ()
    files = [jar.removeprefix("file:") for jar in conf.get("spark.jars", "").split(",")]
    return tuple(file for file in files if re.match(CONNECTOR, Path(file).name) and Path(file).is_file())


def _archive(conf: Mapping[str, str], theirs: str, jars: tuple[str, ...]) -> Archive | None:
    """The archive for this JVM, whether it is there or not."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - as above

    program, place = java(), class_archive.folder()
    if program is None or place is None or re.search(r"[\s:'\"\\]", str(place)):
        return None
    names = (LAST_JARS, "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR")
    spark = Path(_find_spark_home())
    entries = [
        entry
        for text in (conf.get("spark.driver.extraClassPath"), *map(os.environ.get, names), f"{spark}/jars/*")
        for entry in (text or "").split(os.pathsep)
        if entry
    ]
    other_path = theirs if re.search(r"extraClassPath|driver-class-path", theirs) else ""
    kind = sorted({*re.findall(ANY_COLLECTOR, theirs), *(["large"] if _heap_gb(theirs) >= LARGE_HEAP_GB else [])})
    return Archive(place / class_archive.key(program, [other_path, *kind], [*entries, *jars]), program)


def _theirs(conf: Mapping[str, str]) -> Iterator[str]:
    """Every text in which the user may have written options."""
    yield from (
        f"{name}={value}" for name, value in conf.items() if name.startswith("spark.driver.") and "Path" not in name
    )
    yield from (os.environ.get(name, "") for name in THEIRS)
    yield f"driver.memory={os.environ.get('SPARK_DRIVER_MEMORY', '')}"
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - as above

    folder = os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf"
    files = [
        f"{folder}/spark-defaults.conf",
        *re.findall(r"--properties-file[= ]+(\S+)", os.environ.get(THEIRS[-1], "")),
    ]
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            yield Path(file).read_text(encoding="utf-8")


def _heap_gb(theirs: str) -> float:
    """The largest heap that is mentioned; a number alone is of MB, as Spark has it."""
    units = {"k": 2**-20, "m": 2**-10, "": 2**-10, "g": 1.0, "t": 2.0**10}
    return max((int(size) * units[unit] for size, unit in re.findall(HEAP, theirs.lower())), default=1.0)


@contextmanager
def _environment(chosen: Chosen) -> Iterator[None]:
    """The launcher's, in this block: the user's own options come after ours, our jars last on the class path."""
    options, jars = os.environ.get(SUBMIT_OPTIONS, ""), os.environ.get(LAST_JARS, "")
    wanted = {
        SUBMIT_OPTIONS: " ".join(filter(None, (chosen.options, options))),
        LAST_JARS: os.pathsep.join(filter(None, (jars, *chosen.jars))),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _says_not_created() -> bool:
    """Was it the JVM itself that did not accept its options? Without a log nobody can tell, and trying is cheap."""
    if _log is None:
        return True
    text = _log.read_text(encoding="utf-8", errors="replace")
    return any(
        words in text
        for words in (
            "Could not create the Java Virtual Machine",
            "initialization of VM",
            "fatal error has been detected by the Java",
        )
    )


def hide_interruptions() -> None:
    """Whoever presses Ctrl-C knows it, but py4j logs a traceback if that meets a call to the JVM."""
    if not os.environ.get(TRACE):
        logging.getLogger().addFilter(_is_no_interruption)  # the same function is added once


def _is_no_interruption(record: logging.LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def log() -> Path | None:
    """Where Spark's own log goes, if that was ours to say."""
    return _log


also_say(lambda: None if _log is None else f"  log:   Spark's own log is {_log}")


def _open_log(job: str) -> IO[bytes] | None:
    """A new file of this process; None if it is to stay on stderr, or there is no place for one."""
    global _log  # noqa: PLW0603 - of the process, like its one JVM
    if os.environ.get(TRACE):
        return None
    name = re.sub(r"[^\w.-]", "_", job)
    with suppress(OSError, RuntimeError):
        folder = registry.home() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob(f"{name}.*.log"), key=lambda path: path.stat().st_mtime)[: -KEPT + 1]:
            old.unlink(missing_ok=True)
        path = folder / f"{name}.{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}.log"
        found = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)  # Spark may quote a row
        _log = path
        return os.fdopen(found, "wb")
    return None


# --- Java


def java() -> Path | None:
    """The Java that Spark would take: JAVA_HOME's, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return Path(found).resolve() if found else None


def java_version() -> str | None:
    """From the file that every Java runtime has beside its programs: to ask it takes as long as all the rest."""
    program = java()
    if program is None:
        return None
    try:
        text = (program.parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        return "of unknown version"
    found = re.search(r'^JAVA_VERSION="(.+)"$', text, re.MULTILINE)
    return found[1] if found else "of unknown version"


def check_java(job: str | None = None) -> None:
    """Refuse a machine without Java, or with one that is too old."""
    home = os.environ.get("JAVA_HOME")
    install = (
        f"Install a Java runtime, version {OLDEST} or newer (Debian, Ubuntu: apt install openjdk-{OLDEST}-jre-headless)"
    )
    if java() is None:
        raise BadConfig(
            "no_java",
            f"Spark needs Java, but JAVA_HOME={home} is not a Java installation: it has no bin/java."
            if home
            else "Spark needs Java, but there is none on the PATH.",
            where=Where(job=job),
            next=f"Set JAVA_HOME to the folder of a Java runtime, version {OLDEST} or newer; or unset it to use the "
            "one on the PATH."
            if home
            else f"{install}, or set JAVA_HOME to the folder of one.",
        )
    found = java_version() or ""
    major = re.match(r"(?:1\.)?(\d+)", found)
    if major is not None and int(major[1]) < OLDEST:
        raise BadConfig(
            "old_java",
            f"Spark needs Java {OLDEST} or newer, but {java()} is {found}.",
            where=Where(job=job),
            next=f"{install}, and set JAVA_HOME to its folder.",
        )
