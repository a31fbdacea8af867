"""Runs a plan with Polars, step by step. An error names the step and the reason, and quotes no cell.

Sizes are checked before data is created; the columns of a pivot are limited by its values. Warnings state what a step
leaves out.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from perdure.sdk.tables.plan import (
    Derive,
    Filter,
    Group,
    JoinWith,
    Limit,
    Pivot,
    Plan,
    Sort,
    Step,
    Summary,
    TableTrouble,
    Window,
)
from perdure.sdk.tables.reading import kind_of, named, plain, wide

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
    """Translates a formula over these columns into a Polars expression.

    Raises TableTrouble with the reason if the formula is invalid.

    No part of the formula is ever evaluated as Python. Examples: `price * 1.2`, `col("unit price") > 3 and region in
    ["N", "S"]`, `if_else(is_null(x), 0, x)`, `year(day)`. A bare word is a column. Python's own parser parses the text,
    and each node is looked up in a closed table. A node that is not in the table is rejected, whatever it would do.
    """
    if len(text) > MOST_CHARACTERS:
        raise TableTrouble(f"the formula exceeds {MOST_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise TableTrouble(f"the formula {text[:80]!r} is invalid") from None
    return _read(tree.body, frozenset(columns), MOST_DEPTH)


def _read(node: ast.expr, columns: frozenset[str], depth: int) -> pl.Expr:
    if depth == 0:
        raise TableTrouble(f"the formula is nested deeper than {MOST_DEPTH} levels")

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
            return pl.lit(0) - inside(operand)  # 128-bit integers have no negation
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
    raise TableTrouble(f"formulas do not support {type(node).__name__}; use columns, values, operators and functions")


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, inside: Callable[[ast.expr], pl.Expr]) -> pl.Expr:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
        values = [one.value for one in right.elts if isinstance(one, ast.Constant)]
        if len(values) < len(right.elts):
            raise TableTrouble("a list in a formula can contain only values")
        found = inside(left).is_in(values)
        return ~found if isinstance(op, ast.NotIn) else found
    if type(op) not in _COMPARED:
        raise TableTrouble(f"formulas do not support the comparison {type(op).__name__}")
    compared: pl.Expr = _COMPARED[type(op)](inside(left), inside(right))
    return compared


def _column(name: str, columns: frozenset[str]) -> pl.Expr:
    if name not in columns:
        raise TableTrouble(f"the column {name[:80]!r} does not exist")
    return pl.col(name)


MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 256 * 2**20
"""Bytes that a plan can create, or four times the size of its input if that is more."""
FAILURES: Final = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(TypeError, ValueError, OverflowError),
)
"""Exceptions that Polars raises if a step cannot run."""
_WRITES: Final = frozenset({"lower", "upper", "text"})
_MOST_WRITTEN: Final = 32
"""Characters of a value of another type when it is converted to text."""
_COUNT: Final = "\x00count"
"""Name of a column while keys are counted. No column of a table can have it."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a plan can use. The size of a step's result is computed before the step runs: a join's rows from its
    keys, the texts of a formula from its parts. Otherwise a few steps that each double a text could exhaust any
    memory."""

    most_bytes: int

    @classmethod
    def beside(cls, tables: Iterable[pl.DataFrame]) -> "Room":
        """Returns the limit for a plan with these inputs."""
        return cls(max(MOST_BYTES, 4 * sum(int(table.estimated_size()) for table in tables)))

    def check(self, rows: int, size_bytes: float) -> None:
        """Raises TableTrouble if the size exceeds a limit."""
        if rows > MOST_ROWS:
            raise TableTrouble(f"the result would have more than {MOST_ROWS} rows")
        if size_bytes > self.most_bytes:
            raise TableTrouble(f"the result would need more than {self.most_bytes >> 20} MiB")

    def check_step(self, table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> None:
        """Checks the result's size before a step that can create much more than its input.

        Raises TableTrouble if it exceeds a limit.
        """
        if isinstance(step, Filter | Derive):
            self.check(0, most_text_bytes(step.where if isinstance(step, Filter) else step.value, table))
        elif isinstance(step, JoinWith) and step.table in tables:
            other = tables[step.table]
            rows = _joined_rows(table, other, step)
            self.check(rows, rows * sum(one.estimated_size() / max(1, one.height) for one in (table, other)))


def most_text_bytes(text: str, table: pl.DataFrame) -> int:
    """Returns an upper bound for the bytes of text that a formula creates, since texts only grow by concatenation.

    Returns 0 if the formula cannot be parsed.
    """
    try:
        nodes = [*ast.walk(ast.parse(text.strip(), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    literals = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [node.id for node in nodes if isinstance(node, ast.Name)] + literals
    total = table.height * sum(map(len, literals))
    for name in (name for name in named if name in table.columns):
        if table.schema[name] == pl.String:
            total += int(table[name].estimated_size())
        elif called & _WRITES:
            total += table.height * _MOST_WRITTEN
    return total


def _joined_rows(table: pl.DataFrame, other: pl.DataFrame, step: JoinWith) -> int:
    """Counts the rows of a join from its keys; 0 if the join is impossible."""
    if not set(step.left) <= set(table.columns) or not set(step.right) <= set(other.columns):
        return 0
    try:
        counted = (
            table.group_by(step.left)
            .len(_COUNT)
            .join(other.group_by(step.right).len(_COUNT), left_on=step.left, right_on=step.right, suffix="_other")
        )
    except FAILURES:
        return 0  # the join itself raises with the reason
    mine = counted[_COUNT].cast(pl.UInt64)
    alone = table.height - int(mine.sum()) if step.how == "left" else 0
    return int((mine * counted[f"{_COUNT}_other"].cast(pl.UInt64)).sum()) + alone


MOST_NAME = 60
_SUMMARIES: Final[Mapping[str, Callable[[pl.Expr], pl.Expr]]] = {
    "sum": lambda x: pl.when(x.count() > 0).then(x.sum()),
    "mean": lambda x: x.mean(),
    "median": lambda x: x.median(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "count": lambda x: x.count(),
    "distinct": lambda x: x.drop_nulls().n_unique(),
}
_HELD: Final = {"quantitative": "numbers", "temporal": "times", "nominal": "text", "boolean": "booleans"}
_OF_NUMBERS: Final = frozenset({"sum", "mean", "median"})


def known(table: pl.DataFrame, *names: str) -> None:
    """Raises TableTrouble if a name is not a column of the table."""
    for name in names:
        if name not in table.columns:
            raise TableTrouble(
                f"the column {name[:80]!r} does not exist; available columns: {', '.join(table.columns)[:400]}"
            )


def summed_up(table: pl.DataFrame, column: str, function: str) -> pl.Expr:
    """Returns the expression that aggregates a column of this table to one value.

    Raises TableTrouble if the column does not exist, or if the function needs numbers and the column has none.

    Rows without a value are skipped, and a warning states how many. The sum of no values is missing.
    """
    known(table, column)
    dtype = table.schema[column]
    if function in _OF_NUMBERS and not dtype.is_numeric():
        held = _HELD[kind_of(dtype)] if table[column].count() else "no values"
        raise TableTrouble(f"{function} needs numbers, but {column[:80]!r} contains {held}")
    return _SUMMARIES[function](wide(column, dtype))


def not_summed(table: pl.DataFrame, step: Step) -> Iterator[str]:
    """Yields a sentence for each aggregation of a step that skips rows."""
    found = list[tuple[str, str]]()
    if isinstance(step, Group):
        found = [(one.column, one.function) for one in step.summaries]
    elif isinstance(step, Pivot):
        found = [(step.values, step.function)]
    for column, function in found:
        missing = table[column].null_count() if column in table.columns else 0
        if missing:
            rows = f"{missing} of {table.height} rows {'have' if missing > 1 else 'has'}"
            yield f"{rows} no value in {column[:MOST_NAME]!r}; the {function} covers the other rows"


MOST_PIVOTED = 100
MOST_WARNED = 4
_CELL: Final = "\x00cell"
"""Name of a column while it is computed. No column of a table can have it."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a plan."""

    table: pl.DataFrame
    meant: Mapping[str, str] = field(default_factory=dict)
    """Numbered columns of a pivot, each with the value that it represents."""
    warnings: tuple[str, ...] = ()
    """Sentences about rows that aggregations skipped."""


