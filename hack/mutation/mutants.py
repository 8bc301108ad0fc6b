"""The places of a module that can be changed, and what each is changed to."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_SKIPPED_CALLS = {"TypeVar", "field", "dataclass", "get_logger", "cache", "lru_cache"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change."""

    module: str
    function: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Names it for as long as the text around it stays the same."""
        return f"{self.module} {self.function}: {self.before} → {self.after}"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module's source."""
    seen: dict[str, int] = {}
    tree = ast.parse(source)
    for path, node, function in _places(tree):
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            target = _at(changed, path)
            new = change(target)
            before, after = ast.unparse(node), ast.unparse(new)
            _replace(changed, path, new)
            text = ast.unparse(ast.fix_missing_locations(changed))
            change_of = f"{function}: {before} → {after}"
            count = seen[change_of] = seen.get(change_of, 0) + 1
            suffix = "" if count == 1 else f" ({count})"
            yield Mutant(module, function, getattr(node, "lineno", 0), _short(before), _short(after) + suffix, text)


Path = tuple[tuple[str, int | None], ...]


def _places(tree: ast.AST) -> Iterator[tuple[Path, ast.AST, str]]:
    """Each node that is run, with the way to it and the name of the function around it."""
    stack: list[tuple[Path, ast.AST, str]] = [((), tree, "module")]
    while stack:
        path, node, function = stack.pop()
        yield path, node, function
        name = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else function
        for field, value in ast.iter_fields(node):
            if _is_run(node, field):
                children = value if isinstance(value, list) else [value]
                for index, child in enumerate(children):
                    if isinstance(child, ast.AST) and not _is_docstring(node, field, index, child):
                        step = (field, index if isinstance(value, list) else None)
                        stack.append(((*path, step), child, name))


def _is_run(node: ast.AST, field: str) -> bool:
    if field in {"annotation", "returns", "decorator_list", "type_params"}:
        return False
    if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
        return False  # names and texts of members: nothing is decided there
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "message"):
        return False  # texts for people
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        return False
    return not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SKIPPED_CALLS)


def _is_docstring(node: ast.AST, field: str, index: int, child: ast.AST) -> bool:
    del node, index
    return field == "body" and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[Callable[..., ast.AST]]:  # noqa: C901, PLR0912 - one case a kind of node
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARE:
            yield _compare
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield _arithmetic
        case ast.BoolOp():
            yield _bool
        case ast.UnaryOp(op=ast.Not()):
            yield lambda n: n.operand
        case ast.UnaryOp(op=ast.USub()):
            yield lambda n: n.operand
        case ast.Constant(value=bool()):
            yield lambda n: ast.Constant(not n.value)
        case ast.Constant(value=int() | float()):
            yield lambda n: ast.Constant(n.value + 1)
        case ast.Constant(value=str()):
            yield lambda n: ast.Constant(n.value + "X")
        case ast.IfExp():
            yield lambda n: ast.IfExp(n.test, n.orelse, n.body)
        case ast.If() | ast.While():
            yield _negated
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield _renamed
        case ast.Expr() if ast.unparse(node).startswith("assert_never"):
            pass  # for the type checker: it is never reached
        case ast.AugAssign() | ast.Expr():
            yield lambda _: ast.Pass()
        case ast.Continue():
            yield lambda _: ast.Break()


def _compare(node: ast.Compare) -> ast.AST:
    return ast.Compare(node.left, [_COMPARE[type(node.ops[0])]()], node.comparators)


def _arithmetic(node: ast.BinOp) -> ast.AST:
    return ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)


def _bool(node: ast.BoolOp) -> ast.AST:
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _negated(node: ast.If | ast.While) -> ast.AST:
    return type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _renamed(node: ast.Call) -> ast.AST:
    assert isinstance(node.func, ast.Name)  # noqa: S101
    keywords = [] if node.func.id == "sorted" else node.keywords
    return ast.Call(ast.Name(_CALLS[node.func.id], ast.Load()), node.args, keywords)


def _at(tree: ast.AST, path: Path) -> ast.AST:
    for field, index in path:
        value = getattr(tree, field)
        tree = value if index is None else value[index]
    return tree


def _replace(tree: ast.AST, path: Path, new: ast.AST) -> None:
    parent = _at(tree, path[:-1])
    field, index = path[-1]
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def _short(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= 90 else first[:89] + "…"
