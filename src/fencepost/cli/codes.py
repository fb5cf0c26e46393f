"""Every error code with its text, read from where it is raised: the package's own sources.

    Entry    a code
    Site     one place that raises it: the class, the text, and `…` for what only a run knows
    note     what there is to say beyond that, for the few codes that need it (`codes.toml`)

Parses, and never imports, what it reads: `fencepost explain` works without pyspark and pyarrow.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, TypeVar

from fencepost import errors
from fencepost.errors import FencepostError

T = TypeVar("T")

CODE: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
UNKNOWN: Final = "…"
DEEPEST: Final = 4
"""How far we follow what a name stands for."""
LEAVES: Final = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.alias)
"""Nodes that have no call inside: most of them all."""
MOST: Final = 4
"""How many alternatives of one text are shown; more would hide the others."""
THEMES: Final = {
    "protocol": "Checkpoint and ledger",
    "store": "Checkpoint and ledger",
    "admin": "Checkpoint and ledger",
    "connectors": "Sources and sinks",
    "connectors/kafka": "Kafka",
    "spark": "Job, plan and state",
    "contract": "Sources and sinks",
    "observe": "Drivers and supervisors",
    "supervise": "Drivers and supervisors",
    "cli": "Commands",
}
"""By room; all the others are about the job and how it is set up."""


@dataclass(frozen=True, slots=True)
class Site:
    """What is said at one place about one code."""

    code: str
    kind: str
    """The class of the error."""
    says: str
    data: str
    next: str
    module: str
    """Its path within the package."""


@dataclass(frozen=True, slots=True)
class Entry:
    """All that is known about one code."""

    code: str
    told: tuple[Site, ...]
    more: str
    """Beyond what the error itself says; mostly nothing."""

    @property
    def theme(self) -> str:
        *folder, _ = self.told[0].module.split("/")
        room = folder[0] if folder else self.told[0].module.removesuffix(".py")
        return THEMES.get("/".join(folder), THEMES.get(room, "Job, plan and state"))


@cache
def load() -> dict[str, Entry]:
    """Every code, by theme, then by name."""
    found: dict[str, list[Site]] = {}
    with _uncollected():
        for told in raised(dict(_sources(files("fencepost"), ""))):
            found.setdefault(told.code, []).append(told)
    notes = read_notes()
    entries = [Entry(code, tuple(_distinct(told)), notes.get(code, "")) for code, told in found.items()]
    order = list(dict.fromkeys(THEMES.values()))
    entries.sort(key=lambda entry: (order.index(entry.theme), entry.code))
    return {entry.code: entry for entry in entries}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: trees have none, and it takes longer to look through them than to make them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_notes() -> dict[str, str]:
    """What is written by hand, by code."""
    text = (files("fencepost.cli") / "codes.toml").read_text(encoding="utf-8")
    return {code: " ".join(note.split()) for code, note in tomllib.loads(text).items()}


def raised(sources: Mapping[str, str]) -> Iterator[Site]:
    """Every place that gives a code to an error, by module path to text."""
    modules = {path: ast.parse(text) for path, text in sources.items()}
    package = _Package()
    calls = {path: _calls(tree) for path, tree in modules.items()}
    for path, tree in modules.items():
        package.learn(path, tree, calls[path])
    for path in modules:
        yield from package.told_in(path, calls[path])


def _distinct(told: list[Site]) -> Iterator[Site]:
    """Show the same text from two classes or places once; show an unknown text only if there is no other."""
    known = set()
    for one in told:
        words = (one.says.replace(f" ({UNKNOWN})", ""), one.next)
        if words not in known and (one.says != UNKNOWN or len(told) == 1):
            known.add(words)
            yield one


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _sources(each, f"{path}{each.name}/")
        elif each.name.endswith(".py"):
            yield path + each.name, each.read_text(encoding="utf-8")


Values = dict[str, list[ast.expr]]
"""What names may stand for."""
Calls = list[tuple[ast.FunctionDef | None, ast.Call]]
"""Each with the innermost function that it stands in."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the names at one place of a module stand for."""

    path: str
    values: Values = field(default_factory=dict)
    given: Mapping[str, list[str]] = field(default_factory=dict)
    """Those whose texts are known: a helper's arguments as its caller gave them, or parts of a tuple."""


