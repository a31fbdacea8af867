"""Begins model calls: claims a call, builds its request and reserves the daily budgets, or returns the reply."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import JsonValue

from perdure.activities.dependencies import Deps
from perdure.activities.providers.errors import problem_of_both
from perdure.activities.providers.provider import Provider, ProviderRequest, tokens_of_request
from perdure.activities.providers.registry import Models
from perdure.contracts.agents import ANSWER_SECONDS, AgentDefinition, PublishedAgent
from perdure.contracts.calls import ModelCall, ModelReply, OutputForm
from perdure.contracts.errors import LimitReached, Problem, UpstreamRejected, UpstreamUnavailable
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.skills import Skill
from perdure.contracts.turns import Usage
from perdure.core.agents.models import default_past_tokens, instructions_of, is_sole_instruction, window_of
from perdure.core.agents.prompts import (
    PromptFacts,
    PromptMessage,
    User,
    WireMessage,
    persona_of,
    prompt_facts,
    skill_activation,
    skill_tier,
    system_prefix,
    template_messages,
    wire_messages,
    with_cache_breakpoint,
)
from perdure.core.agents.skills import cards_of_request
from perdure.core.agents.tool_rules import (
    ToolFunction,
    function_of,
    sent_messages,
    sent_output,
    sent_tools,
    tool_function,
)
from perdure.core.agents.toolsets import loaded_skills
from perdure.core.budgets import (
    PRICED_TOKENS,
    RESERVED_SECONDS,
    RESERVED_TRIES,
    Caps,
    affordable_tokens,
    caps_of,
    hold_of,
)
from perdure.core.calls.context_assembly import context_message
from perdure.core.calls.endings import continuation_note
from perdure.core.calls.ledger import PROBLEM_OF_CLAIM, Attempt, Claim
from perdure.core.calls.retries import assumed_usage
from perdure.core.text import without_word
from perdure.store import budgets
from perdure.store.calls import context_assembly as bundles
from perdure.store.calls import model_calls
from perdure.store.calls.model_calls import ModelClaim, begin_call, claim_call, write_begun
from perdure.store.database import Connection, Database
from perdure.store.events.event_log import message_texts, write
from perdure.store.memory import facts as entities
from perdure.store.turns import context as injections
from perdure.store.turns.context import Window, prompt_messages
from perdure.store.turns.steer import move_to_transcript, read_joined


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A call that this attempt runs."""

    call: ModelCall
    """The call, with messages added to the open turn after those from the graph."""
    claimed: ModelClaim
    turn_began: float
    """The moment when the turn was requested, by this process's monotonic clock."""
    provider: Provider
    request: ProviderRequest
    request_tokens: int
    """Estimated tokens of the request."""
    assembly: dict[str, JsonValue]
    """Facts about how the prompt was built, for the event `generation.complete`."""
    before: str = ""
    """The text of the message that this call continues."""


async def claim_model_call(
    deps: Deps, call: ModelCall, agent: PublishedAgent, attempt: Attempt
) -> BegunCall | ModelReply:
    """Begins the call. Returns the reply instead if the call is settled, rejected or over a budget.

    Raises: UpstreamUnavailable `day_budget_reserved`.
    """
    address = call.address
    try:
        while True:
            async with deps.db.transaction(address.tenant_id, address.turn_id) as tx:
                model, second_model = agent.definition.model, agent.definition.second_model
                claimed = await claim_call(tx, call, attempt, model, second_model)
                if claimed.verdict is Claim.REPLAY and claimed.reply is not None:
                    return claimed.reply
                if claimed.verdict is not Claim.ACT:
                    return ModelReply(problem=PROBLEM_OF_CLAIM[claimed.verdict])
                if not claimed.lost:
                    return await _begin(deps, tx, call, agent, attempt, claimed)
            await count_lost(deps.db, call)
    except (LimitReached, UpstreamRejected) as error:
        if error.details.get("reserved") and attempt.number < RESERVED_TRIES:
            raise budget_reserved() from None
        problem = error.as_problem()
        if isinstance(error, UpstreamRejected):
            problem = await with_first_problem(deps.db, call, agent.definition.second_model, problem)
        return await _reply_to_rejected(deps, call, problem)


