"""Tools that need nothing but a yes: one of low risk and one of high."""

from typing import Annotated

from pydantic import Field, JsonValue

from perdure import ToolContext, tool

Text = Annotated[str, Field(min_length=1, max_length=40, description="What it shall say.")]


@tool(effect="local", risk="low")
async def pin(context: ToolContext, text: Text, copies: Annotated[int, Field(ge=1, le=9)] = 1) -> JsonValue:
    """Pin a notice to the board."""
    return {"pinned": text, "copies": copies}


@tool(effect="local", risk="high")
async def announce(context: ToolContext, text: Text) -> JsonValue:
    """Tell everybody."""
    return {"announced": text}
