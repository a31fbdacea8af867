"""What a tool call comes to: the tool message for the model, the ledger's outcome and the events, made together."""

from dataclasses import dataclass

import structlog
from pydantic import JsonValue

from contracts.agents import ToolCard
from contracts.digests import canonical_json
from contracts.events import TOOL_DENIED, TOOL_ERROR, TOOL_RESULT
from contracts.messages import MessageRef, Role
from contracts.tools import CallState, ToolCall, ToolOutcome
from perdure.tools import ToolResult
from policy.conditions import plain_facts
from policy.covering import REASONED, Covering
from policy.text import estimated_tokens, preview
from policy.told_results import as_changed
from store.ids import new_id
from store.journal import NewEvent, NewMessage

MOST_STATE_CHARACTERS = 8 * 1024
"""State updates beyond this are dropped, loudly."""
MOST_MADE_CHARACTERS = 32 * 1024
"""A call of the graph's own answers with no more: all of it rides in the turn's history."""
MOST_CHARACTERS = 64 * 1024
"""A tool message is cut here; the model is told so."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A settled call in its three forms."""

    outcome: ToolOutcome
    message: NewMessage
    events: tuple[NewEvent, ...]

    @property
    def row(self) -> tuple[CallState, dict[str, JsonValue], NewMessage]:
        """State, outcome and message as the ledger takes them."""
        return self.outcome.state, self.outcome.model_dump(mode="json"), self.message


def settled_answer(call: ToolCall, card: ToolCard, approval: Covering | None, result: ToolResult) -> Answer:
    """A result. Where a reviewer changed the arguments, the model is told so (S0-39).

    Of its state updates those stay that its card names and that are small: a state rides through histories.
    """
    output: JsonValue = result.output
    if approval is not None and approval.edited:
        output = as_changed(approval.args, output)
    patch = {name: value for name, value in result.state.items() if name in card.wants_state}
    if len(canonical_json(patch)) > MOST_STATE_CHARACTERS:
        _log.warning("tool_state_dropped", tool=card.name, most=MOST_STATE_CHARACTERS)
        patch = {}
    if call.ask.args is not None and len(canonical_json(output)) > MOST_MADE_CHARACTERS:
        return error_answer(call, f"the answer has more than {MOST_MADE_CHARACTERS} characters")
    facts = plain_facts(
        result.output, call.ask.paths
    )  # rules ask about the tool's own answer, the note is no part of it
    return _answer(call, CallState.DONE, output, TOOL_RESULT, patch, facts)


def error_answer(call: ToolCall, told: str, *, wrapped: bool = False) -> Answer:
    """A failure that the model may react to; `wrapped` as a code block's results are (S0-49)."""
    body: dict[str, JsonValue] = {"status": "error", "message": told}
    return _answer(call, CallState.FAILED, body | ({"result": None} if wrapped else {}), TOOL_ERROR)


def denial(call: ToolCall, approval: Covering | None, why: str | None) -> Answer:
    """A call that a person or a rule did not allow; a person's reason is told, where one refused it."""
    body: dict[str, JsonValue] = {"status": "denied", "message": why or "the call was not allowed"}
    if approval is not None and approval.status in REASONED and approval.comment:
        body["reason"] = approval.comment
    return _answer(call, CallState.DENIED, body, TOOL_DENIED)


def _answer(
    call: ToolCall,
    state: CallState,
    output: JsonValue,
    event: str,
    patch: dict[str, JsonValue] | None = None,
    facts: dict[str, JsonValue] | None = None,
) -> Answer:
    content = canonical_json(output)
    if len(content) > MOST_CHARACTERS:
        content = content[:MOST_CHARACTERS] + f"… [cut: {len(content)} characters]"
    tokens = estimated_tokens(content)
    message = NewMessage(new_id(), Role.TOOL, content, call_id=call.ask.call_id, tokens=tokens)
    ref = MessageRef(id=message.id, role=Role.TOOL, text=preview(content), tokens=tokens, call_id=call.ask.call_id)
    outcome = ToolOutcome(
        call_id=call.ask.call_id,
        state=state,
        message=ref,
        patch=patch or {},
        facts=facts or {},
        output=output if call.ask.args is not None else None,
    )
    shown: dict[str, JsonValue] = {"tool": call.ask.tool, "result": preview(content), "message_id": message.id}
    return Answer(outcome, message, (NewEvent(event, shown, call.ask.call_id),))
