"""The agent `clerk`: the agent `desk` with a model that LiteLLM reaches over real HTTP, at the provider double."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
from temporalio.client import Client

from perdure.activities.providers.registry import Models
from perdure.activities.toolbox.registry import Toolbox
from perdure.api.streams import Streams
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.turns import TurnAddress, TurnStatus
from perdure.contracts.values import digest_of
from perdure.core.events.stream import Cursor
from perdure.store.events.subscriptions import ConversationWakes
from perdure.store.valkey import Valkey
from tests.doubles.message_script import Line
from tests.doubles.providers.script import Step
from tests.doubles.providers.server import ProviderDouble
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.integration.turn_writer import Sent, read_until
from tests.served_turns import ALL_KINDS, Served, serve

LITELLM_AGENT = "clerk"
ASKED = Line("please look into it")
"""The user's message; its text is all that matters here."""


def litellm_agent(api_base: str) -> PublishedAgent:
    """The agent `desk` with a real model, whose credential is a name."""
    harness = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    params: dict[str, Any] = {"api_base": api_base, "api_key_secret": "model_key", "temperature": 0.2}
    changed: dict[str, Any] = {"id": LITELLM_AGENT, "model": "openai/gpt-4o-mini", "model_params": params}
    definition = harness.definition.model_copy(update=changed)
    version = digest_of(definition.model_dump(mode="json"))
    return harness.model_copy(update={"definition": definition, "version": version})


@dataclass(frozen=True, slots=True)
class LitellmAgent:
    """Turns of the agent `clerk`, and its provider."""

    served: Served
    double: ProviderDouble
    streams: Streams

    async def begin(self, *steps: Step) -> TurnAddress:
        self.double.script(*steps)
        return await self.served.begin(ASKED, agent_id=LITELLM_AGENT)

    async def run_to_end(self, *steps: Step) -> tuple[TurnAddress, asyncpg.Record]:
        """A turn at its end. There are as many requests as attempts, whatever happened."""
        address = await self.begin(*steps)
        row = await self.served.until(address, TurnStatus.COMPLETED, TurnStatus.FAILED, seconds=40)
        assert len(self.double.requests) == row["attempts"]
        assert {seen.outcome for seen in self.double.requests}.isdisjoint({"no_step", "running"})
        return address, row

    async def seen_by_reader(self, address: TurnAddress) -> list[Sent]:
        """All that a reader who is there from the beginning gets of the turn."""
        frames = self.streams.frames(address.tenant_id, address.conversation_id, Cursor(), address.turn_id)
        return await read_until(frames, lambda sent: False, seconds=40)

    async def assistant_messages(self, address: TurnAddress) -> list[asyncpg.Record]:
        return await self.served.harness.rows(
            "SELECT content, partial FROM messages WHERE turn_id = $1 AND role = 'assistant' ORDER BY seq",
            address.turn_id,
        )

    async def data(self, address: TurnAddress, kind: str) -> list[dict[str, Any]]:
        statement = "SELECT data FROM events WHERE turn_id = $1 AND kind = $2 ORDER BY seq"
        rows = await self.served.harness.rows(statement, address.turn_id, kind)
        return [row["data"] for row in rows]


@asynccontextmanager
async def clerk_at_work(harness: Harness, redis_url: str, temporal: Client) -> AsyncIterator[LitellmAgent]:
    """The agent `clerk` with workers for its queues, a provider double and streams."""
    async with AsyncExitStack() as stack:
        double = stack.enter_context(ProviderDouble())
        agent = litellm_agent(double.api_base)
        agents, tools = app_agents()
        await publish_app(harness.owner_url, [*agents, ("desk", agent)])
        models = Models({"model_key": "sk-of-the-test"}.get)
        own = [(LITELLM_AGENT, tool) for agent_id, tool in tools if agent_id == "desk"]
        toolbox = Toolbox(own, lambda name: None, harness.deps.toolbox.http)
        at = replace(harness, deps=replace(harness.deps, models=models, toolbox=toolbox))
        provider: Any = await models.provider(agent)
        stack.push_async_callback(provider.aclose)
        workers = await serve(stack, at, ALL_KINDS)
        valkey = Valkey.connect(redis_url)
        stack.push_async_callback(valkey.close)
        wakes = ConversationWakes(at.db, valkey)
        listening = asyncio.create_task(wakes.run())
        yield LitellmAgent(Served(at, temporal, workers), double, Streams(at.db, at.deps.live, wakes))
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
