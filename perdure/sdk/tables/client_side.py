"""Turns on a table that never leaves this machine: the plan runs here.

Only counts and ranges of columns are sent. No row, and no cell of a text column, is ever sent.

```python
from perdure import Client
from perdure.sdk.tables.client_side import ClientTable, ask

with Client(url, token) as perdure:
    made = ask(perdure, "chart_builder", "Plot sales by region", ClientTable.read("sales.csv"))
    made.specification          # Vega-Lite, completed with the rows here
    made.png()                  # drawn here
```
A turn is durable: after a crash of this program, `finish(perdure, turn_id, table)` continues it. With an `AsyncClient`,
use `ask_async` and `finish_async`.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import JsonValue

from perdure.client import ApiError, AsyncClient, Client
from perdure.contracts.errors import CallerError
from perdure.contracts.memory import CLIENT_TABLE, MAX_OTHERS
from perdure.core.memory.files import check_content
from perdure.schemas.turns import Turn
from perdure.sdk.tables.execution import PlanResult, run_plan
from perdure.sdk.tables.plan import Plan, TableError, read_plan
from perdure.sdk.tables.reading import as_json, profile_of, read_csv, rows_to_show, warnings_to_show

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ClientTable", "ClientTurn", "ask", "ask_async", "finish", "finish_async"]


MAX_NAME_CHARACTERS = 100
MAX_WARNING_CHARACTERS = 200
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.1
REQUEST_KIND = "client_run"
_FINAL_CODES = frozenset({"already_answered", "question_expired", "turn_stopped"})
"""Codes after which nothing is lost: an earlier attempt of this program has answered, or the turn's end states why no
answer was possible."""


@dataclass(slots=True)
class ClientTable:
    """A table on this machine, and the tables that plans can join to it."""

    name: str
    rows: "pl.DataFrame" = field(repr=False)
    others: "tuple[ClientTable, ...]" = ()
    last_result: PlanResult | None = field(default=None, repr=False)
    """The result of the last plan."""

    @classmethod
    def read(cls, path: str | Path, *others: str | Path) -> Self:
        """Reads the CSV file at `path`, and the `others` for joins. Only the name of a file is sent, never its folder.

        The first line must contain the column names, which are sent. If a file has no such line, its first row is sent
        instead.

        Raises: TableError and OSError.
        """
        if len(others) > MAX_OTHERS:
            raise TableError(f"a table can have at most {MAX_OTHERS} further tables")
        table = cls._read(Path(path))
        table.others = tuple(cls._read(Path(other)) for other in others)
        names = [table.name, *(other.name for other in table.others)]
        if len(set(names)) < len(names):
            raise TableError(f"table names are taken from file names, and these appear twice: {', '.join(names)[:300]}")
        return table

    @classmethod
    def _read(cls, path: Path) -> Self:
        content = path.read_bytes()
        media_type = "text/tab-separated-values" if path.suffix == ".tsv" else "text/csv"
        try:
            check_content(media_type, content)
        except CallerError as error:
            raise TableError(error.message) from None
        return cls(path.stem[:MAX_NAME_CHARACTERS] or "table", read_csv(content, media_type))

    def describe(self) -> dict[str, JsonValue]:
        """Returns the description of the table that the turn receives at its start."""
        description: dict[str, JsonValue] = {
            "name": self.name,
            "rows": self.rows.height,
            "columns": as_json(profile_of(self.rows)),
        }
        return {**description, "others": [other.describe() for other in self.others]} if self.others else description

    def execute_plan(self, xml: str) -> dict[str, JsonValue]:
        """Runs a plan here and returns the result for the turn, or an error result if the plan failed.

        A pivot turns cells into column names. Its columns are numbered here and in the result, so that no cell is sent.
        """
        plan = read_plan(xml) if xml.strip() else Plan()
        if isinstance(plan, tuple):
            return {"ok": False, "error": f"{plan[0].path}: {plan[0].reason}"[:500]}
        tables = {one.name: one.rows for one in (self, *self.others)}
        try:
            self.last_result = run_plan(plan, tables, self.name, numbered=True)
        except TableError as error:
            return {"ok": False, "error": error.message[:500]}
        table = self.last_result.table
        warnings: list[JsonValue] = [
            warning[:MAX_WARNING_CHARACTERS] for warning in (*warnings_to_show(table), *self.last_result.warnings)
        ]
        return {"ok": True, "rows": table.height, "columns": as_json(profile_of(table)), "warnings": warnings}

    def fill_specification(self, specification: dict[str, Any]) -> dict[str, Any]:
        """Returns a specification with the rows of the last plan and the columns' own names."""
        result = self.last_result or PlanResult(self.rows)
        column_by_field = specification.get("usermeta", {}).get("fields", {})
        rows = [
            {**row, **{field: row.get(column) for field, column in column_by_field.items()}}
            for row in rows_to_show(result.table)
        ]
        encoding = {
            channel: {
                **definition,
                "title": result.column_values.get(str(definition.get("title")), definition.get("title")),
            }
            for channel, definition in specification.get("encoding", {}).items()
        }
        return {**specification, "encoding": encoding, "data": {"values": rows}}


