"""A real Prometheus that scrapes one address every second, with the rules that are shipped and no patience."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencepost_proof.rig.debs import PROMETHEUS, unpack
from fencepost_proof.rig.process import free_ports


def shipped_rules() -> str:
    """As `fencepost metrics export` writes them."""
    return (files("fencepost.cli") / "monitoring" / "fencepost.rules.yml").read_text(encoding="utf-8")


@contextmanager
def scraping(folder: Path, port: int) -> Iterator[Asked]:
    """The server, for as long as the block lasts."""
    rules = folder / "rules.yml"
    rules.write_text(re.sub(r"for: \w+", "for: 1s", shipped_rules()))
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{rules}]\n"
        "scrape_configs:\n"
        "  - job_name: fencepost\n"
        "    honor_labels: true\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    (own,) = free_ports(1)
    command = [
        *unpack(PROMETHEUS).command("prometheus"),
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield Asked(own)
        finally:
            server.terminate()


class Asked:
    """Its query API."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _answer(self, path: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None  # it is starting

    def value(self, query: str) -> float | None:
        """The first value that answers a query."""
        found = self._answer("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def firing(self) -> set[tuple[str, str]]:
        """Alerts by name, with the job that each is about."""
        found = self._answer("alerts")
        return {
            (one["labels"]["alertname"].removeprefix("Fencepost"), one["labels"]["job"])
            for one in (found or {"alerts": []})["alerts"]
            if one["state"] == "firing"
        }
