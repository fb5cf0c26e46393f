"""What the code of a job leaves open, from the environment and from a file.

    argument in code  >  FENCEPOST_INTERVAL  >  [fencepost.jobs.orders]  >  [fencepost]  >  default

The file is `fencepost.toml` in the current folder, or what FENCEPOST_CONFIG names. Both are read once, when a job is
created. Never ignores what it does not know: an unknown key, and a variable that looks like a misspelt setting, are
refused.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from fencepost.config import (
    OPTIONS,
    Backend,
    BridgeName,
    Checkpoint,
    FileSystemState,
    MemoryState,
    RocksDBState,
    Setting,
    option_problems,
    parse,
    whole_path,
)
from fencepost.errors import BadConfig, Where
from fencepost.guarantee import Guarantee
from fencepost.store.path import is_remote

PREFIX: Final = "FENCEPOST_"
CONFIG: Final = "FENCEPOST_CONFIG"
"""Names the file; empty: there is none."""
FILE: Final = "fencepost.toml"
NOTHING: Final = {CONFIG: ""}
"""An environment without settings and without a file."""

ONE_OF: Final[Mapping[str, Mapping[str, Any]]] = {
    "guarantee": {level.word: level for level in reversed(Guarantee)},
    "state": {"rocksdb": RocksDBState(), "filesystem": FileSystemState(), "memory": MemoryState()},
    "bridge": {name: name for name in get_args(BridgeName)},
}
"""Settings that are one of a few words, and what each word stands for."""
CHECKPOINTS: Final = "checkpoints"
CHECKPOINT: Final = "checkpoint"
"""As a key only in the table of one job: two jobs cannot have one checkpoint."""
SETTINGS: Final = (CHECKPOINTS, *OPTIONS, *ONE_OF, "restart", "quiet", "jvm_options", "one_scan")
IN_CODE: Final = ("adopt", "allow_plan_changes", "allow_sink_changes", "deterministic_udfs", "output_mode")
"""Arguments that say something about one program or one start."""
YES: Final = ("1", "true", "yes", "on")
NO: Final = ("0", "false", "no", "off")
ALIKE: Final = 0.82
"""From here on a variable is a misspelt setting (GARANTEE), and not one of the user's own (STAGE)."""


OF_A_SERVICE: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT|PORT)(_|$)")
"""Kubernetes sets such variables for a service that is called fencepost-state."""


class Settings:
    """What was found for one job, and what became of it."""

    def __init__(self, job: str, found: Mapping[str, tuple[Any, Setting]]) -> None:
        self._job = job
        self._found = dict(found)

    @property
    def all(self) -> tuple[Setting, ...]:
        """Sorted by name, also what has no effect."""
        return tuple(self._found[name][1] for name in sorted(self._found))

    def choose(self, name: str, given: Any, unused: str = "the code sets it") -> Any:
        """The code's value, or the one that was found."""
        value, setting = self._found.get(name, (None, None))
        if given is None or setting is None:
            return value if given is None else given
        self._found[name] = value, replace(setting, unused=unused)
        return given

    def checkpoint(self, given: Checkpoint | str | os.PathLike[str] | None, state: Backend | None) -> Checkpoint:
        """The job's checkpoint, with the options and the path that its code leaves open."""
        kept = given if isinstance(given, Checkpoint) else Checkpoint(given)
        options = {name: self.choose(name, getattr(kept, name)) for name in OPTIONS}
        if isinstance(state, MemoryState):
            self._check_memory(kept)
            self.choose(CHECKPOINT, state, "the checkpoint is in memory")
            return replace(kept, **options)
        named = state.path if isinstance(state, FileSystemState) and kept.path is None else kept.path
        path = self.choose(CHECKPOINT, named)
        if named is not None:
            return replace(kept, **options)
        return replace(kept, path=self._below(path) if isinstance(path, Root) else path, **options)

    def _below(self, root: Root) -> str:
        """The job's own folder; never one inside another job's checkpoint, or outside the root."""
        if "/" in self._job or self._job in {".", ".."}:
            raise BadConfig(
                "bad_setting",
                f"{self._found[CHECKPOINT][1].origin} names the folder of all checkpoints, but the job's name cannot "
                "be used as a folder name in it.",
                where=Where(job=self._job),
                next="Name the checkpoint in the code (checkpoint=…), or in the job's own table of fencepost.toml.",
            )
        return root.folder_of(self._job)

    def _check_memory(self, kept: Checkpoint) -> None:
        """Refuse a checkpoint in memory if the code says that it is in a folder."""
        setting = self._found["state"][1] if "state" in self._found else None
        if setting is not None and not setting.unused and kept.path is not None:
            raise BadConfig(
                "bad_setting",
                f"{setting.origin} keeps the checkpoint in memory, but the job names a folder for it.",
                where=Where(job=self._job),
                next="Remove the setting, or checkpoint=… from the code.",
            )


