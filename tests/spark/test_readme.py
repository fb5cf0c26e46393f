"""The README's example runs as printed, and prints what the README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_ten_lines_run_as_printed(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# wordcount\.py\n.*?)```", README, re.DOTALL)
    (shell,) = re.findall(r"```\n(\$ mkdir lines.*?)```", README, re.DOTALL)
    (tmp_path / "wordcount.py").write_text(code)
    commands = [line[2:] for line in shell.splitlines() if line.startswith("$ ")]
    expected = [line for line in shell.splitlines() if not line.startswith("$ ")]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = subprocess.run(
        [shutil.which("bash") or "bash", "-ec", "\n".join(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, expected) == (printed.returncode, printed.stdout.splitlines()), printed.stderr[-2000:]


@pytest.mark.parametrize("name", ["wordcount.py", "kafka_wordcount.py", "databases.py"])
def test_the_example_file_is_the_readmes(name: str) -> None:
    (code,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", README, re.DOTALL)
    assert code == (Path(__file__).parents[2] / "examples" / name).read_text()
