"""Formulas of a plan: a small language, read into Polars expressions. Nothing of it is ever evaluated as Python.

`price * 1.2`, `col("unit price") > 3 and region in ["N", "S"]`, `if_else(is_null(x), 0, x)`, `year(day)`. A bare word
is a column. The text is parsed by Python's own parser and each node is looked up in a closed table: what is not in it
is refused, whatever it would have done.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from perdure.tables.trouble import TableTrouble

MOST_CHARACTERS = 500
MOST_DEPTH = 20
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARED: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Final[Mapping[str, tuple[int, Callable[..., pl.Expr]]]] = {
    "abs": (1, lambda x: x.abs()),
    "round": (1, lambda x: x.round(0)),
    "lower": (1, lambda x: x.cast(pl.String).str.to_lowercase()),
    "upper": (1, lambda x: x.cast(pl.String).str.to_uppercase()),
    "length": (1, lambda x: x.cast(pl.String).str.len_chars()),
    "text": (1, lambda x: x.cast(pl.String)),
    "number": (1, lambda x: x.cast(pl.Float64, strict=False)),
    "is_null": (1, lambda x: x.is_null()),
    "year": (1, lambda x: x.dt.year()),
    "month": (1, lambda x: x.dt.month()),
    "day": (1, lambda x: x.dt.day()),
    "hour": (1, lambda x: x.dt.hour()),
    "coalesce": (2, lambda x, y: pl.coalesce(x, y)),
    "contains": (2, lambda x, y: x.cast(pl.String).str.contains(y, literal=True)),
    "if_else": (3, lambda test, yes, no: pl.when(test).then(yes).otherwise(no)),
}


def read_formula(text: str, columns: Sequence[str]) -> pl.Expr:
    """The formula in a text, over these columns.

    Raises: TableTrouble, which says what cannot be read.
    """
    if len(text) > MOST_CHARACTERS:
        raise TableTrouble(f"a formula has {MOST_CHARACTERS} characters at most")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise TableTrouble(f"the formula {text[:80]!r} cannot be read") from None
    return _read(tree.body, frozenset(columns), MOST_DEPTH)


def _read(node: ast.expr, columns: frozenset[str], depth: int) -> pl.Expr:
    if depth == 0:
        raise TableTrouble(f"a formula is nested {MOST_DEPTH} deep at most")

    def inside(one: ast.expr) -> pl.Expr:
        return _read(one, columns, depth - 1)

    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return pl.lit(value)
        case ast.Name(id=name):
            return _column(name, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result: pl.Expr = _BINARY[type(op)](inside(left), inside(right))
            return result
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return pl.lit(0) - inside(operand)  # of whole numbers of 128 bits there is no negation
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~inside(operand)
        case ast.BoolOp(op=op, values=parts):
            joined = inside(parts[0])
            for part in parts[1:]:
                joined = joined & inside(part) if isinstance(op, ast.And) else joined | inside(part)
            return joined
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(op, left, right, inside)
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str() as name)], keywords=[]):
            return _column(name, columns)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            count, made = _FUNCTIONS[name]
            if len(args) != count:
                raise TableTrouble(f"{name} takes {count} values, not {len(args)}")
            return made(*map(inside, args))
    raise TableTrouble(f"a formula cannot hold {type(node).__name__}; it has columns, values, operators and functions")


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, inside: Callable[[ast.expr], pl.Expr]) -> pl.Expr:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
        values = [one.value for one in right.elts if isinstance(one, ast.Constant)]
        if len(values) < len(right.elts):
            raise TableTrouble("a list in a formula holds values only")
        found = inside(left).is_in(values)
        return ~found if isinstance(op, ast.NotIn) else found
    if type(op) not in _COMPARED:
        raise TableTrouble(f"a formula cannot compare by {type(op).__name__}")
    compared: pl.Expr = _COMPARED[type(op)](inside(left), inside(right))
    return compared


def _column(name: str, columns: frozenset[str]) -> pl.Expr:
    if name not in columns:
        raise TableTrouble(f"there is no column {name[:80]!r}")
    return pl.col(name)