def run_plan(plan: Plan, tables: Mapping[str, pl.DataFrame], main: str, *, numbered: bool = False) -> Ran:
    """Runs the plan on its main input, or on `main` if it names none. Joins can use the other tables.

    With `numbered`, the columns of a pivot are named `<column> 1`, `<column> 2`, ... Otherwise their names are values
    of cells.

    Raises TableTrouble, which names the step.
    """
    seen = {name: table for name, table in tables.items() if name not in plan.hidden}
    main = plan.main or main
    if main not in seen:
        raise TableTrouble(f"there is no table {main[:80]!r}; available tables: {', '.join(seen)[:400]}")
    table, meant, warnings = seen[main], dict[str, str](), dict[str, None]()
    room = Room.beside(seen.values())
    for number, step in enumerate(plan.steps, 1):
        try:
            room.check_step(table, step, seen)
            warnings |= dict.fromkeys(not_summed(table, step))
            table = plain(_done(table, step, seen))
            room.check(table.height, table.estimated_size())
        except TableTrouble as trouble:
            name = type(step).__name__.lower().removesuffix("with")
            raise TableTrouble(f"step {number} ({name}): {trouble.message}") from None
        if numbered and isinstance(step, Pivot):
            names = _numbers(table, step)
            table = table.rename(names)
            meant |= {new: old for old, new in names.items()}
    if not table.height:
        raise TableTrouble("no rows remain")
    return Ran(table, {name: meant[name] for name in table.columns if name in meant}, tuple(warnings)[:MOST_WARNED])


