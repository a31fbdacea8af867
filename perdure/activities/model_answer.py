"""Collects a model's answer and builds the records of it: the reply, its messages and its events."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from perdure.activities.providers.errors import BILLED_ERRORS
from perdure.activities.providers.provider import Complete, DraftCall
from perdure.contracts.agents import OnLength, PublishedAgent, ToolCard
from perdure.contracts.calls import CallState, ModelCall, ModelReply, OutputAsk, OutputForm, ToolOutcome
from perdure.contracts.errors import PerdureError, Problem
from perdure.contracts.events import (
    GENERATION_COMPLETE,
    THINKING_COMPLETE,
    TOKEN_USAGE,
    TOOL_DENIED,
    TOOL_ERROR,
    TOOL_RESULT,
    TTFT,
)
from perdure.contracts.ids import effect_key, tool_call_id
from perdure.contracts.messages import CallRef, MessageRef, Role
from perdure.contracts.turns import Usage
from perdure.contracts.values import canonical_json, digest_of
from perdure.core.agents.skill_markers import MarkerFilter, selected_skills
from perdure.core.agents.skills import (
    LOAD_SKILL,
    SKILL_ARGUMENT,
    SkillResult,
    cards_of_request,
    load_skill,
    skill_loader_card,
    skill_of_block,
)
from perdure.core.agents.tool_rules import UnsentTool, own_name, sent_name, sent_tools, tool_function, unsent_sentences
from perdure.core.agents.tool_schemas import replaced_properties
from perdure.core.agents.toolsets import (
    LOAD_ARGUMENTS,
    LOAD_TOOLSET,
    LoadResult,
    load,
    loader_card,
    offered_cards,
)
from perdure.core.agents.wire_ids import stored_id
from perdure.core.calls.arguments import extract_groups, parse_arguments, read_object, replayed_arguments
from perdure.core.calls.endings import NO_OBJECT, OUTPUT_LIMIT, Ending, ending_of, problem_of_cut
from perdure.core.calls.ledger import STOPPED
from perdure.core.text import CHARACTERS_A_TOKEN, estimated_tokens, preview
from perdure.store.approvals.verdicts import RefusedCalls
from perdure.store.calls.model_calls import PlannedCall
from perdure.store.database import new_id
from perdure.store.events.event_log import NewEvent, NewMessage

_UNSAFE_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
"""Providers reject every later request that repeats a name with such a character."""
MAX_CALLS = 64
"""Maximum number of calls of one answer that run. Each of the others is an error that the
model receives and an event."""
_NOT_RUN = f"not run: more than {MAX_CALLS} calls in one answer; ask for them again"
_NOT_READ = f"{_NOT_RUN}. There were more calls after this one, which were not read: ask for those again too"
_ONLY_THOUGHT = "The model returned reasoning but no answer. Raise `max_tokens`, or lower the agent's `reasoning`."
MAX_THINKING_CHARACTERS = 16_384
"""Maximum length of a call's reasoning that is stored. Longer reasoning is streamed and counted, but the rest is not
stored."""


_EVENTS = {CallState.DONE.value: TOOL_RESULT, CallState.DENIED.value: TOOL_DENIED}


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call: its ledger row, its entry in the assistant message, and its error message if it cannot run."""

    row: PlannedCall
    entry: dict[str, JsonValue]
    message: NewMessage | None
    fault: str
    """The reason why it cannot run; empty if it can."""
    ref: CallRef
    """The reference that the graph receives."""

    @property
    def event(self) -> NewEvent | None:
        """The event of a call that was settled when it was planned, or None."""
        if self.row.outcome is None or self.message is None:
            return None
        kind = _EVENTS.get(str(self.row.outcome["state"]), TOOL_ERROR)
        data: dict[str, JsonValue] = {"tool": self.row.tool, "result": preview(self.message.content)}
        data |= {"message_id": self.message.id} | ({"message": preview(self.fault)} if self.fault else {})
        return NewEvent(kind, data, self.row.call_id)


@dataclass(frozen=True, slots=True)
class CallPlans:
    calls: tuple[CallPlan, ...]
    loaded: dict[str, bool] | None = None
    """The toolsets that are loaded after these calls; None if the calls load none."""
    skill_ids: tuple[str, ...] = ()
    """The skills that these calls load."""


