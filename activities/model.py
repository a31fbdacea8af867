"""`model.complete`: claim, stream, settle. A settled call answers with its stored reply and is never paid again."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from pydantic import JsonValue
from temporalio import activity

from activities.boundary import to_temporal
from activities.clients.provider import Complete, ProviderRequest, TextDelta, ThinkingDelta
from activities.deps import Deps
from activities.edge import edge, stop_asked, this_attempt, uncancelled
from activities.hearing import Heard, events_of, reply_of, structured_reply
from activities.planning import Plans, plan_calls
from activities.prompting import prompt_of
from activities.remembering import keep_loaded
from activities.speaking import Speaker
from activities.spending import hold, is_counted, reserved_for_now
from activities.vendors import CONTEXT_OVERFLOW
from contracts.activities import RetryClass
from contracts.agents import PublishedAgent
from contracts.errors import LimitReached, PerdureError, Problem, UpstreamRejected, UpstreamUnavailable
from contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from contracts.messages import MessageRef
from contracts.model import ModelCall, ModelReply, OutputForm
from contracts.turns import Usage
from policy.agent_stages import with_stage
from policy.budget import PRICED_TOKENS, affordable
from policy.day_budget import RESERVED_TRIES, Bound
from policy.ledger import Attempt, Claim
from policy.prompt import WireMessage
from policy.refusals import REFUSED
from policy.retries import FALLBACK_SECONDS, NUMBERS, PROVIDER_ERRORS, errors_allowed, gives_up, next_delay
from policy.toolsets import LOAD_TOOLSET, load_card
from store import budgets, working_memory
from store.journal import NewEvent, NewMessage, write
from store.model_calls import ModelClaim, begin_call, claim_call, count_error, settle_call

MODEL_SECONDS = 120.0
"""A provider's time for one answer, where the graph does not name another."""


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
            agent = await self._agent(call)
            try:
                async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
                    own, other = agent.definition.model, agent.definition.fallback_model
                    claimed = await claim_call(tx, call, attempt, own, other)
                    claimed_at = time.monotonic()
                    if claimed.verdict is Claim.REPLAY and claimed.reply is not None:
                        return claimed.reply
                    if claimed.verdict is not Claim.ACT:
                        return ModelReply(problem=REFUSED[claimed.verdict])
                    call = _hearing(call, claimed.joined.refs)
                    prompt = await prompt_of(tx, call, agent, claimed)
                    counted = is_counted(agent, claimed)
                    most = await self._most(call, agent, prompt.messages, claimed) if counted else None
                    await begin_call(tx, call, claimed)  # locks the conversation: what takes time has been done
                    if most is not None:
                        await hold(tx, call, agent, claimed, most)
            except (LimitReached, UpstreamRejected) as refused:
                if refused.details.get("reserved") and attempt.number < RESERVED_TRIES:
                    raise reserved_for_now() from None
                return await self._not_begun(call, refused.as_problem())
            await self._deps.live.wake(call.address.conversation_id)
            before = claimed.turn_seconds + time.monotonic() - claimed_at
            heard = Heard(assembly=prompt.assembly, turn_seconds=before)
            failed: Problem | None = None
            try:
                async with self._deps.stops.breaking(call.address.turn_id) as stop:
                    await self._listen(call, agent, prompt.messages, claimed, heard)
                heard.stopped = heard.stopped or stop.yes
            except asyncio.CancelledError:
                if not stop_asked():
                    raise  # this worker drains: another one takes the call over
                heard.stopped = True
            except PerdureError as error:
                failed = error.as_problem()
                heard.note_broken_off(error)
                if error.code == CONTEXT_OVERFLOW and not (claimed.compacted or call.strict):
                    error = UpstreamUnavailable(CONTEXT_OVERFLOW, "too long for the model; tried again with half of it")
                other = "" if claimed.on_fallback or call.strict else agent.definition.fallback_model
                if other and gives_up(error.code, retryable=error.retryable, errors=claimed.errors + 1):
                    error = UpstreamUnavailable(error.code, failed.message, retry_after_seconds=FALLBACK_SECONDS)
                    await self._say_retry(call, error, claimed, heard.usage, fallback_model=other)
                    raise to_temporal(error) from None
                more = claimed.errors + 1 < errors_allowed(strict=call.strict)
                if error.retryable and more and not claimed.on_fallback:
                    await self._say_retry(call, error, claimed, heard.usage)
                    raise to_temporal(error) from None  # Temporal would store the vendor's text
            # A paid answer is recorded even if a stop arrives meanwhile.
            return await uncancelled(self._settle(call, agent, claimed, heard, failed))

    async def _agent(self, call: ModelCall) -> PublishedAgent:
        """The version that the turn pinned; what its models need is imported here, while nothing is locked."""
        agent = self._deps.shelf.known(call.agent_version)
        if agent is None:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                agent = await self._deps.shelf.at(tx, call.agent_id, call.agent_version)
        await self._deps.models.ready(agent)
        return agent

    async def _most(
        self, call: ModelCall, agent: PublishedAgent, messages: list[WireMessage], claimed: ModelClaim
    ) -> Bound:
        """The most that the request can use."""
        provider = await self._deps.models.provider(agent, claimed.model)
        return provider.most(self._request(call, agent, messages, claimed))

    async def _listen(
        self,
        call: ModelCall,
        agent: PublishedAgent,
        messages: list[WireMessage],
        claimed: ModelClaim,
        heard: Heard,
    ) -> None:
        """Stream the provider's answer; live tokens go out as they come, fenced by the epoch."""
        provider = await self._deps.models.provider(agent, claimed.model)
        price = partial(provider.cost_microusd, claimed.model)
        many = price(Usage(output_tokens=PRICED_TOKENS))
        most_tokens = affordable(claimed.most_tokens, claimed.left_microusd, many)
        request = replace(self._request(call, agent, messages, claimed), most_tokens=most_tokens)
        heard.sent, heard.price = request.messages, price
        began = time.monotonic()
        async with (
            Speaker(self._deps.live, call.address, call.call_id, claimed.epoch) as speaker,
            aclosing(provider.stream(request)) as chunks,
        ):
            async for chunk in chunks:
                may_go_on = True
                if isinstance(chunk, TextDelta):
                    if heard.first_token_seconds is None:
                        heard.first_token_seconds = time.monotonic() - began
                    heard.text.append(chunk.text)
                    may_go_on = call.ask.output is not None or await speaker.say(chunk.text)
                elif isinstance(chunk, ThinkingDelta):
                    heard.thinking_characters += len(chunk.text)
                    heard.thinking_seconds = time.monotonic() - began
                    may_go_on = await speaker.think(chunk.text)
                elif isinstance(chunk, Complete):
                    heard.complete = chunk
                if not may_go_on:
                    heard.stopped = True
                    return

    async def _not_begun(self, call: ModelCall, problem: Problem) -> ModelReply:
        """The answer of a call whose claim was rolled back; the events that came with it are written all the same."""
        if call.events:
            async with self._deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
                await write(tx, call.address, [], pending=call.events)
        return ModelReply(problem=problem)

    async def _say_retry(
        self, call: ModelCall, error: PerdureError, claimed: ModelClaim, used: Usage, *, fallback_model: str = ""
    ) -> None:
        problem = error.as_problem()
        numbers, attempt = NUMBERS[RetryClass.PROVIDER], this_attempt()[1]
        wait = next_delay(problem.retry_after_seconds) or numbers.wait_before(attempt + 1)
        kind = RATE_LIMIT if problem.code == "model_rate_limited" else TRANSIENT_ERROR
        event = NewEvent(
            kind,
            {
                "code": problem.code,
                "retry_in": wait.total_seconds(),
                "attempt": claimed.errors + 1,
                "max_retries": PROVIDER_ERRORS - 1,
                **({"model": claimed.model, "fallback_model": fallback_model} if fallback_model else {}),
            },
            call.call_id,
        )
        address = call.address
        async with self._deps.db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
            compact = problem.code == CONTEXT_OVERFLOW
            fall_back = bool(fallback_model)
            await count_error(tx, call, claimed.epoch, used, event, compact=compact, fall_back=fall_back)
            await budgets.charge(tx, call, claimed.epoch, used)

    async def _settle(
        self, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, heard: Heard, failed: Problem | None
    ) -> ModelReply:
        if call.ask.output is not None:
            reply = structured_reply(call.ask.output, heard, failed)
            return await self._keep(call, claimed, heard, Plans(()), reply, [])
        drafts = heard.complete.tool_calls if heard.complete and not heard.stopped and failed is None else ()
        plans = plan_calls(call, agent, drafts)
        reply, messages = reply_of(call, heard, failed, plans.calls)
        reply = reply.model_copy(update={"joined": claimed.joined.refs})
        return await self._keep(call, claimed, heard, plans, reply, messages)

    async def _keep(
        self,
        call: ModelCall,
        claimed: ModelClaim,
        heard: Heard,
        plans: Plans,
        reply: ModelReply,
        messages: list[NewMessage],
    ) -> ModelReply:
        events = events_of(call, claimed.epoch, heard, reply, plans.calls)
        address = call.address
        async with self._deps.db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
            if plans.loaded is not None:
                await working_memory.hold(tx, address.conversation_id, address.turn_id)
            rows = [each.row for each in plans.calls]
            settled = await settle_call(tx, call, claimed.epoch, reply, messages, rows, events)
            if plans.loaded is not None and settled.mine:
                await keep_loaded(tx, call, plans.loaded)
            if settled.counted:
                await budgets.charge(tx, call, claimed.epoch, reply.usage)
        await self._deps.live.wake(call.address.conversation_id)
        if not settled.mine:
            return ModelReply(problem=REFUSED[Claim.STALE])
        return reply.model_copy(update={"turn_used": settled.turn_used})

    def _request(
        self, call: ModelCall, agent: PublishedAgent, messages: list[WireMessage], claimed: ModelClaim
    ) -> ProviderRequest:
        params = with_stage(self._deps.models.params(agent), agent.definition.stages, call.ask.stage)
        return _request(call, agent, claimed, messages, params)


