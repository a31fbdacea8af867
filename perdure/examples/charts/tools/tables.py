"""The tools that work on the conversation's tables: what they hold, whether a plan is one, and carrying it out."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, JsonValue

from perdure import GivenFile, MadeFile, ToolContext, ToolRefused, ToolResult, tool

if TYPE_CHECKING:
    from perdure.sdk.tables.isolation import TableFile

TABLES = ("text/csv", "text/tab-separated-values")
MOST_TABLES = 4
"""Number of a conversation's tables that a plan can use: the newest uploads."""
MOST_TOLD = 60
"""Most columns of another table that are returned."""
Xml = Annotated[str, Field(max_length=40_000)]
FileId = Annotated[str, Field(max_length=64)]


@tool(effect="read", timeout_seconds=60)
async def profile_table(context: ToolContext) -> JsonValue:
    """Describe the columns of the table that was uploaded last: their kinds, counts and ranges. `others` has the
    earlier tables, which a plan can join or begin with."""
    ids = await context.files.uploads(TABLES, MOST_TABLES) if context.files else ()
    found = [file for file in [await context.files.read(one) for one in ids] if file] if context.files else []
    if not found:
        return {"table": "", "name": "", "rows": 0, "columns": []}
    first, *others = await _profiled(found)
    return {**first, "others": list[JsonValue](others)} if others else first


@tool(effect="read", timeout_seconds=20)
async def check_plan(xml: Xml) -> JsonValue:
    """Check whether a text is a plan of work on tables. If not, return its faults with places."""
    from perdure.sdk.tables import read_plan

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
        raise ToolRefused("the table no longer exists")
    from perdure.sdk.tables import TableError
    from perdure.sdk.tables.isolation import run_plan_in_subprocess

    try:
        ran = await run_plan_in_subprocess([_table(file) for file in files], xml)
    except TableError as trouble:
        raise ToolRefused(trouble.message) from None
    made = MadeFile("rows.json", "application/json", ran.pop("drawn").encode())
    return ToolResult({**ran, "rows_file": context.file_id(made.name)}, files=(made,))


async def _profiled(files: Sequence[GivenFile]) -> list[dict[str, JsonValue]]:
    """Returns the tables, the last upload first. An earlier file that is not a table is left out."""
    from perdure.sdk.tables import TableError
    from perdure.sdk.tables.isolation import profile_in_subprocess

    try:
        found = await profile_in_subprocess([_table(file) for file in files])
    except TableError as trouble:
        raise ToolRefused(trouble.message) from None
    profiles = list[dict[str, JsonValue]]()
    for file, each in zip(files, found, strict=True):
        if each is not None:
            most = MOST_TOLD if profiles else None
            columns = each["columns"][:most]
            profiles.append({"table": file.id, "name": file.name, "rows": each["rows"], "columns": columns})
    return profiles


def _table(file: GivenFile) -> "TableFile":
    from perdure.sdk.tables.isolation import TableFile

    return TableFile(file.name, file.media_type, file.content)
