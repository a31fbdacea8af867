"""`model.complete`: claim, stream, settle. A settled call answers with its stored reply and is never paid again."""

import asyncio
import time
from contextlib import aclosing
from functools import partial

from temporalio import activity

from activities.beginning import Begun, begin
from activities.boundary import to_temporal
from activities.clients.provider import Complete, TextDelta, ThinkingDelta
from activities.deps import Deps
from activities.edge import edge, stop_asked, this_attempt, uncancelled
from activities.hearing import Heard, events_of, reply_of, structured_reply
from activities.planning import Plans, plan_calls
from activities.remembering import keep_loaded
from activities.speaking import Speaker
from activities.vendors import CONTEXT_OVERFLOW
from contracts.activities import RetryClass
from contracts.agents import PublishedAgent
from contracts.errors import PerdureError, Problem, UpstreamUnavailable
from contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from contracts.model import ModelCall, ModelReply
from contracts.turns import Usage
from policy.ledger import Attempt, Claim
from policy.refusals import REFUSED
from policy.retries import FALLBACK_SECONDS, NUMBERS, PROVIDER_ERRORS, errors_allowed, gives_up, next_delay
from store import budgets, unsettled_calls, working_memory
from store.journal import NewEvent, NewMessage
from store.model_calls import ModelClaim, settle_call


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
            agent = await self._agent(call)
            begun = await begin(self._deps, call, agent, Attempt(*this_attempt()))
            if isinstance(begun, ModelReply):
                return begun
            call, claimed = begun.call, begun.claimed
            await self._deps.live.wake(call.address.conversation_id)
            heard = Heard(
                turn_seconds=time.monotonic() - begun.turn_began,
                assembly=begun.assembly,
                asked_tokens=begun.asked_tokens,
                price=partial(begun.provider.cost_microusd, claimed.model),
            )
            failed: Problem | None = None
            try:
                async with self._deps.stops.breaking(call.address.turn_id) as stop:
                    await self._listen(begun, heard)
                heard.stopped = heard.stopped or stop.yes
            except asyncio.CancelledError:
                heard.stopped = True
                if not stop_asked():  # this worker drains: another one takes the call over
                    await uncancelled(self._count(call, claimed, heard.usage))
                    raise
            except PerdureError as error:
                failed = error.as_problem()
                heard.note_broken_off(error)
                if error.code == CONTEXT_OVERFLOW and not (claimed.compacted or call.strict):
                    error = UpstreamUnavailable(CONTEXT_OVERFLOW, "too long for the model; tried again with half of it")
                other = "" if claimed.on_fallback or call.strict else agent.definition.second_model
                if other and gives_up(error.code, retryable=error.retryable, errors=claimed.errors + 1):
                    error = UpstreamUnavailable(error.code, failed.message, retry_after_seconds=FALLBACK_SECONDS)
                    await self._say_retry(call, error, claimed, heard, fallback_model=other)
                    raise to_temporal(error) from None
                more = claimed.errors + 1 < errors_allowed(strict=call.strict)
                if error.retryable and more and not claimed.on_fallback:
                    await self._say_retry(call, error, claimed, heard)
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

    async def _listen(self, begun: Begun, heard: Heard) -> None:
        """Stream the provider's answer; live tokens go out as they come, fenced by the epoch."""
        call = begun.call
        began = time.monotonic()
        async with (
            Speaker(self._deps.live, call.address, call.call_id, begun.claimed.epoch) as speaker,
            aclosing(begun.provider.stream(begun.request)) as chunks,
        ):
            async for chunk in chunks:
                may_go_on = True
                if isinstance(chunk, TextDelta):
                    if heard.first_token_seconds is None:
                        heard.first_token_seconds = time.monotonic() - began
                    heard.text.append(chunk.text)
                    may_go_on = call.ask.output is not None or await speaker.say(chunk.text)
                elif isinstance(chunk, ThinkingDelta):
                    heard.think(chunk.text, time.monotonic() - began)
                    may_go_on = await speaker.think(chunk.text)
                elif isinstance(chunk, Complete):
                    heard.complete = chunk
                if not may_go_on:
                    heard.stopped = True
                    return

    async def _say_retry(
        self, call: ModelCall, error: PerdureError, claimed: ModelClaim, heard: Heard, *, fallback_model: str = ""
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
        compact, fall_back = problem.code == CONTEXT_OVERFLOW, bool(fallback_model)
        said = "" if call.ask.output is not None else heard.whole
        await self._count(call, claimed, heard.usage, event, compact=compact, fall_back=fall_back, said=said)

    async def _count(
        self,
        call: ModelCall,
        claimed: ModelClaim,
        used: Usage,
        failed: NewEvent | None = None,
        *,
        compact: bool = False,
        fall_back: bool = False,
        said: str = "",
    ) -> None:
        """Count what this attempt used; another one follows."""
        address = call.address
        async with self._deps.db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
            await unsettled_calls.count(
                tx, call, claimed, used, failed, compact=compact, fall_back=fall_back, said=said
            )

    async def _settle(
        self, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, heard: Heard, failed: Problem | None
    ) -> ModelReply:
        if call.ask.output is not None:
            reply = structured_reply(call.ask.output, heard, failed)
            return await self._keep(call, claimed, heard, Plans(()), reply, [])
        drafts = heard.complete.tool_calls if heard.complete and not heard.stopped and failed is None else ()
        # On a thread: a tool's schema may come from anywhere, and each of 64 calls may take a second to be held to it.
        plans = await asyncio.to_thread(plan_calls, call, agent, drafts) if drafts else Plans(())
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
            settled = await settle_call(tx, call, claimed, reply, messages, rows, events)
            if plans.loaded is not None and settled.mine:
                await keep_loaded(tx, call, plans.loaded)
            if not settled.mine:  # the provider was paid, whoever is heard
                await unsettled_calls.correct(tx, call, claimed, reply.usage)
            if settled.counted:
                known = budgets.NOTHING.less(claimed.assumed) if settled.was_lost else budgets.NOTHING
                used = reply.usage.less(claimed.assumed) if settled.was_lost else reply.usage
                await budgets.charge(tx, address.turn_id, call.call_id, claimed.epoch, used, known)
        await self._deps.live.wake(call.address.conversation_id)
        if not settled.mine:
            return ModelReply(problem=REFUSED[Claim.STALE])
        return reply.model_copy(update={"turn_used": settled.turn_used})