@dataclass(frozen=True, slots=True)
class _Helper:
    """A function that hands its argument `code` on to an error."""

    arguments: list[str]
    call: ast.Call
    kind: str
    scope: _Scope


@dataclass(frozen=True, slots=True)
class _Kind:
    """Whatever has a code first: an error, a finding of the doctor, an ending of a driver."""

    arguments: list[str]
    defaults: Mapping[str, ast.expr]


class _Package:
    """What has to be known of all modules before one can be read; each by name, then by module."""

    def __init__(self) -> None:
        self.constants: dict[str, dict[str, ast.expr]] = {}
        self.helpers: dict[str, dict[str, _Helper]] = {}
        self.functions: dict[str, dict[str, ast.FunctionDef]] = {}
        self.kinds: dict[str, dict[str, _Kind]] = {
            name: {"": _Kind(["code", "what"], {"safe": ast.Constant(kind.safe)})}
            for name, kind in vars(errors).items()
            if isinstance(kind, type) and issubclass(kind, FencepostError)
        }

    def learn(self, path: str, tree: ast.Module, calls: Calls) -> None:
        """Take in one module."""
        for node in tree.body:
            for name, value in _assigned(node):
                self.constants.setdefault(name, {})[path] = value
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, {})[path] = node
            if isinstance(node, ast.ClassDef):
                fields = {
                    each.target.id: each.value
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
                if "next" in fields and next(iter(fields)) == "code":
                    defaults = {name: value for name, value in fields.items() if value is not None}
                    self.kinds.setdefault(node.name, {})[path] = _Kind(list(fields), defaults)
        for function, call in calls:
            arguments = [each.arg for each in function.args.args if each.arg not in ("self", "cls")] if function else []
            if function and "code" in arguments and (kind := self._kind(call, function)) and _is_code(call.args):
                scope = _Scope(path, _values_at(function, call.lineno))
                self.helpers.setdefault(function.name, {})[path] = _Helper(arguments, call, kind, scope)

    def told_in(self, path: str, calls: Calls) -> Iterator[Site]:
        """The sites of one module, once all are known."""
        for function, call in calls:
            helper = _nearest(self.helpers.get(_name(call.func), {}), path)
            kind = self._kind(call, function)
            if not call.args or (helper is None and kind is None):
                continue
            scope = _Scope(path, _values_at(function, call.lineno) if function else {})
            if helper is None:
                for world in self._worlds(call.args[0], scope):
                    yield from self._told(path, call, self._kind(call, function, world) or "", world)
            else:
                bound = _bound(call, helper.arguments)
                given = {name: self._texts(value, scope) for name, value in bound.items()}
                inner = _Scope(helper.scope.path, helper.scope.values, given)
                yield from self._told(path, helper.call, helper.kind, inner)

    def _told(self, path: str, call: ast.Call, kind: str, scope: _Scope) -> Iterator[Site]:
        known = _nearest(self.kinds[kind], path)
        assert known is not None
        bound = {**known.defaults, **_bound(call, known.arguments)}
        codes = [code for code in self._texts(call.args[0], scope) if CODE.fullmatch(code)]
        says = self._texts(bound.get("what") or bound.get("text"), scope)
        nexts = self._texts(bound.get("next"), scope)
        data = self._texts(bound.get("safe"), scope)[0]
        if data == UNKNOWN:
            data = self._texts(known.defaults.get("safe"), scope)[0]
        for n, code in enumerate(codes):
            for text in _belonging(says, n, len(codes)):
                yield Site(code, kind, text, data, " Or: ".join(_belonging(nexts, n, len(codes))), path)

    def _worlds(self, code: ast.expr, scope: _Scope) -> list[_Scope]:
        """`code, what, advice = words(…)`: one for each tuple that the function returns, for they belong together."""
        value = scope.values.get(code.id, [None])[-1] if isinstance(code, ast.Name) else None
        if not (isinstance(value, ast.Subscript) and isinstance(value.value, ast.Call)):
            return [scope]
        function = _nearest(self.functions.get(_name(value.value.func), {}), scope.path)
        worlds = []
        for node in ast.walk(function) if function else ():
            if function and isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                inner = _Scope(scope.path, _values_at(function, node.lineno))
                parts = [self._texts(part, inner) for part in node.value.elts]
                given = {
                    name: parts[place]
                    for place in range(len(parts))
                    for name, (*_, each) in scope.values.items()
                    if isinstance(each, ast.Subscript) and each.value is value.value and _is_place(each.slice, place)
                }
                worlds.append(_Scope(scope.path, scope.values, given))
        return worlds or [scope]

    def _is_so(self, test: ast.expr, scope: _Scope) -> bool | None:
        """Whether a code is this one, or in a table; None for all that only a run can tell."""
        match test:
            case ast.Compare(left=ast.Name() as left, ops=[ast.Eq()], comparators=[ast.Constant(value=right)]):
                return self._texts(left, scope) == [right] if left.id in scope.given else None
            case ast.Compare(left=ast.Name() as left, ops=[ast.In()], comparators=[ast.Name(id=name)]):
                table = _nearest(self.constants.get(name, {}), scope.path)
                if isinstance(table, ast.Dict) and left.id in scope.given:
                    return self._texts(left, scope)[0] in [k.value for k in table.keys if isinstance(k, ast.Constant)]
        return None

    def _kind(self, call: ast.Call, function: ast.FunctionDef | None, scope: _Scope | None = None) -> str | None:
        """The class of an error, also if an argument or a name holds it."""
        name = _name(call.func)
        if function is not None and name not in self.kinds and any(each.arg == "next" for each in call.keywords):
            match (scope.values if scope else _values_at(function, call.lineno)).get(name):
                case [ast.IfExp(test=test, body=ast.Name(id=first), orelse=ast.Name(id=second))]:
                    name = second if scope and self._is_so(test, scope) is False else first
        for each in [] if function is None else [*function.args.args, *function.args.kwonlyargs]:
            if each.arg == name and each.annotation is not None:
                name = ast.unparse(each.annotation)[len("type[") : -1]
        return name if name in self.kinds else None

    def _texts(self, value: ast.expr | None, scope: _Scope, depth: int = 0) -> list[str]:  # noqa: C901 - a table of expressions
        """What an expression may say."""
        texts: list[str] = []
        match value:
            case _ if depth > DEEPEST:
                pass
            case ast.Constant(value=str(text)):
                texts = [text]
            case ast.JoinedStr(values=parts):
                texts = [""]
                for part in parts:
                    inner = part.value if isinstance(part, ast.FormattedValue) else part
                    texts = [text + more for text in texts for more in self._texts(inner, scope, depth + 1)][:MOST]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                texts = [self._texts(left, scope, depth + 1)[0] + self._texts(right, scope, depth + 1)[0]]
            case ast.IfExp(test=test, body=first, orelse=second) if (so := self._is_so(test, scope)) is not None:
                texts = self._texts(first if so else second, scope, depth + 1)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Name(id=key)) if key in scope.given:
                table = _nearest(self.constants.get(name, {}), scope.path)
                pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
                rows = [each for k, each in pairs if isinstance(k, ast.Constant) and [k.value] == scope.given[key]]
                texts = self._texts(rows[0], scope, depth + 1) if rows else []
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[*_, first, second]):
                texts = [*self._texts(first, scope, depth + 1), *self._texts(second, scope, depth + 1)]
                if depth and UNKNOWN in texts:  # half of it would look like all of it
                    texts = []
            case ast.Name(id=name) if name in scope.given:
                texts = scope.given[name]
            case ast.Name(id=name) if name in scope.values:
                texts = [text for each in scope.values[name] for text in self._texts(each, scope, depth + 1)]
            case ast.Name(id=name) if name in self.constants:
                texts = self._texts(_nearest(self.constants[name], scope.path), scope, depth + 1)
        known = [text for text in dict.fromkeys(texts) if text and text != UNKNOWN][:MOST] or [UNKNOWN]
        return known if depth else [_line(text) or UNKNOWN for text in known]


