"""From a model's draft calls to ledger rows: names checked, arguments parsed and validated, once.

A call that cannot run is settled as failed at once, with an error message for the model: no tool call is ever left
without its answer (S0-47), and no approval is asked for a call that could not run (S2-39). A call that loads a toolset
is answered at once too: what it comes to is a matter of values (policy/toolsets.py), and the graph takes it up from
them without another hop.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from activities.clients.provider import DraftCall
from contracts.agents import PublishedAgent, ToolCard
from contracts.digests import canonical_json, digest_of
from contracts.events import TOOL_ERROR, TOOL_RESULT
from contracts.ids import effect_key, tool_call_id
from contracts.messages import CallRef, MessageRef, Role
from contracts.model import ModelCall
from contracts.tools import CallState, ToolOutcome
from policy.arguments import parse_arguments
from policy.text import estimated_tokens, preview
from policy.toolsets import LOAD_TOOLSET, Loading, load, load_card
from store.ids import new_id
from store.journal import NewEvent, NewMessage
from store.model_calls import PlannedCall

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")
"""A provider refuses every later request that repeats a name with these."""
_MOST_ID_CHARACTERS = 16_384
"""Of a provider's own id, which is kept whole: some carry a signature of kilobytes (S2-25). People see our ids."""
MOST_CALLS = 64
"""A model that asks for more in one round is cut here."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One call: its ledger row, its place in the assistant message, and its error message where it cannot run."""

    row: PlannedCall
    on_message: dict[str, JsonValue]
    message: NewMessage | None
    ref: CallRef
    """As the graph sees it."""

    @property
    def event(self) -> NewEvent | None:
        """What tells of a call that is settled already (S2-50)."""
        if self.row.outcome is None or self.message is None:
            return None
        kind = TOOL_RESULT if self.row.outcome["state"] == CallState.DONE.value else TOOL_ERROR
        data: dict[str, JsonValue] = {"tool": self.row.tool, "result": preview(self.message.content)}
        return NewEvent(kind, data | {"message_id": self.message.id}, self.row.call_id)


@dataclass(frozen=True, slots=True)
class Plans:
    """The calls of one answer."""

    calls: tuple[Planned, ...]
    loaded: dict[str, bool] | None = None
    """The toolsets that are loaded after them; None where they load none."""


def plan_calls(call: ModelCall, agent: PublishedAgent, drafts: Sequence[DraftCall]) -> Plans:
    """The calls of a model's answer, in its order, under ids of our own."""
    step = int(call.call_id.removeprefix("m"))
    before = loaded = dict(call.ask.toolsets or {})
    planned = []
    for index, draft in enumerate(drafts[:MOST_CALLS]):
        call_id = tool_call_id(step, index)
        if draft.name == LOAD_TOOLSET and LOAD_TOOLSET in call.ask.tools:
            loading, made = _load(call, agent, draft, call_id, loaded)
            loaded = loading.loaded
            planned.append(made)
        else:
            planned.append(_plan(call, agent, draft, call_id))
    return Plans(tuple(planned), None if loaded == before else loaded)


def _plan(call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str) -> Planned:
    card = agent.card(draft.name) if draft.name in call.ask.tools else None
    args: dict[str, JsonValue] = {}
    if card is None:
        fault: str | None = _not_offered(call, agent.card(draft.name), draft.name)
    else:
        parsed = parse_arguments(draft.raw_arguments, card.parameters)
        args, fault = parsed.args, parsed.fault
    told: dict[str, JsonValue] | None = {"status": "error", "message": fault} if fault else None
    return _made(call, card, draft, call_id, args, (CallState.FAILED, told) if told else None)


def _load(
    call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str, loaded: dict[str, bool]
) -> tuple[Loading, Planned]:
    parsed = parse_arguments(draft.raw_arguments, {"type": "object"})
    if parsed.fault is not None:
        loading = Loading(loaded, {"status": "error", "message": parsed.fault}, done=False)
    else:
        loading = load(parsed.args, agent.cards, loaded)
    state = CallState.DONE if loading.done else CallState.FAILED
    made = _made(call, load_card(agent.cards), draft, call_id, parsed.args, (state, loading.told))
    return loading, made


def _not_offered(call: ModelCall, card: ToolCard | None, name: str) -> str:
    if card is not None and card.toolset and LOAD_TOOLSET in call.ask.tools:
        return f"{card.name} is in the toolset {card.toolset} and not loaded; call {LOAD_TOOLSET} first"
    return f"there is no tool {name[:64]!r}; the tools are: {', '.join(call.ask.tools)}"


def _made(
    call: ModelCall,
    card: ToolCard | None,
    draft: DraftCall,
    call_id: str,
    args: dict[str, JsonValue],
    answer: tuple[CallState, dict[str, JsonValue]] | None,
) -> Planned:
    """The call in its forms; with its `answer` where it is settled as it is planned."""
    key = effect_key(call.address.turn_id, call_id)
    outcome, message = _answer(call_id, *answer) if answer else (None, None)
    row = PlannedCall(
        call_id=call_id,
        key=key,
        tool=_UNSAFE.sub("_", draft.name)[:64] or "unnamed",
        tool_version=card.version if card else "",
        effect=_effect(card),
        provider_call_id=draft.provider_id[:_MOST_ID_CHARACTERS],
        args=args,
        digest=digest_of(args),
        outcome=outcome.model_dump(mode="json") if outcome else None,
    )
    on_message: dict[str, JsonValue] = {
        "call_id": call_id,
        "key": key,
        "tool": row.tool,
        "arguments": canonical_json(args),
        "digest": row.digest,
        "provider_id": row.provider_call_id,
        "settled": outcome is not None,
        **({"answer_id": message.id} if message else {}),
    }
    taken_up = args if outcome is not None and outcome.state is CallState.DONE else {}
    ref = CallRef(
        call_id=call_id,
        tool=row.tool,
        digest=row.digest,
        settled=outcome is not None,
        answer_id=message.id if message else "",
        args=taken_up,
    )
    return Planned(row, on_message, message, ref)


def _effect(card: ToolCard | None) -> str:
    return card.effect.value if card else "opaque"


def _answer(call_id: str, state: CallState, told: dict[str, JsonValue]) -> tuple[ToolOutcome, NewMessage]:
    content = canonical_json(told)
    tokens = estimated_tokens(content)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call_id, tokens=tokens)
    ref = MessageRef(id=message.id, role=Role.TOOL, text=preview(content), tokens=tokens, call_id=call_id)
    return ToolOutcome(call_id=call_id, state=state, message=ref), message
