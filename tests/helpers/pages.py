"""The documentation as data: which pages there are, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: str
    line: int
    """Of its first line of code."""
    info: str
    """The words behind the fence: a language, perhaps a title."""
    text: str

    @property
    def is_python(self) -> bool:
        return self.info.split(" ")[0] == "python"

    @property
    def is_run(self) -> bool:
        """A title says to readers and to us that it is not, and why: `title="not run here: needs …"`."""
        return self.is_python and "not run" not in self.info

    @property
    def commands(self) -> list[str]:
        """Of a block for a shell: what follows its prompts, or every line if it has none."""
        if self.info:
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        prompted = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
        return prompted or [line.strip() for line in lines]


def blocks_of(page: str, text: str) -> list[Block]:
    found = re.finditer(r"^( *)```([^\n]*)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [Block(page, text.count("\n", 0, each.start()) + 2, each[2].strip(), each[3]) for each in found]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


BLOCKS = [block for path in PAGES for block in blocks_of(name_of(path), path.read_text())]
PYTHON = [block for block in BLOCKS if block.is_python]
