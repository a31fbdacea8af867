"""One question to the model, as a node of this topology asks it."""

from contracts.errors import InvariantBroken
from contracts.model import ModelAsk, ModelReply
from contracts.pipeline import PlannedAssembly
from graph.nodes.reading import messages_of, plan_of
from graph.ports import Ports
from graph.spec import State
from policy.classification import Question, answer_to
from policy.refusals import STOPPED


async def asked(state: State, ports: Ports, question: Question) -> ModelReply:
    """The verdict, or why there is none; it takes no longer than the agent allows."""
    plan = assembly_of(state)
    return await ports.model.complete(
        ModelAsk(
            messages=tuple(messages_of(state)),
            tools=(),
            stage=question.value,
            output=answer_to(question, plan.intents),
            patience_seconds=plan.patience_seconds,
        )
    )


def assembly_of(state: State) -> PlannedAssembly:
    """What the turn's plan says of its context; preflight ends a turn whose plan says nothing.

    Raises: InvariantBroken `no_assembly`.
    """
    planned = plan_of(state).assembly
    if planned is None:
        raise InvariantBroken("no_assembly", "a turn whose agent has no assembly went on past its preflight")
    return planned


def is_stop(reply: ModelReply) -> bool:
    """Whether the turn was stopped meanwhile."""
    return reply.problem is not None and reply.problem.code == STOPPED.code
