"""The activity `model.complete`: claims a model call, streams the answer and settles it. A settled call returns its
stored reply and is never billed again."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Self

from pydantic import JsonValue
from temporalio import activity

from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard, cancelled_by_stop, current_attempt, to_temporal, uncancelled
from perdure.activities.model_answer import (
    CallPlans,
    StreamAccumulator,
    events_of,
    plan_calls,
    reply_of,
    structured_reply,
    with_model,
)
from perdure.activities.model_request import BegunCall, claim_model_call, mark_loaded, with_first_problem
from perdure.activities.providers.errors import CONTEXT_OVERFLOW, problem_of
from perdure.activities.providers.provider import Complete, TextDelta, TextWasThinking, ThinkingDelta
from perdure.activities.working_memory import save_loaded_toolsets
from perdure.contracts.activities import RetryClass
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.approvals import RepeatRefused
from perdure.contracts.calls import ModelCall, ModelReply
from perdure.contracts.errors import PerdureError, Problem, UpstreamUnavailable
from perdure.contracts.events import RATE_LIMIT, TRANSIENT_ERROR
from perdure.contracts.turns import TurnAddress, Usage
from perdure.core.agents.models import has_other_key
from perdure.core.agents.skill_markers import MarkerFilter
from perdure.core.calls.endings import length_rule, output_limit
from perdure.core.calls.ledger import PROBLEM_OF_CLAIM, Attempt, Claim
from perdure.core.calls.retries import FALLBACK_SECONDS, NUMBERS, PROVIDER_ERRORS, errors_allowed, gives_up, next_delay
from perdure.store import budgets
from perdure.store.approvals.verdicts import RefusedCalls, refused_calls
from perdure.store.calls import model_calls
from perdure.store.calls.model_calls import ModelClaim, settle_call
from perdure.store.events.event_log import NewEvent, NewMessage
from perdure.store.events.live import AppendResult, LiveTokens
from perdure.store.memory import working_memory

FLUSH_SECONDS = 0.04
"""The interval of appends: 32k tokens/s were measured in batches against 4k one by one."""
BATCH_CHARACTERS = 256
"""A batch of this length is sent immediately."""
MAX_PIECE_CHARACTERS = 16_384
"""Longer text is sent in pieces, because a reader that is far behind receives it piece by piece
(perdure/store/events/live.py)."""
_MAX_WAITING_CHARACTERS = 65_536
"""Waiting text above this length does make the answer wait: a provider that never pauses would block all other work."""


class ModelActivities:
    """The model calls of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="model.complete")
    async def complete(self, call: ModelCall) -> ModelReply:
        """Runs one model call.

        Effects: at most one provider request per attempt; messages, planned tool calls, usage and events on settle.
        Retry: safe; the ledger's epoch decides whose result counts.
        """
        async with activity_guard():
            agent = await self._agent(call)
            begun = await claim_model_call(self._deps, call, agent, Attempt(*current_attempt()))
            if isinstance(begun, ModelReply):
                return begun
            call, claimed = begun.call, begun.claimed
            self._deps.live.wake(call.address.conversation_id)
            received = _new_accumulator(begun, agent)
            failed: Problem | None = None
            try:
                async with self._deps.stops.interruptible(call.address.turn_id) as interruption:
                    await self._stream_answer(begun, received)
                received.stopped = received.stopped or interruption.stopped
            except asyncio.CancelledError:
                received.stopped = True
                if not cancelled_by_stop():  # this worker drains: another one takes over the call
                    await uncancelled(self._count_attempt(call, claimed, received.usage))
                    raise
            except PerdureError as error:
                received.explain(error)
                failed = problem_of(error, claimed.model)
                received.note_error(error)
                await self._retry_if_possible(begun, agent, received, error)
                if claimed.on_fallback:
                    failed = await with_first_problem(self._deps.db, call, claimed.model, failed)
            # A billed answer is recorded even if a stop arrives in the meantime.
            return await uncancelled(self._settle(begun, agent, received, failed))

    async def _agent(self, call: ModelCall) -> PublishedAgent:
        """Returns the version that the turn pinned. Imports the packages of its models, while no row is locked."""
        agent = self._deps.agent_cache.cached(call.agent_version)
        if agent is None:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                agent = await self._deps.agent_cache.read_pinned(tx, call.agent_id, call.agent_version)
        await self._deps.models.ensure_imported(agent)
        return agent

    async def _stream_answer(self, begun: BegunCall, received: StreamAccumulator) -> None:
        """Streams the provider's answer. Live tokens are sent as they arrive, fenced by the epoch."""
        call = begun.call
        requested_at = time.monotonic()
        async with (
            TokenPublisher(self._deps.live, call.address, call.call_id, begun.claimed.epoch) as publisher,
            aclosing(begun.provider.stream(begun.request)) as chunks,
        ):
            async for chunk in chunks:
                may_continue = True
                if isinstance(chunk, TextDelta):
                    if received.first_token_seconds is None:
                        received.first_token_seconds = time.monotonic() - requested_at
                    shown = received.add_text(chunk.text)
                    may_continue = call.ask.output is not None or not shown or await publisher.publish_text(shown)
                elif isinstance(chunk, ThinkingDelta):
                    received.add_thinking(chunk.text, time.monotonic() - requested_at)
                    may_continue = await publisher.publish_thinking(chunk.text)
                elif isinstance(chunk, TextWasThinking):
                    received.void_text(chunk.text, time.monotonic() - requested_at)
                elif isinstance(chunk, Complete):
                    received.complete = chunk
                if not may_continue:
                    received.stopped = True
                    return
            if received.markers is not None and (rest := received.markers.rest()):
                await publisher.publish_text(rest)

    async def _retry_if_possible(
        self, begun: BegunCall, agent: PublishedAgent, received: StreamAccumulator, error: PerdureError
    ) -> None:
        """Ends this attempt if another attempt can answer: with the same model, with half of the conversation, or with
        the agent's other model. Otherwise the error is the call's answer. The fallback model is retried only with half
        of the conversation: its window can be the smaller one.

        Raises: ApplicationError, after which Temporal starts the next attempt.
        """
        call, claimed, message = begun.call, begun.claimed, error.as_problem().message
        compacts = error.code == CONTEXT_OVERFLOW and not (claimed.compacted or call.strict)
        if compacts:
            error = UpstreamUnavailable(
                CONTEXT_OVERFLOW, "the prompt is too long for the model; retrying with half of it"
            )
        fallback_model = "" if claimed.on_fallback or call.strict else agent.definition.second_model
        other_key = bool(fallback_model) and has_other_key(agent.definition, call.ask.stage)
        errors = claimed.errors + 1
        if fallback_model and gives_up(error.code, retryable=error.retryable, errors=errors, other_key=other_key):
            error = UpstreamUnavailable(error.code, message, error.details, retry_after_seconds=FALLBACK_SECONDS)
            await self._record_retry(call, error, claimed, received, fallback_model=fallback_model)
            raise to_temporal(error) from None
        attempts_left = errors < errors_allowed(strict=call.strict) and not claimed.on_fallback
        if compacts or (error.retryable and attempts_left):
            await self._record_retry(call, error, claimed, received)
            raise to_temporal(error) from None  # Temporal would store the vendor's text

    async def _record_retry(
        self,
        call: ModelCall,
        error: PerdureError,
        claimed: ModelClaim,
        received: StreamAccumulator,
        *,
        fallback_model: str = "",
    ) -> None:
        problem = error.as_problem()
        numbers, attempt = NUMBERS[RetryClass.PROVIDER], current_attempt()[1]
        wait = next_delay(problem.retry_after_seconds) or numbers.wait_before(attempt + 1)
        kind = RATE_LIMIT if problem.code == "model_rate_limited" else TRANSIENT_ERROR
        event = NewEvent(
            kind,
            {
                "code": problem.code,
                "retry_in": wait.total_seconds(),
                "attempt": claimed.errors + 1,
                "max_retries": PROVIDER_ERRORS - 1,
                **(_first_problem(error, claimed.model, fallback_model) if fallback_model else {}),
            },
            call.call_id,
        )
        compact, fall_back = problem.code == CONTEXT_OVERFLOW, bool(fallback_model)
        text = "" if call.ask.output is not None else received.full_text
        await self._count_attempt(call, claimed, received.usage, event, compact=compact, fall_back=fall_back, text=text)

    async def _count_attempt(
        self,
        call: ModelCall,
        claimed: ModelClaim,
        used: Usage,
        failed: NewEvent | None = None,
        *,
        compact: bool = False,
        fall_back: bool = False,
        text: str = "",
    ) -> None:
        """Counts the usage of this attempt when another one follows."""
        address = call.address
        async with self._deps.db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
            await model_calls.count(tx, call, claimed, used, failed, compact=compact, fall_back=fall_back, text=text)

    async def _settle(
        self, begun: BegunCall, agent: PublishedAgent, received: StreamAccumulator, failed: Problem | None
    ) -> ModelReply:
        call, claimed = begun.call, begun.claimed
        if call.ask.output is not None:
            reply = structured_reply(call.ask.output, received, failed)
            return await self._write_reply(begun, agent, received, CallPlans(()), reply, [])
        drafts = received.complete.tool_calls if received.complete and not received.stopped and failed is None else ()
        # On a thread: tool schemas come from any source, and validating each of 64 calls may take a second.
        asked, sent = with_model(agent, begun.request.model), begun.request.tool_names
        unread = received.complete is not None and received.complete.has_unread_calls
        plans = CallPlans(())
        if drafts:
            refused = await self._refused_calls(call, agent) if claimed.has_requests else {}
            plans = await asyncio.to_thread(plan_calls, call, asked, drafts, sent, has_unread=unread, refused=refused)
        stated, params = agent.definition.on_length, begun.request.params
        ending = received.ending(call, length_rule(stated, params))
        thought = received.thinking_characters > 0
        limit = output_limit(stated, params, has_text=received.has_text, thought=thought)
        reply, messages = reply_of(call, received, failed, plans.calls, ending, limit)
        reply = reply.model_copy(update={"joined": claimed.joined.refs})
        return await self._write_reply(begun, agent, received, plans, reply, messages)

    async def _refused_calls(self, call: ModelCall, agent: PublishedAgent) -> RefusedCalls:
        """Returns the calls of the turn that are answered with their refusal, if its agent does not ask again."""
        if agent.definition.approvals.repeat_refused is RepeatRefused.ASK:
            return {}
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            return await refused_calls(tx, call.address.turn_id)

    async def _write_reply(
        self,
        begun: BegunCall,
        agent: PublishedAgent,
        received: StreamAccumulator,
        plans: CallPlans,
        reply: ModelReply,
        messages: list[NewMessage],
    ) -> ModelReply:
        call, claimed = begun.call, begun.claimed
        events = events_of(call, claimed.epoch, received, reply, plans.calls)
        address = call.address
        async with self._deps.db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
            if plans.loaded is not None:
                await working_memory.lock_writes(tx, address.conversation_id, address.turn_id)
            rows = [plan.row for plan in plans.calls]
            settled = await settle_call(tx, call, claimed, reply, messages, rows, events)
            if plans.loaded is not None and settled.mine:
                await save_loaded_toolsets(tx, call, plans.loaded)
            if plans.skill_ids and settled.mine:
                await mark_loaded(tx, call, [each for each in agent.definition.skills if each.id in plans.skill_ids])
            if not settled.mine:  # the provider's answer is billed, whichever attempt counts
                await model_calls.correct(tx, call, claimed, reply.usage)
            if settled.counted:
                known = budgets.NO_USAGE - claimed.assumed if settled.was_lost else budgets.NO_USAGE
                used = reply.usage - claimed.assumed if settled.was_lost else reply.usage
                await budgets.charge(tx, address.turn_id, call.call_id, claimed.epoch, used, known)
        self._deps.live.wake(call.address.conversation_id)
        if not settled.mine:
            return ModelReply(problem=PROBLEM_OF_CLAIM[Claim.STALE])
        return reply.model_copy(update={"turn_used": settled.turn_used})