def _hearing(call: ModelCall, joined: tuple[MessageRef, ...]) -> ModelCall:
    """The call with what joined the turn behind what the graph has handed it."""
    if not joined:
        return call
    return call.model_copy(update={"ask": call.ask.model_copy(update={"messages": (*call.ask.messages, *joined)})})


def _request(
    call: ModelCall,
    agent: PublishedAgent,
    claimed: ModelClaim,
    messages: list[WireMessage],
    params: Mapping[str, JsonValue],
) -> ProviderRequest:
    return ProviderRequest(
        model=claimed.model,
        messages=tuple(messages),
        tools=_tools(call, agent),
        params=params,
        output=call.ask.output,
        reasoning=agent.definition.reasoning,
        timeout_seconds=call.ask.timeout_seconds or MODEL_SECONDS,
        most_tokens=claimed.most_tokens,
        idempotency_key=f"{call.address.turn_id}.{call.call_id}",
    )


def _tools(call: ModelCall, agent: PublishedAgent) -> tuple[dict[str, JsonValue], ...]:
    """The functions that the model may call: those offered, or the one by which it is to answer."""
    wanted = call.ask.output
    if wanted is not None:
        told = "Give your answer by calling this once."
        return (_function(wanted.name, told, wanted.fits),) if wanted.form is OutputForm.FUNCTION else ()
    offered = [card for card in agent.cards if card.name in call.ask.tools]
    if LOAD_TOOLSET in call.ask.tools:
        offered.insert(0, load_card(agent.cards))
    return tuple(_function(card.name, card.description, card.parameters) for card in offered)


def _function(name: str, description: str, parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
