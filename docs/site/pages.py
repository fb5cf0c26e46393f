"""What mkdocs cannot do by itself: pages from files outside of docs/, and links to files that are not pages.

The README is the site's first page, so that it is written once. Links to a source file become its path: there is no
host yet that shows it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "index.md": "README.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
}


def on_files(files: Any, *, config: Any) -> Any:
    """Add the files of the project's root, with links as they are seen from docs/."""
    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`[least rights](../src/x.sql)` becomes "least rights (`src/x.sql`)"."""
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)*((?:src|tests|examples|proof|bench|java)/[^)]*)\)", r"\1 (`\2`)", markdown)
