"""empathy: the tone that the answer needs, read beside the assembly; without it the turn goes on."""

from dataclasses import dataclass

from contracts.events import STAGE
from contracts.messages import Patch
from graph.nodes.paid import paid
from graph.ports import Ports
from graph.spec import State
from graph.topologies.context_assembly.nodes.asking import asked, is_stop
from policy.classification import Question, empathy_of
from policy.refusals import STOPPED


@dataclass(frozen=True, slots=True)
class ReadTone:
    """Ask for tone and guidance."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """What was said of it; nothing where nothing could be."""
        reply = await asked(state, ports, Question.EMPATHY)
        patch: Patch = {"completed_stages": ["empathy"], **paid(state, reply)}
        if is_stop(reply):
            return patch | {"error": STOPPED.model_dump(mode="json"), "status": "stopped"}
        found = empathy_of(reply.value)
        ports.events.emit(STAGE, {"stage": "empathy", "tone": found.get("tone", "")})
        return patch | {"empathy": found}
