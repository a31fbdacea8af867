"""Calls that the nodes make themselves: of the tools that the agent names for its stages."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Patch
from contracts.tools import CallState, PlannedAsk
from graph.nodes.call_model import STOP_CODES
from graph.nodes.reading import plan_of
from graph.ports import Ports
from graph.spec import State

MOST_TOLD_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a tool answered, or why it did not."""

    output: dict[str, JsonValue]
    fault: str = ""
    ends: Patch | None = None
    """The end of the run, where the turn was stopped meanwhile."""


async def done(state: State, ports: Ports, stage: str, **args: JsonValue) -> Done:
    """One call of the stage's tool. Whatever fails comes back as a fault, in a sentence."""
    plan = plan_of(state)
    name = plan.stage_tools.get(stage, "")
    card = plan.card(name)
    if card is None:
        return Done({}, f"the agent names no tool for {stage}")
    (outcome,) = await ports.tools.make([PlannedAsk(tool=name, args=args, timeout_seconds=card.timeout_seconds)])
    output = outcome.output if isinstance(outcome.output, dict) else {}
    if outcome.problem is not None:
        code = outcome.problem.code
        ended: Patch = {"error": outcome.problem.model_dump(mode="json"), "status": STOP_CODES.get(code, "failed")}
        return Done({}, outcome.problem.message, ended if code in STOP_CODES else None)
    if outcome.state is not CallState.DONE:
        told = output.get("message")
        return Done({}, str(told)[:MOST_TOLD_CHARACTERS] if told else f"{name} could not be done")
    return Done(output)


def told_faults(output: dict[str, JsonValue]) -> str:
    """The faults that a check found, one a line, each with its place."""
    faults = output.get("faults")
    lines = (
        [f"{one.get('path')}: {one.get('reason')}" for one in faults if isinstance(one, dict)]
        if isinstance(faults, list)
        else []
    )
    return "\n".join(lines)[:MOST_TOLD_CHARACTERS]
