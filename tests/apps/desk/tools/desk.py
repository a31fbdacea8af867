"""Tools for tests: what they do outside is one request to the test's own target, which counts it."""

import asyncio
import json
from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import Field, JsonValue

from perdure import ToolContext, ToolResult, tool

Mode = Annotated[str, Field(description="How the target behaves, attempt by attempt, separated by commas")]
TARGET = "http://desk.test"


@tool(effect="read", timeout_seconds=10)
async def look(context: ToolContext, what: str = "", mode: Mode = "") -> JsonValue:
    """Look at something."""
    return await _ask(context, "/look", {"what": what, "mode": mode})


async def _lost(answer: JsonValue) -> JsonValue:
    return answer["lost"]  # type: ignore[index, call-overload]


@tool(effect="read", timeout_seconds=10)
async def stumble(context: ToolContext, how: str = "mistake") -> JsonValue:
    """Break off after having looked, by a mistake in this very code or over what the target said."""
    answer = await _ask(context, "/look", {"mode": ""})
    if how == "mistake":
        return answer.upper()  # type: ignore[union-attr]
    if how == "missing":
        return answer["missing"]  # type: ignore[index, call-overload]
    waiting = asyncio.ensure_future(asyncio.sleep(9 if how == "impatient" else 0))
    if how == "cancelled":
        waiting.cancel()
    await asyncio.wait_for(waiting, 0.05)
    if how == "odd":
        return object()  # type: ignore[return-value]
    if how == "parts":
        async with asyncio.TaskGroup() as parts:
            parts.create_task(_lost(answer))
            parts.create_task(_lost(answer))
    found: JsonValue = json.loads("<html>")
    return found


@tool(effect="read", timeout_seconds=0.3)
async def slow_look(context: ToolContext, mode: Mode = "hang") -> JsonValue:
    """Look at something that does not answer in time."""
    return await _ask(context, "/look", {"mode": mode})


@tool(effect="keyed", key_ttl_seconds=86_400, timeout_seconds=10, risk="high")
async def pay(context: ToolContext, amount: Annotated[int, Field(gt=0)] = 1, mode: Mode = "") -> JsonValue:
    """Pay an amount."""
    return await _ask(context, "/pay", {"amount": amount, "mode": mode})


@tool(effect="keyed", key_ttl_seconds=86_400, timeout_seconds=10, approval=False)
async def book(context: ToolContext, what: str = "", mode: Mode = "") -> JsonValue:
    """Book something, without asking anybody."""
    return await _ask(context, "/book", {"what": what, "mode": mode})


@tool(effect="keyed", key_ttl_seconds=2, timeout_seconds=1, approval=False)
async def brief_key(context: ToolContext, mode: Mode = "") -> JsonValue:
    """Do something at a target that forgets keys within seconds."""
    return await _ask(context, "/brief_key", {"mode": mode})


@tool(effect="opaque", timeout_seconds=10)
async def post(context: ToolContext, text: str = "", mode: Mode = "") -> JsonValue:
    """Post a text."""
    return await _ask(context, "/post", {"text": text, "mode": mode})


@tool(effect="opaque", timeout_seconds=10, approval=False)
async def shout(context: ToolContext, text: str = "", mode: Mode = "") -> JsonValue:
    """Shout a text, without asking anybody."""
    return await _ask(context, "/shout", {"text": text, "mode": mode})


@tool(effect="local", approval=False, timeout_seconds=10)
async def jot(context: ToolContext, text: str = "", mode: Mode = "") -> ToolResult:
    """Jot a text down in our own database."""
    assert context.transaction is not None
    await context.transaction.execute(
        "INSERT INTO entities (id, tenant_id, kind, name, created_by_turn, created_by_call) "
        "VALUES (gen_random_uuid(), current_setting('perdure.tenant'), 'jotting', $1, $2, $3)",
        text,
        context.turn_id,
        context.call_id,
    )
    await _ask(context, "/jot", {"mode": mode})
    return ToolResult({"jotted": text}, working={"jotting": text})


@tool(effect="opaque", timeout_seconds=10)
async def remit(context: ToolContext, day: date, amount: Annotated[Decimal, Field(decimal_places=2)]) -> JsonValue:
    """Send money on a day."""
    return await _ask(context, "/remit", {"day": str(day), "amount": str(amount)})


async def _ask(context: ToolContext, path: str, body: dict[str, JsonValue]) -> JsonValue:
    answer = await context.send("POST", TARGET + path, json={**body, "call": f"{context.turn_id}/{context.call_id}"})
    found: JsonValue = answer.json()
    return found