async def _begin(
    deps: Deps, tx: Connection, call: ModelCall, agent: PublishedAgent, attempt: Attempt, claimed: ModelClaim
) -> BegunCall:
    turn_began = time.monotonic() - claimed.turn_seconds
    if claimed.is_joined:
        claimed = replace(claimed, joined=await read_joined(tx, call.address.turn_id, call.call_id))
    call = _with_joined(call, claimed.joined.refs)
    provider = await deps.models.provider(agent, claimed.model)
    context_tokens = provider.context_tokens(claimed.model)
    past_tokens = default_past_tokens(agent.definition, call.ask.stage, deps.window_tokens, context_tokens)
    prompt = await prompt_of(tx, call, agent, claimed, past_tokens)
    request = request_of(deps.models, provider, call, agent, claimed, prompt.messages)
    input_tokens, caps = tokens_of_request(request), daily_caps(agent, claimed)
    hold = hold_of(caps, provider.upper_bound(request), claimed.model) if caps else None
    claimed = replace(
        claimed, assumed=assumed_usage(input_tokens, partial(provider.cost_microusd, claimed.model), hold)
    )
    continued = call.ask.continues
    before = (await message_texts(tx, [continued])).get(continued, "") if continued else ""
    await begin_call(tx, call, attempt, claimed)
    # The conversation is locked from here on, after the turn and the ledger, so slow work is done before.
    new_messages = claimed.joined.fresh
    moved = (
        [await move_to_transcript(tx, call.address.conversation_id, call.call_id, new_messages)] if new_messages else []
    )
    await write_begun(tx, call, claimed, moved)
    if hold is not None:
        await budgets.reserve(tx, call, caps, hold)
    return BegunCall(call, claimed, turn_began, provider, request, input_tokens, prompt.assembly, before)


async def with_first_problem(db: Database, call: ModelCall, fallback_model: str, problem: Problem) -> Problem:
    """Returns the problem of a call together with that of the agent's own model, if the call continued with the
    fallback model; otherwise `problem`."""
    if not fallback_model:
        return problem
    async with db.transaction(call.address.tenant_id) as tx:
        first = await model_calls.first_problem(tx, call.address.turn_id, call.call_id)
    return problem if first is None else problem_of_both(first, problem, fallback_model)


async def _reply_to_rejected(deps: Deps, call: ModelCall, problem: Problem) -> ModelReply:
    """Returns the reply of a call whose claim was rolled back. The call's own events are still written."""
    if call.events:
        async with deps.db.transaction(call.address.tenant_id, call.address.turn_id) as tx:
            await write(tx, call.address, [], pending=call.events)
    return ModelReply(problem=problem)


