"""The last words of `python job.py`: four lines and our exit code, one line for Ctrl-C; a hook of others stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost as fp
from fencepost.errors import BadArgument, BadConfig
from fencepost.spark import gateway

REFUSED = """
import fencepost as fp
from fencepost.errors import BadConfig
try:
    raise ValueError("a row: anna, 1250")
except ValueError as error:
    raise BadConfig("bad_thing", "It cannot be.", next="Change it.") from error
"""
FOUR = "[bad_thing] It cannot be.\n  data:  Safe: nothing was read or written.\n  next:  Change it.\n"


def typed(tmp_path: Path, text: str, **told: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "job.py").write_text(text)
    environment = {**os.environ, **told}
    command = [sys.executable, "job.py"]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_an_error_of_ours_is_four_lines_and_our_exit_code(tmp_path: Path) -> None:
    done = typed(tmp_path, REFUSED)
    assert (2, FOUR, "") == (done.returncode, done.stderr, done.stdout)


def test_the_whole_trace_is_there_for_whoever_asks(tmp_path: Path) -> None:
    done = typed(tmp_path, REFUSED, FENCEPOST_TRACE="1")
    assert 2 == done.returncode
    assert done.stderr.count("Traceback") == 2


def test_a_mistake_of_pythons_own_is_pythons_to_tell(tmp_path: Path) -> None:
    done = typed(tmp_path, "import fencepost\n{}['a']\n")
    assert (1, True) == (done.returncode, "KeyError: 'a'" in done.stderr)


def test_a_hook_that_somebody_set_stays(tmp_path: Path) -> None:
    mine = "import sys\nsys.excepthook = lambda *told: print('mine')\n"
    assert ("mine\n", "") == ((done := typed(tmp_path, mine + REFUSED)).stdout, done.stderr)


HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""As on a terminal: what a shell starts in the background ignores Ctrl-C, and so do its children."""


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HEARS + "import fencepost\nprint('ready', flush=True)\nsignal.pause()\n")
    with subprocess.Popen(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert (130, "Interrupted.\n") == (process.returncode, said)


SLOW = """#!/bin/sh
touch started
exec sleep 60
"""


def test_ctrl_c_while_spark_starts_is_one_line_too(tmp_path: Path) -> None:
    """A Java that never gets ready: it is waited for as for a slow one."""
    (tmp_path / "java" / "bin").mkdir(parents=True)
    java = tmp_path / "java" / "bin" / "java"
    java.write_text(SLOW)
    java.chmod(0o755)
    (tmp_path / "job.py").write_text(HEARS + "import fencepost as fp\nfp.Job('slow', checkpoint='ck').spark\n")
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java"), "FENCEPOST_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "job.py"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        while not (tmp_path / "started").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        os.killpg(process.pid, signal.SIGKILL)  # the Java that never ends
    assert (130, "fencepost: starting Spark …\nInterrupted.\n") == (process.returncode, said)


CALLED = """
import os, signal
from types import SimpleNamespace
from py4j.java_gateway import GatewayClient
from fencepost.spark import gateway

def call(command):
    os.kill(os.getpid(), signal.SIGINT)

if {hidden}:
    gateway.hide_interruptions()
client = GatewayClient()
client.deque.append(SimpleNamespace(socket=None, is_connected=True, send_command=call))
client.send_command("x")
"""


@pytest.mark.parametrize("hidden", [True, False])
def test_ctrl_c_that_meets_a_call_to_the_jvm_is_not_logged_by_py4j(hidden: bool, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HEARS + CALLED.format(hidden=hidden))
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert hidden == ("ERROR:root:" not in done.stderr)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda: fp.Kafka("lines", sever="a:1"), "servers"),
        (lambda: fp.Job("a", chekpoint="b"), "checkpoint"),
        (lambda: fp.SQLite("a.db", tabel="t"), "table"),
        (lambda: fp.start(None, too=None), "to"),
    ],
)
def test_a_misspelt_keyword_is_answered_with_the_right_one(wrong: object, right: str) -> None:
    with pytest.raises(TypeError) as caught:
        wrong()  # type: ignore[operator]
    assert isinstance(caught.value, BadArgument)
    assert f"Did you mean {right}=…?" == caught.value.next


def test_a_missing_argument_is_pythons_to_tell() -> None:
    with pytest.raises(TypeError, match="servers") as caught:
        fp.Kafka("lines")  # type: ignore[call-arg]
    assert not isinstance(caught.value, BadArgument)


@pytest.mark.parametrize(
    ("version", "code"), [("1.8.0_392", "old_java"), ("11.0.21", "old_java"), ("17.0.9", None), ("25", None)]
)
def test_a_java_that_is_too_old_is_named(
    version: str, code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    (tmp_path / "release").write_text(f'JAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    try:
        gateway.check_java("job")
    except BadConfig as error:
        assert (code, True) == (error.code, version in error.what)  # noqa: PT017 - one of both
    else:
        assert code is None


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BadConfig, match="no_java") as caught:
        gateway.check_java("job")
    assert f"JAVA_HOME={tmp_path}" in caught.value.what
