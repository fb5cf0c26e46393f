"""Every code that an error can have is explained in the words of the places that raise it, and a note adds to them."""

from __future__ import annotations

import ast
import gc
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost import errors
from fencepost.cli import codes
from fencepost.cli.codes import CODE, UNKNOWN, Entry, Site, raised
from fencepost.cli.main import cli
from fencepost.errors import BadConfig, FencepostError

SOURCE = Path(codes.__file__).parents[1]
KINDS = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FencepostError)]
GIVEN = re.compile(rf"""\b(?:{"|".join(KINDS)}|Finding|Ending|_?refused|_wrong)\(\s*"([a-z0-9_]+)",""")
"""By the letters alone: a code that stands where it is given to an error."""


@pytest.fixture(scope="module")
def known() -> Mapping[str, Entry]:
    return codes.load()


def unexplained(sources: Mapping[str, str], known: Mapping[str, Entry]) -> set[str]:
    """Codes in the sources that nothing is known about."""
    return {code for text in sources.values() for code in GIVEN.findall(text)} - set(known)


def test_every_code_that_is_raised_is_explained(known: Mapping[str, Entry]) -> None:
    sources = {str(path): path.read_text() for path in SOURCE.rglob("*.py")}
    assert set() == unexplained(sources, known)
    assert len(known) > 200


def test_a_code_that_is_raised_and_not_explained_is_seen(known: Mapping[str, Entry]) -> None:
    planted = {"job.py": 'raise BadConfig(\n    "nobody_knows",\n    "It is so.",\n    next="Do this.",\n)'}
    assert {"nobody_knows"} == unexplained(planted, known)
    assert set() == unexplained(planted, {told.code: Entry(told.code, (told,), "") for told in raised(planted)})


def test_what_hands_a_code_on_is_known_by_name() -> None:
    """A code in any other expression would be read by nobody: neither by `explain` nor by the test above."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in {*KINDS, "Ending"}:
                code = node.args[0]
                if not isinstance(code, ast.Constant | ast.IfExp):
                    found.add(ast.unparse(code))
    assert {"code", "found[1]", "told['code']"} == found


def test_codes_that_a_function_returns_with_their_words_are_read() -> None:
    text = """
MORE = {"a": "More."}

def words(error):
    if error:
        return "a", f"It is {error}."
    return "b", "It is b."

def f(error):
    code, what = words(error)
    kind = Fenced if code == "a" else BadConfig
    return kind(code, what, next=MORE[code] if code in MORE else "No more.")
