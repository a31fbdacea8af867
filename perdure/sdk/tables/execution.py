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
    TableError,
    Window,
)
from perdure.sdk.tables.reading import kind_of, normalized, widened_column, with_missing_named

MAX_FORMULA_CHARACTERS = 500
MAX_FORMULA_DEPTH = 20
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
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
MAX_ROWS: Final = 2_000_000
MAX_BYTES: Final = 256 * 2**20
"""Bytes that a plan can create, or four times the size of its input if that is more."""
STEP_ERRORS: Final = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(TypeError, ValueError, OverflowError),
)
"""Exceptions that Polars raises if a step cannot run."""
_TEXT_FUNCTIONS: Final = frozenset({"lower", "upper", "text"})
_MAX_CONVERTED_CHARACTERS: Final = 32
"""Characters of a value of another type when it is converted to text."""
_COUNT_COLUMN: Final = "\x00count"
"""Name of a column while keys are counted. No column of a table can have it."""
MAX_NAME_CHARACTERS = 60
_KIND_NOUNS: Final = {"quantitative": "numbers", "temporal": "times", "nominal": "text", "boolean": "booleans"}
_NUMERIC_FUNCTIONS: Final = frozenset({"sum", "mean", "median"})
MAX_PIVOT_COLUMNS = 100
MAX_WARNINGS = 4
_CELL_COLUMN: Final = "\x00cell"
"""Name of a column while it is computed. No column of a table can have it."""


def read_formula(text: str, columns: Sequence[str]) -> pl.Expr:
    """Translates a formula over these columns into a Polars expression.

    Raises: TableError with the reason if the formula is invalid.

    No part of the formula is ever evaluated as Python. Examples: `price * 1.2`, `col("unit price") > 3 and region in
    ["N", "S"]`, `if_else(is_null(x), 0, x)`, `year(day)`. A bare word is a column. Python's own parser parses the text,
    and each node is looked up in a closed table. A node that is not in the table is rejected, whatever it would do.
    """
    if len(text) > MAX_FORMULA_CHARACTERS:
        raise TableError(f"the formula exceeds {MAX_FORMULA_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise TableError(f"the formula {text[:80]!r} is invalid") from None
    return _translate(tree.body, frozenset(columns), MAX_FORMULA_DEPTH)


def _translate(node: ast.expr, columns: frozenset[str], depth: int) -> pl.Expr:
    if depth == 0:
        raise TableError(f"the formula is nested deeper than {MAX_FORMULA_DEPTH} levels")

    def translate(operand: ast.expr) -> pl.Expr:
        return _translate(operand, columns, depth - 1)

    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return pl.lit(value)
        case ast.Name(id=name):
            return _column(name, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result: pl.Expr = _BINARY[type(op)](translate(left), translate(right))
            return result
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return pl.lit(0) - translate(operand)  # 128-bit integers have no negation
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~translate(operand)
        case ast.BoolOp(op=op, values=parts):
            joined = translate(parts[0])
            for part in parts[1:]:
                joined = joined & translate(part) if isinstance(op, ast.And) else joined | translate(part)
            return joined
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _translate_comparison(op, left, right, translate)
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str() as name)], keywords=[]):
            return _column(name, columns)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            count, build = _FUNCTIONS[name]
            if len(args) != count:
                raise TableError(f"{name} takes {count} values, not {len(args)}")
            return build(*map(translate, args))
    raise TableError(f"formulas do not support {type(node).__name__}; use columns, values, operators and functions")


def _translate_comparison(
    op: ast.cmpop, left: ast.expr, right: ast.expr, translate: Callable[[ast.expr], pl.Expr]
) -> pl.Expr:
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple):
        values = [element.value for element in right.elts if isinstance(element, ast.Constant)]
        if len(values) < len(right.elts):
            raise TableError("a list in a formula can contain only values")
        membership = translate(left).is_in(values)
        return ~membership if isinstance(op, ast.NotIn) else membership
    if type(op) not in _COMPARISONS:
        raise TableError(f"formulas do not support the comparison {type(op).__name__}")
    compared: pl.Expr = _COMPARISONS[type(op)](translate(left), translate(right))
    return compared


