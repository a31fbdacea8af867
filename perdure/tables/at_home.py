"""Turns on a table that never leaves this machine: the plan is carried out here, and what is handed in are counts and
ranges of columns. No row, and no cell of a text column, is ever sent.

```python
from perdure import Client
from perdure.tables.at_home import HomeTable, ask

with Client(url, token) as perdure:
    made = ask(perdure, "chart_builder", "Plot sales by region", HomeTable.read("sales.csv"))
    made.specification          # Vega-Lite with the rows put in here
    made.png()                  # drawn here
```
A turn is durable: after a crash of this program `finish(perdure, turn_id, table)` goes on with it.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from perdure.tables.execution import run_plan
from perdure.tables.plan import Plan, read_plan
from perdure.tables.profile import as_json, profile_of
from perdure.tables.reading import read_csv
from perdure.tables.trouble import TableTrouble

if TYPE_CHECKING:
    import polars as pl

    from perdure.client import Client, Turn

WAIT_SECONDS = 600.0
MOST_DRAWN = 5_000
PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class HomeTable:
    """A table on this machine."""

    name: str
    rows: "pl.DataFrame" = field(repr=False)
    left: "pl.DataFrame | None" = field(default=None, repr=False)
    """What the last plan left of it."""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The CSV at `path`; of the path only the file's name is ever told.

        Raises: TableTrouble, OSError.
        """
        path = Path(path)
        return cls(path.stem[:100] or "table", read_csv(path.read_bytes(), "\t" if path.suffix == ".tsv" else ","))

    def described(self) -> dict[str, JsonValue]:
        """What the turn is told of it at the start."""
        return {"name": self.name, "rows": self.rows.height, "columns": as_json(profile_of(self.rows))}

    def carry_out(self, xml: str) -> dict[str, JsonValue]:
        """Carry a plan out here; what is handed in, also where it cannot be done."""
        plan = read_plan(xml) if xml.strip() else Plan()
        if isinstance(plan, tuple):
            return {"ok": False, "error": f"{plan[0].path}: {plan[0].reason}"[:500]}
        try:
            ran = run_plan(plan, {self.name: self.rows}, self.name)
        except TableTrouble as trouble:
            return {"ok": False, "error": trouble.message[:500]}
        self.left = ran.table
        return {"ok": True, "rows": ran.table.height, "columns": as_json(profile_of(ran.table))}

    def drawn_rows(self) -> list[dict[str, Any]]:
        """What the last plan left, for a picture: so many rows evenly spread where there are more."""
        table = self.rows if self.left is None else self.left
        found: list[dict[str, Any]] = json.loads(table.gather_every(-(-table.height // MOST_DRAWN)).write_json())
        return found


@dataclass(frozen=True, slots=True)
class Made:
    """What a turn came to."""

    turn: "Turn"
    table: HomeTable = field(repr=False)

    @property
    def specification(self) -> dict[str, Any] | None:
        """The Vega-Lite specification with the rows put in, here; None where the turn made none."""
        unbound = (self.turn.output or {}).get("specification")
        if not isinstance(unbound, dict):
            return None
        renamed = unbound.get("usermeta", {}).get("fields", {})
        rows = [
            {**row, **{field: row.get(column) for field, column in renamed.items()}} for row in self.table.drawn_rows()
        ]
        return {**unbound, "data": {"values": rows}}

    @property
    def explanation(self) -> str:
        """What is shown, in words."""
        return self.turn.answer or ""

    @property
    def warnings(self) -> list[str]:
        """What had to be left out."""
        return [str(each) for each in (self.turn.output or {}).get("warnings") or ()]

    def png(self) -> bytes:
        """The picture, drawn here.

        Raises: TableTrouble where there is nothing to draw.
        """
        import vl_convert

        specification = self.specification
        if specification is None:
            raise TableTrouble(f"the turn is {self.turn.status} and made no picture: {self.explanation}")
        return bytes(vl_convert.vegalite_to_png(specification, scale=2, allowed_base_urls=[]))


def ask(client: "Client", agent: str, message: str, table: HomeTable, *, timeout_seconds: float = WAIT_SECONDS) -> Made:
    """A turn about this table, from its start to its end."""
    conversation = client.conversations.create(agent)
    turn = client.turns.start(conversation.id, message, metadata={"client_table": table.described()})
    return finish(client, turn.turn_id, table, timeout_seconds=timeout_seconds)


def finish(client: "Client", turn_id: str, table: HomeTable, *, timeout_seconds: float = WAIT_SECONDS) -> Made:
    """The turn at its end: whatever it asks to be done on the table meanwhile is done here.

    Raises: TimeoutError; ApiError; TableTrouble where the turn waits for something else.
    """
    answered = set[str]()
    while True:
        turn = client.turns.wait(turn_id, timeout_seconds=timeout_seconds)
        if turn.has_ended:
            if table.left is None:  # an earlier try of this program handed in
                table.carry_out(str((turn.output or {}).get("plan") or ""))
            return Made(turn, table)
        waits = turn.waiting_for
        if waits is None or waits.kind != "client_run":
            raise TableTrouble(f"the turn waits for {waits.kind if waits else 'nothing that is known'}")
        for request_id in set(waits.ids) - answered:
            _hand_in(client, turn_id, request_id, table)
            answered.add(request_id)
        time.sleep(PAUSE_SECONDS)  # the turn has yet to look


def _hand_in(client: "Client", turn_id: str, request_id: str, table: HomeTable) -> None:
    from perdure.client import ApiError

    question = client.turns.question(turn_id, request_id)
    payload = table.carry_out(str(question.asked.get("plan") or ""))
    try:
        client.turns.answer(turn_id, request_id, "client_run", payload)
    except ApiError as error:
        if error.code != "already_answered":  # by an earlier try of this program
            raise
