"""`model.complete`: claim, stream, settle. A settled call answers with its stored reply and is never paid again."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic import JsonValue
from temporalio import activity

from activities.boundary import to_temporal
from activities.clients.provider import Complete, ProviderRequest, TextDelta
from activities.deps import Deps
from activities.edge import edge, stop_asked, this_attempt, uncancelled
from activities.planning import Planned, plan_calls
from activities.speaking import Speaker
from contracts.agents import PublishedAgent
from contracts.errors import PerdureError, Problem
from contracts.events import GENERATION_COMPLETE, RATE_LIMIT, TOKEN_USAGE, TRANSIENT_ERROR, TTFT
from contracts.messages import CallRef, MessageRef, Role
from contracts.model import ModelCall, ModelReply
from contracts.turns import Usage
from policy.extract import extracted
from policy.ledger import Attempt, Claim
from policy.prompt import WireMessage, base_message, skill_list, skill_message, wire
from policy.retries import PROVIDER_ERRORS
from policy.text import estimated_tokens, preview
from store.database import Connection
from store.ids import new_id
from store.journal import NewEvent, NewMessage
from store.model_calls import ModelClaim, claim_call, count_error, settle_call
from store.prompts import said_messages

_REFUSED = {
    Claim.STOPPED: Problem(code="stopped", message="the turn was stopped"),
    Claim.ENDED: Problem(code="turn_ended", message="the turn has ended"),
    Claim.STALE: Problem(code="stale_attempt", message="a later attempt has claimed this call"),
}


@dataclass(slots=True)
class _Heard:
    """What came of one attempt so far."""

    text: list[str] = field(default_factory=list)
    complete: Complete | None = None
    first_token_seconds: float | None = None
    stopped: bool = False

    @property
    def whole(self) -> str:
        return "".join(self.text)


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
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                agent = await self._deps.shelf.at(tx, call.agent_id, call.agent_version)
                claimed = await claim_call(tx, call, attempt, agent.definition.model)
                if claimed.verdict is Claim.REPLAY and claimed.reply is not None:
                    return claimed.reply
                if claimed.verdict is not Claim.ACT:
                    return ModelReply(problem=_REFUSED[claimed.verdict])
                messages = await self._messages(tx, call, agent, claimed)
            await self._deps.live.wake(call.address.conversation_id)
            heard = _Heard()
            failed: Problem | None = None
            try:
                await self._listen(call, agent, messages, claimed, heard)
            except asyncio.CancelledError:
                if not stop_asked():
                    raise  # this worker drains: another one takes the call over
                heard.stopped = True
            except PerdureError as error:
                failed = error.as_problem()
                if error.retryable and claimed.errors + 1 < PROVIDER_ERRORS:
                    await self._say_retry(call, error, claimed)
                    raise to_temporal(error) from None  # Temporal would store the vendor's text
            # A paid answer is recorded even if a stop arrives meanwhile.
            return await uncancelled(self._settle(call, agent, claimed, heard, failed))

    async def _messages(
        self, tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim
    ) -> list[WireMessage]:
        definition = agent.definition
        skills = {each.id: skill_message(each.name, each.description, each.body) for each in definition.skills}
        said = await said_messages(tx, call, claimed.through_seq, definition.window, skills)
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
        heard: _Heard,
    ) -> None:
        """Stream the provider's answer; live tokens go out as they come, fenced by the epoch."""
        provider = await self._deps.models.provider(agent)
        request = _request(call, agent, messages, self._deps.models.params(agent))
        speaker = Speaker(self._deps.live, call.address, call.call_id, claimed.epoch)
        began = time.monotonic()
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
        await speaker.flush()

    async def _say_retry(self, call: ModelCall, error: PerdureError, claimed: ModelClaim) -> None:
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
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            await count_error(tx, call, claimed.epoch, event)

    async def _settle(
        self, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, heard: _Heard, failed: Problem | None
    ) -> ModelReply:
        drafts = heard.complete.tool_calls if heard.complete and not heard.stopped and failed is None else ()
        planned = plan_calls(call, agent, drafts)
        reply, messages = _reply(call, heard, failed, planned)
        events = _events(call, claimed.epoch, heard, reply)
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            mine = await settle_call(tx, call, claimed.epoch, reply, messages, [each.row for each in planned], events)
        await self._deps.live.wake(call.address.conversation_id)
        if not mine:
            return ModelReply(problem=_REFUSED[Claim.STALE])
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


def _reply(
    call: ModelCall, heard: _Heard, failed: Problem | None, planned: Sequence[Planned]
) -> tuple[ModelReply, list[NewMessage]]:
    """The settled reply, and the messages that it writes."""
    text = heard.whole
    partial = heard.stopped or failed is not None
    usage = heard.complete.usage if heard.complete else Usage(output_tokens=estimated_tokens(text))
    if partial and not text:
        return ModelReply(usage=usage, problem=failed or _REFUSED[Claim.STOPPED], partial=True), []
    message = NewMessage(
        new_id(),
        Role.ASSISTANT,
        text,
        calls=[each.on_message for each in planned],
        tokens=usage.output_tokens or estimated_tokens(text),
        partial=partial,
    )
    ref = MessageRef(
        id=message.id,
        role=Role.ASSISTANT,
        text=preview(text),
        tokens=message.tokens,
        calls=tuple(
            CallRef(
                call_id=each.row.call_id,
                tool=each.row.tool,
                digest=each.row.digest,
                settled=each.row.refused is not None,
            )
            for each in planned
        ),
    )
    problem = failed or (_REFUSED[Claim.STOPPED] if heard.stopped else None)
    reply = ModelReply(
        message=ref,
        extracted=extracted(call.ask.extract_pattern, text),
        usage=usage,
        problem=problem,
        partial=partial,
    )
    return reply, [message, *(each.message for each in planned if each.message is not None)]


def _events(call: ModelCall, epoch: int, heard: _Heard, reply: ModelReply) -> list[NewEvent]:
    events = []
    if heard.first_token_seconds is not None:
        events.append(NewEvent(TTFT, {"seconds": round(heard.first_token_seconds, 3)}, call.call_id))
    usage = reply.usage
    events.append(
        NewEvent(
            TOKEN_USAGE,
            {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            call.call_id,
        )
    )
    events.append(
        NewEvent(
            GENERATION_COMPLETE,
            {
                "attempt": epoch,
                "message_id": reply.message.id if reply.message else None,
                "characters": len(heard.whole),
                "partial": reply.partial,
                "tool_calls": [ref.tool for ref in reply.message.calls] if reply.message else [],
            },
            call.call_id,
        )
    )
    return events
