"""The twelve nodes of `decision_hub`, by their ids."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.errors import Problem
from perdure.contracts.events import BUDGET, MEMORY_SEARCH, MEMORY_WRITE_BLOCKED, MEMORY_WRITE_CREATED, STAGE
from perdure.contracts.ids import trace_id
from perdure.contracts.memory import Fact, FactsAnswer, FactScope, FactStatus
from perdure.contracts.messages import PREVIEW_CHARACTERS, MessageRef, Patch, Role
from perdure.core.budgets import spent_limit
from perdure.core.memory.facts import derived_facts, facts_note
from perdure.core.turns import INPUT_TYPES
from perdure.graph.nodes.call_model import STOP_CODES, add_costs, end_status
from perdure.graph.nodes.fields import error_of, messages_of, number_of, plan_of
from perdure.graph.nodes.pause import plan_patch
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State
from perdure.graph.topologies.decision_hub.backend import (
    ErrorType,
    MemoryPort,
    ModelBackend,
    ModelRequest,
    ModelResponse,
    PortBackend,
    classify_answer,
    fallback_text,
)
from perdure.graph.topologies.decision_hub.spec import Command, TurnProgress, next_command


# state_init_node sets the requester, the ids of the turn, and the memory that it can use.
@dataclass(frozen=True, slots=True)
class InitState:
    """A node that sets the ids once; no later node writes them."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the ids and what the turn pinned. A trace id of the request is kept; the default is the turn's id."""
        context = await ports.memory.load()
        ids: Patch = {
            "trace_id": trace_id(context.metadata.get("trace_id"), str(state["execution_id"])),
            "created_at": ports.clock.now().isoformat(),
        }
        if error_of(state) is not None or context.plan is None or context.user_message is None:
            return ids
        plan = context.plan
        in_conversation = FactScope.CONVERSATION in plan.facts
        pinned = plan_patch(context)
        del pinned["max_iterations"]  # the path is fixed and has no loop
        return (ids | pinned) | {
            "messages": [context.user_message.model_dump(mode="json")],
            "memory_read_authorized": in_conversation,
            "memory_write_authorized": in_conversation,
            "long_term_memory_requested": FactScope.USER in plan.facts,
        }


# router_node finds the kind of the input.
@dataclass(frozen=True, slots=True)
class RouteInput:
    """A node that sets the kind of the request. Without a valid request, it sets the error that ends the turn."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the kind: text, unless the request's metadata has another `input_type`."""
        context = await ports.memory.load()
        problem = context.problem
        if problem is None:
            kind = context.metadata.get("input_type", INPUT_TYPES[0])
            raw = context.user_message.text if context.user_message else ""
            problem = _input_problem(kind, raw)
            if problem is None:
                return {"input_type": kind, "raw_input": raw}
        return {"error": problem.model_dump(mode="json"), "status": end_status(problem)}


def _input_problem(kind: object, raw: str) -> Problem | None:
    if kind not in INPUT_TYPES:
        return Problem(code="bad_input_type", message=f"`metadata.input_type` must be one of {', '.join(INPUT_TYPES)}")
    if not raw.strip():
        return Problem(code="empty_input", message="The message is empty; send a text")
    return None


# task_preprocessing_node trims text; it replaces audio and image by a placeholder.
@dataclass(frozen=True, slots=True)
class Preprocess:
    """A node that prepares the input for the model."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the text, or a placeholder with the kind of the input."""
        if state["input_type"] == "text":
            return {"preprocessing_result": str(state["raw_input"]).strip()}
        return {"preprocessing_result": f"[{state['input_type']} input, which cannot be read yet]"}


# decision_logic_node chooses the next command, from what is done and allowed; it changes nothing else.
RESULT_FIELDS = {
    Command.PREPROCESS: "preprocessing_result",
    Command.MEMORY_READ: "memory_read_status",
    Command.LONG_TERM_MEMORY_READ: "long_term_memory_read_status",
    Command.CALL_MODEL: "final_output",
    Command.MEMORY_WRITE: "memory_write_status",
    Command.LONG_TERM_MEMORY_WRITE: "long_term_memory_write_status",
}
"""Command -> the field that has a value when the command is done."""
PERMISSION_FIELDS = {
    Command.MEMORY_READ: "memory_read_authorized",
    Command.MEMORY_WRITE: "memory_write_authorized",
    Command.LONG_TERM_MEMORY_READ: "long_term_memory_requested",
    Command.LONG_TERM_MEMORY_WRITE: "long_term_memory_requested",
}
"""Command -> the field that allows it."""


