"""The tools that work on the conversation's tables: what they hold, whether a plan is one, and carrying it out."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue

from perdure import GivenFile, MadeFile, ToolContext, ToolRefused, ToolResult, tool

TABLES = ("text/csv", "text/tab-separated-values")
MOST_TABLES = 4
"""Of a conversation, that a plan can work with: the last upload and the ones before it."""
MOST_TOLD = 60
"""Columns of another table that are told."""
Xml = Annotated[str, Field(max_length=40_000)]
FileId = Annotated[str, Field(max_length=64)]


@tool(effect="read", timeout_seconds=60)
async def profile_table(context: ToolContext) -> JsonValue:
    """What the table that was uploaded last holds: its columns with their kinds, counts and ranges; and, in `others`,
    the tables before it, which a plan may join or begin with."""
    ids = await context.files.uploads(TABLES, MOST_TABLES) if context.files else ()
    found = [file for file in [await context.files.read(one) for one in ids] if file] if context.files else []
    if not found:
        return {"table": "", "name": "", "rows": 0, "columns": []}
    return await asyncio.to_thread(_told, found)


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
async def run_plan(
    context: ToolContext,
    table: FileId,
    xml: Xml,
    others: Annotated[list[FileId] | None, Field(max_length=MOST_TABLES)] = None,
) -> ToolResult:
    """Carry a plan out on a table, with the others that it may join; an empty plan leaves the table as it is. The rows
    that come of it are kept as a file."""
    found = [await context.files.read(one) for one in (table, *(others or ()))] if context.files else []
    files = [file for file in found if file is not None]
    if not files or files[0].id != table:
        raise ToolRefused("the table is not there any more")
    outcome, rows = await asyncio.to_thread(_ran, files, xml)
    made = MadeFile("rows.json", "application/json", rows)
    return ToolResult({**outcome, "rows_file": context.file_id(made.name)}, files=(made,))


def read_table(file: GivenFile) -> Any:
    """The table in a file of the conversation.

    Raises: ToolRefused.
    """
    from perdure.tables import TableTrouble, read_csv

    try:
        return read_csv(file.content, file.media_type)
    except TableTrouble as trouble:
        raise ToolRefused(trouble.message) from None


def _told(files: Sequence[GivenFile]) -> JsonValue:
    told, others = _profiled(files[0]), list[JsonValue]()
    for file in files[1:]:
        with contextlib.suppress(ToolRefused):  # it is no table to work with; the last one is what was asked about
            others.append(_profiled(file, MOST_TOLD))
    return {**told, "others": others} if others else told


def _profiled(file: GivenFile, most: int | None = None) -> dict[str, JsonValue]:
    from perdure.tables.profile import as_json, profile_of

    table = read_table(file)
    columns = as_json(profile_of(table))[:most]
    return {"table": file.id, "name": file.name, "rows": table.height, "columns": columns}


def _ran(files: Sequence[GivenFile], xml: str) -> tuple[dict[str, JsonValue], bytes]:
    from perdure.tables import Plan, TableTrouble, read_plan
    from perdure.tables import run_plan as carried_out
    from perdure.tables.drawing import drawn_rows, left_out
    from perdure.tables.profile import as_json, profile_of

    plan = read_plan(xml) if xml.strip() else Plan()
    if isinstance(plan, tuple):
        raise ToolRefused(f"the plan does not fit: {plan[0].path}: {plan[0].reason}")
    tables = {file.name: read_table(file) for file in files if file is files[0] or file.name in plan.named}
    try:
        ran = carried_out(plan, tables, files[0].name)
    except TableTrouble as trouble:
        raise ToolRefused(trouble.message) from None
    table = ran.table
    warnings: list[JsonValue] = [*left_out(table), *ran.warnings]
    rows = json.dumps(drawn_rows(table), ensure_ascii=False).encode()
    return {"rows": table.height, "columns": as_json(profile_of(table)), "warnings": warnings}, rows