def plan_calls(
    call: ModelCall,
    agent: PublishedAgent,
    drafts: Sequence[DraftCall],
    sent: Collection[str],
    *,
    has_unread: bool = False,
    refused: RefusedCalls | None = None,
) -> CallPlans:
    """Returns the calls of a model's answer in its order, with Perdure's ids. `sent` are the names of the tools in its
    request. No other tool runs, not even one of the agent's. The agent has the model that answered (`with_model`).
    With `has_unread`, the answer had more calls than `drafts`. A call among the `refused` ones gets its refusal again.

    Names are checked, and arguments are parsed and validated, once. A call that cannot run fails immediately, with an
    error message for the model. So every tool call has an answer, and reviewers are not asked about a call that could
    not run. A call that loads a toolset is answered immediately too: its result depends on values only
    (perdure/core/agents/toolsets.py), so the graph needs no further hop.
    """
    step = int(call.call_id.removeprefix("m"))
    before = loaded = dict(call.ask.toolsets or {})
    planned, skill_ids = [], list[str]()
    skills = [ref.skill_id for ref in call.ask.messages if ref.skill_id]
    offered = {own_name(name, call.ask.tools) for name in sent}
    for index, draft in enumerate(drafts):
        call_id = tool_call_id(step, index)
        draft = replace(draft, name=own_name(draft.name, call.ask.tools))
        if index >= MAX_CALLS:
            message = _NOT_READ if has_unread and index == len(drafts) - 1 else _NOT_RUN
            planned.append(_plan_excess(call, agent, draft, call_id, message))
        elif draft.name == LOAD_TOOLSET and LOAD_TOOLSET in offered:
            loading, plan = _plan_loading(call, agent, draft, call_id, loaded)
            loaded = loading.loaded
            planned.append(plan)
        elif draft.name == LOAD_SKILL and LOAD_SKILL in offered and agent.card(LOAD_SKILL) is None:
            result, plan = _plan_skill(call, agent, draft, call_id, [*skills, *skill_ids])
            skill_ids += result.skill_ids
            planned.append(plan)
        else:
            planned.append(_plan_tool(call, agent, draft, call_id, offered, refused or {}))
    return CallPlans(tuple(planned), None if loaded == before else loaded, tuple(skill_ids))


def _plan_tool(
    call: ModelCall,
    agent: PublishedAgent,
    draft: DraftCall,
    call_id: str,
    offered: Collection[str],
    refused: RefusedCalls,
) -> CallPlan:
    card = agent.card(draft.name) if draft.name in offered else None
    args: dict[str, JsonValue] = {}
    if card is None:
        fault: str | None = _not_offered(call, agent, draft.name, offered)
    else:
        parsed = parse_arguments(draft.raw_arguments, card.parameters)
        args, fault = parsed.args, parsed.fault
        refusal = refused.get((card.name, card.version, digest_of(args)))
        if refusal is not None and fault is None:
            return _build_plan(call, card, draft, call_id, args, (CallState.DENIED, refusal))
    answer: dict[str, JsonValue] | None = {"status": "error", "message": fault} if fault else None
    return _build_plan(call, card, draft, call_id, args, (CallState.FAILED, answer) if answer else None)


def _plan_excess(call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str, message: str) -> CallPlan:
    """Plans a call that does not run. Its arguments are kept, so that the model sees its own request."""
    card = agent.card(draft.name)
    replaced = {} if card is None else replaced_properties(card.parameters)
    own_names: dict[str, JsonValue] = {name: {} for name in replaced.values()}
    parsed = parse_arguments(draft.raw_arguments, {"type": "object", "properties": own_names})
    answer: dict[str, JsonValue] = {"status": "error", "message": message}
    return _build_plan(call, card, draft, call_id, parsed.args, (CallState.FAILED, answer))


def with_model(agent: PublishedAgent, model: str) -> PublishedAgent:
    """Returns the agent with this model: the rules of its provider decide which tools are sent."""
    return agent.model_copy(update={"definition": agent.definition.model_copy(update={"model": model})})


def _plan_loading(
    call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str, loaded: dict[str, bool]
) -> tuple[LoadResult, CallPlan]:
    parsed = parse_arguments(draft.raw_arguments, {"type": "object"})
    if parsed.fault is not None:
        loading = LoadResult(loaded, {"status": "error", "message": parsed.fault}, done=False)
    else:
        loading = _without_unsent(load(parsed.args, agent.cards, loaded), call, agent, loaded)
    state = CallState.DONE if loading.done else CallState.FAILED
    plan = _build_plan(call, loader_card(agent.cards), draft, call_id, parsed.args, (state, loading.result))
    return loading, plan


