"""`fencepost init`: a small project that runs. Never overwrites a file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from fencepost import shipped
from fencepost.errors import UNCHANGED, BadConfig, Where

SKELETON = shipped.folder("fencepost.cli", "skeleton")
SUFFIX = ".txt"
"""Keeps linters and packagers from taking the skeleton's files for ours."""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(folder: Path) -> None:
    """Make a small project that runs: a job, some data, a README.

    Into DIR, which is made if need be; by default into this folder. No file is ever overwritten.
    """
    wanted = {folder / name: text for name, text in files().items()}
    if there := sorted(str(path.relative_to(folder)) for path in wanted if path.exists() or path.is_symlink()):
        raise BadConfig(
            "files_exist",
            f"There are files of these names already: {', '.join(there)}.",
            where=Where(path=str(folder)),
            safe=UNCHANGED,
            next="Name another folder: fencepost init DIR.",
        )
    try:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            click.echo(path)
    except OSError as error:
        raise BadConfig(
            "folder_not_writable",
            f"The files cannot be made: {error.strerror}.",
            where=Where(path=str(folder)),
            safe="Safe: no file was overwritten.",
            next="Name a folder that you may write.",
        ) from error
    go = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"Next: {go}fencepost check job.py && python job.py", err=True)


def files() -> dict[str, str]:
    """The skeleton's files by their names."""
    return dict(sorted(_texts(SKELETON)))


def _texts(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _texts(each, f"{above}{each.name}/")
        else:
            yield above + each.name.removesuffix(SUFFIX), each.read_text(encoding="utf-8")
