"""A table that stays on this machine: what is told of it, and the plans that are carried out on it here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.tables import MOST_OTHERS
from perdure.tables.drawing import drawn_rows, left_out
from perdure.tables.execution import Ran, run_plan
from perdure.tables.plan import Plan, read_plan
from perdure.tables.profile import as_json, profile_of
from perdure.tables.reading import read_csv
from perdure.tables.trouble import TableTrouble
from policy.uploads import check_content

if TYPE_CHECKING:
    import polars as pl

MOST_NAME = 100
MOST_WARNING = 200


@dataclass(slots=True)
class HomeTable:
    """A table on this machine, and those that plans may join to it."""

    name: str
    rows: "pl.DataFrame" = field(repr=False)
    others: "tuple[HomeTable, ...]" = ()
    left: Ran | None = field(default=None, repr=False)
    """What the last plan left of it."""

    @classmethod
    def read(cls, path: str | Path, *others: str | Path) -> Self:
        """The CSV at `path`, with the `others` beside it for joins; of a path only the file's name is ever told.

        The first line holds the names of the columns, which are told: a file without such a line tells its first row.

        Raises: TableTrouble, OSError.
        """
        if len(others) > MOST_OTHERS:
            raise TableTrouble(f"a table has {MOST_OTHERS} others beside it at most")
        found = cls._read(Path(path))
        found.others = tuple(cls._read(Path(other)) for other in others)
        names = [found.name, *(other.name for other in found.others)]
        if len(set(names)) < len(names):
            raise TableTrouble(f"tables go by their files' names, which are the same here: {', '.join(names)[:300]}")
        return found

    @classmethod
    def _read(cls, path: Path) -> Self:
        content = path.read_bytes()
        media_type = "text/tab-separated-values" if path.suffix == ".tsv" else "text/csv"
        try:
            check_content(media_type, content)
        except CallerError as refused:
            raise TableTrouble(refused.message) from None
        return cls(path.stem[:MOST_NAME] or "table", read_csv(content, media_type))

    def described(self) -> dict[str, JsonValue]:
        """What the turn is told of it at the start."""
        told: dict[str, JsonValue] = {
            "name": self.name,
            "rows": self.rows.height,
            "columns": as_json(profile_of(self.rows)),
        }
        return {**told, "others": [other.described() for other in self.others]} if self.others else told

    def carry_out(self, xml: str) -> dict[str, JsonValue]:
        """Carry a plan out here; what is handed in, also where it cannot be done.

        A pivot makes columns of cells: here and on the wire they go by numbers.
        """
        plan = read_plan(xml) if xml.strip() else Plan()
        if isinstance(plan, tuple):
            return {"ok": False, "error": f"{plan[0].path}: {plan[0].reason}"[:500]}
        tables = {one.name: one.rows for one in (self, *self.others)}
        try:
            self.left = run_plan(plan, tables, self.name, numbered=True)
        except TableTrouble as trouble:
            return {"ok": False, "error": trouble.message[:500]}
        table = self.left.table
        warnings: list[JsonValue] = [told[:MOST_WARNING] for told in (*left_out(table), *self.left.warnings)]
        return {"ok": True, "rows": table.height, "columns": as_json(profile_of(table)), "warnings": warnings}

    def drawn(self, specification: dict[str, Any]) -> dict[str, Any]:
        """A specification with the rows that the last plan left, and with the columns' own names."""
        ran = self.left or Ran(self.rows)
        renamed = specification.get("usermeta", {}).get("fields", {})
        rows = [
            {**row, **{field: row.get(column) for field, column in renamed.items()}} for row in drawn_rows(ran.table)
        ]
        encoding = {
            channel: {**one, "title": ran.meant.get(str(one.get("title")), one.get("title"))}
            for channel, one in specification.get("encoding", {}).items()
        }
        return {**specification, "encoding": encoding, "data": {"values": rows}}
