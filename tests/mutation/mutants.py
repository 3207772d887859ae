"""What a mutant is: one small change of one function, made in the syntax tree.  Pure.

Changed are comparisons, `and`/`or`/`not`, conditions, arithmetic, numbers, truth values, returned
values, `break` and `continue`; taken away are calls whose result nobody uses, assignments to
attributes and items, `del` and `raise`.

Not changed: what runs at import (constants, defaults, decorators), assertions, annotations, texts,
and calls of the log: no test is asked to notice these.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_SKIPPED = (ast.Assert, ast.JoinedStr, ast.arguments)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOGS = {"log", "_log", "logger"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change; `key` names it for as long as the file stays the same."""

    path: str
    index: int
    line: int
    statement_line: int
    """Of the statement that the changed line belongs to."""
    function: str
    """Its outermost function, as `Class.method` or `function`."""
    before: str
    after: str

    @property
    def key(self) -> str:
        return f"{self.index} {self}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before}  ->  {self.after}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node hangs in the tree: a field of its parent, or an item of a list there."""

    parent: ast.AST
    field: str
    index: int | None
    function: str
    statement_line: int

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def find_mutants(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    return [
        Mutant(
            path,
            index,
            node.lineno,
            place.statement_line,
            place.function,
            _shown(node),
            _shown(changed),
        )
        for index, (place, node, changed) in enumerate(_changes(ast.parse(source)))
    ]


def compiled(mutant: Mutant, source: str, filename: str) -> dict[tuple[str, int], CodeType]:
    """Return the code of every function of the changed module, by qualified name and first line."""
    tree = ast.parse(source)
    for index, (place, node, changed) in enumerate(_changes(tree)):
        if index == mutant.index:
            place.put(ast.copy_location(changed, node))
            break
    code = compile(ast.fix_missing_locations(tree), filename, "exec")
    return {(c.co_qualname, c.co_firstlineno): c for c in _codes(code)}


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, ast.AST, ast.AST]]:
    """Yield (place, node, what to put there instead)."""
    for place, node in _walk(tree, "", "", 0):
        for changed in _variants(node, place):
            yield place, node, changed


def _walk(
    parent: ast.AST, scope: str, function: str, statement_line: int
) -> Iterator[tuple[_Place, ast.AST]]:
    """Yield every node that runs within a function, parents first."""
    for field, value in ast.iter_fields(parent):
        if field in {"annotation", "returns", "decorator_list"}:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or isinstance(node, _SKIPPED) or _is_log(node):
                continue
            line = node.lineno if isinstance(node, ast.stmt) else statement_line
            if function:
                yield _Place(parent, field, index, function, line), node
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                name = f"{scope}.{node.name}" if scope else node.name
                inner = function or (name if isinstance(node, _FUNCTIONS) else "")
                yield from _walk(node, name, inner, line)
            else:
                yield from _walk(node, scope, function, line)


def _is_log(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)))):
            return name in _LOGS
    return False


def _variants(node: ast.AST, place: _Place) -> list[ast.AST]:
    match node:
        case ast.Compare(ops=[op]):
            return [_with(node, ops=[_COMPARE[type(op)]()])]
        case ast.BoolOp(op=ast.And()):
            return [_with(node, op=ast.Or())]
        case ast.BoolOp():
            return [_with(node, op=ast.And())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            return [_with(node, op=_ARITHMETIC[type(op)]())]
        case ast.Constant(bool(value)):
            return [ast.Constant(not value)]
        case ast.Constant(int(value) | float(value)):
            return [ast.Constant(value + 1)]
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            return [ast.Return(ast.Constant(None))]
        case ast.Break():
            return [ast.Continue()]
        case ast.Continue():
            return [ast.Break()]
        case ast.Delete() | ast.Raise():
            return [ast.Pass()]
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return [ast.Pass()]
        case ast.Expr(ast.Call() | ast.Await()):
            return [ast.Pass()]
    if place.field == "test" and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Await):
        return [ast.UnaryOp(ast.Not(), node)]
    return []


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _shown(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    return " ".join(text.split())[:100]
