"""`fencepost ui` as a process: a browser's requests over a real socket."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from ended import ended

from fencepost.ui.listener import listen

UI = [sys.executable, "-m", "fencepost", "ui"]


def test_it_serves_until_it_is_interrupted_also_with_a_page_open(tmp_path: Path) -> None:
    command = [*UI, str(ended(tmp_path)), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(address, timeout=60) as page:  # noqa: S310 - http
                assert "stand-in" in page.read().decode()
            with urllib.request.urlopen(f"{address}live", timeout=60) as stream:  # noqa: S310 - http
                assert b"retry" in stream.readline()
                process.send_signal(signal.SIGINT)
                said, complained = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (0, "") == (process.returncode, said)
    assert "Traceback" not in complained


def test_a_port_in_use_ends_it_in_four_lines(tmp_path: Path) -> None:
    with listen(0) as taken:
        command = [*UI, str(ended(tmp_path)), "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (2, "") == (done.returncode, done.stdout)
    assert "[port_in_use]" in done.stderr
    assert "next:" in done.stderr


def test_a_job_that_there_is_not_is_said(tmp_path: Path) -> None:
    done = subprocess.run([*UI, "no-such-job"], check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert 2 == done.returncode
    assert "[unknown_job]" in done.stderr


def test_a_token_is_printed_for_actions_and_one_of_a_file_is_not(tmp_path: Path) -> None:
    checkpoint, file = str(ended(tmp_path)), tmp_path / "token"
    file.write_text("a-token-that-is-long-enough\n")
    file.chmod(0o600)
    for more, is_printed in ((["--actions"], True), (["--actions", "--token-file", str(file)], False)):
        command = [*UI, checkpoint, "--port", "0", *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().strip()
                token = process.stdout.readline().strip() if is_printed else ""
                with urllib.request.urlopen(address, timeout=60) as page:  # noqa: S310 - http
                    assert "stand-in" in page.read().decode()
                process.send_signal(signal.SIGINT)
                said, complained = process.communicate(timeout=60)
            finally:
                process.kill()
        assert is_printed == (len(token.rpartition(": ")[2]) == 32)
        assert ("", False) == (said, "long-enough" in complained)


def test_a_token_file_without_actions_is_refused(tmp_path: Path) -> None:
    command = [*UI, str(ended(tmp_path)), "--token-file", "x"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (2, True) == (done.returncode, "[token_unused]" in done.stderr)