def _with_joined(call: ModelCall, joined: tuple[MessageRef, ...]) -> ModelCall:
    """Returns the call with the messages that were added to the open turn, after those from the graph."""
    if not joined:
        return call
    return call.model_copy(update={"ask": call.ask.model_copy(update={"messages": (*call.ask.messages, *joined)})})


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages for the model, with facts about how they were built. It is built from references for each call. A
    turn that injects a skill marks it in the ledger and leaves no text for the next turn."""

    messages: list[WireMessage]
    assembly: dict[str, JsonValue]
    """Attributes of the event `generation.complete`, by span name."""


async def prompt_of(
    tx: Connection, call: ModelCall, agent: PublishedAgent, claimed: ModelClaim, past_tokens: int | None
) -> Prompt:
    """Returns the request's messages in order: prefix, memory, templates of the loaded skills, messages of the
    conversation. Those of earlier turns have at most about `past_tokens` tokens.

    Effects: marks the skills that this turn injects, if there are any.
    """
    definition, override = _with_persona(agent, claimed.persona).definition, claimed.system_prompt
    user = User(str(call.ask.prompt.get("name", "")), str(call.ask.prompt.get("role", "")))
    refs = {ref.skill_id: ref for ref in call.ask.messages if ref.skill_id}
    loaded = loaded_skills(definition, refs)
    texts = await _injected_texts(tx, call, [skill for skill in loaded if skill.id in refs], refs) if refs else {}
    window = Window(window_of(definition, call.ask.stage), past_tokens, compacted=claimed.compacted)
    kept = await prompt_messages(tx, call, claimed.past, window, texts)
    conversation = [_without_bypass(message, definition.words.get("bypass", "")) for message in kept.messages]
    if call.ask.continues is not None:  # after the window, which keeps the newest message: the one that was cut
        conversation.append(PromptMessage(Role.USER, continuation_note(call.ask.continues)))
    if is_sole_instruction(definition, call.ask.stage):
        return Prompt(
            wire_messages(instructions_of(definition, call.ask.stage), "", conversation, model=claimed.model),
            {"stage": call.ask.stage, "prompt.assemble": {"left_out_count": kept.left_out}},
        )
    # A caller's own prompt is used unchanged, without the additions of the agent's skills.
    templates = [] if override else template_messages(definition, loaded, user)
    instructions = instructions_of(definition, call.ask.stage)
    templates += [instructions] if instructions else []
    persona = persona_of(definition)
    # built once per call, because it is as long as the manifest of all skills
    base = system_prefix(definition, persona, user, override)
    context = await _context_texts(tx, call) if call.ask.sections or call.ask.guidance else []
    messages = wire_messages(base, claimed.memory_text or "", conversation, [*templates, *context], claimed.model)
    facts = prompt_facts(persona, base, templates, overridden=bool(override), left_out_count=kept.left_out)
    assembly = _assembly_facts(call, definition, persona.key, facts, loaded)
    return Prompt(with_cache_breakpoint(messages, claimed.model), assembly)


def _with_persona(agent: PublishedAgent, persona: str) -> PublishedAgent:
    """Returns the agent with this persona instead of its own, for one prompt."""
    if not persona:
        return agent
    definition = agent.definition
    changes = {"persona": persona, "persona_key": definition.persona_template}
    return agent.model_copy(update={"definition": definition.model_copy(update=changes)})


def _without_bypass(message: PromptMessage, bypass: str) -> PromptMessage:
    """Removes the bypass word from a user's message: it is for the engine, not for the model."""
    if message.role is not Role.USER:
        return message
    return replace(message, content=without_word(message.content, bypass) or message.content)


async def _context_texts(tx: Connection, call: ModelCall) -> list[str]:
    """Returns the results of the turn's context assembly, and the guidance for them."""
    outputs = await bundles.read_outputs(tx, call.address.conversation_id, call.ask.sections)
    return [text for text in (context_message(outputs), call.ask.guidance) if text]


async def _injected_texts(
    tx: Connection, call: ModelCall, skills: Sequence[Skill], refs: dict[str, MessageRef]
) -> dict[str, str]:
    """Returns the injected skills' texts by id, each with the known facts of its entities. Marks the skills that this
    turn loaded in the ledger."""
    await mark_loaded(tx, call, [skill for skill in skills if not refs[skill.id].carried])
    entities_named = {reference for ref in refs.values() for reference in ref.entities}
    known_facts = await entities.referred_entities(tx, sorted(entities_named)) if entities_named else {}
    return {
        skill.id: skill_activation(
            skill, "\n".join(known_facts[entity] for entity in refs[skill.id].entities if entity in known_facts)
        )
        for skill in skills
    }


async def mark_loaded(tx: Connection, call: ModelCall, skills: Sequence[Skill]) -> None:
    """Marks in the ledger that this turn loaded these skills. The conversation keeps them."""
    for tier in sorted({skill_tier(skill) for skill in skills}):
        skill_ids = [skill.id for skill in skills if skill_tier(skill) == tier]
        await injections.mark_injected(tx, call.address, skill_ids, tier)


