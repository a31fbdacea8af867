"""The steps of the turn for an engineer who wants few hops: each does its work and records it.

The merged workflow calls them as activities, plain LangGraph as nodes. The values between two steps are small: each
step reads the bodies that it uses from Postgres.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import asyncpg
from pydantic import JsonValue

from bench.baselines import records, trace
from bench.baselines.speech import call_model
from bench.baselines.tools import Tools
from bench.baselines.values import Loaded, ModelContext, ModelResult, RequestedCall
from perdure.activities.providers.provider import Provider
from perdure.contracts.ids import effect_key, model_call_id
from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress
from perdure.core.agents import prompts
from perdure.core.agents.prompts import memory_message, skill_manifest
from perdure.core.text import estimated_tokens, preview
from perdure.store.agents import AgentCache
from perdure.store.database import Connection, Database, new_id
from perdure.store.events.event_log import NewMessage, write
from perdure.store.events.live import LiveTokens


@dataclass(frozen=True, slots=True)
class Work:
    """The clients of one process, and the steps."""

    db: Database
    live: LiveTokens
    provider: Provider
    tools: Tools
    agent_cache: AgentCache

    async def load(self, address: TurnAddress, agent_version: str) -> Loaded:
        """Loads memory and skills in one step."""
        async with self.db.transaction(address.tenant_id) as tx:
            agent = await self.agent_cache.read_pinned(tx, self.tools.agent_id, agent_version)
            turn_input = await records.read_turn_input(tx, address.turn_id)
            await write(tx, address, trace.loaded([*turn_input.working]))
        base = prompts.base_message(agent.definition.persona, turn_input.user_name, turn_input.user_role, None)
        skills = skill_manifest(agent.definition.skills)
        return Loaded(base=base + skills, memory=memory_message(turn_input.working))

    async def model(
        self, address: TurnAddress, agent_version: str, step: int, model_context: ModelContext
    ) -> ModelResult:
        """Makes one model call and records message, usage, planned calls and events."""
        async with self.db.transaction(address.tenant_id) as tx:
            agent = await self.agent_cache.read_pinned(tx, self.tools.agent_id, agent_version)
            conversation = await _conversation(tx, address)
            if step == 1:
                await records.mark_running(tx, address.turn_id)
            await write(tx, address, trace.before_model(step, model_call_id(step), model_context.tokens))
        self.live.wake(address.conversation_id)
        messages = prompts.wire_messages(model_context.loaded.base, model_context.loaded.memory, conversation)
        reply = await call_model(self.provider, self.live, address, agent, step, messages)
        message = NewMessage(
            new_id(),
            Role.ASSISTANT,
            reply.text,
            calls=[plan.entry for plan in reply.planned],
            tokens=reply.usage.output_tokens,
        )
        names = [plan.row.tool for plan in reply.planned]
        events = trace.after_model(reply.call_id, reply.text, reply.usage, names, reply.first_token_seconds)
        async with self.db.transaction(address.tenant_id) as tx:
            await records.record_answer(tx, address.turn_id, reply.usage, [plan.row for plan in reply.planned])
            await write(tx, address, events, [message])
        self.live.wake(address.conversation_id)
        calls = tuple(RequestedCall(call_id=plan.row.call_id, tool=plan.row.tool) for plan in reply.planned)
        return ModelResult(preview=preview(reply.text), tokens=model_context.tokens + reply.usage.tokens, calls=calls)

    async def tool(self, address: TurnAddress, requested: RequestedCall, result: ModelResult) -> None:
        """Makes one tool call and records its result."""
        first = requested.call_id == result.calls[0].call_id
        pairs = [(call.call_id, call.tool) for call in result.calls]
        async with self.db.transaction(address.tenant_id) as tx:
            args: Mapping[str, JsonValue] = await tx.fetchval(
                "SELECT args FROM tool_calls WHERE turn_id = $1 AND call_id = $2", address.turn_id, requested.call_id
            )
            await write(
                tx,
                address,
                trace.before_tool(requested.call_id, requested.tool, first=first, said=result.preview, calls=pairs),
            )
        content = await self.tools.run(requested.tool, requested.call_id, address, args)
        message = NewMessage(new_id(), Role.TOOL, content, call_id=requested.call_id, tokens=estimated_tokens(content))
        async with self.db.transaction(address.tenant_id) as tx:
            await records.record_tool_result(tx, address.turn_id, requested.call_id, {"message_id": message.id})
            events = trace.after_tool(requested.call_id, requested.tool, preview(content), message.id)
            await write(tx, address, events, [message])
        self.live.wake(address.conversation_id)

    async def finish(self, address: TurnAddress, result: ModelResult) -> None:
        """Finishes the turn; the answer is the model's last text."""
        async with self.db.transaction(address.tenant_id) as tx:
            answer: str = await tx.fetchval(
                "SELECT content FROM messages WHERE turn_id = $1 AND role = 'assistant' ORDER BY seq DESC LIMIT 1",
                address.turn_id,
            )
            await records.finish_turn(tx, address, answer, result.preview)
        self.live.wake(address.conversation_id)


async def _conversation(tx: Connection, address: TurnAddress) -> list[prompts.PromptMessage]:
    """Returns the conversation in order. Results of one round are in the order of their calls, whichever finished
    first."""
    rows = await tx.fetch(
        "SELECT turn_id, role, content, calls, call_id FROM (SELECT * FROM messages WHERE conversation_id = $1 "
        "AND in_transcript ORDER BY seq DESC LIMIT 200) recent ORDER BY seq",
        address.conversation_id,
    )
    ordered = [row for _, group in groupby(rows, _round) for row in sorted(group, key=lambda row: row["call_id"] or "")]
    return [
        prompts.PromptMessage(
            Role(row["role"]),
            row["content"],
            row["calls"],
            effect_key(str(row["turn_id"]), row["call_id"]) if row["call_id"] else "",
        )
        for row in ordered
    ]


def _round(row: asyncpg.Record) -> tuple[str, bool]:
    return row["role"], row["call_id"] is not None