def _column(name: str, columns: frozenset[str]) -> pl.Expr:
    if name not in columns:
        raise TableError(f"the column {name[:80]!r} does not exist")
    return pl.col(name)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory that a plan can use. The size of a step's result is computed before the step runs: a join's rows from its
    keys, the texts of a formula from its parts. Otherwise a few steps that each double a text could exhaust any
    memory."""

    max_bytes: int

    @classmethod
    def for_inputs(cls, tables: Iterable[pl.DataFrame]) -> "MemoryLimit":
        """Returns the limit for a plan: four times the size of its input tables, and at least `MAX_BYTES`."""
        return cls(max(MAX_BYTES, 4 * sum(int(table.estimated_size()) for table in tables)))

    def check(self, rows: int, size_bytes: float) -> None:
        """Raises: TableError if the size exceeds a limit."""
        if rows > MAX_ROWS:
            raise TableError(f"the result would have more than {MAX_ROWS} rows")
        if size_bytes > self.max_bytes:
            raise TableError(f"the result would need more than {self.max_bytes >> 20} MiB")

    def check_step(self, table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> None:
        """Checks the result's size before a step that can create much more than its input.

        Raises: TableError if it exceeds a limit.
        """
        if isinstance(step, Filter | Derive):
            self.check(0, max_text_bytes(step.where if isinstance(step, Filter) else step.value, table))
        elif isinstance(step, JoinWith) and step.table in tables:
            other = tables[step.table]
            rows = _joined_rows(table, other, step)
            self.check(
                rows,
                rows * sum(input_table.estimated_size() / max(1, input_table.height) for input_table in (table, other)),
            )


def max_text_bytes(text: str, table: pl.DataFrame) -> int:
    """Returns an upper bound for the bytes of text that a formula creates, since texts only grow by concatenation.

    Returns 0 if the formula cannot be parsed.
    """
    try:
        nodes = [*ast.walk(ast.parse(text.strip(), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    function_names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    literals = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)] + literals
    total = table.height * sum(map(len, literals))
    for name in (name for name in names if name in table.columns):
        if table.schema[name] == pl.String:
            total += int(table[name].estimated_size())
        elif function_names & _TEXT_FUNCTIONS:
            total += table.height * _MAX_CONVERTED_CHARACTERS
    return total


def _joined_rows(table: pl.DataFrame, other: pl.DataFrame, step: JoinWith) -> int:
    """Counts the rows of a join from its keys; 0 if the join is impossible."""
    if not set(step.left) <= set(table.columns) or not set(step.right) <= set(other.columns):
        return 0
    try:
        key_counts = (
            table.group_by(step.left)
            .len(_COUNT_COLUMN)
            .join(
                other.group_by(step.right).len(_COUNT_COLUMN), left_on=step.left, right_on=step.right, suffix="_other"
            )
        )
    except STEP_ERRORS:
        return 0  # the join itself raises with the reason
    matched_counts = key_counts[_COUNT_COLUMN].cast(pl.UInt64)
    unmatched_rows = table.height - int(matched_counts.sum()) if step.how == "left" else 0
    return int((matched_counts * key_counts[f"{_COUNT_COLUMN}_other"].cast(pl.UInt64)).sum()) + unmatched_rows


_AGGREGATES: Final[Mapping[str, Callable[[pl.Expr], pl.Expr]]] = {
    "sum": lambda x: pl.when(x.count() > 0).then(x.sum()),
    "mean": lambda x: x.mean(),
    "median": lambda x: x.median(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "count": lambda x: x.count(),
    "distinct": lambda x: x.drop_nulls().n_unique(),
}


def require_columns(table: pl.DataFrame, *names: str) -> None:
    """Raises: TableError if a name is not a column of the table."""
    for name in names:
        if name not in table.columns:
            raise TableError(
                f"the column {name[:80]!r} does not exist; available columns: {', '.join(table.columns)[:400]}"
            )


def aggregate_column(table: pl.DataFrame, column: str, function: str) -> pl.Expr:
    """Returns the expression that aggregates a column of this table to one value.

    Raises: TableError if the column does not exist, or if the function needs numbers and the column has none.

    Rows without a value are skipped, and a warning states how many. The sum of no values is missing.
    """
    require_columns(table, column)
    dtype = table.schema[column]
    if function in _NUMERIC_FUNCTIONS and not dtype.is_numeric():
        content = _KIND_NOUNS[kind_of(dtype)] if table[column].count() else "no values"
        raise TableError(f"{function} needs numbers, but {column[:80]!r} contains {content}")
    return _AGGREGATES[function](widened_column(column, dtype))


def skipped_row_warnings(table: pl.DataFrame, step: Step) -> Iterator[str]:
    """Yields a sentence for each aggregation of a step that skips rows."""
    aggregations = list[tuple[str, str]]()
    if isinstance(step, Group):
        aggregations = [(summary.column, summary.function) for summary in step.summaries]
    elif isinstance(step, Pivot):
        aggregations = [(step.values, step.function)]
    for column, function in aggregations:
        missing = table[column].null_count() if column in table.columns else 0
        if missing:
            rows = f"{missing} of {table.height} rows {'have' if missing > 1 else 'has'}"
            yield f"{rows} no value in {column[:MAX_NAME_CHARACTERS]!r}; the {function} covers the other rows"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of a plan."""

    table: pl.DataFrame
    column_values: Mapping[str, str] = field(default_factory=dict)
    """Numbered columns of a pivot, each with the value that it represents."""
    warnings: tuple[str, ...] = ()
    """Sentences about rows that aggregations skipped."""