def _assembly_facts(
    call: ModelCall, definition: AgentDefinition, persona_key: str, facts: PromptFacts, loaded: Sequence[Skill]
) -> dict[str, JsonValue]:
    blocks = {block.name for skill in definition.skills for block in skill.blocks}
    from_skills = sum(1 for name in call.ask.tools if name in blocks)
    return {
        "agent.resolve_definition": {"persona": persona_key},
        "prompt.assemble": {
            "persona_key": facts.persona_key,
            "persona_source": facts.persona_source,
            "context_template_count": facts.context_template_count,
            "user_identity_injected": facts.user_identity_injected,
            "token_estimate": facts.token_estimate,
            "left_out_count": facts.left_out_count,
        },
        "tools.assemble": {
            "core_capability_count": len(call.ask.tools) - from_skills,
            "skill_exposed_tool_count": from_skills,
            "total_tools_visible": len(call.ask.tools),
            "skills_loaded": [skill.id for skill in loaded],
        },
    }


def request_of(
    models: Models,
    provider: Provider,
    call: ModelCall,
    agent: PublishedAgent,
    claimed: ModelClaim,
    messages: Sequence[WireMessage],
) -> ProviderRequest:
    """Returns the provider's request, in a form that the model's provider accepts. Its answer is interrupted when the
    turn's limits are used up."""
    tools = _tools(call, agent)
    sent = sent_tools(tools, claimed.model)
    models.warn_of_unsent(agent, sent.left_out)
    request = ProviderRequest(
        model=claimed.model,
        messages=sent_messages(messages, claimed.model, tools),
        tools=sent.tools,
        params=models.params(agent, call.ask.stage, on_fallback=claimed.on_fallback),
        output=sent_output(call.ask.output, claimed.model),
        reasoning=agent.definition.reasoning,
        timeout_seconds=call.ask.timeout_seconds or agent.definition.answer_seconds or ANSWER_SECONDS,
        idempotency_key=f"{call.address.turn_id}.{call.call_id}",
        continues=bool(call.ask.continues),
    )
    token_price = provider.cost_microusd(claimed.model, Usage(output_tokens=PRICED_TOKENS))
    return replace(request, max_tokens=affordable_tokens(claimed.most_tokens, claimed.left_microusd, token_price))


def _tools(call: ModelCall, agent: PublishedAgent) -> tuple[ToolFunction, ...]:
    """Returns the functions that the model can call: the offered tools, or the function for structured output."""
    output = call.ask.output
    if output is not None:
        description = "Give your answer by calling this once."
        return (function_of(output.name, description, output.fits),) if output.form is OutputForm.FUNCTION else ()
    return tuple(map(tool_function, cards_of_request(agent, call.ask.tools, call.ask.toolsets or {})))


def daily_caps(agent: PublishedAgent, claimed: ModelClaim) -> Caps:
    """Returns the daily limits that apply to this call. A claim reserves its share, and settling replaces the
    reservation by the real usage. If neither the agent nor its tenant has daily limits, no statement is run. An attempt
    that never reported back is counted, with its reservation, before its call is taken over."""
    return caps_of(agent.definition, claimed.day_limits, claimed.published_limits)


async def count_lost(db: Database, call: ModelCall) -> None:
    """Counts a lost attempt of this call, one that never reported back, with the usage that its claim assumed."""
    address = call.address
    async with db.transaction(address.tenant_id, address.turn_id, then=budgets.TO_CHARGE) as tx:
        lost = await model_calls.count_lost(tx, address.turn_id, call.call_id)
        await model_calls.charge_lost(tx, address.turn_id, lost)


def budget_reserved() -> UpstreamUnavailable:
    """Returns the error of a claim that other calls' reservations block. Temporal retries it."""
    message = "running calls have reserved the rest of the daily budget; this call waits for them"
    return UpstreamUnavailable("day_budget_reserved", message, retry_after_seconds=RESERVED_SECONDS)
