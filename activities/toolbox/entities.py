"""The platform's core tools (S0-41): resolve an entity, assemble its context, create one. They know no domain."""

from typing import Annotated, cast

from pydantic import Field, JsonValue

from perdure.tools import Audited, ToolContext, ToolRefused, ToolResult, tool
from policy.entities import RECENT, Resolution, remember, resolve
from store import entities
from store.database import Connection

FAILED = "consecutive_failed_resolves"

Name = Annotated[str, Field(min_length=1, max_length=200)]


@tool(effect="local", approval=False, wants_state=(RECENT, FAILED))
async def entity_resolve(context: ToolContext, name: Name) -> ToolResult:
    """Find an entity by its name or an alias. Answers with the one match, or with candidates to ask about."""
    found = await entities.find(_transaction(context), name)
    resolution = resolve([(entity.id, entity.name) for entity in found])
    counter = context.state.get(FAILED, 0)
    failed = counter if isinstance(counter, int) else 0
    if resolution is not Resolution.DECISIVE:
        return ToolResult(
            {
                "status": resolution.value,
                "candidates": [{"id": entity.id, "kind": entity.kind, "name": entity.name} for entity in found],
            },
            state={FAILED: failed + 1},
        )
    entity = found[0]
    recent = remember(context.state.get(RECENT), entity.id)
    return ToolResult(
        {"status": "resolved", "entity": _shown(entity)},
        state={FAILED: 0, RECENT: recent},
        working={RECENT: recent},
    )


@tool(effect="local", approval=False, wants_state=(RECENT,))
async def context_assemble(
    context: ToolContext, entity_id: Annotated[str, Field(pattern="^[0-9a-f-]{36}$")]
) -> ToolResult:
    """Read all that is known of an entity, by the id that entity_resolve gave."""
    entity = await entities.get(_transaction(context), entity_id)
    if entity is None:
        raise ToolRefused("there is no entity with this id; call entity_resolve with its name first")
    recent = remember(context.state.get(RECENT), entity.id)
    return ToolResult({"status": "ok", "entity": _shown(entity)}, state={RECENT: recent}, working={RECENT: recent})


@tool(effect="local", capability="create_entity", risk="medium", wants_state=(RECENT,))
async def create_entity(
    context: ToolContext,
    kind: Annotated[str, Field(min_length=1, max_length=60)],
    name: Name,
    attributes: dict[str, JsonValue] | None = None,
) -> ToolResult:
    """Register a new entity of a kind under a name, with any attributes. Waits for a person's approval."""
    entity = await entities.create(
        _transaction(context), kind, name, attributes or {}, context.turn_id, context.call_id
    )
    recent = remember(context.state.get(RECENT), entity.id)
    return ToolResult(
        {"status": "created", "entity": _shown(entity)},
        state={RECENT: recent},
        working={RECENT: recent},
        audited=Audited(entity.id, {"kind": entity.kind, "name": entity.name}),
    )


CORE_ALWAYS = (entity_resolve, context_assemble)
"""Offered to every agent that does not say `core_tools: false`."""
CORE_BY_NAME = {each.card.name: each for each in (entity_resolve, context_assemble, create_entity)}
"""An agent may name these in its tools."""


def _shown(entity: entities.Entity) -> dict[str, JsonValue]:
    return {"id": entity.id, "kind": entity.kind, "name": entity.name, "attributes": entity.attributes}


def _transaction(context: ToolContext) -> Connection:
    if context.transaction is None:
        raise ToolRefused("this tool needs the database and got none")
    return cast(Connection, context.transaction)  # the engine hands in its own connection
