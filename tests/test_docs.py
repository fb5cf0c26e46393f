"""What the documentation names is there: public names and their arguments, verbs and options, examples, pages.

The blocks are run in tests/spark/test_docs.py. Here nothing is started; each check is also shown a wrong text.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from pages import BLOCKS, PAGES, PYTHON, ROOT, Block, blocks_of, name_of, text_of

import fencepost as fp
from fencepost.cli.main import cli


def wrong_names(block: Block) -> list[str]:
    """Does it compile, and is every `fp.…` and `job.…` there and called as it can be?"""
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        return [f"{block.page}:{block.line}: {error}"]
    owners = {"fp": fp, "job": fp.Job}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners:
            where = f"{block.page}:{block.line + node.lineno - 1}: {ast.unparse(node)}"
            if not hasattr(owners[node.value.id], node.attr):
                found.append(f"{where} is not there")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.extend(wrong_arguments(block, node, owners))
    return found


def wrong_arguments(block: Block, call: ast.Call, owners: dict[str, object]) -> Iterator[str]:
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    named = getattr(owners.get(owner), call.func.attr, None)
    if not callable(named) or any(isinstance(each, ast.Starred) for each in call.args):
        return
    itself = [None] if owner == "job" else []
    try:
        inspect.signature(named).bind(*itself, *call.args, **{each.arg: None for each in call.keywords if each.arg})
    except TypeError as error:
        yield f"{block.page}:{block.line + call.lineno - 1}: {ast.unparse(call.func)}: {error}"


def wrong_commands(block: Block) -> list[str]:
    """Does the command line know every verb and option?"""
    found = []
    for command in block.commands:
        for part in re.split(r"&&|\|\|?|;", command):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # half of a quoted text
                continue
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words = words[1:]
            if words and words[0] == "fencepost":
                found += [f"{block.page}:{block.line}: {command}: {why}" for why in wrong_words(words[1:])]
    return found


def wrong_words(words: list[str]) -> list[str]:
    command: click.Command = cli
    context = click.Context(cli, info_name="fencepost")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None:
            return [f"there is no verb {words[0]!r}"]
        command, words, context = inner, words[1:], click.Context(inner, parent=context, info_name=words[0])
    try:
        given, left, _ = command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return [error.format_message()]
    found = [f"{left} is too much"] if left and not context.allow_extra_args else []
    for parameter in command.params:
        value = given.get(parameter.name)
        if isinstance(parameter.type, click.Choice) and isinstance(value, str) and value not in parameter.type.choices:
            found.append(f"{value!r} is not one of {parameter.type.choices}")
        if (
            isinstance(parameter, click.Argument)
            and parameter.required
            and not (isinstance(value, str | tuple) and value)
        ):
            found.append(f"{parameter.name} is missing")
    return found


def wrong_inline(page: str, text: str) -> list[str]:
    """Names in running text."""
    public = [f"{page}: fp.{name} is not there" for name in re.findall(r"`fp\.(\w+)", text) if not hasattr(fp, name)]
    verbs = re.findall(r"`fencepost ([a-z][\w-]*)", " ".join(text.split()))
    return public + [f"{page}: fencepost {verb} is not there" for verb in verbs if verb not in cli.list_commands(None)]


def wrong_links(page: str, text: str) -> list[str]:
    """Links to files and pages of ours; the site's own build looks at the places within them."""
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [f"{page}: {link}" for link in links if "://" not in link and not (folder / link).exists()]


def test_every_block_of_python_names_what_is_there() -> None:
    assert len(PYTHON) > 20
    assert [] == [why for block in PYTHON for why in wrong_names(block)]


def test_every_command_is_one_that_the_command_line_takes() -> None:
    assert sum("fencepost " in block.text for block in BLOCKS) > 10
    assert [] == [why for block in BLOCKS for why in wrong_commands(block)]


@pytest.mark.parametrize("check", [wrong_inline, wrong_links])
def test_running_text_names_what_is_there(check) -> None:
    assert [] == [why for path in PAGES for why in check(name_of(path), path.read_text())]


@pytest.mark.parametrize(
    "text",
    ["job = fp.Pulsar()", "fp.Job('a', folder='x')", "job.reed(1)", "job.run(when='now')", "fp.SQLite('a')", "def f(:"],
)
def test_a_wrong_block_is_found(text: str) -> None:
    (block,) = blocks_of("a.md", f"```python\n{text}\n```\n")
    assert 1 == len(wrong_names(block))


@pytest.mark.parametrize(
    "text",
    [
        "$ fencepost staus orders",
        "A=b fencepost run job.py --stand-by",
        "fencepost rewind ck --epoch 4 --sink loud",
        "$ mkdir a && fencepost savepoint make ck",
        "$ fencepost status a b c",
        "$ fencepost rescale --partitions 4",
    ],
)
def test_a_wrong_command_is_found(text: str) -> None:
    (block,) = blocks_of("a.md", f"```\n{text}\n```\n")
    assert 1 == len(wrong_commands(block))


@pytest.mark.parametrize(
    ("check", "text"),
    [(wrong_inline, "take `fp.Pulsar`"), (wrong_inline, "say `fencepost\nfix`"), (wrong_links, "[a](docs/nothing.md)")],
)
def test_wrong_text_is_found(check, text: str) -> None:
    assert 1 == len(check("a.md", text))


def test_the_readme_takes_two_minutes() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


def test_a_wheel_that_is_named_has_this_version() -> None:
    named = [found for path in PAGES for found in re.findall(r"fencepost-(\d[\w.]*)-py3", path.read_text())]
    assert named
    assert {fp.__version__} == set(named)


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("README.md", "wordcount.py"),
        ("docs/how-to/kafka.md", "kafka_wordcount.py"),
        ("docs/how-to/postgresql.md", "databases.py"),
    ],
)
def test_the_example_file_is_the_pages(page: str, example: str) -> None:
    (block,) = [block for block in PYTHON if block.page == page and block.text.startswith(f"# {example}\n")]
    assert block.text.split("\n", 1)[1] == text_of(f"examples/{example}")


def test_the_reference_has_every_public_name() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: fencepost\.([\w.]+)", pages, re.MULTILINE))
    shown |= {f"errors.{name}" for found in re.findall(r"members: \[(.*)\]", pages) for name in found.split(", ")}
    homes = fp._HOMES.items()
    assert [] == [name for name, home in homes if f"{home}.{name}" not in shown and home not in shown - {"errors"}]


def test_every_page_is_in_the_sites_navigation() -> None:
    named = re.findall(r"^ +- (?:[\w, ]+: )?([\w/-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    pages = {name_of(path).removeprefix("docs/") for path in PAGES if name_of(path).startswith("docs/")}
    outside = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"}
    assert sorted(pages | outside) == sorted(named)
