"""A plan carried out with Polars, step by step. A step that cannot be done says which one and why, and quotes no cell.

Sizes are bounded before they are made (room.py), a pivot's columns by its values. What a step leaves out is told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from perdure.tables.formula import read_formula
from perdure.tables.plan import Derive, Filter, Group, JoinWith, Limit, Pivot, Plan, Sort, Step, Summary, Window
from perdure.tables.room import FAILURES, Room
from perdure.tables.summaries import known, not_summed, summed_up
from perdure.tables.trouble import TableTrouble
from perdure.tables.values import named, plain, wide

MOST_PIVOTED = 100
MOST_WARNED = 4
_CELL: Final = "\x00cell"
"""While a column is made; none can be called so."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a plan came to."""

    table: pl.DataFrame
    meant: Mapping[str, str] = field(default_factory=dict)
    """Of columns that a pivot made and that stand under a number: the value that each stands for."""
    warnings: tuple[str, ...] = ()
    """What was left out of sums and the like."""


def run_plan(plan: Plan, tables: Mapping[str, pl.DataFrame], main: str, *, numbered: bool = False) -> Ran:
    """Carry the plan out on the input that it names first, else on `main`; joins may name the others.

    With `numbered` the columns of a pivot are called `<column> 1`, `<column> 2`, ... and not by their values, which
    are cells.

    Raises: TableTrouble, which names the step.
    """
    seen = {name: table for name, table in tables.items() if name not in plan.hidden}
    main = plan.main or main
    if main not in seen:
        raise TableTrouble(f"there is no table {main[:80]!r}; the tables are {', '.join(seen)[:400]}")
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
        raise TableTrouble("no row is left")
    return Ran(table, {name: meant[name] for name in table.columns if name in meant}, tuple(warnings)[:MOST_WARNED])


def _done(table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """One step. Polars may quote cells where values are at fault; what it says of a table without rows cannot."""
    try:
        return _DONE[type(step)](table, step, tables)
    except FAILURES:
        pass
    try:
        _DONE[type(step)](table.clear(), step, {name: one.clear() for name, one in tables.items()})
    except FAILURES as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableTrouble(told[:200]) from None
    raise TableTrouble("the values of a column do not allow it")


def _numbers(table: pl.DataFrame, step: Pivot) -> dict[str, str]:
    """By the name that a pivot has given a column: the one that tells no cell."""
    made = [name for name in table.columns if name != step.index]
    stem = step.columns if not step.index.startswith(f"{step.columns} ") else f"{step.columns}:"
    return {name: f"{stem} {number}" for number, name in enumerate(made, 1)}


def _filter(table: pl.DataFrame, step: Filter, _: Any) -> pl.DataFrame:
    return table.filter(_worked_out(table, read_formula(step.where, table.columns), _CELL))


def _derive(table: pl.DataFrame, step: Derive, _: Any) -> pl.DataFrame:
    return table.with_columns(_worked_out(table, read_formula(step.value, table.columns), step.name))


def _worked_out(table: pl.DataFrame, formula: pl.Expr, name: str) -> pl.Series:
    """A formula's value for each row."""
    used = [wide(each, table.schema[each]) for each in set(formula.meta.root_names())]
    return table.with_columns(used).with_columns(formula.alias(name)).get_column(name)


def _group(table: pl.DataFrame, step: Group, _: Any) -> pl.DataFrame:
    known(table, *step.by)
    made = [_of(table, summary) for summary in step.summaries]
    names = [*step.by, *(summary.name for summary in step.summaries)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TableTrouble(f"the column {twice[:80]!r} would be there twice; what is summed up needs a name of its own")
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
    # Else the order is anybody's, and a picture another one each time.
    return table.join(other, **keys, how=how, suffix=f"_{step.table}", maintain_order="left_right")


def _pivot(table: pl.DataFrame, step: Pivot, _: Any) -> pl.DataFrame:
    known(table, step.index, step.columns)
    summed = summed_up(table, step.values, step.function).alias(_CELL)
    if table[step.columns].n_unique() > MOST_PIVOTED:
        raise TableTrouble(f"it would make more than {MOST_PIVOTED} columns")
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
