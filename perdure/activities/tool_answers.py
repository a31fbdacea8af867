"""Makes the answer of a call in three forms: the ledger's outcome, the tool message for the model, and the events."""

from dataclasses import dataclass, replace

import structlog
from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import CallState, ToolCall, ToolOutcome
from perdure.contracts.errors import Problem
from perdure.contracts.events import TOOL_DENIED, TOOL_ERROR, TOOL_RESULT
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.values import canonical_json
from perdure.core.agents.prompts import with_changed_arguments
from perdure.core.agents.rules import plain_facts
from perdure.core.approvals.validity import STATUSES_WITH_REASON, ApprovalValidity
from perdure.core.text import estimated_tokens, preview
from perdure.sdk.tools import ToolResult
from perdure.store.database import new_id
from perdure.store.events.event_log import NewEvent, NewMessage

MAX_STATE_CHARACTERS = 8 * 1024
"""State updates beyond this are dropped, with a warning in the log."""
MAX_GRAPH_CALL_CHARACTERS = 32 * 1024
"""Maximum answer of a call that the graph itself makes, because the whole answer is stored in Temporal's history."""
MAX_MESSAGE_CHARACTERS = 64 * 1024
"""A longer tool message is cut, with a note to the model."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer of a call in three forms: the ledger's outcome, the tool message for the model, and the events."""

    outcome: ToolOutcome
    message: NewMessage
    events: tuple[NewEvent, ...]

    @property
    def row(self) -> tuple[CallState, dict[str, JsonValue], NewMessage]:
        """The state, outcome and message that the ledger stores."""
        return self.outcome.state, self.outcome.model_dump(mode="json"), self.message

    def ending_turn(self, problem: Problem) -> "CallAnswer":
        """Returns the answer for a call whose problem ends its turn. The transcript still has the message."""
        return replace(self, outcome=self.outcome.model_copy(update={"problem": problem, "message": None}))


def settled_answer(call: ToolCall, card: ToolCard, approval: ApprovalValidity | None, result: ToolResult) -> CallAnswer:
    """Returns the answer for a result. If a reviewer changed the arguments, the answer notes it.

    State updates are kept only if the card names them and they are small, because the state is stored in Temporal's
    histories.
    """
    output: JsonValue = result.output
    if approval is not None and approval.edited:
        output = with_changed_arguments(approval.args, output)
    patch = {name: value for name, value in result.state.items() if name in card.wants_state}
    if len(canonical_json(patch)) > MAX_STATE_CHARACTERS:
        _log.warning("tool_state_dropped", tool=card.name, most=MAX_STATE_CHARACTERS)
        patch = {}
    if call.ask.args is not None and len(canonical_json(output)) > MAX_GRAPH_CALL_CHARACTERS:
        return error_answer(call, f"the answer exceeds {MAX_GRAPH_CALL_CHARACTERS} characters")
    facts = plain_facts(result.output, call.ask.paths)  # without the note: rules read the tool's own answer
    return _answer(call, CallState.DONE, output, TOOL_RESULT, patch, facts)


def error_answer(call: ToolCall, message: str, *, wrapped: bool = False, failure: str = "") -> CallAnswer:
    """Returns an answer for a failure that the model can react to. `wrapped` adds the wrapper of a code block's
    results. Only the event has `failure`, which is for people."""
    body: dict[str, JsonValue] = {"status": "error", "message": message}
    answer = _answer(call, CallState.FAILED, body | ({"result": None} if wrapped else {}), TOOL_ERROR)
    (event,) = answer.events
    data = {**event.data, "message": preview(message), **({"failure": failure} if failure else {})}
    return replace(answer, events=(replace(event, data=data),))


def denial(call: ToolCall, approval: ApprovalValidity | None, reason: str | None) -> CallAnswer:
    """Returns the answer for a call that a person or a rule forbade, with the reviewer's reason if there is one."""
    body: dict[str, JsonValue] = {"status": "denied", "message": reason or "the call was not allowed"}
    if approval is not None and approval.status in STATUSES_WITH_REASON and approval.comment:
        body["reason"] = approval.comment
    return _answer(call, CallState.DENIED, body, TOOL_DENIED)


def _answer(
    call: ToolCall,
    state: CallState,
    output: JsonValue,
    event: str,
    patch: dict[str, JsonValue] | None = None,
    facts: dict[str, JsonValue] | None = None,
) -> CallAnswer:
    content = canonical_json(output)
    if len(content) > MAX_MESSAGE_CHARACTERS:
        content = content[:MAX_MESSAGE_CHARACTERS] + f"… [cut: {len(content)} characters]"
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
    return CallAnswer(outcome, message, (NewEvent(event, shown, call.ask.call_id),))
