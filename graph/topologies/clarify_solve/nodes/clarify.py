"""transformation_clarification_gate: ask the person where the plan asks and may; look at the answer (S4-07, S4-16)."""

from dataclasses import dataclass

from contracts.messages import Patch
from contracts.people import Question, RequestKind, RequestRef, VerdictState
from graph.nodes.ask_object import ENDING
from graph.nodes.reading import error_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.shapes import REPLY
from graph.topologies.clarify_solve.state import PLANNING_ENTRIES, left, list_of, number, text_of

NO_ANSWER = "Nobody answered in time."


@dataclass(frozen=True, slots=True)
class Clarify:
    """A pause, its end, or the way on."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The answer is read fresh from its record, every time."""
        if error_of(state) is not None:
            return left(clarified="failed")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            return await _looked(state, ports, waiting)
        planned = text_of(state, "planned")
        if planned == "asks":
            question = Question(
                call_id="",
                kind=RequestKind.CLARIFICATION,
                asked={"question": text_of(state, "question"), "options": list_of(state, "options")},
                answer_schema=REPLY,
            )
            return waits(ports.people.question(question))
        if planned == "ok":
            return left(clarified="run")
        if planned == "xsd" and number(state, "entries") < PLANNING_ENTRIES:
            return left(clarified="xsd_retry")
        return left(clarified="spent" if planned == "xsd" else "failed")


async def _looked(state: State, ports: Ports, waiting: list[RequestRef]) -> Patch:
    read = await ports.people.verdicts(waiting)
    if read.problem is not None and read.problem.code in ENDING:
        return ended(read.problem.model_dump(mode="json"), ENDING[read.problem.code])
    verdict = read.verdicts[0] if read.problem is None and read.verdicts else None
    if verdict is None or verdict.state in (VerdictState.PENDING, VerdictState.UNREADABLE):
        return waits(waiting[0])
    on: Patch = {"status": "running", "pending_requests": []}
    asked = number(state, "clarifications") + 1
    if verdict.state is VerdictState.ANSWERED:
        reply = str(verdict.answer.get("text", ""))
        return on | left(clarified="replied", replied="yes", reply=reply, clarifications=asked)
    return on | left(clarified="failed", clarifications=asked, fault=NO_ANSWER)


def waits(request: RequestRef) -> Patch:
    """The run ends in a pause for this."""
    return {"status": "awaiting", "pending_requests": [request.model_dump(mode="json")]}


def ended(problem: dict[str, object], status: str) -> Patch:
    """The run ends here, not in a pause."""
    return {"error": problem, "status": status, "pending_requests": []}  # type: ignore[dict-item]