@dataclass(frozen=True, slots=True)
class ClientTurn:
    """The result of a turn."""

    turn: Turn
    table: ClientTable = field(repr=False)

    @property
    def specification(self) -> dict[str, Any] | None:
        """The Vega-Lite specification, completed with the rows here; None if the turn made none."""
        unbound = (self.turn.output or {}).get("specification")
        return self.table.fill_specification(unbound) if isinstance(unbound, dict) else None

    @property
    def explanation(self) -> str:
        """A description of the chart in words."""
        return self.turn.answer or ""

    @property
    def warnings(self) -> list[str]:
        """Sentences about what was left out or failed."""
        return [str(each) for each in (self.turn.output or {}).get("warnings") or ()]

    def png(self) -> bytes:
        """Returns the chart as PNG, drawn here.

        Raises: TableError if there is nothing to draw.
        """
        import vl_convert

        specification = self.specification
        if specification is None:
            raise TableError(f"the turn is {self.turn.status} and has no chart: {self.explanation}")
        return bytes(vl_convert.vegalite_to_png(specification, scale=2, allowed_base_urls=[]))


def ask(
    client: Client, agent: str, message: str, table: ClientTable, *, timeout_seconds: float = WAIT_SECONDS
) -> ClientTurn:
    """Runs a turn about this table, from its start to its end.

    Raises: the exceptions of `finish`.
    """
    conversation = client.conversations.create(agent)
    turn = client.turns.start(conversation.id, message, metadata={CLIENT_TABLE: table.describe()})
    return finish(client, turn.turn_id, table, timeout_seconds=timeout_seconds)


def finish(client: Client, turn_id: str, table: ClientTable, *, timeout_seconds: float = WAIT_SECONDS) -> ClientTurn:
    """Waits until the turn ends, and does the work on the table that it requests.

    Raises: TimeoutError after `timeout_seconds`, whatever the turn does; ApiError; TableError if the turn waits
    for something else, or if its plan fails on this table.
    """
    work = _TableWork(table, time.monotonic() + timeout_seconds)
    while True:
        turn = client.turns.wait(turn_id, timeout_seconds=work.seconds_left())
        if turn.has_ended:
            return work.result(turn)
        for request_id in work.new_requests(turn):
            question = client.turns.question(turn_id, request_id)
            try:
                client.turns.answer(turn_id, request_id, REQUEST_KIND, work.answer_for(question.asked))
            except ApiError as error:
                work.raise_unless_final(error)
        time.sleep(POLL_SECONDS)  # the turn has yet to read the answer


async def ask_async(
    client: AsyncClient, agent: str, message: str, table: ClientTable, *, timeout_seconds: float = WAIT_SECONDS
) -> ClientTurn:
    """Does the same as `ask`. The work on the table runs in a thread."""
    conversation = await client.conversations.create(agent)
    described = await asyncio.to_thread(table.describe)
    turn = await client.turns.start(conversation.id, message, metadata={CLIENT_TABLE: described})
    return await finish_async(client, turn.turn_id, table, timeout_seconds=timeout_seconds)


async def finish_async(
    client: AsyncClient, turn_id: str, table: ClientTable, *, timeout_seconds: float = WAIT_SECONDS
) -> ClientTurn:
    """Does the same as `finish`. The work on the table runs in a thread."""
    work = _TableWork(table, time.monotonic() + timeout_seconds)
    while True:
        turn = await client.turns.wait(turn_id, timeout_seconds=work.seconds_left())
        if turn.has_ended:
            return await asyncio.to_thread(work.result, turn)
        for request_id in work.new_requests(turn):
            question = await client.turns.question(turn_id, request_id)
            payload = await asyncio.to_thread(work.answer_for, question.asked)
            try:
                await client.turns.answer(turn_id, request_id, REQUEST_KIND, payload)
            except ApiError as error:
                work.raise_unless_final(error)
        await asyncio.sleep(POLL_SECONDS)  # the turn has yet to read the answer


@dataclass(slots=True)
class _TableWork:
    """The logic that both ways to finish a turn share."""

    table: ClientTable
    deadline: float
    answered: set[str] = field(default_factory=set)

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline.

        Raises: TimeoutError if it has passed.
        """
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the turn did not end in time")
        return seconds

    def new_requests(self, turn: Turn) -> list[str]:
        """Returns the requests that are still unanswered, each of them once.

        Raises: TableError if the turn waits for another kind of request.
        """
        waiting_for = turn.waiting_for
        if waiting_for is None or waiting_for.kind != REQUEST_KIND:
            raise TableError(f"the turn waits for {waiting_for.kind if waiting_for else 'an unknown reason'}")
        unanswered = [request_id for request_id in waiting_for.ids if request_id not in self.answered]
        self.answered.update(unanswered)
        return unanswered

    def answer_for(self, payload: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Executes the plan in a request. Returns the answer for the API."""
        return self.table.execute_plan(str(payload.get("plan") or ""))

    def raise_unless_final(self, error: ApiError) -> None:
        """Raises `error` again, unless its code means that the request is already answered or over."""
        if error.code not in _FINAL_CODES:
            raise error

    def result(self, turn: Turn) -> ClientTurn:
        """Returns the result. If an earlier attempt of this program answered the turn, its plan runs again here."""
        output = turn.output or {}
        if self.table.last_result is None and isinstance(output.get("specification"), dict):
            answer = self.table.execute_plan(str(output.get("plan") or ""))
            if answer["ok"] is not True:
                raise TableError(f"the turn's plan cannot be applied to this table: {answer['error']}")
        return ClientTurn(turn, self.table)
