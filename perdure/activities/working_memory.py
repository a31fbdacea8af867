"""Writes the working memory of a conversation: the fields of a tool's result, and the toolsets that a model loaded."""

from collections.abc import Mapping
from dataclasses import replace

import structlog
from pydantic import JsonValue

from perdure.contracts.calls import ModelCall, ToolCall
from perdure.contracts.errors import CallerError
from perdure.contracts.events import MEMORY_WRITE_BLOCKED, MEMORY_WRITE_CREATED
from perdure.core.agents.prompts import with_memory_error
from perdure.core.agents.toolsets import LOADED_TOOLSETS
from perdure.core.memory.facts import RECENT_ENTITIES_FIELD, merge_lists
from perdure.sdk.tools import ToolResult
from perdure.store.database import Connection
from perdure.store.events.event_log import NewEvent
from perdure.store.memory import working_memory

_log = structlog.get_logger(__name__)


async def save_working_memory(
    tx: Connection, call: ToolCall, result: ToolResult
) -> tuple[ToolResult, tuple[NewEvent, ...]]:
    """Writes the working memory of a result. Returns the result as the model receives it, and the event about the
    write.

    If the fields do not fit, none of them is written, and the result that the model receives names the reason. The call
    stays done: its effect has happened, and a model that took it for failed would repeat it.

    It is under the same limit as other writes.
    """
    if not result.working:
        return result, ()
    fields: list[JsonValue] = [*sorted(result.working)]
    await working_memory.lock_writes(tx, call.address.conversation_id, call.address.turn_id)
    working = await _with_parallel_entities(tx, call, dict(result.working))
    try:
        await working_memory.merge(tx, call.address.tenant_id, call.address.conversation_id, working)
    except CallerError as error:
        message = f"These fields were not saved ({', '.join(map(str, fields))}): {error.message}."
        output: JsonValue = with_memory_error(error.code, message, result.output)
        blocked: dict[str, JsonValue] = {"scope": "working", "fields": fields, "code": error.code}
        return replace(result, output=output), (NewEvent(MEMORY_WRITE_BLOCKED, blocked, call.ask.call_id),)
    data: dict[str, JsonValue] = {"scope": "working", "fields": fields}
    return result, (NewEvent(MEMORY_WRITE_CREATED, data, call.ask.call_id),)


async def _with_parallel_entities(
    tx: Connection, call: ToolCall, working: dict[str, JsonValue]
) -> dict[str, JsonValue]:
    """Returns the fields, with recent entities that parallel calls have added since the round began."""
    recent, before = working.get(RECENT_ENTITIES_FIELD), call.ask.state.get(RECENT_ENTITIES_FIELD)
    if not isinstance(recent, list):
        return working
    now = await working_memory.value_of(tx, call.address.conversation_id, RECENT_ENTITIES_FIELD)
    if not isinstance(now, list):
        return working
    return {**working, RECENT_ENTITIES_FIELD: merge_lists(before if isinstance(before, list) else [], now, recent)}


async def save_loaded_toolsets(tx: Connection, call: ModelCall, loaded: Mapping[str, bool]) -> None:
    """Stores for the conversation which toolsets it has loaded. Later turns start with them, while working memory
    lives.

    If they do not fit, they apply to this turn only. `tx` must hold the writing lock.
    """
    fields: dict[str, JsonValue] = {LOADED_TOOLSETS: dict(loaded)}
    try:
        await working_memory.merge(tx, call.address.tenant_id, call.address.conversation_id, fields)
    except CallerError as error:
        _log.warning("toolsets_not_kept", turn_id=call.address.turn_id, code=error.code)
