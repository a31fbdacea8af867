"""model_call_node: one call through the backend; what came of it is data (S3-09 to S3-13)."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.errors import Problem
from contracts.events import BUDGET
from contracts.facts import Fact
from contracts.messages import PREVIEW_CHARACTERS, MessageRef, Patch, Role
from graph.nodes.paid import paid
from graph.nodes.reading import messages_of, number_of, plan_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.decision_hub.backend import ModelBackend, ModelRequest, ModelResponse, PortBackend
from policy.budget import spent
from policy.derived_facts import told
from policy.model_answers import classified

MEMORIES = (("this conversation", "memory_read_result"), ("this person", "long_term_memory_read_result"))


@dataclass(frozen=True, slots=True)
class CallBackend:
    """Ask once. A budget that is spent is a response too: the model is not asked."""

    backend: Callable[[Ports], ModelBackend] = PortBackend

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The response, without its text where there is none."""
        tokens, cost = number_of(state, "tokens_used"), number_of(state, "cost_microusd")
        over = spent(plan_of(state).limits, tokens_used=tokens, cost_microusd=cost)
        if over is not None:
            ports.events.emit(BUDGET, {"code": over.code, "message": over.message})
            return _patch(state, _not_asked(over))
        user = state["user"]
        request = ModelRequest(
            trace_id=str(state["trace_id"]),
            prompt=_prompt(state),
            context=_remembered(state),
            constraints=tuple(user.items()) if isinstance(user, dict) else (),
        )
        return _patch(state, await self.backend(ports).generate(request))


def _not_asked(over: Problem) -> ModelResponse:
    status, error_type = classified(over, "")
    return ModelResponse(status, error_type=error_type, problem=over)


def _prompt(state: State) -> tuple[MessageRef, ...]:
    """The message as it is stored, or where preprocessing changed it, what it made. What is longer than a reference is
    known here by its beginning only, and goes as it is stored."""
    stored, made = messages_of(state), str(state["preprocessing_result"])
    same = stored and (stored[0].text == made or len(stored[0].text) >= PREVIEW_CHARACTERS)
    if same and state["input_type"] == "text":
        return tuple(stored)
    return (MessageRef(role=Role.USER, text=made),)


def _remembered(state: State) -> tuple[MessageRef, ...]:
    """A note for each memory that had something to say."""
    notes = []
    for scope, name in MEMORIES:
        result = state[name]
        found = result.get("facts") if isinstance(result, dict) else None
        if isinstance(found, list) and found:
            facts = tuple(Fact.model_validate(each) for each in found)
            notes.append(MessageRef(role=Role.SYSTEM, text=told(scope, facts)))
    return tuple(notes)


def _patch(state: State, response: ModelResponse) -> Patch:
    return {
        "model_response": {
            "status": response.status.value,
            "error_type": response.error_type.value if response.error_type else None,
            "output": response.output.model_dump(mode="json") if response.output else None,
            "problem": response.problem.model_dump(mode="json") if response.problem else None,
        },
        "model_metadata": response.usage.model_dump(mode="json"),
        **paid(state, response),
    }
