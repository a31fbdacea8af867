"""The end of a turn: its answer in the words of the model and of the engine, its output and its status."""

from dataclasses import dataclass
from html import escape

from pydantic import JsonValue

from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.errors import Problem
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.core.budgets import COST_SPENT, TOKENS_SPENT
from perdure.graph.nodes.call_model import STOP_CODES, end_status, engine_note, reached_limit
from perdure.graph.nodes.fields import error_of, messages_of, plan_of
from perdure.graph.ports import Ports
from perdure.graph.spec import State
from perdure.graph.state import replace
from perdure.graph.topologies.clarify_solve.faults import (
    Cause,
    TurnOutcome,
    fault_messages_of,
    fault_of,
    faults_of,
    has_fault,
    outcome_of,
    problem_of,
    reports_faults,
    set_fault,
    set_problem,
    was_refused,
)
from perdure.graph.topologies.clarify_solve.spec import (
    STATE,
    list_of,
    object_of,
    read_bucket,
    set_processing,
    text_of,
    warnings_of,
)


def client_output_patch(state: State, solved: dict[str, JsonValue]) -> Patch:
    """Returns the output for the client and the last message, which is written without a model."""
    warnings, faults = warnings_of(object_of(state, "run"), solved), fault_messages_of(state)
    without_drawing = _make_sentence(faults[0]) if faults else "The plan was carried out. It requests no picture."
    explanation = text_of(state, "visualization").strip() or without_drawing
    patch = set_processing(asp="api", solved=solved)
    after = STATE.apply(state, patch) if reports_faults(state) else state
    output: dict[str, JsonValue] = {
        "specification": solved.get("specification"),
        "design": solved.get("design"),
        "plan": text_of(state, "plan_xml"),
        "explanation": explanation,
        "warnings": [*warnings, *faults],
        "retries": read_bucket(state, "turn_metrics"),
        **_outcome_fields(after),
    }
    said = explanation
    if reports_faults(state):  # its last sentences have the faults
        own = describe_end(after)
        said = own if faults and explanation == without_drawing else f"{explanation}\n\n{own}"
    return {
        **_status_patch(state),
        "messages": _append(state, MessageRef(role=Role.ASSISTANT, text=said)),
        "output": {name: replace(value) for name, value in output.items()},
        **patch,
    }


def _outcome_fields(state: State) -> dict[str, JsonValue]:
    if not reports_faults(state):
        return {}
    fault = fault_of(state)
    return {"outcome": outcome_of(state).value, **({"fault": fault} if fault else {})}


def _status_patch(state: State) -> Patch:
    """Returns the final status, and the error of a turn that a fault ends."""
    problem = problem_of(state)
    if problem is None:
        return {"status": "completed"}
    return {"status": end_status(problem), "error": problem.model_dump(mode="json")}


@dataclass(frozen=True, slots=True)
class Feedback:
    """The only node of a turn whose text is streamed to the user."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Writes the engine's text after the bypass word, without an answer of the model, or on a spent budget.
        Otherwise the model's text and one sentence of the engine."""
        if error_of(state) is not None:
            return _facts_patch(state, {}) if reports_faults(state) and state["status"] != "stopped" else {}
        messages, limit, bypass = messages_of(state), reached_limit(state), text_of(state, "bypass")
        if bypass or limit is not None or was_refused(state):
            return _facts_patch(state, set_problem(state, "feedback", limit) if limit and not bypass else {})
        user = state["user"]
        reply = await ports.model.complete(
            ModelCallRequest(
                messages=(*messages[:1], engine_note(describe_facts(state))),
                tools=(),
                prompt=user if isinstance(user, dict) else {},
                stage="feedback",
            )
        )
        return {
            **_reply_patch(state, reply),
            "tokens_used": reply.usage.tokens,
            "cost_microusd": reply.usage.cost_microusd,
        }


def _reply_patch(state: State, reply: ModelReply) -> Patch:
    problem = reply.problem
    fault = {} if problem is None else set_problem(state, "feedback", problem)
    if problem is not None and problem.code in STOP_CODES and not _was_spent(problem):
        end: Patch = {"error": problem.model_dump(mode="json"), "status": STOP_CODES[problem.code]}
        return {**(_facts_patch(state, fault) if fault else {}), **end}
    if problem is not None:
        return _facts_patch(state, fault)
    if reply.message is None or not reply.message.text.strip():
        return _facts_patch(state, set_fault(state, "feedback", Cause.UNANSWERED, "the model gave no text"))
    if not reports_faults(state):
        return {"messages": _append(state, reply.message)}
    answered = set_processing(answered="yes")
    own = describe_end(STATE.apply(state, answered))
    added = [] if own in reply.message.text else [MessageRef(role=Role.ASSISTANT, text=own)]
    return {"messages": _append(state, reply.message, *added), **answered}


def _was_spent(problem: Problem) -> bool:
    """Returns whether the model was not called because the turn had spent more than its state showed."""
    return problem.code in (TOKENS_SPENT, COST_SPENT)