class Root(str):
    """A folder with the checkpoints of all jobs."""

    __slots__ = ()

    def folder_of(self, job: str) -> str:
        return f"{self.rstrip('/')}/{job}"


class Written(NamedTuple):
    """A setting as it was found."""

    key: str
    value: Any
    origin: str
    """The variable, or the key with its table and file."""
    folder: Path
    """Where relative paths start."""


def read(job: str, environment: Mapping[str, str] | None = None) -> Settings:
    """What the environment and the file say about a job; refused if something is wrong with them."""
    environment = os.environ if environment is None else environment
    file = _file(environment, job)
    tables = {} if file is None else _tables(file, job)
    where = Where(job=job, path=None if file is None else str(file))
    _check_known([*_strange_variables(environment), *_strange_keys(tables)], where)
    found: dict[str, tuple[Any, Setting]] = {}
    problems: dict[str, str] = {}
    for written in (*_of_environment(environment), *_of_tables(tables, file)):
        try:
            value = _understood(written, job)
        except BadConfig as error:
            problems[f"{written.origin}: {error.what.rstrip('.')}"] = error.next
            continue
        name = CHECKPOINT if written.key == CHECKPOINTS else written.key
        found.setdefault(name, (value, Setting(name, _shown(written, value, job), written.origin)))
    if problems:
        raise BadConfig(
            "bad_setting",
            f"Invalid settings: {'; '.join(problems)}.",
            where=where,
            next=" ".join(dict.fromkeys(problems.values())),
        )
    return Settings(job, found)


def check_jvm_options(value: Any, job: str) -> str | None:
    """Refuse what a JVM would take for the name of a class."""
    if value is None or (isinstance(value, str) and re.match(r"none$|-\S", value)):
        return value
    raise BadConfig(
        "bad_setting",
        "jvm_options must be 'none', or JVM options that each start with a dash, such as -XX:+UseG1GC.",
        where=Where(job=job),
        next="Fix the value, and start again.",
    )


def is_quiet(environment: Mapping[str, str] | None = None) -> bool:
    """Does the environment ask commands to be quiet?"""
    environment = os.environ if environment is None else environment
    return environment.get(_variable("quiet"), "").strip().lower() in YES


# --- the environment


def _of_environment(environment: Mapping[str, str]) -> Iterator[Written]:
    """An empty variable is as good as none."""
    for key in SETTINGS:
        if text := environment.get(_variable(key), "").strip():
            yield Written(key, _typed(key, text), _variable(key), Path())


def _variable(key: str) -> str:
    return PREFIX + key.upper()


def _typed(key: str, text: str) -> Any:
    """The text as TOML would give it; what cannot be read stays a text, and is refused as such."""
    if key in {"tolerable_failures", "keep_epochs"} and re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if key in {"overlap", "quiet", "one_scan"} and text.lower() in {*YES, *NO}:
        return text.lower() in YES
    return text


def _strange_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that look like a setting and are none, with what was meant."""
    for variable in sorted(environment):
        key = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or key in SETTINGS or OF_A_SERVICE.search(variable):
            continue
        if key in IN_CODE:
            yield variable, f"Set it in the code: fp.Job(…, {key}=…)."
        elif meant := difflib.get_close_matches(key, SETTINGS, 1, ALIKE) or _named_in(key):
            yield variable, f"Did you mean {_variable(meant[0])}?"


def _named_in(key: str) -> list[str]:
    """`state_backend` names state, `checkpoint_interval` names interval."""
    return [name for name in SETTINGS if re.search(rf"(^|_){name}(_|$)", key)]


# --- the file


def _file(environment: Mapping[str, str], job: str) -> Path | None:
    """The file with settings, if there is one."""
    if CONFIG not in environment:
        file = Path(FILE).absolute()
        return file if file.exists() else None
    if not environment[CONFIG]:
        return None
    file = Path(environment[CONFIG]).absolute()
    if not file.exists():
        raise _unreadable(file, job, f"{CONFIG} names a file that does not exist")
    return file


def _tables(file: Path, job: str) -> dict[str, dict[str, Any]]:
    """The tables that concern the job, by their names, the more special one first; and the rest of the file."""
    try:
        text = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:  # its words may quote the file
        line = re.search(r" \(?(at line \d+)", str(error))
        raise _unreadable(file, job, f"it is not valid TOML {line[1] if line else 'at its end'}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(
            file, job, f"it cannot be opened ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        ) from None
    ours = _table(text.pop("fencepost", {}), "fencepost", file, job)
    jobs = _table(ours.pop("jobs", {}), "fencepost.jobs", file, job)
    mine = _table(jobs.get(job, {}), f"fencepost.jobs.{job}", file, job)
    return {f"[fencepost.jobs.{job}]": mine, "[fencepost]": ours, "": text}


def _table(found: Any, name: str, file: Path, job: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _unreadable(file, job, f"{name} is not a table")
    return found


def _of_tables(tables: Mapping[str, Mapping[str, Any]], file: Path | None) -> Iterator[Written]:
    """The job's own table first; in it, its own folder before a root."""
    for table, values in tables.items():
        for key in sorted(values):
            assert file is not None, "tables come from a file"
            yield Written(key, values[key], f"{key} in {table} of {file.name}", file.parent)


