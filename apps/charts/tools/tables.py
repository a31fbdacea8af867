"""The tools that work on the conversation's tables: what they hold, whether a plan is one, and carrying it out."""

import asyncio
import json
from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import GivenFile, MadeFile, ToolContext, ToolRefused, ToolResult, tool

TABLES = ("text/csv", "text/tab-separated-values")
MOST_DRAWN = 5_000
"""Rows of a picture; of more, so many evenly spread."""
Xml = Annotated[str, Field(max_length=40_000)]
FileId = Annotated[str, Field(max_length=64)]


@tool(effect="read", timeout_seconds=60)
async def profile_table(context: ToolContext) -> JsonValue:
    """What the table that was uploaded last holds: its columns with their kinds, counts and ranges."""
    found = await _newest(context)
    if found is None:
        return {"table": "", "name": "", "rows": 0, "columns": []}
    return await asyncio.to_thread(_profiled, found)


@tool(effect="read", timeout_seconds=20)
async def check_plan(xml: Xml) -> JsonValue:
    """Whether a text is a plan of work on tables; else what is wrong with it, and where."""
    from perdure.tables import read_plan

    read = await asyncio.to_thread(read_plan, xml)
    faults: list[JsonValue] = (
        [{"path": one.path, "reason": one.reason} for one in read] if isinstance(read, tuple) else []
    )
    return {"ok": not faults, "faults": faults}


@tool(effect="read", timeout_seconds=120)
async def run_plan(context: ToolContext, table: FileId, xml: Xml) -> ToolResult:
    """Carry a plan out on a table; an empty plan leaves it as it is. The rows that come of it are kept as a file."""
    found = await context.files.read(table) if context.files else None
    if found is None:
        raise ToolRefused("the table is not there any more")
    outcome, rows = await asyncio.to_thread(_ran, found, xml)
    made = MadeFile("rows.json", "application/json", rows)
    return ToolResult({**outcome, "rows_file": context.file_id(made.name)}, files=(made,))


async def _newest(context: ToolContext) -> GivenFile | None:
    if context.files is None:
        return None
    newest = await context.files.newest(TABLES)
    return await context.files.read(newest) if newest else None


def read_table(file: GivenFile) -> Any:
    """The table in a file of the conversation.

    Raises: ToolRefused.
    """
    from perdure.tables import TableTrouble, read_csv

    try:
        return read_csv(file.content, "\t" if file.media_type == TABLES[1] else ",")
    except TableTrouble as trouble:
        raise ToolRefused(trouble.message) from None


def _profiled(file: GivenFile) -> JsonValue:
    from perdure.tables.profile import as_json, profile_of

    table = read_table(file)
    return {"table": file.id, "name": file.name, "rows": table.height, "columns": as_json(profile_of(table))}


def _ran(file: GivenFile, xml: str) -> tuple[dict[str, JsonValue], bytes]:
    from perdure.tables import Plan, TableTrouble, read_plan
    from perdure.tables import run_plan as carried_out
    from perdure.tables.profile import as_json, profile_of

    plan = read_plan(xml) if xml.strip() else Plan()
    if isinstance(plan, tuple):
        raise ToolRefused(f"the plan does not fit: {plan[0].path}: {plan[0].reason}")
    try:
        ran = carried_out(plan, {file.name: read_table(file)}, file.name)
    except TableTrouble as trouble:
        raise ToolRefused(trouble.message) from None
    table, warnings = ran.table, list[JsonValue]()
    if table.height > MOST_DRAWN:
        warnings.append(f"{table.height} rows are left; the picture shows {MOST_DRAWN} of them, evenly spread")
    drawn = table.gather_every(-(-table.height // MOST_DRAWN))
    rows = json.dumps(json.loads(drawn.write_json()), ensure_ascii=False).encode()
    return {"rows": table.height, "columns": as_json(profile_of(table)), "warnings": warnings}, rows
