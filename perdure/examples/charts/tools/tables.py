"""The tools that work on the conversation's tables: what they hold, whether a plan is one, and carrying it out."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue

from perdure import GivenFile, MadeFile, ToolContext, ToolRefused, ToolResult, tool

if TYPE_CHECKING:
    from perdure.sdk.tables.isolation import TableFile

TABLE_TYPES = ("text/csv", "text/tab-separated-values")
MAX_TABLES = 4
"""Number of a conversation's tables that a plan can use: the newest uploads."""
MAX_OTHER_COLUMNS = 60
"""Most columns of another table that are returned."""
Xml = Annotated[str, Field(max_length=40_000)]
FileId = Annotated[str, Field(max_length=64)]


@tool(effect="read", timeout_seconds=60)
async def profile_table(context: ToolContext) -> JsonValue:
    """Describe the columns of the table that was uploaded last: their kinds, counts and ranges. `others` has the
    earlier tables, which a plan can join or begin with."""
    ids = await context.files.uploads(TABLE_TYPES, MAX_TABLES) if context.files else ()
    files = [file for file in [await context.files.read(file_id) for file_id in ids] if file] if context.files else []
    if not files:
        return {"table": "", "name": "", "rows": 0, "columns": []}
    first, *others = await _profiles(files)
    return {**first, "others": list[JsonValue](others)} if others else first


@tool(effect="read", timeout_seconds=20)
async def check_plan(xml: Xml) -> JsonValue:
    """Check whether a text is a plan of work on tables. If not, return its faults with places."""
    from perdure.sdk.tables import read_plan

    plan = await asyncio.to_thread(read_plan, xml)
    faults: list[JsonValue] = (
        [{"path": fault.path, "reason": fault.reason} for fault in plan] if isinstance(plan, tuple) else []
    )
    return {"ok": not faults, "faults": faults}


@tool(effect="read", timeout_seconds=120)
async def run_plan(
    context: ToolContext,
    table: FileId,
    xml: Xml,
    others: Annotated[list[FileId] | None, Field(max_length=MAX_TABLES)] = None,
) -> ToolResult:
    """Carry a plan out on a table, with the others that it may join; an empty plan leaves the table as it is. The rows
    that come of it are kept as a file."""
    stored = [await context.files.read(file_id) for file_id in (table, *(others or ()))] if context.files else []
    files = [file for file in stored if file is not None]
    if not files or files[0].id != table:
        raise ToolRefused("the table no longer exists")
    from perdure.sdk.tables import TableError
    from perdure.sdk.tables.isolation import run_plan_in_subprocess

    try:
        result = await run_plan_in_subprocess([_table(file) for file in files], xml)
    except TableError as error:
        raise ToolRefused(error.message) from None
    rows_file = MadeFile("rows.json", "application/json", result.pop("drawn").encode())
    return ToolResult({**result, "rows_file": context.file_id(rows_file.name)}, files=(rows_file,))


async def _profiles(files: Sequence[GivenFile]) -> list[dict[str, JsonValue]]:
    """Returns the tables, the last upload first. An earlier file that is not a table is left out."""
    from perdure.sdk.tables import TableError
    from perdure.sdk.tables.isolation import profile_in_subprocess

    try:
        described = await profile_in_subprocess([_table(file) for file in files])
    except TableError as error:
        raise ToolRefused(error.message) from None
    profiles = list[dict[str, JsonValue]]()
    for file, description in zip(files, described, strict=True):
        if description is not None:
            limit = MAX_OTHER_COLUMNS if profiles else None
            columns = description["columns"][:limit]
            profiles.append({"table": file.id, "name": file.name, "rows": description["rows"], "columns": columns})
    return profiles


def _table(file: GivenFile) -> "TableFile":
    from perdure.sdk.tables.isolation import TableFile

    return TableFile(file.name, file.media_type, file.content)
