"""The beginning of a model call: claimed, its request put together, the day's budgets reserved; else its answer."""

import time
from dataclasses import dataclass, replace
from functools import partial

from pydantic import JsonValue

from activities.clients.provider import Provider, ProviderRequest
from activities.clients.usage import tokens_of_request
from activities.deps import Deps
from activities.prompting import prompt_of
from activities.requesting import request_of
from activities.spending import caps, count_lost, reserved_for_now
from contracts.agents import PublishedAgent
from contracts.errors import LimitReached, Problem, UpstreamRejected
from contracts.messages import MessageRef
from contracts.model import ModelCall, ModelReply
from policy.day_budget import RESERVED_TRIES, hold_of
from policy.ledger import Attempt, Claim
from policy.lost_attempts import assumed
from policy.refusals import REFUSED
from store import budgets
from store.database import Connection
from store.journal import write
from store.model_calls import ModelClaim, begin_call, claim_call


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that this attempt does."""

    call: ModelCall
    """With what joined the turn behind what the graph has handed it."""
    claimed: ModelClaim
    turn_began: float
    """The moment at which the turn was asked for, by this process's monotonic clock."""
    provider: Provider
    request: ProviderRequest
    asked_tokens: int
    """About how many the request has."""
    assembly: dict[str, JsonValue]
    """How the prompt was put together (activities/prompting.py)."""


async def begin(deps: Deps, call: ModelCall, agent: PublishedAgent, attempt: Attempt) -> Begun | ModelReply:
    """The call, begun; or what answers it where it is settled, refused, or met a budget.

    Raises: UpstreamUnavailable `day_budget_reserved`.
    """
    address = call.address
    try:
        while True:
            async with deps.db.transaction(address.tenant_id, address.turn_id) as tx:
                own, other = agent.definition.model, agent.definition.second_model
                claimed = await claim_call(tx, call, attempt, own, other)
                if claimed.verdict is Claim.REPLAY and claimed.reply is not None:
                    return claimed.reply
                if claimed.verdict is not Claim.ACT:
                    return ModelReply(problem=REFUSED[claimed.verdict])
                if not claimed.lost:
                    return await _begun(deps, tx, call, agent, attempt, claimed)
            await count_lost(deps.db, call)
    except (LimitReached, UpstreamRejected) as refused:
        if refused.details.get("reserved") and attempt.number < RESERVED_TRIES:
            raise reserved_for_now() from None
        return await _not_begun(deps, call, refused.as_problem())


async def _begun(
    deps: Deps, tx: Connection, call: ModelCall, agent: PublishedAgent, attempt: Attempt, claimed: ModelClaim
) -> Begun:
    turn_began = time.monotonic() - claimed.turn_seconds
    call = _hearing(call, claimed.joined.refs)
    prompt = await prompt_of(tx, call, agent, claimed)
    provider = await deps.models.provider(agent, claimed.model)
    request = request_of(deps.models, provider, call, agent, claimed, prompt.messages)
    asked, of_day = tokens_of_request(request), caps(agent, claimed)
    hold = hold_of(of_day, provider.most(request), claimed.model) if of_day else None
    claimed = replace(claimed, assumed=assumed(asked, partial(provider.cost_microusd, claimed.model), hold))
    await begin_call(tx, call, attempt, claimed)  # locks the conversation: what takes time has been done
    if hold is not None:
        await budgets.reserve(tx, call, of_day, hold)
    return Begun(call, claimed, turn_began, provider, request, asked, prompt.assembly)


async def _not_begun(deps: Deps, call: ModelCall, problem: Problem) -> ModelReply:
    """The answer of a call whose claim was rolled back; the events that came with it are written all the same."""
    if call.events:
        async with deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
            await write(tx, call.address, [], pending=call.events)
    return ModelReply(problem=problem)


def _hearing(call: ModelCall, joined: tuple[MessageRef, ...]) -> ModelCall:
    """The call with what joined the turn behind what the graph has handed it."""
    if not joined:
        return call
    return call.model_copy(update={"ask": call.ask.model_copy(update={"messages": (*call.ask.messages, *joined)})})
