"""Settings that the code of a job leaves open: from the environment and from a file, in that order, or refused."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import fencepost as fp
from fencepost import settings
from fencepost.cli import check
from fencepost.config import OPTIONS, RunConfig
from fencepost.errors import BadConfig
from fencepost.guarantee import Guarantee
from fencepost.runtime.checks import Findings

SOURCE = Path(settings.__file__).parent


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(environment: dict[str, str] | None = None, name: str = "orders", **arguments: Any) -> RunConfig:
    """Of a job that is made with this environment, and with no other."""
    return fp.Job(name, environment=environment or {}, **arguments)._config


def refusal(environment: dict[str, str] | None = None, name: str = "orders", **arguments: Any) -> BadConfig:
    with pytest.raises(BadConfig) as refused:
        config(environment, name, **arguments)
    assert 4 == len(str(refused.value).splitlines())
    return refused.value


def write(text: str, file: str = "fencepost.toml") -> Path:
    path = Path(file).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- where a setting comes from


@pytest.mark.parametrize(
    ("arguments", "environment", "file", "expected"),
    [
        ({}, None, "", None),
        ({}, None, "[fencepost]\ninterval = '1 s'", "1 s"),
        ({}, None, "[fencepost]\ninterval = '1 s'\n[fencepost.jobs.orders]\ninterval = '2 s'", "2 s"),
        ({}, None, "[fencepost]\ninterval = '1 s'\n[fencepost.jobs.other]\ninterval = '2 s'", "1 s"),
        ({}, "3 s", "[fencepost]\ninterval = '1 s'\n[fencepost.jobs.orders]\ninterval = '2 s'", "3 s"),
        ({}, "", "[fencepost]\ninterval = '1 s'", "1 s"),
        ({"interval": "4 s"}, "3 s", "[fencepost]\ninterval = '1 s'", "4 s"),
    ],
)
def test_code_comes_before_the_environment_before_the_jobs_table_before_the_table_of_all(
    arguments: dict[str, Any], environment: str | None, file: str, expected: str | None
) -> None:
    write(file)
    variables = {} if environment is None else {"FENCEPOST_INTERVAL": environment}
    assert expected == config(variables, checkpoint=fp.Checkpoint("ck", **arguments)).checkpoint.interval


EVERY: dict[str, tuple[str, str, Any]] = {
    "interval": ("10 seconds", "'10 seconds'", "10 seconds"),
    "timeout": ("10 min", "'10 min'", "10 min"),
    "min_pause": ("1 s", "'1 s'", "1 s"),
    "tolerable_failures": ("3", "3", 3),
    "keep_epochs": ("7", "7", 7),
    "on_cancel": ("delete", "'delete'", "delete"),
    "overlap": ("yes", "true", True),
    "guarantee": ("at_most_once", "'at_most_once'", Guarantee.AT_MOST_ONCE),
    "state": ("filesystem", "'filesystem'", fp.FileSystemState()),
    "bridge": ("foreach_batch", "'foreach_batch'", "foreach_batch"),
    "restart": ("fixed-delay:attempts=3,delay=1s", "'fixed-delay:attempts=3,delay=1s'", fp.FixedDelay(3, "1s")),
    "quiet": ("1", "true", True),
    "jvm_options": ("-Xss2m", "'-Xss2m'", "-Xss2m"),
    "one_scan": ("no", "false", False),
}
"""As a variable, in TOML, and what the job has then."""
CODE: dict[str, tuple[Any, Any]] = {
    "interval": ("5 s", "5 s"),
    "timeout": ("5 s", "5 s"),
    "min_pause": ("5 s", "5 s"),
    "tolerable_failures": (0, 0),
    "keep_epochs": (100, 100),
    "on_cancel": ("keep", "keep"),
    "overlap": (False, False),
    "guarantee": ("exactly_once", Guarantee.EXACTLY_ONCE),
    "state": (fp.RocksDBState(), fp.RocksDBState()),
    "bridge": ("jvm", "jvm"),
    "restart": (fp.NoRestart(), fp.NoRestart()),
    "quiet": (False, False),
    "jvm_options": ("none", "none"),
    "one_scan": (True, True),
}
"""In code, also where it is the default; and what the job has then."""


def value_of(job: fp.Job, name: str) -> Any:
    if name in {"quiet", "jvm_options"}:
        return getattr(job, f"_{name}")
    return getattr(job._config.checkpoint if hasattr(fp.Checkpoint, name) else job._config, name)


def made(name: str, environment: dict[str, str], given: Any = None) -> fp.Job:
    is_option = hasattr(fp.Checkpoint, name)
    options = {name: given} if is_option and given is not None else {}
    more = {name: given} if not is_option and given is not None else {}
    return fp.Job("orders", environment=environment, checkpoint=fp.Checkpoint("ck", **options), **more)


def test_every_argument_of_a_job_is_a_setting_or_belongs_in_code() -> None:
    arguments = {*inspect.signature(fp.Job).parameters} - {"name", "spark", "conf", "environment"}
    assert arguments - {"checkpoint"} == ({*settings.SETTINGS, *settings.IN_CODE} - {"checkpoints", *OPTIONS})
    assert {*OPTIONS} == {*inspect.signature(fp.Checkpoint).parameters} - {"path"}


def test_every_setting_has_its_case() -> None:
    assert {*settings.SETTINGS} == {*EVERY, "checkpoints"} == {*CODE, "checkpoints"}


@pytest.mark.parametrize("name", EVERY)
def test_every_setting_can_come_from_the_environment_and_from_the_file(name: str) -> None:
    variable, written, expected = EVERY[name]
    assert expected == value_of(made(name, {f"FENCEPOST_{name.upper()}": variable}), name)
    write(f"[fencepost]\n{name} = {written}\n")
    assert expected == value_of(made(name, {}), name)


@pytest.mark.parametrize("name", EVERY)
def test_code_wins_also_where_it_says_what_is_the_default(name: str) -> None:
    given, expected = CODE[name]
    assert expected == value_of(made(name, {f"FENCEPOST_{name.upper()}": EVERY[name][0]}, given), name)


def test_without_any_of_it_the_defaults_hold() -> None:
    found = config(checkpoint="ck")
    assert (Guarantee.EXACTLY_ONCE, None, None, None) == (found.guarantee, found.state, found.bridge, found.restart)
    assert (0, False, ()) == (found.checkpoint.tolerates, found.checkpoint.deletes, found.outside)


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_a_job_that_need_not_be_quiet_speaks_as_by_default(text: str) -> None:
    write("[fencepost]\nquiet = true\n")
    assert None is fp.Job("orders", checkpoint="ck", environment={"FENCEPOST_QUIET": text})._quiet


def test_they_are_read_when_the_job_is_created_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_GUARANTEE", "at_least_once")
    job = fp.Job("orders", checkpoint="ck")
    monkeypatch.setenv("FENCEPOST_GUARANTEE", "at_most_once")
    assert Guarantee.AT_LEAST_ONCE == job._config.guarantee


# --- the checkpoint


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("/data/ck", "/data/ck/orders"),
        ("/data/ck/", "/data/ck/orders"),
        ("file:///data/ck", "/data/ck/orders"),
        ("s3a://bucket", "s3a://bucket/orders"),
        ("hdfs://namenode:8020/ck", "hdfs://namenode:8020/ck/orders"),
    ],
)
def test_a_job_without_a_checkpoint_has_one_of_its_name_below_the_root(root: str, expected: str) -> None:
    assert expected == config({"FENCEPOST_CHECKPOINTS": root}).place


def test_a_root_in_the_environment_is_relative_to_the_current_folder_one_in_the_file_to_the_file(
    tmp_path: Path,
) -> None:
    file = write("[fencepost]\ncheckpoints = 'ck'\n[fencepost.jobs.other]\ncheckpoint = 'mine'", "etc/jobs.toml")
    assert str(tmp_path / "ck/orders") == config({"FENCEPOST_CHECKPOINTS": "ck"}).place
    assert str(tmp_path / "etc/ck/orders") == config({settings.CONFIG: str(file)}).place
    assert str(tmp_path / "etc/mine") == config({settings.CONFIG: str(file)}, name="other").place


def test_the_code_and_a_state_backend_with_a_place_of_its_own_come_before_the_root() -> None:
    root = {"FENCEPOST_CHECKPOINTS": "/data"}
    assert "/ck" == config(root, checkpoint="/ck").place
    assert "/ck" == config(root, state=fp.FileSystemState("/ck")).place
    assert "/data/orders" == config(root, checkpoint=fp.Checkpoint(keep_epochs=5)).place
    in_memory = config(root, state=fp.MemoryState())
    assert not in_memory.place.startswith("/data")
    assert ["the checkpoint is in memory"] == [setting.unused for setting in in_memory.outside]


@pytest.mark.parametrize("name", ["eu/orders", "..", "/etc"])
def test_a_name_that_would_put_a_checkpoint_into_another_is_refused(name: str) -> None:
    error = refusal({"FENCEPOST_CHECKPOINTS": "/data"}, name)
    assert ("bad_setting", True) == (error.code, "FENCEPOST_CHECKPOINTS" in error.what)
    assert "/ck" == config({"FENCEPOST_CHECKPOINTS": "/data"}, name, checkpoint="/ck").place


def test_a_checkpoint_that_the_code_puts_into_a_folder_does_not_end_in_memory() -> None:
    error = refusal({"FENCEPOST_STATE": "memory"}, checkpoint="ck")
    assert ("bad_setting", True) == (error.code, "FENCEPOST_STATE" in error.what)
    assert fp.MemoryState() == config({"FENCEPOST_STATE": "memory"}).state


def test_without_a_checkpoint_anywhere_the_error_names_both_ways() -> None:
    error = refusal()
    assert "no_checkpoint" == error.code
    assert "FENCEPOST_CHECKPOINTS" in error.next


# --- what is refused


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("GARANTEE", "GUARANTEE"),
        ("CHECKPOINT", "CHECKPOINTS"),
        ("TIME_OUT", "TIMEOUT"),
        ("STATE_BACKEND", "STATE"),
        ("CHECKPOINT_INTERVAL", "INTERVAL"),
        ("RESTART_STRATEGY", "RESTART"),
    ],
)
def test_a_variable_that_looks_like_a_setting_is_refused_with_the_right_name(wrong: str, meant: str) -> None:
    error = refusal({f"FENCEPOST_{wrong}": "hunter2"}, checkpoint="ck")
    assert "unknown_setting" == error.code
    assert f"Did you mean FENCEPOST_{meant}?" == error.next
    assert "hunter2" not in str(error)


def test_variables_of_our_own_and_of_the_users_are_let_be() -> None:
    ours = {
        name for path in SOURCE.rglob("*.py") for name in re.findall(r"\bFENCEPOST_[A-Z_]*[A-Z]\b", path.read_text())
    }
    ours -= {f"FENCEPOST_{name.upper()}" for name in settings.SETTINGS}
    assert {"FENCEPOST_HOME", "FENCEPOST_FAULT", "FENCEPOST_SPARK", "FENCEPOST_LOG"} <= ours
    variables = dict.fromkeys([*ours, "FENCEPOST_STAGE", "FENCEPOST_PG_DSN", "GUARANTEE", "fencepost_guarantee"], "x")
    config({**variables, settings.CONFIG: ""}, checkpoint="ck")


def test_what_can_only_be_said_in_code_is_refused_elsewhere() -> None:
    assert "fp.Job(…, output_mode=…)" in refusal({"FENCEPOST_OUTPUT_MODE": "append"}, checkpoint="ck").next
    write("[fencepost]\nadopt = true\n")
    assert "fp.Job(…, adopt=…)" in refusal(checkpoint="ck").next


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("[fencepost]\nintervall = '1 s'", "intervall in [fencepost]", "Did you mean interval?"),
        ("[fencepost]\nkeep-epochs = 3", "keep-epochs in [fencepost]", "Did you mean keep_epochs?"),
        ("[fencepost]\ncheckpoint = 'ck'", "checkpoint in [fencepost]", "Did you mean checkpoints?"),
        ("[fencepost]\npassword = 'hunter2'", "password in [fencepost]", "Known: checkpoints, "),
        ("[fencepost.jobs.orders]\nstat = 'memory'", "stat in [fencepost.jobs.orders]", "Did you mean state?"),
        ("interval = '1 s'", "interval", "Move it below [fencepost]."),
        ("[fencpost]\ninterval = '1 s'", "fencpost", "Did you mean the table [fencepost]?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(text: str, named: str, hint: str) -> None:
    file = write(text)
    error = refusal(checkpoint="ck")
    assert ("unknown_setting", str(file)) == (error.code, error.where.path)
    assert named in error.what
    assert hint in error.next
    assert "hunter2" not in str(error)


def test_the_table_of_another_job_does_not_stop_this_one() -> None:
    write("[fencepost.jobs.other]\nintervall = 1\n")
    assert () == config(checkpoint="ck").outside


BAD: dict[str, tuple[str, str]] = {
    "checkpoints": ("gs://bucket/ck", "7"),
    "interval": ("soon", "10"),
    "timeout": ("0 s", "true"),
    "min_pause": ("-1 s", "[]"),
    "tolerable_failures": ("few", "'3'"),
    "keep_epochs": ("1", "1.5"),
    "on_cancel": ("burn", "false"),
    "overlap": ("perhaps", "1"),
    "guarantee": ("exactly-once", "2"),
    "state": ("rocks", "['memory']"),
    "bridge": ("py4j", "{}"),
    "restart": ("sometimes", "3"),
    "quiet": ("perhaps", "1"),
    "jvm_options": ("fast", "true"),
    "one_scan": ("perhaps", "0"),
}
"""As a variable, and in TOML."""


def test_every_setting_is_tried_with_a_bad_value() -> None:
    assert {*settings.SETTINGS} == {*BAD}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_with_its_variable_or_its_key_and_file(name: str) -> None:
    variable, written = BAD[name]
    error = refusal({f"FENCEPOST_{name.upper()}": variable}, checkpoint="ck")
    assert ("bad_setting", True) == (error.code, f"FENCEPOST_{name.upper()}: " in error.what)
    file = write(f"[fencepost]\n{name} = {written}\n")
    error = refusal(checkpoint="ck")
    assert ("bad_setting", str(file)) == (error.code, error.where.path)
    assert f"{name} in [fencepost] of fencepost.toml: " in error.what


def test_all_bad_values_are_named_at_once() -> None:
    write("[fencepost]\ntimeout = '0 s'\nrestart = 'often'")
    error = refusal({"FENCEPOST_INTERVAL": "soon"}, checkpoint="ck")
    assert 3 == sum(name in error.what for name in ("FENCEPOST_INTERVAL: ", "timeout in ", "restart in "))


def test_a_key_in_a_root_is_refused_and_not_shown() -> None:
    error = refusal({"FENCEPOST_CHECKPOINTS": "s3a://KEY:hunter2@bucket/ck"}, checkpoint="ck")
    assert "FENCEPOST_CHECKPOINTS" in error.what
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[fencepost]\npassword = hunter2\n", "not valid TOML at line 2"),
        (b"[fencepost", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"fencepost = 1", "fencepost is not a table"),
        (b"[fencepost]\njobs = 1", "fencepost.jobs is not a table"),
        (b"[fencepost.jobs]\norders = 1", "fencepost.jobs.orders is not a table"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: bytes, why: str) -> None:
    write("").write_bytes(text)
    error = refusal(checkpoint="ck")
    assert ("bad_settings_file", True) == (error.code, why in error.what)
    assert "hunter2" not in str(error)


def test_a_file_that_is_named_has_to_exist_and_an_empty_name_means_none(tmp_path: Path) -> None:
    write("[fencepost]\ninterval = '1 s'")
    error = refusal({settings.CONFIG: "gone.toml"}, checkpoint="ck")
    assert ("bad_settings_file", str(tmp_path / "gone.toml")) == (error.code, error.where.path)
    assert () == config(settings.NOTHING, checkpoint="ck").outside
    assert 1 == len(config(checkpoint="ck").outside)


# --- what is told


def test_it_is_known_where_each_setting_came_from_and_what_has_no_effect() -> None:
    write(
        "[fencepost]\ncheckpoints = '/data'\nquiet = true\n[fencepost.jobs.orders]\ninterval = '1 s'\ntimeout = '9 s'"
    )
    found = config({"FENCEPOST_TIMEOUT": "5 s"}, checkpoint=fp.Checkpoint(interval="2 s")).outside
    assert [
        ("checkpoint", "/data/orders", "checkpoints in [fencepost] of fencepost.toml", ""),
        ("interval", "1 s", "interval in [fencepost.jobs.orders] of fencepost.toml", "the code sets it"),
        ("quiet", "true", "quiet in [fencepost] of fencepost.toml", ""),
        ("timeout", "5 s", "FENCEPOST_TIMEOUT", ""),
    ] == [(one.name, one.value, one.origin, one.unused) for one in found]


def test_check_says_it_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = config({"FENCEPOST_TIMEOUT": "5 s", "FENCEPOST_CHECKPOINTS": "/data"}, checkpoint="ck").outside
    check._tell([Findings("orders", settings=found)], [], as_json=False)
    assert [
        "job orders",
        "  setting checkpoint: FENCEPOST_CHECKPOINTS is not used, the code sets it",
        "  setting timeout = 5 s, from FENCEPOST_TIMEOUT",
        "It would start.",
    ] == capsys.readouterr().out.splitlines()
    check._tell([Findings("orders", settings=found[1:])], [], as_json=True)
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert [{"name": "timeout", "value": "5 s", "origin": "FENCEPOST_TIMEOUT", "unused": ""}] == job["settings"]