def run_plan(plan: Plan, tables: Mapping[str, pl.DataFrame], main: str, *, numbered: bool = False) -> PlanResult:
    """Runs the plan on its main input, or on `main` if it names none. Joins can use the other tables.

    With `numbered`, the columns of a pivot are named `<column> 1`, `<column> 2`, ... Otherwise their names are values
    of cells.

    Raises: TableError, which names the step.
    """
    visible = {name: table for name, table in tables.items() if name not in plan.hidden}
    main = plan.main or main
    if main not in visible:
        raise TableError(f"there is no table {main[:80]!r}; available tables: {', '.join(visible)[:400]}")
    table, column_values, warnings = visible[main], dict[str, str](), dict[str, None]()
    memory_limit = MemoryLimit.for_inputs(visible.values())
    for number, step in enumerate(plan.steps, 1):
        try:
            memory_limit.check_step(table, step, visible)
            warnings |= dict.fromkeys(skipped_row_warnings(table, step))
            table = normalized(_run_step(table, step, visible))
            memory_limit.check(table.height, table.estimated_size())
        except TableError as error:
            name = type(step).__name__.lower().removesuffix("with")
            raise TableError(f"step {number} ({name}): {error.message}") from None
        if numbered and isinstance(step, Pivot):
            names = _numbered_names(table, step)
            table = table.rename(names)
            column_values |= {new: old for old, new in names.items()}
    if not table.height:
        raise TableError("no rows remain")
    return PlanResult(
        table,
        {name: column_values[name] for name in table.columns if name in column_values},
        tuple(warnings)[:MAX_WARNINGS],
    )


