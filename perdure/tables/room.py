"""How much a plan may make: what a step would come to is counted before it is done.

A join's rows are counted from its keys, the texts of a formula from what it puts together: steps that each double a
text would else fill any memory.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from perdure.tables.plan import Derive, Filter, JoinWith, Step
from perdure.tables.trouble import TableTrouble

MOST_ROWS: Final = 2_000_000
MOST_BYTES: Final = 256 * 2**20
"""Of what a plan makes, or four times what it is given where that is more."""
FAILURES: Final = (
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
    *(TypeError, ValueError, OverflowError),
)
"""What Polars raises where a step cannot be done."""
_WRITES: Final = frozenset({"lower", "upper", "text"})
_MOST_WRITTEN: Final = 32
"""Characters of a value that is no text, as text."""
_COUNT: Final = "\x00count"
"""While keys are counted; no column can be called so."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a plan."""

    most_bytes: int

    @classmethod
    def beside(cls, tables: Iterable[pl.DataFrame]) -> "Room":
        """For a plan that is given these."""
        return cls(max(MOST_BYTES, 4 * sum(int(table.estimated_size()) for table in tables)))

    def check(self, rows: int, size_bytes: float) -> None:
        """Raises: TableTrouble where that is too much."""
        if rows > MOST_ROWS:
            raise TableTrouble(f"it would make more than {MOST_ROWS} rows")
        if size_bytes > self.most_bytes:
            raise TableTrouble(f"it would take more than {self.most_bytes >> 20} MiB")

    def check_step(self, table: pl.DataFrame, step: Step, tables: Mapping[str, pl.DataFrame]) -> None:
        """Before a step is done: of what may come to much more than it is given.

        Raises: TableTrouble.
        """
        if isinstance(step, Filter | Derive):
            self.check(0, most_text_bytes(step.where if isinstance(step, Filter) else step.value, table))
        elif isinstance(step, JoinWith) and step.table in tables:
            other = tables[step.table]
            rows = _joined_rows(table, other, step)
            self.check(rows, rows * sum(one.estimated_size() / max(1, one.height) for one in (table, other)))


def most_text_bytes(text: str, table: pl.DataFrame) -> int:
    """No more bytes of text than this come of a formula that can be read: texts only grow by being put together."""
    try:
        nodes = [*ast.walk(ast.parse(text.strip(), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [node.id for node in nodes if isinstance(node, ast.Name)] + said
    total = table.height * sum(map(len, said))
    for name in (name for name in named if name in table.columns):
        if table.schema[name] == pl.String:
            total += int(table[name].estimated_size())
        elif called & _WRITES:
            total += table.height * _MOST_WRITTEN
    return total


def _joined_rows(table: pl.DataFrame, other: pl.DataFrame, step: JoinWith) -> int:
    """How many rows a join makes, counted from its keys; none where it cannot be made."""
    if not set(step.left) <= set(table.columns) or not set(step.right) <= set(other.columns):
        return 0
    try:
        counted = (
            table.group_by(step.left)
            .len(_COUNT)
            .join(other.group_by(step.right).len(_COUNT), left_on=step.left, right_on=step.right, suffix="_other")
        )
    except FAILURES:
        return 0  # the join itself tells why
    mine = counted[_COUNT].cast(pl.UInt64)
    alone = table.height - int(mine.sum()) if step.how == "left" else 0
    return int((mine * counted[f"{_COUNT}_other"].cast(pl.UInt64)).sum()) + alone
