"""What no linter knows: the direction of imports, banned ways, crash points, and what may not be published.

Each check takes a file's path and text and returns its complaints. Each is run twice: on the tree, where it must be
silent, and on a sabotaged snippet, where it must not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent
PACKAGE = "src/fencepost/"
PROOF = "proof/src/fencepost_proof/"
PARTS = ("src", "proof", "tests", "java", "requirements", "scripts", "bench", "examples", "docs", ".ci", ".github")
TEXTS = ("", ".py", ".md", ".toml", ".txt", ".java", ".sh", ".yml", ".yaml", ".json", ".html", ".css", ".js")

Check = Callable[[str, str], list[str]]


def protocol_is_pure(path: str, text: str) -> list[str]:
    """The protocol imports the standard library (but nothing that reads, waits or rolls dice), errors and itself."""
    if not path.startswith(PACKAGE + "protocol/"):
        return []
    impure = {"asyncio", "datetime", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3"}
    impure |= {"subprocess", "tempfile", "threading", "time", "urllib", "uuid"}
    found = []
    for line, name, _ in imports(text):
        top = name.split(".")[0]
        ours = within(name, "fencepost.errors") or within(name, "fencepost.protocol")
        if not ours and (top in impure or top not in sys.stdlib_module_names):
            found.append(f"{line}: the protocol imports {name}")
    return found


def spark_stays_in_spark(path: str, text: str) -> list[str]:
    """Only spark/ imports pyspark and py4j; others may name their types, and workloads and the demo's job are users."""
    may = (PACKAGE + "spark/", PACKAGE + "cli/demo_job.py")
    if not path.startswith(PACKAGE) or path.startswith(may):
        return []
    return [
        f"{line}: {name} is imported outside spark/"
        for line, name, for_types in imports(text)
        if not for_types and name.split(".")[0] in {"pyspark", "py4j"}
    ]


def nobody_imports_proof(path: str, text: str) -> list[str]:
    """What attacks the product is not part of it, and not in the wheel."""
    if not path.startswith(PACKAGE):
        return []
    return [f"{line}: {name} is imported" for line, name, _ in imports(text) if within(name, "fencepost_proof")]


def banned_ways(path: str, text: str) -> list[str]:
    """No code from data, no shell, no clock in the protocol."""
    pickles = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    if path.startswith("tests/"):  # a test may see that Spark can ship a thing
        pickles = set()
    found = [f"{line}: {name} is imported" for line, name, _ in imports(text) if name.split(".")[0] in pickles]
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in {"eval", "exec", "os.system", "os.popen"}:
            found.append(f"{node.lineno}: {called}() is called")
        if any(k.arg == "shell" and not is_constant(k.value, value=False) for k in node.keywords):
            found.append(f"{node.lineno}: shell= is given")
        if called.startswith(("time.", "datetime.")) and path.startswith(PACKAGE + "protocol/"):
            found.append(f"{node.lineno}: {called}() in the protocol")
    return found


def sql_is_not_glued(path: str, text: str) -> list[str]:
    """Values are bound, never glued in; the sinks glue identifiers, which one function per product quotes; the
    prover glues names that it made up itself.
    """
    if not path.startswith(PACKAGE) or path.startswith(PACKAGE + "connectors/"):
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        start: ast.expr | None = None
        if isinstance(node, ast.JoinedStr) and any(isinstance(v, ast.FormattedValue) for v in node.values):
            start = node.values[0]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            start = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            start = node.func.value
        if isinstance(start, ast.Constant) and isinstance(start.value, str) and SQL.match(start.value):
            found.append(f"{node.lineno}: SQL is glued together")
    return found


SQL = re.compile(
    r"\s*(SELECT|INSERT (OR \w+ )?INTO|REPLACE INTO|UPDATE|DELETE FROM|MERGE INTO|TRUNCATE|WITH|PRAGMA|ATTACH"
    r"|(CREATE|DROP|ALTER) (TABLE|INDEX|SCHEMA|DATABASE|VIEW|TEMP|UNIQUE))\b"
)


def nothing_of_this_machine(path: str, text: str) -> list[str]:
    """Nobody learns from this tree where packages came from, or where it was written."""
    return [
        f"{n}: {match[0]!r} belongs to one machine"
        for n, line in enumerate(text.splitlines(), 1)
        for match in PRIVATE.finditer(line)
    ]


