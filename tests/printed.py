"""What the sources print: every string as it may come out, with its placeholders filled in."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, product
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "ckptstore"
FILLER = "7"
"""For what only a running program knows: it is a name, a number and a path."""

_LOGGED = ("debug", "info", "warning", "error", "exception", "warn")
_MOST = 64  # ways in which one string may come out
_DEPTH = 6


class Module:
    """One file: its strings, and what the names in them stand for."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(SOURCES))
        self.tree = ast.parse(path.read_text())
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._note_scopes(self.tree, self.tree)

    def printed(self) -> Iterator[str]:
        """Each string of the module that is no docstring, as it may come out."""
        nodes = list(ast.walk(self.tree))
        docstrings = (each.value for each in nodes if isinstance(each, ast.Expr))
        inside = {id(each) for each in docstrings if isinstance(each, ast.Constant)}
        for node in nodes:  # from the outside in
            is_text = isinstance(node, (ast.JoinedStr, ast.BinOp)) or isinstance(getattr(node, "value", None), str)
            if id(node) not in inside and (is_text or _is_logged(node)):
                inside.update(map(id, ast.walk(node.args[0] if _is_logged(node) else node)))
                yield from self.ways(node, 0)

    def ways(self, node: ast.AST, depth: int) -> list[str]:
        """The texts that an expression may give."""
        every: list[str] = []
        match node if depth <= _DEPTH else None:
            case ast.Constant(value):
                every = [re.sub(r"(?<!{){\w+}", FILLER, str(value)) if depth == 0 else str(value)]
            case ast.FormattedValue(value):
                every = self.ways(value, depth + 1)
            case ast.JoinedStr(values):
                every = self._joined([self.ways(each, depth + 1) for each in values])
            case ast.BinOp(left, ast.Add(), right):
                every = self._joined([self.ways(left, depth + 1), self.ways(right, depth + 1)])
            case ast.IfExp(_, one, other):
                every = self.ways(one, depth + 1) + self.ways(other, depth + 1)
            case ast.Name():
                every = [way for value in self._values_of(node) for way in self.ways(value, depth + 1)]
            case ast.Call():
                every = self._of_call(node, depth)
        return every or [FILLER]

    def _joined(self, parts: list[list[str]]) -> list[str]:
        return list(dict.fromkeys("".join(each) for each in islice(product(*parts), _MOST)))

    def _of_call(self, node: ast.Call, depth: int) -> list[str]:
        if _is_logged(node):
            first, *rest = re.split(r"%[srda]", self.ways(node.args[0], depth)[0])
            given = [self.ways(each, depth + 1) for each in node.args[1:]] + [[FILLER]] * len(rest)
            return self._joined([[first], *chain.from_iterable(zip(given, ([each] for each in rest), strict=False))])
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name == "quote":
            return self.ways(node.args[0], depth + 1)
        if name in ("join", "replace"):  # words that only a running program knows, or none
            return [""]
        found = _functions().get(name, [])
        if len(found) != 1:
            return [FILLER]
        module, function = found[0]
        returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
        return [way for value in returned for way in module.ways(value, depth + 1)] or [FILLER]

    def _note_scopes(self, node: ast.AST, scope: ast.AST) -> None:
        self._scopes[node] = scope
        for child in ast.iter_child_nodes(node):
            self._note_scopes(child, node if isinstance(node, ast.FunctionDef) else scope)

    def _values_of(self, name: ast.Name) -> list[ast.AST]:
        """What a name is given: in its function, in one around it, or in the module."""
        scope: ast.AST = name
        while scope is not self.tree:
            scope = self._scopes[scope]
            if found := [value for node in ast.walk(scope) for value in _assigned(node, name.id)]:
                return found
        return []


def _assigned(node: ast.AST, name: str) -> Iterator[ast.AST]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


def _is_logged(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in _LOGGED and bool(node.args)


@cache
def modules() -> list[Module]:
    """The sources of the package."""
    return [Module(path) for path in sorted(SOURCES.rglob("*.py"))]


@cache
def _functions() -> dict[str, list[tuple[Module, ast.FunctionDef]]]:
    found: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append((module, node))
    return found
