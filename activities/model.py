"""`model.complete`: claim, stream, settle. A settled call answers with its stored reply and is never paid again."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing

from pydantic import JsonValue
from temporalio import activity

from activities.boundary import to_temporal
from activities.clients.provider import Complete, ProviderRequest, TextDelta
from activities.deps import Deps
from activities.edge import edge, stop_asked, this_attempt, uncancelled
from activities.hearing import Heard, events_of, reply_of
from activities.planning import plan_calls
from activities.speaking import Speaker
from activities.vendors import CONTEXT_OVERFLOW
from contracts.agents import PublishedAgent
from contracts.errors import PerdureError, Problem, UpstreamUnavailable
from contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from contracts.model import ModelCall, ModelReply
from contracts.turns import Usage
from policy.ledger import Attempt, Claim
from policy.prompt import WireMessage, base_message, skill_list, skill_message, wire
from policy.refusals import REFUSED
from policy.retries import PROVIDER_ERRORS
from store.database import Connection
from store.journal import NewEvent
from store.model_calls import ModelClaim, claim_call, count_error, settle_call
from store.prompts import said_messages


class ModelActivities:
    """The model calls of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="model.complete")
    async def complete(self, call: ModelCall) -> ModelReply:
        """One model call.

        Effects: at most one provider request an attempt; messages, planned tool calls, usage and events on settle.
        Retry: safe; the ledger's epoch decides whose result counts.
        """
        async with edge():
            attempt = Attempt(*this_attempt())
            async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
                agent = await self._deps.shelf.at(tx, call.agent_id, call.agent_version)
                claimed = await claim_call(tx, call, attempt, agent.definition.model)
                if claimed.verdict is Claim.REPLAY and claimed.reply is not None:
                    return claimed.reply
                if claimed.verdict is not Claim.ACT:
                    return ModelReply(problem=REFUSED[claimed.verdict])
                messages = await self._messages(tx, call, agent, claimed)
            await self._deps.live.wake(call.address.conversation_id)
            heard = Heard()
            failed: Problem | None = None
            try:
                await self._listen(call, agent, messages, claimed, heard)
            except asyncio.CancelledError:
                if not stop_asked():
                    raise  # this worker drains: another one takes the call over
                heard.stopped = True
            except PerdureError as error:
                failed = error.as_problem()
                if error.code == CONTEXT_OVERFLOW and not claimed.compacted:
                    error = UpstreamUnavailable(CONTEXT_OVERFLOW, "too long for the model; tried again with half of it")
                if error.retryable and claimed.errors + 1 < PROVIDER_ERRORS:
                    await self._say_retry(call, error, claimed, heard.usage)
                    raise to_temporal(error) from None  # Temporal would store the vendor's text
            # A paid answer is recorded even if a stop arrives meanwhile.
            return await uncancelled(self._settle(call, agent, claimed, heard, failed))

    async def _messages(
        self, tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim
    ) -> list[WireMessage]:
        definition = agent.definition
        skills = {each.id: skill_message(each.name, each.description, each.body) for each in definition.skills}
        said = await said_messages(
            tx, call, claimed.through_seq, definition.window, skills, compacted=claimed.compacted
        )
        user = call.ask.prompt
        base = base_message(
            agent.definition.persona, str(user.get("name", "")), str(user.get("role", "")), claimed.system_prompt
        )
        if not claimed.system_prompt:  # the caller's own prompt stands as it is (S0-22)
            base += skill_list([(each.id, each.description) for each in definition.skills])
        return wire(base, claimed.memory_text or "", said)

    async def _listen(
        self,
        call: ModelCall,
        agent: PublishedAgent,
        messages: list[WireMessage],
        claimed: ModelClaim,
        heard: Heard,
    ) -> None:
        """Stream the provider's answer; live tokens go out as they come, fenced by the epoch."""
        provider = await self._deps.models.provider(agent)
        request = _request(call, agent, messages, self._deps.models.params(agent))
        heard.sent = request.messages
        speaker = Speaker(self._deps.live, call.address, call.call_id, claimed.epoch)
        began = time.monotonic()
        try:
            async with aclosing(provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, TextDelta):
                        if heard.first_token_seconds is None:
                            heard.first_token_seconds = time.monotonic() - began
                        heard.text.append(chunk.text)
                        if not await speaker.say(chunk.text):
                            heard.stopped = True
                            return
                    elif isinstance(chunk, Complete):
                        heard.complete = chunk
        finally:
            speaker.hush()
        await speaker.flush()

    async def _say_retry(self, call: ModelCall, error: PerdureError, claimed: ModelClaim, used: Usage) -> None:
        problem = error.as_problem()
        kind = RATE_LIMIT if problem.code == "model_rate_limited" else TRANSIENT_ERROR
        event = NewEvent(
            kind,
            {
                "code": problem.code,
                "retry_in": problem.retry_after_seconds,
                "attempt": claimed.errors + 1,
                "max_retries": PROVIDER_ERRORS - 1,
            },
            call.call_id,
        )
        async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
            compact = problem.code == CONTEXT_OVERFLOW
            await count_error(tx, call, claimed.epoch, used, event, compact=compact)

    async def _settle(
        self, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, heard: Heard, failed: Problem | None
    ) -> ModelReply:
        drafts = heard.complete.tool_calls if heard.complete and not heard.stopped and failed is None else ()
        planned = plan_calls(call, agent, drafts)
        reply, messages = reply_of(call, heard, failed, planned)
        events = events_of(call, claimed.epoch, heard, reply)
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            mine = await settle_call(tx, call, claimed.epoch, reply, messages, [each.row for each in planned], events)
        await self._deps.live.wake(call.address.conversation_id)
        if not mine:
            return ModelReply(problem=REFUSED[Claim.STALE])
        return reply


def _request(
    call: ModelCall, agent: PublishedAgent, messages: list[WireMessage], params: Mapping[str, JsonValue]
) -> ProviderRequest:
    offered = [card for card in agent.cards if card.name in call.ask.tools]
    return ProviderRequest(
        model=agent.definition.model,
        messages=tuple(messages),
        tools=tuple(
            {
                "type": "function",
                "function": {"name": card.name, "description": card.description, "parameters": card.parameters},
            }
            for card in offered
        ),
        params=params,
        timeout_seconds=120.0,
        idempotency_key=f"{call.address.turn_id}.{call.call_id}",
    )