def _belonging(texts: list[str], n: int, codes: int) -> list[str]:
    """Of as many texts as codes, each belongs to one; otherwise every text may come with every code."""
    return texts[n : n + 1] if codes == len(texts) > 1 else texts


def _nearest(found: Mapping[str, T], path: str) -> T | None:
    """Of things of one name: that of the module itself, or of its folder, or any."""
    if path in found:
        return found[path]
    folder = path.rpartition("/")[0]
    beside = [each for other, each in found.items() if other.rpartition("/")[0] == folder]
    return next(iter([*beside, *found.values()]), None)


def _line(text: str) -> str:
    """In one line, and what nobody knows in one dot."""
    return re.sub(f"{UNKNOWN}[{UNKNOWN} ]*{UNKNOWN}", UNKNOWN, " ".join(text.split()))


def _values_at(function: ast.FunctionDef, line: int) -> Values:
    """What the names of a function may stand for at a line of it."""
    values: Values = {}
    _follow(function.body, line, values)
    return values


def _follow(block: list[ast.stmt], line: int | None, values: Values) -> None:
    """Run through a block up to a line: what a branch says that cannot be left at its end is not known after it."""
    for statement in block:
        assert statement.end_lineno is not None
        if line is not None and statement.lineno > line:
            return
        blocks = _blocks(statement)
        if isinstance(statement, ast.For):  # whatever its names stood for before, they do no more
            names = [each.id for each in ast.walk(statement.target) if isinstance(each, ast.Name)]
            values.update({name: [statement.iter] for name in names})
        if line is not None and line <= statement.end_lineno:
            for inner in blocks:
                if inner[0].lineno <= line <= (inner[-1].end_lineno or 0):
                    _follow(inner, line, values)
            return
        if not blocks:
            values.update({name: [value] for name, value in _assigned(statement, values)})
            continue
        _merge(statement, blocks, values)


