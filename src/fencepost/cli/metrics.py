"""`fencepost metrics`: what is shipped for the watching of jobs."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from fencepost.errors import UNCHANGED, BadConfig, Where

SHIPPED = ("fencepost.rules.yml", "fencepost.dashboard.json")


@click.group()
def metrics() -> None:
    """Get alert rules for Prometheus and a dashboard for Grafana.

    The figures themselves are served by `fencepost run --metrics PORT`, by job.metrics(port), and by `fencepost ui`
    under /metrics.
    """


@metrics.command()
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), required=True, help="The folder to write to.")
@click.option("--force", is_flag=True, help="Overwrite files that are there and differ.")
def export(to: Path, force: bool) -> None:
    """Write alert rules for Prometheus and a dashboard for Grafana into a folder. Prints their paths."""
    texts = {to / name: (files("fencepost.cli") / "monitoring" / name).read_text(encoding="utf-8") for name in SHIPPED}
    for path, text in texts.items():
        if not force and path.exists() and path.read_text(encoding="utf-8") != text:
            raise BadConfig(
                "file_exists",
                f"{path} is there and differs.",
                where=Where(path=str(path)),
                safe=UNCHANGED,
                next="Write to another folder, or add --force to overwrite it.",
            )
    try:
        to.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            click.echo(path)
    except OSError as error:
        raise BadConfig(
            "folder_refused",
            f"Cannot write to {to}: {error.strerror}.",
            where=Where(path=str(to)),
            safe=UNCHANGED,
            next="Name a folder that can be written to.",
        ) from error