def _done(table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Runs one step.

    An error of Polars can quote cells. Therefore a failed step runs again on tables without rows, and only that error
    is quoted.
    """
    try:
        return _DONE[type(step)](table, step, tables)
    except FAILURES:
        pass
    try:
        _DONE[type(step)](table.clear(), step, {name: one.clear() for name, one in tables.items()})
    except FAILURES as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableTrouble(message[:200]) from None
    raise TableTrouble("a column's values do not allow this operation")


def _numbers(table: pl.DataFrame, step: Pivot) -> dict[str, str]:
    """Returns, for each name that a pivot gave a column, a numbered name that contains no cell."""
    made = [name for name in table.columns if name != step.index]
    stem = step.columns if not step.index.startswith(f"{step.columns} ") else f"{step.columns}:"
    return {name: f"{stem} {number}" for number, name in enumerate(made, 1)}


def _filter(table: pl.DataFrame, step: Filter, _: Any) -> pl.DataFrame:
    return table.filter(_worked_out(table, read_formula(step.where, table.columns), _CELL))


def _derive(table: pl.DataFrame, step: Derive, _: Any) -> pl.DataFrame:
    return table.with_columns(_worked_out(table, read_formula(step.value, table.columns), step.name))


def _worked_out(table: pl.DataFrame, formula: pl.Expr, name: str) -> pl.Series:
    """Returns the value of a formula for each row."""
    used = [wide(each, table.schema[each]) for each in set(formula.meta.root_names())]
    return table.with_columns(used).with_columns(formula.alias(name)).get_column(name)


def _group(table: pl.DataFrame, step: Group, _: Any) -> pl.DataFrame:
    known(table, *step.by)
    made = [_of(table, summary) for summary in step.summaries]
    names = [*step.by, *(summary.name for summary in step.summaries)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TableTrouble(f"the column {twice[:80]!r} would exist twice; give the aggregate its own name")
    return table.group_by(step.by, maintain_order=True).agg(made) if step.by else table.select(made)


def _of(table: pl.DataFrame, summary: Summary) -> pl.Expr:
    return summed_up(table, summary.column, summary.function).alias(summary.name)


def _join(table: pl.DataFrame, step: JoinWith, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    if step.table not in tables:
        raise TableTrouble(f"there is no table {step.table[:80]!r}")
    other = tables[step.table]
    known(table, *step.left)
    known(other, *step.right)
    how: Any = step.how
    keys: dict[str, Any] = {"left_on": list(step.left), "right_on": list(step.right)}
    # Otherwise the order is undefined, and charts differ from run to run.
    return table.join(other, **keys, how=how, suffix=f"_{step.table}", maintain_order="left_right")


def _pivot(table: pl.DataFrame, step: Pivot, _: Any) -> pl.DataFrame:
    known(table, step.index, step.columns)
    summed = summed_up(table, step.values, step.function).alias(_CELL)
    if table[step.columns].n_unique() > MOST_PIVOTED:
        raise TableTrouble(f"the result would have more than {MOST_PIVOTED} columns")
    cells = named(table, step.columns).group_by([step.index, step.columns], maintain_order=True).agg(summed)
    return cells.pivot(on=step.columns, index=step.index, values=_CELL)


def _window(table: pl.DataFrame, step: Window, _: Any) -> pl.DataFrame:
    known(table, step.column, *step.by, *([step.order.column] if step.order else []))
    if step.order is not None:
        table = table.sort(step.order.column, descending=step.order.descending, maintain_order=True, nulls_last=True)
    one = wide(step.column, table.schema[step.column])
    made = {
        "running_sum": lambda: one.cum_sum(),
        "moving_mean": lambda: one.rolling_mean(step.rows, min_samples=1),
        "rank": lambda: one.rank("min", descending=True),
        "previous": lambda: one.shift(1),
        "share": lambda: one / one.sum(),
    }[step.function]()
    return table.with_columns((made.over(step.by) if step.by else made).alias(step.name))


def _sort(table: pl.DataFrame, step: Sort, _: Any) -> pl.DataFrame:
    names = [key.column for key in step.keys]
    known(table, *names)
    descending = [key.descending for key in step.keys]
    return table.sort(names, descending=descending, maintain_order=True, nulls_last=True)


def _limit(table: pl.DataFrame, step: Limit, _: Any) -> pl.DataFrame:
    return table.head(step.rows)


_DONE: Final[Mapping[type[Step], Callable[..., pl.DataFrame]]] = {
    Filter: _filter,
    Derive: _derive,
    Group: _group,
    JoinWith: _join,
    Pivot: _pivot,
    Window: _window,
    Sort: _sort,
    Limit: _limit,
}