PRIVATE = re.compile(
    r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]org|npmjs[.]org|anaconda[.]org|artifact[o]ry|jfrog[.]io"
    r"|--(?:extra-)?index[-]url|--find[-]links|--trusted[-]host|PIP_[A-Z_]*(?:INDEX|LINKS)"
    r"|(?<![\w.)}\]])/(?:work|root|home|Users|opt/wheels|tmp/lab)/\w+",
    re.IGNORECASE,
)


def pins_are_names_and_hashes(path: str, text: str) -> list[str]:
    """A requirements file holds `name==version`, hashes and comments; pip would obey any other line."""
    if not re.fullmatch(r"requirements/\w+\.txt", path):
        return []
    pin = re.compile(r"#.*|[a-z0-9-]+==[\w.]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    return [f"{n}: {line!r}" for n, line in enumerate(text.splitlines(), 1) if not pin.fullmatch(line)]


def no_placeholders(path: str, text: str) -> list[str]:
    """A figure that was not filled in yet is no figure."""
    return [f"{match[0]} was never filled in" for match in re.finditer(r"@[A-Z]+@", text)]


def one_title(path: str, text: str) -> list[str]:
    """A document has one title."""
    outside = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^# .+$", outside, flags=re.MULTILINE)
    return [] if len(titles) == 1 else [f"{len(titles)} titles"]


def points_once(files: dict[str, str]) -> list[str]:
    """A crash point is one place in the code: a kill that names it hits that place and no other."""
    places = defaultdict(list)
    for path, text in files.items():
        for line, name in crash_points(path, text):
            places[name].append(f"{path}:{line}")
    found = [f"{name} is at {' and '.join(at)}" for name, at in places.items() if len(at) > 1]
    around = {f"{name}.{side}" for name in places for side in ("before", "after")}
    return found + [f"{name} is also a side of an effect" for name in sorted(around & places.keys())]


def crash_points(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Names of effects made by the protocol, of the records it appends, and of calls of `reach`."""
    tree = ast.parse(text)
    effects = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "fencepost.protocol.effects"
        for alias in node.names
        if alias.name[0].isupper()
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        named: list[ast.expr] = []
        if called in {"faults.reach", "reach"} or (path.startswith(PACKAGE + "protocol/") and called in effects):
            named = node.args[:1]
        elif path.startswith(PACKAGE + "protocol/") and called in {"append", "try_append"}:
            named = node.args[2:3]
        for argument in named:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def imports(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line, full name, and whether it is imported for types only."""
    tree = ast.parse(text)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, id(node) in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}", id(node) in for_types) for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def is_constant(node: ast.expr, *, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def tree(*suffixes: str) -> dict[str, str]:
    """Our own files: relative path to text."""
    top = [path for path in TREE.iterdir() if path.is_file() and path.name != ".git"]  # a file in a work tree
    below = [path for part in PARTS for path in (TREE / part).rglob("*") if path.is_file()]
    own = [path for path in top + below if path.suffix in suffixes and "__pycache__" not in path.parts]
    return {path.relative_to(TREE).as_posix(): path.read_text(errors="replace") for path in sorted(own)}


CHECKS: list[tuple[Check, tuple[str, ...]]] = [
    (protocol_is_pure, (".py",)),
    (spark_stays_in_spark, (".py",)),
    (nobody_imports_proof, (".py",)),
    (banned_ways, (".py",)),
    (sql_is_not_glued, (".py",)),
    (nothing_of_this_machine, TEXTS),
    (pins_are_names_and_hashes, (".txt",)),
    (one_title, (".md",)),
    (no_placeholders, (".md",)),
]


@pytest.mark.parametrize(("check", "suffixes"), CHECKS, ids=[check.__name__ for check, _ in CHECKS])
def test_the_tree_is_tidy(check: Check, suffixes: tuple[str, ...]) -> None:
    files = tree(*suffixes)
    assert files
    assert [] == [f"{path}:{complaint}" for path, text in files.items() for complaint in check(path, text)]


def test_every_crash_point_is_one_place() -> None:
    files = {path: text for path, text in tree(".py").items() if path.startswith(PACKAGE)}
    assert any(True for path, text in files.items() for _ in crash_points(path, text))
    assert [] == points_once(files)


PROTOCOL = PACKAGE + "protocol/epoch.py"
JOB = PACKAGE + "job.py"
SABOTAGE: list[tuple[Check, str, str]] = [
    (protocol_is_pure, PROTOCOL, "import pyarrow"),
    (protocol_is_pure, PROTOCOL, "import time"),
    (protocol_is_pure, PROTOCOL, "from fencepost import store"),
    (protocol_is_pure, PROTOCOL, "from fencepost.contract import Sink"),
    (protocol_is_pure, PROTOCOL, "def f():\n    from .. import store"),
    (spark_stays_in_spark, JOB, "def f():\n    from pyspark.sql import functions"),
    (spark_stays_in_spark, PACKAGE + "connectors/files/sink.py", "import py4j.protocol"),
    (nobody_imports_proof, JOB, "import fencepost_proof"),
    (nobody_imports_proof, JOB, "from fencepost_proof.model import run"),
    (banned_ways, JOB, "import pickle"),
    (banned_ways, JOB, "from cloudpickle import dumps"),
    (banned_ways, JOB, "eval('1')"),
    (banned_ways, JOB, "subprocess.run('ls', shell=True)"),
    (banned_ways, PROTOCOL, "now = time.time()"),
    (sql_is_not_glued, JOB, "run(f'SELECT * FROM {table}')"),
    (sql_is_not_glued, JOB, "run('DELETE FROM t WHERE k = %s' % key)"),
    (sql_is_not_glued, JOB, "run('INSERT OR IGNORE INTO ' + table)"),
    (sql_is_not_glued, JOB, "run('CREATE TABLE {}'.format(table))"),
    (nothing_of_this_machine, "a.toml", "url = 'https://pypi" + ".org/simple'"),
    (nothing_of_this_machine, "a.txt", "--index" + "-url https://x"),
    (nothing_of_this_machine, "a.py", "open('/" + "root/x')"),
    (pins_are_names_and_hashes, "requirements/dev.txt", "click>=8"),
    (pins_are_names_and_hashes, "requirements/dev.txt", "-r other.txt"),
    (pins_are_names_and_hashes, "requirements/dev.txt", "click==8.5.1"),
    (no_placeholders, "a.md", "# One\n\nIt took @" + "FIGURE@ seconds."),
    (one_title, "a.md", "## Only a section"),
    (one_title, "a.md", "# One\n\n# Two"),
]


@pytest.mark.parametrize(("check", "path", "text"), SABOTAGE)
def test_each_check_complains_of_sabotage(check: Check, path: str, text: str) -> None:
    assert 1 == len(check(path, text))


def test_every_check_is_sabotaged() -> None:
    assert {check for check, _ in CHECKS} == {check for check, _, _ in SABOTAGE}


INNOCENT: list[tuple[Check, str, str]] = [
    (
        protocol_is_pure,
        PROTOCOL,
        "import json\nfrom fencepost.errors import Fenced\nfrom fencepost.protocol import order",
    ),
    (spark_stays_in_spark, JOB, "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
    (spark_stays_in_spark, PACKAGE + "spark/spark_session.py", "import pyspark"),
    (nobody_imports_proof, PROOF + "model/explore.py", "from fencepost_proof import model"),
    (banned_ways, JOB, "subprocess.run(['ls'], shell=False)\nnow = time.time()"),
    (sql_is_not_glued, JOB, "run('SELECT 1')\nsay(f'Select {one} of them')"),
    (sql_is_not_glued, PACKAGE + "connectors/table/session.py", "run(f'SELECT * FROM {quoted(table)}')"),
    (nothing_of_this_machine, "a.py", "Path(root) / 'work/x'\nurl = 'https://example.org/home/x'"),
    (one_title, "a.md", "# One\n\n```\n# a comment\n```\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), INNOCENT)
def test_no_check_complains_of_the_innocent(check: Check, path: str, text: str) -> None:
    assert [] == check(path, text)


EFFECTS = "from fencepost.protocol.effects import Mute, Names\n"


@pytest.mark.parametrize(
    "text",
    [
        EFFECTS + "Mute('a', 1)\nNames('a', 'x')",
        EFFECTS + "Mute('a', 1)\nappend(book, body, 'a')",
        EFFECTS + "Mute('a', 1)\nfaults.reach('a')",
        EFFECTS + "Mute('a', 1)\nfaults.reach('a.before')",
    ],
)
def test_a_crash_point_in_two_places_is_seen(text: str) -> None:
    assert 1 == len(points_once({PROTOCOL: text}))


def test_a_crash_point_in_two_files_is_seen() -> None:
    assert 1 == len(points_once({JOB: "faults.reach('a')", PACKAGE + "store/staging.py": "faults.reach('a')"}))