def _plan_skill(
    call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str, loaded: Sequence[str]
) -> tuple[SkillResult, CallPlan]:
    card = skill_loader_card(agent.definition.skills)
    parsed = parse_arguments(draft.raw_arguments, {"type": "object"})
    if parsed.fault is not None:
        result = SkillResult({"status": "error", "message": parsed.fault})
    else:
        result = load_skill(parsed.args, agent.definition, loaded)
    state = CallState.DONE if result.done else CallState.FAILED
    return result, _build_plan(call, card, draft, call_id, parsed.args, (state, result.result))


def _without_unsent(
    loading: LoadResult, call: ModelCall, agent: PublishedAgent, before: Mapping[str, bool]
) -> LoadResult:
    """Returns the result of a load with the tools that the model is not sent because of it. They are new tools, or
    tools that it had `before`."""
    new: Any = loading.result.get("new_tools", [])
    known = {each.tool for each in _unsent(call, agent, before)}
    unsent = [each for each in _unsent(call, agent, loading.loaded) if each.tool not in known]
    if not unsent:
        return loading
    missing: list[JsonValue] = [each.tool for each in unsent]
    available = [name for name in new if name not in missing]
    message = "; ".join(unsent_sentences(unsent))
    return replace(
        loading, result={**loading.result, "new_tools": available, "not_available": missing, "message": message}
    )


def _unsent(call: ModelCall, agent: PublishedAgent, loaded: Mapping[str, bool]) -> tuple[UnsentTool, ...]:
    """Returns the tools that the model is not sent while these toolsets are loaded."""
    offered = offered_cards([card for card in agent.cards if card.toolset], loaded)
    cards = cards_of_request(agent, {*call.ask.tools, *offered}, loaded)
    return sent_tools(list(map(tool_function, cards)), agent.definition.model).left_out


def _not_offered(call: ModelCall, agent: PublishedAgent, name: str, offered: Collection[str]) -> str:
    card, skill_id = agent.card(name), skill_of_block(agent.definition, name)
    if card is not None and card.name in call.ask.tools:
        return f"{card.name} is not available, because the model's provider does not accept it"
    if card is not None and card.toolset and LOAD_TOOLSET in call.ask.tools:
        return f"{card.name} is in the toolset {card.toolset}, which is not loaded; call {LOAD_TOOLSET} first"
    if skill_id and name not in call.ask.tools:
        how = f"call {LOAD_SKILL} with it" if LOAD_SKILL in call.ask.tools else f"write SKILL_SELECT:{skill_id}"
        return f"{name} belongs to the skill {skill_id}, which is not loaded; {how} first"
    available = ", ".join(each for each in call.ask.tools if each in offered)
    return f"there is no tool {name[:64]!r}; available tools: {available}"


def _build_plan(
    call: ModelCall,
    card: ToolCard | None,
    draft: DraftCall,
    call_id: str,
    args: dict[str, JsonValue],
    answer: tuple[CallState, dict[str, JsonValue]] | None,
) -> CallPlan:
    """Builds the planned call. A call with an `answer` is settled at once."""
    outcome, message = _answer(call_id, *answer) if answer else (None, None)
    row = PlannedCall(
        call_id=call_id,
        key=effect_key(call.address.turn_id, call_id),
        tool=_UNSAFE_CHARACTER.sub("_", draft.name)[:64] or "unnamed",
        tool_version=card.version if card else "",
        effect=_effect(card),
        provider_call_id=stored_id(draft.provider_id),
        args=args,
        digest=digest_of(args),
        outcome=outcome.model_dump(mode="json") if outcome else None,
    )
    is_done = outcome is not None and outcome.state is CallState.DONE
    names = (SKILL_ARGUMENT,) if row.tool == LOAD_SKILL else LOAD_ARGUMENTS
    executed_args = {name: args[name] for name in names if name in args} if is_done else {}
    ref = CallRef(
        call_id=call_id,
        tool=row.tool,
        digest=row.digest,
        settled=outcome is not None,
        answer_id=message.id if message else "",
        args=executed_args,
    )
    fault = str(answer[1].get("message", "")) if answer and not is_done else ""
    return CallPlan(row, _message_entry(row, message, draft), message, fault, ref)


