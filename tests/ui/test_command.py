"""`fencepost ui` as a process: a browser's requests over a real socket."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from ended import ended

from fencepost.observe import registry
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


@pytest.mark.spark
def test_a_file_is_run_for_its_sinks_and_spark_is_ended(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("1\ncanary-7791\n3\n")
    file = tmp_path / "orders.py"
    file.write_text(Path(__file__).with_name("letters_job.py").read_text())
    subprocess.run([sys.executable, str(file)], check=True, capture_output=True, timeout=300)
    with subprocess.Popen(
        [*UI, str(file), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            key = registry.key_of(tmp_path / "checkpoint")
            pages = {}
            for page in ("sinks", "dead-letters"):
                with urllib.request.urlopen(f"{address}jobs/{key}/{page}", timeout=60) as answer:  # noqa: S310 - http
                    pages[page] = answer.read().decode()
            process.send_signal(signal.SIGINT)
            said, complained = process.communicate(timeout=60)
        finally:
            process.kill()
    assert ("", "") == (children, said)
    assert "Traceback" not in complained
    assert "In the target" in pages["sinks"]
    assert "ValueError in to_order, line" in pages["dead-letters"]
    assert "in/1.txt" in pages["dead-letters"]
    assert not [page for page, text in pages.items() if "7791" in text]


def test_two_files_with_one_checkpoint_are_refused(tmp_path: Path) -> None:
    """The sinks of the second would replace those of the first."""
    text = f"import fencepost as fp\njob = fp.Job('stand-in', checkpoint={str(ended(tmp_path))!r})\n"
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a.py", "b.py")]
    done = subprocess.run([*UI, *files], check=False, capture_output=True, text=True, timeout=60)
    assert (2, "", True) == (done.returncode, done.stdout, "[checkpoint_twice]" in done.stderr)
    assert files[0] in done.stderr
    assert files[1] in done.stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import fencepost as fp\n", "no_job"),
        ("raise RuntimeError('canary-7791')\n", "file_fails"),
        ("raise SystemExit('canary-7791')\n", "file_fails"),
        ("def (\n", "file_fails"),
        ("import fencepost as fp\njob = fp.Job('orders', checkpoint='{0}')\n", "another_job"),
        ("import fencepost as fp\njob = fp.Job('stand-in', checkpoint='{0}-2')\n", "not_started"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused(text: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(text.format(ended(tmp_path)))
    done = subprocess.run([*UI, str(file)], check=False, capture_output=True, text=True, timeout=60)
    assert (2, "") == (done.returncode, done.stdout)
    assert f"[{code}]" in done.stderr
    assert "next:" in done.stderr
    assert "Traceback" not in done.stderr
    assert "7791" not in done.stderr