@dataclass(frozen=True, slots=True)
class Decide:
    """The only node that decides the next step of a turn."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the command."""
        return {"command": next_command(progress_of(state)).value}


def progress_of(state: State) -> TurnProgress:
    """Returns the progress of the turn. It reads only whether a field has a value, never which."""
    return TurnProgress(
        failed=state["error"] is not None,
        done=frozenset(command for command, name in RESULT_FIELDS.items() if state[name] is not None),
        allowed=frozenset(command for command, name in PERMISSION_FIELDS.items() if state[name] is True),
    )


# The four memory nodes: a read and a write of the conversation's facts, and of the user's facts. Each runs once, when
# the deciding node has chosen it, and ends in a status. Found facts are advice: they go only into a note for the model.
MEMORY_FAILURES: Final = frozenset({FactStatus.UNAVAILABLE, FactStatus.FAILED})


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """A node that reads the facts of a scope."""

    scope: FactScope

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the status and the facts. There is no result if nothing was found or memory is unavailable."""
        long_term = self.scope is FactScope.USER
        command = Command.LONG_TERM_MEMORY_READ if long_term else Command.MEMORY_READ
        memory = MemoryPort(ports, self.scope, _is_allowed(state, command))
        answer = await memory.read(about=str(state["preprocessing_result"]) if long_term else "")
        facts: list[JsonValue] = [fact.model_dump(mode="json") for fact in answer.facts]
        status: JsonValue = answer.status.value
        ports.events.emit(MEMORY_SEARCH, {"scope": self.scope.value, "status": status, "facts": len(facts)})
        result: JsonValue = {"facts": facts} if answer.status is FactStatus.SUCCESS else None
        prefix = "long_term_memory" if long_term else "memory"
        return {f"{prefix}_read_status": status, f"{prefix}_read_result": result} | _health_patch(self.scope, answer)


@dataclass(frozen=True, slots=True)
class WriteMemory:
    """A node that stores derived facts about the author of the message, never the message itself."""

    scope: FactScope

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the status of one write operation."""
        long_term = self.scope is FactScope.USER
        command = Command.LONG_TERM_MEMORY_WRITE if long_term else Command.MEMORY_WRITE
        facts = derived_facts(str(state["preprocessing_result"])) if state["input_type"] == "text" else ()
        answer = await MemoryPort(ports, self.scope, _is_allowed(state, command)).write(facts)
        status: JsonValue = answer.status.value
        if answer.status is not FactStatus.SUCCESS:
            ports.events.emit(MEMORY_WRITE_BLOCKED, {"scope": self.scope.value, "status": status})
        elif facts:
            ports.events.emit(MEMORY_WRITE_CREATED, {"scope": self.scope.value, "facts": len(facts)})
        name = "long_term_memory_write_status" if long_term else "memory_write_status"
        return {name: status} | _health_patch(self.scope, answer)


def _is_allowed(state: State, command: Command) -> bool:
    """Returns whether the turn allows the operation and the deciding node has just commanded it."""
    return state[PERMISSION_FIELDS[command]] is True and state["command"] == command.value


def _health_patch(scope: FactScope, answer: FactsAnswer) -> Patch:
    """Returns the patch that marks memory as unavailable. It affects no decision."""
    if answer.status not in MEMORY_FAILURES:
        return {}
    return {"long_term_memory_status": "unavailable"} if scope is FactScope.USER else {"memory_available": False}


# model_call_node makes one call through the backend; its result is data.
MEMORY_RESULTS = (("this conversation", "memory_read_result"), ("this person", "long_term_memory_read_result"))