def _message_entry(row: PlannedCall, answer: NewMessage | None, draft: DraftCall) -> dict[str, JsonValue]:
    """Returns the call as it is stored in the assistant message. If its arguments were not accepted, the model's own
    are stored too, so that its next request shows the model what was wrong."""
    arguments = canonical_json(row.args)
    sent = replayed_arguments(draft.raw_arguments) if answer and not row.args else ""
    return {
        "call_id": row.call_id,
        "key": row.key,
        "tool": row.tool,
        "arguments": arguments,
        "digest": row.digest,
        "provider_id": row.provider_call_id,
        "settled": row.outcome is not None,
        **({"answer_id": answer.id} if answer else {}),
        **({"sent_arguments": sent} if sent not in ("", arguments) else {}),
    }


def _effect(card: ToolCard | None) -> str:
    return card.effect.value if card else "opaque"


def _answer(call_id: str, state: CallState, answer: dict[str, JsonValue]) -> tuple[ToolOutcome, NewMessage]:
    content = canonical_json(answer)
    tokens = estimated_tokens(content)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call_id, tokens=tokens)
    ref = MessageRef(id=message.id, role=Role.TOOL, text=preview(content), tokens=tokens, call_id=call_id)
    return ToolOutcome(call_id=call_id, state=state, message=ref), message


