"""The frame of the command line: what it imports, how it ends, what goes where. As a user would: in a process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

from fencepost.cli import frame
from fencepost.cli.main import GROUPS, VERBS, cli
from fencepost.errors import (
    BadConfig,
    CheckpointRefused,
    EpochFailed,
    Exit,
    Fenced,
    FencepostError,
    GaveUp,
    InDoubt,
    OperatorNeeded,
    RecoveryNeeded,
)

FENCEPOST = [sys.executable, "-m", "fencepost"]
HEAVY = ("pyspark", "py4j", "pyarrow", "rich", "confluent_kafka", "kafka")


def fencepost(*words: str, **how: object) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    given: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60, **how}
    return subprocess.run([*FENCEPOST, *words], check=False, **given)  # type: ignore[call-overload, no-any-return]


def imported_by(*words: str, then: str = "") -> set[str]:
    """The heavy packages that a command has imported when it is done."""
    code = (
        "import sys\nfrom fencepost.cli.main import cli\n"
        f"for line in {words!r}:\n"
        "    try:\n        cli(line.split(), standalone_mode=False)\n    except SystemExit:\n        pass\n"
        f"{then}\nprint('IMPORTED', *({{name.split('.')[0] for name in sys.modules}} & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_version_and_explain_import_nothing_heavy(tmp_path: Path) -> None:
    light = ("--help", "version", "explain", "explain fenced", "version --json", f"init {tmp_path / 'new'}")
    assert set() == imported_by(*light)


def test_no_verb_needs_spark_to_show_its_help() -> None:
    assert set() == imported_by(*(f"{name} --help" for name in cli.list_commands(click.Context(cli)))) & {
        "pyspark",
        "py4j",
    }


def test_help_about_transactions_needs_no_client_of_kafkas() -> None:
    assert set() == imported_by("tx --help", "tx list --help", "tx settle --help") & {"confluent_kafka", "kafka"}


def test_the_probe_sees_what_is_imported() -> None:
    assert {"pyarrow"} <= imported_by("--help", then="import fencepost; fencepost.Job")


def test_every_verb_has_the_line_of_help_that_the_list_shows() -> None:
    for name in cli.list_commands(click.Context(cli)):
        command = getattr(import_module(f"fencepost.cli.{VERBS[name].module}"), name.replace("-", "_"))
        assert VERBS[name].help == command.help.partition("\n\n")[0].replace("\n", " "), name


def test_help_lists_every_verb() -> None:
    done = fencepost("--help")
    assert (0, "") == (done.returncode, done.stderr)
    listed = {line.split()[0] for line in done.stdout.partition("Begin:")[2].splitlines() if line.startswith("  ")}
    assert set(cli.list_commands(click.Context(cli))) <= listed
    assert {"init", "check", "doctor", "savepoint", "rewind", "rescale", "state", "tx", "explain", "demo"} <= listed


def test_alone_it_shows_the_verbs_in_groups() -> None:
    done = fencepost()
    assert (0, "", fencepost("--help").stdout) == (done.returncode, done.stderr, done.stdout)
    assert [f"{title}:" for title in GROUPS] == [line for line in done.stdout.splitlines() if line[:-1] in GROUPS]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    done = fencepost("completion", shell)
    assert 0 == done.returncode, done.stderr
    assert f"_FENCEPOST_COMPLETE={shell}_complete" in done.stdout
    assert not done.stderr, "it stands in ~/.bashrc, which runs for every shell"


def test_an_interrupted_command_keeps_what_the_jvm_said_to_itself(capfd: pytest.CaptureFixture[str]) -> None:
    def command(end: BaseException) -> None:
        with frame.quiet():
            os.write(2, b"WARN of a JVM")
            raise end

    with pytest.raises(KeyboardInterrupt):
        command(KeyboardInterrupt())
    assert ("", "") == capfd.readouterr()
    with pytest.raises(ValueError, match="broken"):
        command(ValueError("broken"))
    assert "WARN of a JVM" in capfd.readouterr().err


def test_a_misspelt_verb_is_met_with_the_nearest() -> None:
    done = fencepost("statsu")
    assert (Exit.REFUSED, "") == (done.returncode, done.stdout)
    assert "No such command 'statsu'. Did you mean 'status'?" in done.stderr
    assert "No such command 'zzz'.\n" in fencepost("zzz").stderr


@pytest.mark.parametrize("words", ["run FILE --stanby", "run --stanby FILE", "run --conf a=b --stanby=1 FILE x"])
def test_a_misspelt_option_is_not_handed_on_to_the_file(tmp_path: Path, words: str) -> None:
    (tmp_path / "job.py").write_text("open('ran', 'w')")
    done = fencepost(*words.replace("FILE", "job.py").split(), cwd=tmp_path)
    assert Exit.REFUSED == done.returncode
    assert "No such option '--stanby'. Did you mean '--standby'? (Put options of FILE itself after --.)" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_options_of_the_file_itself_are_handed_on(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys; open('ran', 'w').write(' '.join(sys.argv[1:]))")
    done = fencepost("run", "job.py", "--config", "x", "-v", "--", "--stanby", "--json", cwd=tmp_path)
    assert "--config x -v --stanby --json" == (tmp_path / "ran").read_text(), done.stderr
    done = fencepost("run", "--config", "x", "job.py", cwd=tmp_path)
    assert "No such option '--config'. Did you mean '--conf'?" in done.stderr
    done = fencepost("check", "--quick", "job.py", cwd=tmp_path)
    assert "No such option '--quick'. (Options of FILE itself come after FILE.)" in done.stderr


def test_bash_completes_verbs_options_and_the_names_of_jobs(tmp_path: Path) -> None:
    def completed(words: str) -> set[str]:
        told = {"_FENCEPOST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        env = {**os.environ, **told, "FENCEPOST_HOME": str(tmp_path)}
        script = "import sys; sys.argv = ['fencepost']; from fencepost.cli.main import main; main()"
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    registry_home = tmp_path / "checkpoint"
    registry_home.mkdir()
    subprocess.run(
        [sys.executable, "-c", "import sys; from fencepost.observe import registry; registry.note(*sys.argv[1:])",
         "orders", str(registry_home)],
        env={**os.environ, "FENCEPOST_HOME": str(tmp_path)}, check=True,
    )  # fmt: skip
    assert {"savepoint", "state", "status", "stop"} & completed("fencepost s") == {
        "savepoint",
        "state",
        "status",
        "stop",
    }
    assert {"--savepoint"} <= completed("fencepost stop --sa")
    assert {"orders"} <= completed("fencepost status ord")
    script = (
        'eval "$("$1" completion bash)"; compopt() { :; }\n'  # which works only while a person completes
        'COMP_WORDS=(fencepost verify ord); COMP_CWORD=2; _fencepost_completion "$1"; echo "${COMPREPLY[@]}"'
    )
    words = ["bash", "-c", script, "bash", str(Path(sys.executable).with_name("fencepost"))]
    env = {**os.environ, "FENCEPOST_HOME": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert ("orders\n", "") == (done.stdout, done.stderr)


def test_versions_are_told_to_people_and_programs() -> None:
    done, plain = fencepost("version"), json.loads(fencepost("version", "--json").stdout)
    assert {"fencepost", "python", "pyspark", "pyarrow", "java"} == set(plain)
    assert [[name, number or "missing"] for name, number in plain.items()] == [
        line.split(maxsplit=1) for line in done.stdout.splitlines()
    ]


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def said(kind: type[FencepostError]) -> FencepostError:
    return kind("code", "What.", next="Next.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (said(BadConfig), Exit.REFUSED),
        (said(CheckpointRefused), Exit.REFUSED),
        (said(OperatorNeeded), Exit.OPERATOR),
        (said(InDoubt), Exit.OPERATOR),
        (said(Fenced), Exit.FAILED),
        (said(GaveUp), Exit.EXHAUSTED),
        (said(EpochFailed), Exit.FAILED),
        (said(RecoveryNeeded), Exit.FAILED),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (click.Abort(), Exit.INTERRUPTED),
        (click.UsageError("no"), Exit.REFUSED),
        (SystemExit(4), Exit.EXHAUSTED),
        (SystemExit("why"), Exit.FAILED),
        (SystemExit(), Exit.FINE),
    ],
)
def test_every_end_has_its_code(error: BaseException, code: Exit, capsys: pytest.CaptureFixture[str]) -> None:
    assert code == frame.run(raising(error))
    out, err = capsys.readouterr()
    assert not out
    assert bool(err) == (not isinstance(error, SystemExit) or error.code == "why")
    assert "Traceback" not in err


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        frame.run(raising(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nonsense",), 2, "No such command"),
        (("check",), 2, "Missing argument"),
        (("savepoint", "show", "nowhere/at/all"), 2, "[no_savepoint]"),
        (("savepoint", "create", "nowhere/at/all"), 2, "[no_ledger]"),
        (("state", "ls", "nobody"), 2, "[unknown_job]"),
        (("explain", "targt_silent"), 2, "target_silent"),
    ],
)
def test_what_went_wrong_is_on_stderr_and_stdout_stays_empty(words: tuple[str, ...], code: int, text: str) -> None:
    done = fencepost(*words)
    assert (code, "") == (done.returncode, done.stdout)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_who_has_seen_enough_gets_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = fencepost("explain", capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (1, "") == (done.returncode, done.stderr)


def test_a_stdout_that_was_closed_before_is_no_error() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *FENCEPOST, "explain", "--json"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_on_a_terminal_the_same_is_said() -> None:
    ours, theirs = pty.openpty()
    done = fencepost("explain", "fenced", capture_output=False, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert 0 == done.returncode
    assert fencepost("explain", "fenced").stdout == shown.replace("\r\n", "\n")


@pytest.mark.spark
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    # Ctrl-C is heard as on a terminal: what a shell starts in the background ignores it, and so do its children.
    hears = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    file.write_text(hears + "import pathlib, time\npathlib.Path(__file__).with_name('here').touch()\ntime.sleep(60)\n")
    running = subprocess.Popen(
        [*FENCEPOST, "check", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "here").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (130, "") == (running.returncode, out)
    assert "Interrupted." in err
    assert "Traceback" not in err