def _first_problem(error: PerdureError, model: str, fallback_model: str) -> dict[str, JsonValue]:
    """Returns the data of the event of a call that continues with the fallback model. If that fails too, the turn's
    error includes it (`model_calls.first_problem`)."""
    problem = problem_of(error, model)
    return {
        "model": model,
        "fallback_model": fallback_model,
        "message": problem.message,
        **({"details": problem.details} if problem.details else {}),
    }


def _new_accumulator(begun: BegunCall, agent: PublishedAgent) -> StreamAccumulator:
    """Returns the state of an attempt at the moment of its request."""
    known = frozenset(skill.id for skill in agent.definition.skills)
    return StreamAccumulator(
        markers=MarkerFilter(known) if known and begun.call.ask.skill_marks else None,
        turn_seconds=time.monotonic() - begun.turn_began,
        assembly=begun.assembly,
        before=begun.before,
        request_tokens=begun.request_tokens,
        price=partial(begun.provider.cost_microusd, begun.claimed.model),
    )


class TokenPublisher:
    """Sends a call's text and reasoning to its readers as they arrive. The end of `async with` sends the rest. The
    first token is sent immediately, then batches, fenced by the call's epoch. Sending never delays the answer: batches
    are sent while the stream continues, one append at a time, and later tokens go into the next batch. If Valkey is
    slow, batches grow and the answer does not wait."""

    def __init__(self, live: LiveTokens, address: TurnAddress, call_id: str, epoch: int) -> None:
        self._live = live
        self._address = address
        self._call_id = call_id
        self._epoch = epoch
        self._sent_characters = 0
        self._thought_characters = 0
        self._waiting: list[tuple[bool, str]] = []
        """Pairs of (is it reasoning, piece). Adjacent pieces of one kind are joined when they are sent."""
        self._waiting_characters = 0
        self._last_flush = float("-inf")
        self._may_continue = True
        self._ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the last append, so that the settlement commits after it, whatever the end of the call.
        perdure/core/events/stream.py relies on this order."""
        self._ending = True
        self._cancel_timer()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if error is None:
            await self._send()

    async def publish_text(self, text: str) -> bool:
        """Sends `text` soon, even if nothing follows. Returns False if the turn was stopped or a later attempt took
        over."""
        return await self._enqueue(thinking=False, text=text)

    async def publish_thinking(self, text: str) -> bool:
        """Sends a piece of the model's reasoning in the same way as `publish_text`."""
        return await self._enqueue(thinking=True, text=text)

    async def _enqueue(self, *, thinking: bool, text: str) -> bool:
        self._waiting.append((thinking, text))
        self._waiting_characters += len(text)
        if self._sending is None:
            self._schedule()
            await asyncio.sleep(0)  # lets the batch be sent even if the provider never pauses
        elif self._waiting_characters > _MAX_WAITING_CHARACTERS:
            await asyncio.wait([self._sending])
        return self._may_continue

    def _schedule(self) -> None:
        """Schedules sending of the waiting text for when it is due. Call it only if nothing is being sent."""
        due_at = self._last_flush + FLUSH_SECONDS
        if self._waiting_characters >= BATCH_CHARACTERS or asyncio.get_running_loop().time() >= due_at:
            self._start_sending()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_at, self._start_sending)

    def _start_sending(self) -> None:
        self._cancel_timer()
        self._sending = asyncio.create_task(self._send_then_schedule())

    async def _send_then_schedule(self) -> None:
        try:
            await self._send()
        finally:
            self._sending = None
        if self._waiting and not self._ending:
            self._schedule()

    async def _send(self) -> None:
        """Sends the waiting text in order."""
        waiting, self._waiting, self._waiting_characters = self._waiting, [], 0
        self._last_flush = asyncio.get_running_loop().time()
        for thinking, text in _pieces(waiting):
            result = await self._live.append(
                self._address,
                self._call_id,
                epoch=self._epoch,
                sequence=self._sent_characters,
                text=text,
                thinking=thinking,
                thought=self._thought_characters,
            )
            if thinking:
                self._thought_characters += len(text)
            else:
                self._sent_characters += len(text)
            self._may_continue = self._may_continue and result not in (AppendResult.STALE, AppendResult.STOPPED)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _pieces(waiting: list[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    """Yields adjacent texts of one kind as one piece, and long ones in parts."""
    for thinking, texts in groupby(waiting, key=itemgetter(0)):
        text = "".join(piece for _, piece in texts)
        for start in range(0, len(text), MAX_PIECE_CHARACTERS):
            yield thinking, text[start : start + MAX_PIECE_CHARACTERS]