def _run_step(table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Runs one step.

    An error of Polars can quote cells. Therefore a failed step runs again on tables without rows, and only that error
    is quoted.
    """
    try:
        return _STEP_FUNCTIONS[type(step)](table, step, tables)
    except STEP_ERRORS:
        pass
    try:
        _STEP_FUNCTIONS[type(step)](table.clear(), step, {name: one.clear() for name, one in tables.items()})
    except STEP_ERRORS as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(message[:200]) from None
    raise TableError("a column's values do not allow this operation")


def _numbered_names(table: pl.DataFrame, step: Pivot) -> dict[str, str]:
    """Returns, for each name that a pivot gave a column, a numbered name that contains no cell."""
    names = [name for name in table.columns if name != step.index]
    prefix = step.columns if not step.index.startswith(f"{step.columns} ") else f"{step.columns}:"
    return {name: f"{prefix} {number}" for number, name in enumerate(names, 1)}


def _filter(table: pl.DataFrame, step: Filter, _: Any) -> pl.DataFrame:
    return table.filter(_evaluate(table, read_formula(step.where, table.columns), _CELL_COLUMN))


def _derive(table: pl.DataFrame, step: Derive, _: Any) -> pl.DataFrame:
    return table.with_columns(_evaluate(table, read_formula(step.value, table.columns), step.name))


def _evaluate(table: pl.DataFrame, formula: pl.Expr, name: str) -> pl.Series:
    """Returns the value of a formula for each row."""
    used = [widened_column(each, table.schema[each]) for each in set(formula.meta.root_names())]
    return table.with_columns(used).with_columns(formula.alias(name)).get_column(name)


def _group(table: pl.DataFrame, step: Group, _: Any) -> pl.DataFrame:
    require_columns(table, *step.by)
    aggregates = [_named_aggregate(table, summary) for summary in step.summaries]
    names = [*step.by, *(summary.name for summary in step.summaries)]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise TableError(f"the column {duplicate[:80]!r} would exist twice; give the aggregate its own name")
    return table.group_by(step.by, maintain_order=True).agg(aggregates) if step.by else table.select(aggregates)


def _named_aggregate(table: pl.DataFrame, summary: Summary) -> pl.Expr:
    return aggregate_column(table, summary.column, summary.function).alias(summary.name)


def _join(table: pl.DataFrame, step: JoinWith, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    if step.table not in tables:
        raise TableError(f"there is no table {step.table[:80]!r}")
    other = tables[step.table]
    require_columns(table, *step.left)
    require_columns(other, *step.right)
    how: Any = step.how
    keys: dict[str, Any] = {"left_on": list(step.left), "right_on": list(step.right)}
    # Otherwise the order is undefined, and charts differ from run to run.
    return table.join(other, **keys, how=how, suffix=f"_{step.table}", maintain_order="left_right")


def _pivot(table: pl.DataFrame, step: Pivot, _: Any) -> pl.DataFrame:
    require_columns(table, step.index, step.columns)
    aggregate = aggregate_column(table, step.values, step.function).alias(_CELL_COLUMN)
    if table[step.columns].n_unique() > MAX_PIVOT_COLUMNS:
        raise TableError(f"the result would have more than {MAX_PIVOT_COLUMNS} columns")
    cells = (
        with_missing_named(table, step.columns).group_by([step.index, step.columns], maintain_order=True).agg(aggregate)
    )
    return cells.pivot(on=step.columns, index=step.index, values=_CELL_COLUMN)


def _window(table: pl.DataFrame, step: Window, _: Any) -> pl.DataFrame:
    require_columns(table, step.column, *step.by, *([step.order.column] if step.order else []))
    if step.order is not None:
        table = table.sort(step.order.column, descending=step.order.descending, maintain_order=True, nulls_last=True)
    values = widened_column(step.column, table.schema[step.column])
    computed = {
        "running_sum": lambda: values.cum_sum(),
        "moving_mean": lambda: values.rolling_mean(step.rows, min_samples=1),
        "rank": lambda: values.rank("min", descending=True),
        "previous": lambda: values.shift(1),
        "share": lambda: values / values.sum(),
    }[step.function]()
    return table.with_columns((computed.over(step.by) if step.by else computed).alias(step.name))


def _sort(table: pl.DataFrame, step: Sort, _: Any) -> pl.DataFrame:
    names = [key.column for key in step.keys]
    require_columns(table, *names)
    descending = [key.descending for key in step.keys]
    return table.sort(names, descending=descending, maintain_order=True, nulls_last=True)


def _limit(table: pl.DataFrame, step: Limit, _: Any) -> pl.DataFrame:
    return table.head(step.rows)


_STEP_FUNCTIONS: Final[Mapping[type[Step], Callable[..., pl.DataFrame]]] = {
    Filter: _filter,
    Derive: _derive,
    Group: _group,
    JoinWith: _join,
    Pivot: _pivot,
    Window: _window,
    Sort: _sort,
    Limit: _limit,
}
