"""Five reads that each take a tenth of a second; the first takes seconds where it is asked to hold."""

import asyncio
from typing import Any

from perdure import tool

TENTH_SECONDS = 0.1
HOLD_SECONDS = 4.0


@tool(effect="read")
async def first(said: list[str]) -> dict[str, Any]:
    """The first."""
    await asyncio.sleep(HOLD_SECONDS if said[-1].startswith("hold") else TENTH_SECONDS)
    return {"first": len(said), "completeness": 0.9}


@tool(effect="read")
async def second(said: list[str]) -> dict[str, Any]:
    """The second."""
    await asyncio.sleep(TENTH_SECONDS)
    return {"second": len(said), "completeness": 0.9}


@tool(effect="read")
async def third(said: list[str]) -> dict[str, Any]:
    """The third."""
    await asyncio.sleep(TENTH_SECONDS)
    return {"third": len(said), "completeness": 0.9}


@tool(effect="read")
async def fourth(first: int = 0) -> dict[str, Any]:
    """The fourth."""
    await asyncio.sleep(TENTH_SECONDS)
    return {"fourth": first, "completeness": 0.9}


@tool(effect="read")
async def fifth(said: list[str]) -> dict[str, Any]:
    """The fifth."""
    await asyncio.sleep(TENTH_SECONDS)
    return {"fifth": len(said), "completeness": 0.9}