def describe_facts(state: State) -> str:
    """Returns one sentence for each thing that happened. The model receives no other facts; without a model, the user
    reads them."""
    warnings = [_make_sentence(str(each)) for each in warnings_of(object_of(state, "run"), object_of(state, "solved"))]
    return "\n".join([*_progress(state), *warnings, *_fault_sentences(state)]) or "No work on the data was requested."


def describe_end(state: State) -> str:
    """Returns the engine's own sentence, which follows a text of the model: the result of the turn, or its faults."""
    progress = [] if outcome_of(state) is TurnOutcome.FAILED else _progress(state)[-1:]
    return "\n".join([*progress, *_fault_sentences(state)]) or "No work on the data was requested."


def _progress(state: State) -> list[str]:
    lines = []
    if text_of(state, "classified") == "no_data" and not has_fault(state, "classify"):
        lines.append("There is no table yet: one must be uploaded first.")
    if text_of(state, "classified") == "palette":
        lines.append("A palette is proposed with this text.")
    if text_of(state, "start") == "upload" and not has_fault(state, "classify"):
        lines.append("The upload has arrived and can be worked with.")
    run = object_of(state, "run")
    if run:
        rows = run.get("rows")
        lines.append(f"The data was prepared: {'1 row is' if rows == 1 else f'{rows} rows are'} left.")
    design = object_of(state, "solved").get("design")
    if isinstance(design, dict):
        lines.append(f"A design was found: {design.get('mark')}.")
    if object_of(state, "drawn"):
        lines.append("The picture was drawn.")
    return lines


def _fault_sentences(state: State) -> list[str]:
    if not reports_faults(state):
        return [f"It could not be finished: {fault}" for fault in fault_messages_of(state)]
    start = "It could not be finished" if outcome_of(state) is TurnOutcome.FAILED else "A part of it failed"
    lines = [f"{start} ({fault['code']}): {_make_sentence(str(fault['message']))}" for fault in faults_of(state)]
    if has_fault(state, "exclude") and isinstance(object_of(state, "solved").get("design"), dict):
        lines.append("The picture can contain what must not be shown.")
    return lines


def _make_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _facts_patch(state: State, fault: Patch) -> Patch:
    """Returns the message with the facts, and the fault of the feedback itself, which is one of them."""
    after = STATE.apply(state, fault) if fault else state
    return {"messages": _append(state, MessageRef(role=Role.ASSISTANT, text=describe_facts(after))), **fault}


def _append(state: State, *messages: MessageRef) -> list[JsonValue]:
    before = state["messages"]
    return [
        *(before if isinstance(before, list) else []),
        *(message.model_dump(mode="json") for message in messages),
    ]


# format_feedback is the only writer of `output` on the server: escaped text, suggestions, drawings.
DEFAULT_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")


@dataclass(frozen=True, slots=True)
class FormatFeedback:
    """A node that builds the output. No text of a model or a table can contain markup."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the output. The answer itself stays plain text; its HTML is in `output`."""
        error = error_of(state)
        if error is not None and (state["status"] == "stopped" or not reports_faults(state)):
            return {}
        said = [message.text for message in messages_of(state) if message.role is Role.ASSISTANT]
        output: dict[str, JsonValue] = {"text": to_html("\n\n".join(said)), "suggestions": _suggestions(state)}
        if text_of(state, "classified") == "palette":
            output["selection_prompt"] = "Pick a palette."
        drawn = object_of(state, "drawn")
        if drawn:
            output["pictures"] = {name: f"/v1/files/{file}" for name, file in drawn.items()}
        warnings = warnings_of(object_of(state, "run"), object_of(state, "solved"))
        # A client that has the data does not read the conversation.
        is_client = read_bucket(state, "input").get("is_client")
        output["warnings"] = [*warnings, *fault_messages_of(state)] if is_client else warnings
        output["retries"] = read_bucket(state, "turn_metrics")
        output |= _outcome_fields(state)
        written: Patch = {"output": {name: replace(value) for name, value in output.items()}}
        return written if error is not None else {**_status_patch(state), **written}


def to_html(text: str) -> str:
    """Returns plain text as HTML paragraphs, escaped."""
    parts = [escape(part).replace("\n", "<br>") for part in text.split("\n\n") if part.strip()]
    return "".join(f"<p>{part}</p>" for part in parts)


def _suggestions(state: State) -> list[JsonValue]:
    if text_of(state, "classified") == "palette":
        colors: list[JsonValue] = [*(palette_of(state) or DEFAULT_PALETTE)]
        return [{"kind": "custom_palette", "colors": colors}]
    if text_of(state, "fault") or outcome_of(state) is TurnOutcome.FAILED:
        return []  # suggestions of a failed plan would fail too
    return [{"kind": "text", "text": str(each)} for each in list_of(state, "suggestions")]


def palette_of(state: State) -> list[str]:
    """Returns the colors that the agent's `words` name, in order."""
    return [color.strip() for color in plan_of(state).words.get("palette", "").split(",") if color.strip()]