def _merge(statement: ast.stmt, blocks: list[list[ast.stmt]], values: Values) -> None:
    """After branches that may have been taken."""
    always = isinstance(statement, ast.With) or (isinstance(statement, ast.If) and statement.orelse)
    ways = [] if always else [dict(values)]
    for block in blocks:
        way = dict(values)
        _follow(block, None, way)
        if not isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
            ways.append(way)
    for name in {name for way in ways for name in way}:
        both = [value for way in ways for value in way.get(name, [])]
        values[name] = [value for n, value in enumerate(both) if value not in both[:n]]


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """What stands indented below it."""
    owners = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    found = [getattr(owner, name, []) for owner in owners for name in ("body", "orelse", "finalbody")]
    return [block for block in found if block and not isinstance(statement, ast.FunctionDef | ast.ClassDef)]


def _assigned(statement: ast.stmt, values: Values | None = None) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement gives a value, and what it is."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.AugAssign(target=ast.Name(id=name), value=value) if values and name in values:
            yield name, ast.BinOp(values[name][-1], ast.Add(), value)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call() as call):
            places = [(each.id, n) for n, each in enumerate(names) if isinstance(each, ast.Name)]
            yield from ((name, ast.Subscript(call, ast.Constant(n))) for name, n in places)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=parts)):
            yield from ((each.id, part) for each, part in zip(names, parts, strict=True) if isinstance(each, ast.Name))


def _calls(tree: ast.Module) -> Calls:
    """Every call of a module, in the order of the text."""
    found: Calls = []
    ahead: list[tuple[ast.FunctionDef | None, ast.AST]] = [(None, tree)]
    while ahead:  # a stack of our own: half a million nodes are too many for generators inside generators
        function, node = ahead.pop()
        if isinstance(node, ast.Call):
            found.append((function, node))
        inner = node if isinstance(node, ast.FunctionDef) else function
        for name in reversed(node._fields):
            value = getattr(node, name, None)
            for child in reversed(value) if isinstance(value, list) else (value,):
                if isinstance(child, ast.AST) and not isinstance(child, LEAVES):
                    ahead.append((inner, child))
    return found


def _bound(call: ast.Call, arguments: list[str]) -> dict[str, ast.expr]:
    """The values of a call, by the names of its arguments."""
    by_place = dict(zip(arguments, call.args, strict=False))
    return by_place | {each.arg: each.value for each in call.keywords if each.arg}


def _is_place(value: ast.expr, place: int) -> bool:
    return isinstance(value, ast.Constant) and value.value == place


def _is_code(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Name) and arguments[0].id == "code"


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