"""
    told = [(each.code, each.kind, each.says, each.next) for each in raised({"job.py": text})]
    assert [("a", "Fenced", "It is ….", "More."), ("b", "BadConfig", "It is b.", "No more.")] == sorted(told)


def test_every_explanation_says_something(known: Mapping[str, Entry]) -> None:
    for entry in known.values():
        assert CODE.fullmatch(entry.code)
        assert entry.more or any(len(told.says) > 10 for told in entry.told), entry
        assert entry.more or any(told.next not in ("", UNKNOWN) for told in entry.told), entry
        assert all(told.kind != UNKNOWN for told in entry.told), entry


def idle_notes(notes: Mapping[str, str], known: Mapping[str, Entry]) -> set[str]:
    """Notes about no code, or with fewer than four words that the error itself does not say."""
    found = set()
    for code, note in notes.items():
        told = known[code].told if code in known else ()
        said = " ".join(f"{each.says} {each.data} {each.next}" for each in told)
        if not told or len(_words(note) - _words(said)) < 4:
            found.add(code)
    return found


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def test_every_note_belongs_to_a_code_and_says_more_than_the_error(known: Mapping[str, Entry]) -> None:
    notes = codes.read_notes()
    assert set() == idle_notes(notes, known)
    assert len(notes) < 80, "most errors say it all themselves"


def test_a_note_that_repeats_the_error_or_belongs_to_none_is_seen(known: Mapping[str, Entry]) -> None:
    told = known["no_savepoint"].told[0]
    planted = {"no_savepoint": f"{told.says} {told.next}", "nobody_knows": "Four words that nobody else has said."}
    assert planted.keys() == idle_notes(planted, known)


def one(text: str) -> Site:
    """What is told about the only code of a module."""
    (found,) = raised({"job.py": text})
    return found


@pytest.mark.parametrize(
    "text",
    [
        "raise BadConfig('a_code', 'It is so.', next='Do this.')",
        "raise errors.BadConfig('a_code', 'It is so.', next='Do this.')",
        "what = 'It is so.'\nraise BadConfig('a_code', what, next='Do this.')",
        "def f(code, what, n): return BadConfig(code, what, next=n)\nraise f('a_code', 'It is so.', 'Do this.')",
        "def f(self, code, what): return BadConfig(code, what, next='Do this.')\nself.f('a_code', what='It is so.')",
        "def f():\n    what, code = 'It is so.', 'a_code'\n    return BadConfig(code, what, next='Do this.')",
        "def f():\n    what = 'It is'\n    what += ' so.'\n    return BadConfig('a_code', what, next='Do this.')",
        "def f(kind: type[BadConfig]): return kind('a_code', 'It is so.', next='Do this.')",
        "def f():\n  if x:\n    t = ''\n    return\n  t = 'It is so.'\n  raise BadConfig('a_code', t, next='Do this.')",
    ],
)
def test_the_reader_sees_every_way_a_code_and_its_words_get_into_an_error(text: str) -> None:
    assert Site("a_code", "BadConfig", "It is so.", BadConfig.safe, "Do this.", "job.py") == one(text)


def test_what_only_a_run_knows_is_left_open() -> None:
    assert "Epoch … of … is so." == one("raise Fenced('a', f'Epoch {n} of {job!r} is so.', next='')").says
    assert "… is so." == one("def f():\n    for x in y: raise Fenced('a', f'{x} is so.', next='')").says
    assert "It is …." == one("raise Fenced('a', f'It is {a} {b}.', next='')").says


def test_as_many_texts_as_codes_belong_to_each_other() -> None:
    text = "raise Fenced('a' if x else 'b', 'It is a.' if x else 'It is b.', next='')"
    assert [("a", "It is a."), ("b", "It is b.")] == [(told.code, told.says) for told in raised({"job.py": text})]


def test_a_finding_has_its_words_where_its_class_puts_them() -> None:
    text = (
        "class Finding:\n    code: str\n    what: str\n    next: str = 'Do this.'\n\nyield_ = Finding('a', 'It is so.')"
    )
    assert ("It is so.", "Do this.") == (one(text).says, one(text).next)


def test_one_code_is_explained() -> None:
    done = CliRunner().invoke(cli, ["explain", "[target_silent]"])
    assert 0 == done.exit_code
    lines = done.stdout.splitlines()
    assert lines[0].startswith("target_silent (")
    assert {"says:", "data:", "next:"} <= {line.split()[0] for line in lines[1:] if line.strip()}


def test_without_a_code_all_are_listed_by_theme(known: Mapping[str, Entry]) -> None:
    listed = CliRunner().invoke(cli, ["explain"]).stdout
    plain = json.loads(CliRunner().invoke(cli, ["explain", "--json"]).stdout)
    assert set(known) == {entry["code"] for entry in plain}
    assert [entry["code"] for entry in plain] == [line.split()[0] for line in listed.splitlines() if line[:2] == "  "]


@pytest.mark.parametrize(
    ("typed", "meant"), [("targt_silent", "target_silent"), ("TARGET", "target_"), ("savepoint", "savepoint_")]
)
def test_an_unknown_code_gets_the_nearest(typed: str, meant: str) -> None:
    done = CliRunner().invoke(cli, ["explain", typed])
    assert isinstance(done.exception, BadConfig)
    assert "unknown_code" == done.exception.code
    assert meant in done.exception.next


def collections_of(work: Callable[[], object]) -> int:
    """How often the collector of cycles runs meanwhile."""
    seen: list[str] = []

    def note(phase: str, _: object) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    try:
        work()
    finally:
        gc.callbacks.remove(note)
    return seen.count("start")


def test_reading_every_code_is_not_held_up_by_the_collector_of_cycles() -> None:
    """It took three times as long as all the rest, and a page of a browser waited for it."""
    sources = dict(codes._sources(codes.files("fencepost"), ""))
    assert collections_of(lambda: list(raised(sources))) > 10, "the search sees it where nobody prevents it"
    assert collections_of(codes.load.__wrapped__) <= 2, "at most one that was due, before and after"
    assert gc.isenabled()