def _strange_keys(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Keys that are not settings, with what was meant."""
    for table, values in tables.items():
        known = [*SETTINGS, CHECKPOINT] if table.startswith("[fencepost.jobs.") else SETTINGS
        for key in values if table else ():
            if key in IN_CODE:
                yield f"{key} in {table}", f"Set it in the code: fp.Job(…, {key}=…)."
            elif key not in known:
                meant = difflib.get_close_matches(key.lower(), known, 1, 0.5) or _named_in(key.lower())
                yield f"{key} in {table}", f"Did you mean {meant[0]}?" if meant else f"Known: {', '.join(known)}."
    for key in tables.get("", ()):
        yield key, "Move it below [fencepost]." if key in SETTINGS else "Did you mean the table [fencepost]?"


def _unreadable(file: Path, job: str, why: str) -> BadConfig:
    return BadConfig(
        "bad_settings_file",
        f"The settings cannot be read from the file: {why}.",
        where=Where(job=job, path=str(file)),
        next=f"Fix the file, or name another one with {CONFIG} (empty: none is read).",
    )


# --- both


def _check_known(strange: Sequence[tuple[str, str]], where: Where) -> None:
    if strange:
        raise BadConfig(
            "unknown_setting",
            f"Unknown settings: {', '.join(name for name, _ in strange)}.",
            where=where,
            next=" ".join(dict.fromkeys(hint for _, hint in strange)),
        )


def _understood(written: Written, job: str) -> Any:
    """The value as a job takes it."""
    key, value, _, folder = written
    if key in OPTIONS:
        return _fine(value, "; ".join(option_problems({key: value})))
    if key == "quiet":  # not False: that would make a job speak in a session of the user's own, and between JSON lines
        return _true_or_false(key, value) or None
    if key == "one_scan":
        return _true_or_false(key, value)
    words = ONE_OF.get(key)
    if words is not None:
        known = isinstance(value, str) and value in words
        return _fine(known and words[value], "" if known else f"{key}={value!r} must be {' or '.join(words)}")
    text = _fine(value, "" if isinstance(value, str) and value else f"{key}={value!r} must be a text")
    if key == "jvm_options":
        return check_jvm_options(text, job)
    return parse(text) if key == "restart" else _place(key, text, folder, job)


def _true_or_false(key: str, value: Any) -> Any:
    return _fine(value, "" if isinstance(value, bool) else f"{key}={value!r} must be true or false")


def _place(key: str, text: str, folder: Path, job: str) -> str:
    """The path of a checkpoint, or of the folder with all of them."""
    path = text if is_remote(text) or text.startswith("file:") else str(folder / text)
    if key == CHECKPOINT:
        return whole_path(path, job)
    whole_path(Root(path).folder_of("job"), job)  # a bucket alone can be a root, though not a checkpoint
    return Root(path if is_remote(path) else whole_path(path, job))


def _fine(value: Any, problem: str) -> Any:
    """The value, if there is no problem."""
    if problem:
        raise BadConfig("bad_setting", f"{problem}.", next="Fix the value, and start again.")
    return value


def _shown(written: Written, value: Any, job: str) -> str:
    """As people write it."""
    if isinstance(value, Root):
        return value.folder_of(job)
    if written.key == CHECKPOINT:
        return str(value)
    return str(written.value).lower() if isinstance(written.value, bool) else str(written.value)