@dataclass(slots=True)
class StreamAccumulator:
    """The output of one attempt so far."""

    text: list[str] = field(default_factory=list)
    complete: Complete | None = None
    first_token_seconds: float | None = None
    """Measured from the request."""
    turn_seconds: float = 0.0
    """Time from the start of the turn to the request."""
    stored_thinking: list[str] = field(default_factory=list)
    """The part of the reasoning that is stored."""
    thinking_characters: int = 0
    thinking_seconds: float = 0.0
    """Time from the request to the last piece of reasoning."""
    failed_tokens: int = 0
    """Estimated output tokens of an answer that an error ended, including calls."""
    stopped: bool = False
    may_have_worked: bool = False
    """True if the provider may have worked on the answer before an error ended it."""
    before: str = ""
    """The text of the message that this answer continues."""
    request_tokens: int = 0
    """Estimated tokens of the request."""
    price: Callable[[Usage], int] | None = None
    """Returns the cost of a usage in micro-dollars, at the prices of the provider that was called."""
    assembly: dict[str, JsonValue] = field(default_factory=dict)
    """Facts about how the prompt was built (perdure/activities/model_request.py)."""
    markers: MarkerFilter | None = None
    """Removes the markers of skills from the text; None if the call has none."""
    marked_text: list[str] = field(default_factory=list)
    """The text with its markers; empty if the call has none."""

    @property
    def full_text(self) -> str:
        """The text for readers."""
        return "".join(self.text) + (self.markers.rest() if self.markers else "")

    def add_text(self, text: str) -> str:
        """Adds a piece of the answer and returns the part of it that can be shown now."""
        shown = text
        if self.markers is not None:
            self.marked_text.append(text)
            shown = self.markers.feed(text)
        self.text.append(shown)
        return shown

    @property
    def raw_text(self) -> str:
        """The text as the model gave it."""
        return "".join(self.text if self.markers is None else self.marked_text)

    @property
    def selected(self) -> tuple[str, ...]:
        """The ids of the skills that the answer selects."""
        return selected_skills(self.raw_text, self.markers.known) if self.markers else ()

    @property
    def usage(self) -> Usage:
        """The provider's counts. Without them, an estimate if the provider began to answer or may have done so. A call
        that was stopped or timed out was sent, so it may be billed."""
        thinking_tokens = -(-self.thinking_characters // CHARACTERS_A_TOKEN)
        if self.complete is not None:
            counted = self.complete.usage
            known = counted.thinking_tokens or min(thinking_tokens, counted.output_tokens)
            return counted.model_copy(update={"thinking_tokens": known}) if known else counted
        output_tokens = thinking_tokens + estimated_tokens(self.raw_text)
        output_tokens = max(output_tokens, self.failed_tokens)
        if not (output_tokens or self.stopped or self.may_have_worked):
            return Usage()
        usage = Usage(input_tokens=self.request_tokens, output_tokens=output_tokens, thinking_tokens=thinking_tokens)
        return usage.model_copy(update={"cost_microusd": self.price(usage)}) if self.price is not None else usage

    def ending(self, call: ModelCall, rule: OnLength) -> Ending:
        """Returns what happens to the answer; `WHOLE` if it has no end."""
        if self.complete is None or self.stopped:
            return Ending.WHOLE
        if call.ask.continues and rule is OnLength.CONTINUE and self._adds_nothing(self.complete):
            self.complete = replace(self.complete, finish_reason="length", truncated=True)
        may_continue = call.ask.may_continue
        return ending_of(self.complete.finish_reason, rule, may_continue=may_continue, has_text=self.has_text)

    @property
    def has_text(self) -> bool:
        """True if there is text, including the parts that this answer continues."""
        return bool(self.before or self.full_text)

    def refuses_rest(self, call: ModelCall) -> bool:
        """Returns whether the model refused to continue a cut answer."""
        return bool(call.ask.continues) and self.complete is not None and self.complete.finish_reason == "refusal"

    def _adds_nothing(self, complete: Complete) -> bool:
        """Returns whether a continuation is empty. The answer that it should continue is then still cut."""
        return complete.finish_reason == "stop" and not complete.tool_calls and not self.raw_text.strip()

    def explain(self, error: PerdureError) -> None:
        """Adds what the answer so far says about the error."""
        if error.code == "model_empty_answer" and self.thinking_characters:
            error.message = _ONLY_THOUGHT

    def add_thinking(self, text: str, seconds: float) -> None:
        """Adds a piece of the model's reasoning that arrived `seconds` after the request."""
        room = MAX_THINKING_CHARACTERS - self.thinking_characters
        if room > 0:
            self.stored_thinking.append(text[:room])
        self.thinking_characters += len(text)
        self.thinking_seconds = seconds

    def void_text(self, reasoning: str, seconds: float) -> None:
        """Makes the text so far the model's reasoning. Readers of the live text receive the answer when it is settled:
        its length differs (perdure/core/events/stream.py)."""
        self.text.clear()
        self.marked_text.clear()
        self.markers = MarkerFilter(self.markers.known) if self.markers else None
        self.first_token_seconds = None
        if reasoning:
            self.add_thinking(reasoning, seconds)

    def note_error(self, error: PerdureError) -> None:
        """Records that an error ended the answer. Tokens that the provider produced before the error are billed too."""
        tokens = error.details.get("output_tokens")
        self.failed_tokens = tokens if isinstance(tokens, int) else 0
        self.may_have_worked = error.code in BILLED_ERRORS


def reply_of(
    call: ModelCall,
    received: StreamAccumulator,
    failed: Problem | None,
    plans: Sequence[CallPlan],
    ending: Ending = Ending.WHOLE,
    limit: Problem = OUTPUT_LIMIT,
) -> tuple[ModelReply, list[NewMessage]]:
    """Returns the settled reply and the messages to write. A continuation adds its text to the cut message. `limit` is
    the problem of an answer that failed at its output limit."""
    text, continued = received.full_text, call.ask.continues or ""
    partial = received.stopped or failed is not None
    failed = failed or (STOPPED if received.stopped else None)
    if received.complete is not None and ending is Ending.FAILED:
        failed = problem_of_cut(received.complete.finish_reason, limit)
    reply = ModelReply(
        usage=received.usage,
        problem=failed,
        partial=partial,
        finish_reason=received.complete.finish_reason if received.complete and not received.stopped else "",
        truncated=received.complete is not None and (received.complete.truncated or received.refuses_rest(call)),
        goes_on=ending is Ending.CONTINUED,
        extracted=received.selected,
    )
    if not (text or continued) and (reply.problem or reply.goes_on or (received.marked_text and not plans)):
        return reply, []
    message = NewMessage(
        continued or new_id(),
        Role.ASSISTANT,
        text,
        calls=_call_entries(received.complete, plans),
        # A window counts a message by what later calls send of it, which is without its reasoning.
        tokens=max(reply.usage.output_tokens - reply.usage.thinking_tokens, estimated_tokens(text)),
        partial=partial,
        extends=bool(continued),
    )
    whole, tokens = received.before + text, message.tokens + estimated_tokens(received.before)
    ref = MessageRef(id=message.id, role=Role.ASSISTANT, text=preview(whole), tokens=tokens, calls=_refs(plans))
    extracted = received.selected if received.markers else extract_groups(call.ask.extract_pattern, whole)
    return reply.model_copy(update={"message": ref, "extracted": extracted}), [message, *_answers(plans)]


def _refs(plans: Sequence[CallPlan]) -> tuple[CallRef, ...]:
    return tuple(plan.ref for plan in plans)


def _answers(plans: Sequence[CallPlan]) -> list[NewMessage]:
    return [plan.message for plan in plans if plan.message is not None]


def _call_entries(complete: Complete | None, plans: Sequence[CallPlan]) -> list[dict[str, JsonValue]]:
    """Returns the entries of the message's calls. The first has the signed thinking that led to them."""
    entries = [plan.entry for plan in plans]
    if entries and complete is not None and complete.thinking is not None:
        entries[0] = entries[0] | {"thinking": asdict(complete.thinking)}
    return entries


def structured_reply(output: OutputAsk, received: StreamAccumulator, failed: Problem | None) -> ModelReply:
    """Returns the settled reply of a call for structured output: the object, or why there is none."""
    problem = failed or (STOPPED if received.stopped else None)
    if problem is not None:
        return ModelReply(usage=received.usage, problem=problem, partial=True)
    finish_reason = received.complete.finish_reason if received.complete else ""
    truncated = received.complete is not None and received.complete.truncated
    if finish_reason == "length":  # parts of an object would not fit together, so it is requested again
        fault = "it was cut at the output limit; give a shorter one"
        return ModelReply(usage=received.usage, fault=fault, finish_reason=finish_reason, truncated=True)
    if finish_reason in NO_OBJECT:
        problem = NO_OBJECT[finish_reason]
        return ModelReply(usage=received.usage, problem=problem, finish_reason=finish_reason, truncated=truncated)
    reply = ModelReply(usage=received.usage, finish_reason=finish_reason)
    text = received.full_text
    if output.form is OutputForm.FUNCTION:
        drafts = received.complete.tool_calls if received.complete else ()
        answers = {draft.raw_arguments for draft in drafts if draft.name in (output.name, sent_name(output.name))}
        if len(answers) != 1:  # it is unclear which of two different answers is meant
            fault = (
                f"{output.name} was called twice with different answers" if answers else f"{output.name} was not called"
            )
            return reply.model_copy(update={"fault": fault})
        text = answers.pop()
    parsed = read_object(text, output.fits)
    if parsed.fault is not None:
        return reply.model_copy(update={"fault": parsed.fault})
    return reply.model_copy(update={"value": parsed.args})


def events_of(
    call: ModelCall, epoch: int, received: StreamAccumulator, reply: ModelReply, plans: Sequence[CallPlan] = ()
) -> list[NewEvent]:
    """Returns the call's events for the event log, in order. The events of calls that are already settled come last."""
    usage = reply.usage
    usage_data: dict[str, JsonValue] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
    }
    generation_data: dict[str, JsonValue] = {
        "attempt": epoch,
        "message_id": reply.message.id if reply.message else None,
        # Structured output is for programs: its text is neither shown nor stored.
        "characters": len(received.full_text) if reply.message else 0,
        "partial": reply.partial,
        "tool_calls": [ref.tool for ref in reply.message.calls] if reply.message else [],
        "assembly": received.assembly,
        "finish_reason": reply.finish_reason or None,
        **({"start": len(received.before)} if reply.message and call.ask.continues else {}),
    }
    return [
        *_events_before_end(call, received),
        NewEvent(TOKEN_USAGE, usage_data, call.call_id),
        NewEvent(GENERATION_COMPLETE, generation_data, call.call_id),
        *(plan.event for plan in plans if plan.event is not None),
    ]


def _events_before_end(call: ModelCall, received: StreamAccumulator) -> list[NewEvent]:
    """Returns the events of what came before the end of the answer: the reasoning and the first token."""
    events = []
    if received.thinking_characters:
        thinking_data: dict[str, JsonValue] = {
            "duration": round(received.thinking_seconds, 3),
            "characters": received.thinking_characters,
            "text": "".join(received.stored_thinking),
        }
        events.append(NewEvent(THINKING_COMPLETE, thinking_data, call.call_id))
    # Tokens of structured output are not shown, so there is no first one to time.
    if received.first_token_seconds is not None and not call.ask.ttft_told and call.ask.output is None:
        first_token_data: dict[str, JsonValue] = {
            "seconds": round(received.first_token_seconds, 3),
            "turn_seconds": round(received.turn_seconds + received.first_token_seconds, 3),
        }
        events.append(NewEvent(TTFT, first_token_data, call.call_id))
    return events
