"""Mutants: small changes of what the program does, each at one place of its text.

They change comparisons, conditions, truth values, numbers, words without a space (keys, options, states), the order of
arguments, results, and the errors that are caught; or they take a statement out. What only words a message, a type or
an error is left alone: a change of it is none of behaviour.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_COMPARISONS = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
_COMPARISON = re.compile(r"not\s+in|is\s+not|==|!=|<=|>=|<|>|\bin\b|\bis\b")
_ARITHMETIC = {ast.Sub: ("-", "+"), ast.FloorDiv: ("//", "*"), ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|")}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list", "reversed": "list"}
_METHODS = {
    "startswith": "endswith", "endswith": "startswith", "removeprefix": "removesuffix", "removesuffix": "removeprefix",
    "partition": "rpartition", "rpartition": "partition", "fullmatch": "match",
}  # fmt: skip
# Calls whose arguments are words for people, and arguments that are.
_WORDING = re.compile(r"(Error|Message|Fact|Problem|Warning|did_you_mean|counted)$")
_WORDING_ARGUMENTS = {"hint", "encoding", "errors", "help"}
_RESULTS = {"bool": "not ({})", "str": '""', "int": "0", "tuple": "()", "dict": "{{}}", "list": "[]"}


@dataclass(frozen=True)
class Mutant:
    """A change of the file ``path``: the text from ``start`` to ``end`` becomes ``after``. ``lines`` are those of its
    statement, or of the function whose default it changes; ``names``, outside of functions, what is assigned. ``key``
    names it as long as the code around it stays, wherever it moves in its file."""

    path: str
    key: str
    line: int
    start: int
    end: int
    after: str
    lines: range
    names: tuple[str, ...] = ()
    in_function: bool = True

    def apply(self, text: str) -> str:
        return text[: self.start] + self.after + text[self.end :]


def of_file(root: Path, path: str) -> list[Mutant]:
    """All mutants of a file; a few are no Python, or the same: `is_change` tells."""
    return list(_Finder(path, (root / path).read_text(encoding="utf-8")).found())


def is_change(root: Path, mutant: Mutant) -> bool:
    text = (root / mutant.path).read_text(encoding="utf-8")
    try:
        return ast.dump(ast.parse(mutant.apply(text))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


def sample(root: Path, paths: list[str], count: int, seed: str = "1") -> list[Mutant]:
    """``count`` mutants spread over files by the lines that have any, at most one a line. A mutant is chosen by a hash
    of its key: most of a sample stays where files change."""
    by_file = {path: _ranked(of_file(root, path), seed) for path in paths}
    in_all = sum(map(len, by_file.values()))
    shares = {path: count * len(ranked) / in_all for path, ranked in by_file.items()}
    taken = {path: int(share) for path, share in shares.items()}
    for path in sorted(shares, key=lambda path: taken[path] - shares[path])[: count - sum(taken.values())]:
        taken[path] += 1
    chosen: list[Mutant] = []
    for path in paths:
        changes = (mutant for mutant in by_file[path] if is_change(root, mutant))
        chosen += sorted(itertools.islice(changes, taken[path]), key=lambda each: each.line)
    return chosen


def _ranked(mutants: list[Mutant], seed: str) -> list[Mutant]:
    """The mutants in an order that the seed decides, the first of each line."""
    ranked = sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
    first: dict[int, Mutant] = {}
    for mutant in ranked:
        first.setdefault(mutant.line, mutant)
    return list(first.values())


@dataclass(frozen=True)
class _Place:
    """Where the walk is: in which function or class, in which statement, and what that one assigns."""

    scope: tuple[str, ...] = ()
    lines: range = range(0)
    names: tuple[str, ...] = ()
    in_function: bool = False
    result: str = ""  # the type that the function returns


class _Finder:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.keys: dict[str, int] = {}
        # ast counts bytes in a line.
        self.offsets = [0]
        for line in text.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.source_lines = text.splitlines(keepends=True)

    def found(self) -> Iterator[Mutant]:
        for statement in ast.parse(self.text).body:
            yield from self._statement(statement, _Place())

    # Where things are in the text.

    def _at(self, line: int, column: int) -> int:
        return self.offsets[line - 1] + len(self.source_lines[line - 1].encode()[:column].decode())

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _source(self, node: ast.expr | ast.stmt) -> str:
        return self.text[self._start(node) : self._end(node)]

    def _mutant(self, place: _Place, start: int, end: int, after: str) -> Mutant:
        line = self.text.count("\n", 0, start) + 1
        first, last = self.text.rfind("\n", 0, start) + 1, self.text.find("\n", end)
        before = " ".join(self.text[first:last].split())
        now = " ".join(f"{self.text[first:start]}«{after}»{self.text[end:last]}".split())
        key = f"{self.path} {'.'.join(place.scope)}: {before}  →  {now}"
        self.keys[key] = self.keys.get(key, 0) + 1
        if self.keys[key] > 1:
            key += f" ({self.keys[key]})"
        names = () if place.in_function else place.names
        return Mutant(self.path, key, line, start, end, after, place.lines, names, place.in_function)

    def _replace(self, place: _Place, node: ast.expr | ast.stmt, after: str) -> Mutant:
        return self._mutant(place, self._start(node), self._end(node), after)

    # Statements.

    def _statement(self, node: ast.stmt, place: _Place) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node, place)
            return
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                yield from self._statement(statement, _Place((*place.scope, node.name)))
            return
        if _is_no_behaviour(node):
            return
        inner = [*getattr(node, "body", []), *getattr(node, "cases", [])]
        last = max(node.lineno, inner[0].lineno - 1 if inner else node.end_lineno or 0)
        lines = range(node.lineno, last + 1)
        place = replace(place, lines=lines, names=_assigned(node))
        yield from self._changed_statement(node, place)
        if not isinstance(node, ast.Raise):
            for child in ast.iter_child_nodes(node):
                if child is not getattr(node, "annotation", None):
                    yield from self._part(child, place)
        for handler in getattr(node, "handlers", []):
            yield from self._caught(handler, place)

    def _part(self, node: ast.AST, place: _Place) -> Iterator[Mutant]:
        """What is in a part of a statement: in another statement, an expression, a `with`, an `except` or a `case`."""
        if isinstance(node, ast.stmt):
            yield from self._statement(node, place)
        elif isinstance(node, ast.expr):
            yield from self._expression(node, place)
        elif isinstance(node, ast.withitem):
            yield from self._expression(node.context_expr, place)
        else:
            for statement in getattr(node, "body", []):
                yield from self._statement(statement, place)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: _Place) -> Iterator[Mutant]:
        returns = ast.unparse(node.returns) if node.returns else ""
        if node.name in ("__repr__", "__str__") or returns.endswith("Error"):
            return
        scope = (*place.scope, node.name)
        body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from self._expression(default, _Place(scope, body, in_function=True))
        for statement in node.body:
            yield from self._statement(statement, _Place(scope, in_function=True, result=returns))

    def _changed_statement(self, node: ast.stmt, place: _Place) -> Iterator[Mutant]:
        match node:
            case ast.If(test=test) | ast.While(test=test):
                yield from self._negated(test, place)
            case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign() | ast.Delete():
                yield self._replace(place, node, "pass")
            case ast.Raise() | ast.Continue() | ast.Break():
                yield self._replace(place, node, "pass")
            case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                yield self._replace(place, node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                kind = place.result.partition("[")[0]
                after = _RESULTS.get(kind, "None").format(self._source(value))
                if "None" in place.result:
                    after = "None"
                if not (kind == "bool" and isinstance(value, ast.Compare | ast.UnaryOp)):
                    yield self._replace(place, value, after)

    def _caught(self, handler: ast.ExceptHandler, place: _Place) -> Iterator[Mutant]:
        if isinstance(handler.type, ast.Tuple):
            place = replace(place, lines=range(handler.lineno, handler.lineno + 1))
            for left_out in handler.type.elts:
                kept = [self._source(each) for each in handler.type.elts if each is not left_out]
                yield self._replace(place, handler.type, f"({', '.join(kept)},)")

    # Expressions.

    def _expression(self, node: ast.expr, place: _Place) -> Iterator[Mutant]:
        # Places inside of f-strings are wrong before Python 3.12, and most are words.
        if isinstance(node, ast.JoinedStr) or _is_wording(node):
            return
        yield from self._changed(node, place)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                for condition in child.ifs:
                    yield from self._negated(condition, place)
                for part in (child.iter, *child.ifs):
                    yield from self._expression(part, place)
            elif isinstance(child, ast.keyword):
                if child.arg not in _WORDING_ARGUMENTS:
                    yield from self._expression(child.value, place)
            elif isinstance(child, ast.expr):
                yield from self._expression(child, place)

    def _changed(self, node: ast.expr, place: _Place) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                yield from self._compared(node, place)
            case ast.BoolOp():
                yield from self._connected(node, place)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replace(place, node, f"({self._source(operand)})")
            case ast.IfExp(test=test):
                yield from self._negated(test, place)
            case ast.Constant(value=value):
                if (changed := _other_value(value)) is not None:
                    yield self._replace(place, node, changed)
            case ast.BinOp():
                yield from self._computed(node, place)
            case ast.Call():
                yield from self._called(node, place)

    def _connected(self, node: ast.BoolOp, place: _Place) -> Iterator[Mutant]:
        before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            yield from self._between(place, left, right, re.compile(rf"\b{before}\b"), after)

    def _computed(self, node: ast.BinOp, place: _Place) -> Iterator[Mutant]:
        # Texts and lists are added, too: no other operator is for them.
        numbers = any(
            isinstance(each, ast.Constant) and isinstance(each.value, int) for each in (node.left, node.right)
        )
        symbols = ("+", "-") if isinstance(node.op, ast.Add) and numbers else _ARITHMETIC.get(type(node.op))
        if symbols:
            yield from self._between(place, node.left, node.right, re.compile(re.escape(symbols[0])), symbols[1])

    def _compared(self, node: ast.Compare, place: _Place) -> Iterator[Mutant]:
        sides = [node.left, *node.comparators]
        for left, right in itertools.pairwise(sides):
            found = _COMPARISON.search(self.text, self._end(left), self._start(right))
            if found:
                after = _COMPARISONS[" ".join(found[0].split())]
                yield self._mutant(place, found.start(), found.end(), after)

    def _called(self, node: ast.Call, place: _Place) -> Iterator[Mutant]:
        match node.func:
            case ast.Name(id=name) if name in _CALLS:
                if _CALLS[name] == "list":
                    yield self._replace(place, node, f"list({self._source(node.args[0])})")
                else:
                    yield self._replace(place, node.func, _CALLS[name])
            case ast.Attribute(attr=name) if name in _METHODS:
                end = self._end(node.func)
                yield self._mutant(place, end - len(name), end, _METHODS[name])
        if len(node.args) > 1 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
            first, second = node.args[:2]
            one, two = self._source(first), self._source(second)
            if one != two:
                middle = self.text[self._end(first) : self._start(second)]
                yield self._mutant(place, self._start(first), self._end(second), f"{two}{middle}{one}")

    def _between(
        self, place: _Place, left: ast.expr, right: ast.expr, pattern: re.Pattern[str], after: str
    ) -> Iterator[Mutant]:
        if found := pattern.search(self.text, self._end(left), self._start(right)):
            yield self._mutant(place, found.start(), found.end(), after)

    def _negated(self, test: ast.expr, place: _Place) -> Iterator[Mutant]:
        if not isinstance(test, ast.UnaryOp) and not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            yield self._replace(place, test, f"not ({self._source(test)})")


def _is_no_behaviour(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Assign(
            value=ast.Call(func=ast.Name(id="TypeVar" | "NewType")) | ast.Subscript(value=ast.Name("Literal"))
        ):
            return True
    return False


def _assigned(node: ast.stmt) -> tuple[str, ...]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return tuple(each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name))


def _is_wording(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return bool(_WORDING.search(name)) or name in ("encode", "decode")


def _other_value(value: object) -> str | None:
    """Another value of a constant, as source; None for what is mostly words."""
    match value:
        case bool():
            return str(not value)
        case int():
            return str(value + 1)
        case float():
            return str(value * 2)
        case str() if not re.search(r"\s", value):
            return repr(f"{value}x")
    return None
