"""From a model's draft calls to ledger rows: names checked, arguments parsed and validated, once.

A call that cannot run is settled as failed at once, with an error message for the model: no tool call is ever left
without its answer (S0-47), and no approval is asked for a call that could not run (S2-39).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from activities.clients.provider import DraftCall
from contracts.agents import PublishedAgent, ToolCard
from contracts.digests import canonical_json, digest_of
from contracts.ids import effect_key, tool_call_id
from contracts.messages import MessageRef, Role
from contracts.model import ModelCall
from contracts.tools import CallState, ToolOutcome
from policy.arguments import parse_arguments
from policy.text import estimated_tokens, preview
from store.ids import new_id
from store.journal import NewMessage
from store.model_calls import PlannedCall

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")
"""A provider refuses every later request that repeats a name with these."""
MOST_CALLS = 64
"""A model that asks for more in one round is cut here."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One call: its ledger row, its place in the assistant message, and its error message where it cannot run."""

    row: PlannedCall
    on_message: dict[str, JsonValue]
    message: NewMessage | None


def plan_calls(call: ModelCall, agent: PublishedAgent, drafts: Sequence[DraftCall]) -> list[Planned]:
    """The calls of a model's answer, in its order, under ids of our own."""
    step = int(call.call_id.removeprefix("m"))
    return [_plan(call, agent, draft, tool_call_id(step, index)) for index, draft in enumerate(drafts[:MOST_CALLS])]


def _plan(call: ModelCall, agent: PublishedAgent, draft: DraftCall, call_id: str) -> Planned:
    card = agent.card(draft.name) if draft.name in call.ask.tools else None
    args: dict[str, JsonValue] = {}
    if card is None:
        fault: str | None = f"there is no tool {draft.name[:64]!r}; the tools are: {', '.join(call.ask.tools)}"
    else:
        parsed = parse_arguments(draft.raw_arguments, card.parameters)
        args, fault = parsed.args, parsed.fault
    key = effect_key(call.address.turn_id, call_id)
    outcome, message = _refusal(call_id, fault) if fault else (None, None)
    row = PlannedCall(
        call_id=call_id,
        key=key,
        tool=_UNSAFE.sub("_", draft.name)[:64] or "unnamed",
        tool_version=card.version if card else "",
        effect=_effect(card),
        provider_call_id=draft.provider_id[:200],
        args=args,
        digest=digest_of(args),
        refused=outcome.model_dump(mode="json") if outcome else None,
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
    return Planned(row, on_message, message)


def _effect(card: ToolCard | None) -> str:
    return card.effect.value if card else "opaque"


def _refusal(call_id: str, fault: str) -> tuple[ToolOutcome, NewMessage]:
    content = canonical_json({"status": "error", "message": fault})
    tokens = estimated_tokens(content)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call_id, tokens=tokens)
    ref = MessageRef(id=message.id, role=Role.TOOL, text=preview(content), tokens=tokens, call_id=call_id)
    return ToolOutcome(call_id=call_id, state=CallState.FAILED, message=ref), message
