"""What we write for people is plain English: some words and turns of phrase are banned.

Scanned are the documents, and every string of the package: docstrings, errors, help texts, and the files it ships.
Comments are left to review.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent
PACKAGE = TREE / "src" / "fencepost"
DOCUMENTS = sorted(
    path.relative_to(TREE).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "proof/*.md", "tests/golden/*.md", "examples/**/*.md", "examples/**/*.py")
    for path in TREE.glob(pattern)
)
MODULES = sorted(path.relative_to(TREE).as_posix() for path in PACKAGE.rglob("*.py"))
SHIPPED = sorted(
    path.relative_to(TREE).as_posix()
    for path in PACKAGE.rglob("*")
    if path.suffix in {".toml", ".txt", ".sql"} and "__pycache__" not in path.parts
)

BANNED = {
    # "there is no network" and "is no longer" are plain English; "this is no number" is not
    r"(?<!\bthere )\bis no (?!longer\b|more\b|less\b|one\b)[a-z]": "is not a …",
    r"\banew\b": "again, or another verb: recreated, rewritten",
    r"\bfor ever\b": "permanently, without limit",
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\bheed": "follow, respect",
    r"\bborne\b": "tolerated",
    r"\bin its midst\b": "in the middle of it",
    r"\bthe mistake people make\b": "Note:",
    r"\bcannot be called so\b": "cannot have that name",
    r"\bnobody would\b": "say what happens",
    r"\bcur(e|es|ed|ing)\b": "fix",
    # CSV's rule for quotes is the one place for it
    r"(?<!a quote in it )\bdoubled\b": "duplicated, of rows; twice",
}

WORD_LISTS = {"CONTRIBUTING.md"}
"""Documents that say which words are banned, and so may quote them."""
QUOTED = re.compile(r'"[^"]{1,30}"|`[^`]{1,30}`|“[^”]{1,30}”')

YET: frozenset[str] = frozenset()
"""Files that are not clean yet. Never add one; a file that is clean has to leave."""


def complaints(text: str) -> list[str]:
    """Banned words in a text, with what to say instead; a line break counts as a blank."""
    flat = " ".join(text.split())
    return [
        f"{flat[max(0, match.start() - 30) : match.end() + 20]!r}: {instead}"
        for pattern, instead in BANNED.items()
        for match in re.finditer(pattern, flat, re.IGNORECASE)
    ]


def strings(module: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string; a value put into an f-string reads as a word."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "word" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def complaints_of(path: str, text: str) -> list[str]:
    """Of a module its strings, of anything else the whole text; with the line, if it is known."""
    if path.startswith("src/") and path.endswith(".py"):
        return [f"{line}: {found}" for line, string in strings(text) for found in complaints(string)]
    return complaints(QUOTED.sub("…", text) if path in WORD_LISTS else text)


def problems(path: str, text: str, yet: frozenset[str]) -> list[str]:
    """A file is clean, or on the list of those that are not."""
    found = complaints_of(path, text)
    if path not in yet:
        return found
    return [] if found else [f"{path} is clean now: strike it off the list"]


@pytest.mark.parametrize("path", [*DOCUMENTS, *SHIPPED, *MODULES])
def test_no_banned_word_is_used(path: str) -> None:
    assert [] == problems(path, (TREE / path).read_text(), YET)


def test_a_clean_file_has_to_leave_the_list() -> None:
    yet = frozenset({"docs/NEW.md"})
    assert [] == problems("docs/NEW.md", "It runs for ever.", yet)
    assert 1 == len(problems("docs/NEW.md", "It runs without limit.", yet))


def test_the_list_of_unclean_files_names_files_that_are_there() -> None:
    assert set() == YET - {*DOCUMENTS, *SHIPPED, *MODULES}


def test_the_scan_sees_the_documents_and_the_package() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/GUARANTEES.md", "docs/PROOF.md"} <= set(DOCUMENTS)
    assert {"src/fencepost/errors.py", "src/fencepost/cli/run.py"} <= set(MODULES)
    assert "src/fencepost/cli/codes.toml" in SHIPPED


PLANTED = (
    "A socket is no source.",
    "What is\n    no text stays out.",
    "The topic was made anew.",
    "It runs for ever.",
    "Mend it.",
    "The next start mends it.",
    "It was mended.",
    "Mending takes a minute.",
    "The wish is heeded.",
    "Failures that are borne.",
    "A crash in its midst.",
    "The mistake people make: two sinks.",
    "A table cannot be called so.",
    "Here nobody would look.",
    "The cure is to start again.",
    "Two bugs, both cured.",
    "No row is doubled.",
)


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_word_is_seen_in_a_document(text: str) -> None:
    assert 1 == len(complaints_of("docs/NEW.md", f"# Title\n\n{text}\n"))


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_word_is_seen_in_a_docstring_an_error_and_an_f_string(text: str) -> None:
    module = f'def f(x):\n    """{text}"""\n    raise ValueError({text!r})\n\n\ng = f"{{x}}: {text!r} {{x}}"\n'
    assert 3 == len(complaints_of("src/fencepost/new.py", module))


def test_every_ban_is_planted() -> None:
    assert all(any(re.search(ban, " ".join(text.split()), re.IGNORECASE) for text in PLANTED) for ban in BANNED)


def test_a_value_after_the_ban_is_seen() -> None:
    assert 1 == len(complaints_of("src/fencepost/new.py", 'def f(x):\n    return f"{x} is no {x}"\n'))


@pytest.mark.parametrize(
    "text",
    [
        "There is no network in these figures.",
        "It is no longer used, and is no more than a copy.",
        "Recommend amending it; see the option made_anew, forever.",
        "A planewash is not a word.",
        "Secure, obscure, accurate; `float` and double; text in quotes, a quote in it doubled.",
    ],
)
def test_plain_english_is_left_alone(text: str) -> None:
    assert [] == complaints_of("docs/NEW.md", text)


def test_a_word_list_may_quote_what_it_bans_and_not_use_it() -> None:
    assert [] == complaints_of("CONTRIBUTING.md", 'Not "anew", "for ever" or "mend".')
    assert 1 == len(complaints_of("CONTRIBUTING.md", "A file that changed is made anew."))
    assert 1 == len(complaints_of("docs/NEW.md", 'Not "anew".'))
