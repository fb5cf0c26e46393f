"""`fencepost init`: a small project that runs. Never overwrites a file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from fencepost.errors import UNCHANGED, BadConfig, Where
from fencepost.spark import package

SKELETON = package.folder("fencepost.cli", "skeleton")
SUFFIX = ".txt"
"""Keeps linters and packagers from taking the skeleton's files for ours."""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--kafka", "kind", flag_value="kafka", help="From Kafka to Kafka, instead of files to SQLite.")
@click.option("--postgres", "kind", flag_value="postgres", help="From files to PostgreSQL.")
def init(folder: Path, kind: str | None) -> None:
    """Create a small project that runs: a job, some data, a test, a README.

    In DIR, which is created if needed; by default in this folder. No file is ever overwritten.
    """
    wanted = {folder / name: text for name, text in files(kind or "files").items()}
    if there := sorted(str(path.relative_to(folder)) for path in wanted if path.exists() or path.is_symlink()):
        raise BadConfig(
            "files_exist",
            f"These files already exist: {', '.join(there)}.",
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
            f"Cannot create the files: {error.strerror}.",
            where=Where(path=str(folder)),
            safe="Safe: no file was overwritten.",
            next="Name a folder that you may write to.",
        ) from error
    go = "" if folder == Path() else f"cd {folder} && "
    send = "python send.py && " if kind == "kafka" else ""
    click.echo(f"Next: {go}{send}fencepost check job.py && python job.py", err=True)


def files(kind: str = "files") -> dict[str, str]:
    """A project's files by their names."""
    return dict(sorted([*_texts(SKELETON / "common"), *_texts(SKELETON / kind)]))


def _texts(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _texts(each, f"{above}{each.name}/")
        else:
            yield above + each.name.removesuffix(SUFFIX), each.read_text(encoding="utf-8")
