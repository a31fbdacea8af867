"""Asking the model for an object: up to six tries, each fault told to the next; nothing where all of them fail (S4-23
to S4-25). Never raises: whoever asks goes on without."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from contracts.errors import Problem
from contracts.messages import MessageRef, Patch, Role
from contracts.model import ModelAsk, OutputAsk
from graph.nodes.call_model import STOP_CODES
from graph.nodes.reading import limits_of, number_of
from graph.ports import Ports
from graph.spec import State
from policy.budget import spent
from policy.tries import TRIES, is_hopeless


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object, and where the agent says how to make it."""

    stage: str
    fits: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Got:
    """What came of all tries."""

    value: dict[str, JsonValue] | None
    tokens: int = 0
    cost_microusd: int = 0
    tries: int = 0
    problem: Problem | None = None
    """Why there were no more tries, where a problem ended them."""

    @property
    def cost(self) -> Patch:
        """What the tries add to a state whose counters join; and the end of the run, where a problem is one: whatever
        else fails is gone on without."""
        patch: Patch = {"tokens_used": self.tokens, "cost_microusd": self.cost_microusd}
        if self.problem is not None and self.problem.code in STOP_CODES:
            patch |= {"error": self.problem.model_dump(mode="json"), "status": STOP_CODES[self.problem.code]}
        return patch


async def ask_object(state: State, ports: Ports, wanted: Wanted, messages: Sequence[MessageRef]) -> Got:
    """The object, strictly as it fits; None after the last try, or at once where no further try can help."""
    tokens = cost = tries = 0
    said = [*messages]
    user = state["user"]
    for form in TRIES:
        over = _spent(state, tokens, cost)
        if over is not None:
            return Got(None, tokens, cost, tries, over)
        reply = await ports.model.complete(
            ModelAsk(
                messages=tuple(said),
                tools=(),
                prompt=user if isinstance(user, dict) else {},
                stage=wanted.stage,
                output=OutputAsk(name=wanted.stage, fits=wanted.fits, form=form),
            )
        )
        tries += 1
        tokens += reply.usage.tokens
        cost += reply.usage.cost_microusd
        if reply.problem is not None and is_hopeless(reply.problem):
            return Got(None, tokens, cost, tries, reply.problem)
        if reply.problem is None and reply.value is not None:
            return Got(reply.value, tokens, cost, tries)
        if reply.fault:
            said = [*messages, note(f"Your last answer was refused: {reply.fault}")]
    return Got(None, tokens, cost, tries)


def note(text: str) -> MessageRef:
    """A word of the engine's to the model."""
    return MessageRef(role=Role.SYSTEM, text=text)


def _spent(state: State, tokens: int, cost_microusd: int) -> Problem | None:
    used, paid = number_of(state, "tokens_used") + tokens, number_of(state, "cost_microusd") + cost_microusd
    return spent(limits_of(state), tokens_used=used, cost_microusd=paid)
