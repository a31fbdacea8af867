"""What a tool wants remembered, written with its result, under the same cap as everybody's writes."""

from collections.abc import Mapping
from dataclasses import replace

import structlog
from pydantic import JsonValue

from contracts.errors import CallerError
from contracts.events import MEMORY_WRITE_BLOCKED, MEMORY_WRITE_CREATED
from contracts.model import ModelCall
from contracts.tools import ToolCall
from perdure.tools import ToolResult
from policy.entities import RECENT, joined
from policy.told_results import unremembered
from policy.toolsets import LOADED_TOOLSETS
from store import working_memory
from store.database import Connection
from store.journal import NewEvent

_log = structlog.get_logger(__name__)


async def remembered(tx: Connection, call: ToolCall, result: ToolResult) -> tuple[ToolResult, tuple[NewEvent, ...]]:
    """Write the working memory of a result, and the event that tells of it; the result as the model is told it.

    Where the fields do not fit, none of them is written and the model is told so. The call stays done: its effect has
    happened, and a model that took it for failed would do it again.
    """
    if not result.working:
        return result, ()
    fields: list[JsonValue] = [*sorted(result.working)]
    await working_memory.hold(tx, call.address.conversation_id, call.address.turn_id)
    working = await _with_others(tx, call, dict(result.working))
    try:
        await working_memory.merge(tx, call.address.tenant_id, call.address.conversation_id, working)
    except CallerError as error:
        wanted = f"What it wanted to remember ({', '.join(map(str, fields))}) was not written: {error.message}."
        output: JsonValue = unremembered(error.code, wanted, result.output)
        why: dict[str, JsonValue] = {"scope": "working", "fields": fields, "code": error.code}
        return replace(result, output=output), (NewEvent(MEMORY_WRITE_BLOCKED, why, call.ask.call_id),)
    told: dict[str, JsonValue] = {"scope": "working", "fields": fields}
    return result, (NewEvent(MEMORY_WRITE_CREATED, told, call.ask.call_id),)


async def _with_others(tx: Connection, call: ToolCall, working: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The recent entities with those that calls beside this one have added since the round began, as state has them."""
    said, before = working.get(RECENT), call.ask.state.get(RECENT)
    if not isinstance(said, list):
        return working
    now = await working_memory.value_of(tx, call.address.conversation_id, RECENT)
    if not isinstance(now, list):
        return working
    return {**working, RECENT: joined(before if isinstance(before, list) else [], now, said)}


async def keep_loaded(tx: Connection, call: ModelCall, loaded: Mapping[str, bool]) -> None:
    """Keep for the conversation which toolsets it has loaded: a later turn begins with them, for as long as working
    memory lives. Where there is no room for it, they hold for this turn only. `tx` holds the writing lock."""
    kept: dict[str, JsonValue] = {LOADED_TOOLSETS: dict(loaded)}
    try:
        await working_memory.merge(tx, call.address.tenant_id, call.address.conversation_id, kept)
    except CallerError as error:
        _log.warning("toolsets_not_kept", turn_id=call.address.turn_id, code=error.code)