@dataclass(frozen=True, slots=True)
class CallBackend:
    """A node that calls the model once. If a budget is spent, it does not call and returns a response too."""

    backend: Callable[[Ports], ModelBackend] = PortBackend

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the response; without an answer, it has no text."""
        tokens, cost = number_of(state, "tokens_used"), number_of(state, "cost_microusd")
        problem = spent_limit(plan_of(state).limits, tokens_used=tokens, cost_microusd=cost)
        if problem is not None:
            ports.events.emit(BUDGET, {"code": problem.code, "message": problem.message})
            return _response_patch(state, _spent_response(problem))
        user = state["user"]
        request = ModelRequest(
            trace_id=str(state["trace_id"]),
            prompt=_prompt_messages(state),
            context=_memory_notes(state),
            constraints=tuple(user.items()) if isinstance(user, dict) else (),
        )
        return _response_patch(state, await self.backend(ports).generate(request))


def _spent_response(problem: Problem) -> ModelResponse:
    status, error_type = classify_answer(problem, "")
    return ModelResponse(status, error_type=error_type, problem=problem)


def _prompt_messages(state: State) -> tuple[MessageRef, ...]:
    """Returns the stored message, or the preprocessed text if that differs. A long text is known here only by its
    beginning, so its stored message is used."""
    stored, preprocessed = messages_of(state), str(state["preprocessing_result"])
    is_unchanged = stored and (stored[0].text == preprocessed or len(stored[0].text) >= PREVIEW_CHARACTERS)
    if is_unchanged and state["input_type"] == "text":
        return tuple(stored)
    return (MessageRef(role=Role.USER, text=preprocessed),)


def _memory_notes(state: State) -> tuple[MessageRef, ...]:
    """Returns a note for each memory that has facts."""
    notes = []
    for scope, name in MEMORY_RESULTS:
        result = state[name]
        found = result.get("facts") if isinstance(result, dict) else None
        if isinstance(found, list) and found:
            facts = tuple(Fact.model_validate(each) for each in found)
            notes.append(MessageRef(role=Role.SYSTEM, text=facts_note(scope, facts)))
    return tuple(notes)


def _response_patch(state: State, response: ModelResponse) -> Patch:
    return {
        "model_response": {
            "status": response.status.value,
            "error_type": response.error_type.value if response.error_type else None,
            "output": response.output.model_dump(mode="json") if response.output else None,
            "problem": response.problem.model_dump(mode="json") if response.problem else None,
        },
        "model_metadata": response.usage.model_dump(mode="json"),
        **add_costs(state, response),
    }


# result_handling_node makes the model's answer the answer of the turn.
@dataclass(frozen=True, slots=True)
class HandleResult:
    """A node that stores the model's message. No decision depends on its text."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the beginning of the text, and the message by reference."""
        response, before = state["model_response"], state["messages"]
        output = response.get("output") if isinstance(response, dict) else None
        message = MessageRef.model_validate(output)
        messages: list[JsonValue] = [*(before if isinstance(before, list) else []), message.model_dump(mode="json")]
        return {"final_output": message.text, "messages": messages}


# error_router_node sets the type of the failure, and the text in place of an answer.
SPENT_CODES = frozenset({"token_budget_spent", "cost_budget_spent"})


@dataclass(frozen=True, slots=True)
class RouteError:
    """The only node that writes `error_type`."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the error. A stop and a spent limit keep their code; every other failure has the code of its type."""
        response = state["model_response"]
        fields = response if isinstance(response, dict) else {}
        kind = ErrorType(str(fields.get("error_type") or ErrorType.UNKNOWN.value))
        fallback = fallback_text(kind)
        problem = Problem.model_validate(fields["problem"]) if fields.get("problem") else None
        if problem is None or (problem.code not in STOP_CODES and problem.code not in SPENT_CODES):
            problem = Problem(code=kind.value, message=fallback)
        return {"error_type": kind.value, "final_output": fallback, "error": problem.model_dump(mode="json")}


# format_response_node builds the response and ends the run.
@dataclass(frozen=True, slots=True)
class FormatResponse:
    """A node that builds the caller's response. The stream has it too, with only the beginning of its text."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the response. Every error has a type; one from before the model call has the type `unknown`."""
        error = error_of(state)
        metadata = state["model_metadata"]
        response: Patch = {
            "conversation_id": state["conversation_id"],
            "trace_id": state["trace_id"],
            "status": "success" if error is None else "error",
            "output": state["final_output"] if error is None or state["final_output"] else error.message,
            "error_type": None if error is None else state["error_type"] or ErrorType.UNKNOWN.value,
            "metadata": {"usage": metadata, "input_type": state["input_type"]},
        }
        ports.events.emit(STAGE, {"stage": "response", **response})
        if error is None:
            return {"response": response, "status": "completed"}
        return {"response": response, "status": "limited" if error.code in SPENT_CODES else end_status(error)}


NODES: dict[str, Node] = {
    "router_node": RouteInput(),
    "state_init_node": InitState(),
    "decision_logic_node": Decide(),
    "task_preprocessing_node": Preprocess(),
    "model_call_node": CallBackend(),
    "result_handling_node": HandleResult(),
    "error_router_node": RouteError(),
    "format_response_node": FormatResponse(),
    "memory_read_node": ReadMemory(FactScope.CONVERSATION),
    "memory_write_node": WriteMemory(FactScope.CONVERSATION),
    "long_term_memory_read_node": ReadMemory(FactScope.USER),
    "long_term_memory_write_node": WriteMemory(FactScope.USER),
}
