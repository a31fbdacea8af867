"""transformation_clarification_gate: ask the person where the plan asks and may; look at the answer (S4-07, S4-16)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Patch
from contracts.people import Question, RequestKind, Verdict, VerdictState
from graph.nodes.reading import error_of, plan_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.waiting import GOES_ON, looked_at, waits
from graph.topologies.clarify_solve.shapes import REPLY
from graph.topologies.clarify_solve.state import PLANNING_ENTRIES, left, list_of, number, text_of
from policy.text import without_word

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
            came = await looked_at(ports, waiting)
            return _replied(state, came) if isinstance(came, Verdict) else came
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


def _replied(state: State, verdict: Verdict) -> Patch:
    asked, bypass = number(state, "clarifications") + 1, plan_of(state).words.get("bypass", "")
    if verdict.state is VerdictState.ANSWERED:
        said = str(verdict.answer.get("text", ""))
        answer: dict[str, JsonValue] = {
            "question": text_of(state, "question"),
            "options": list_of(state, "options"),
            "reply": without_word(said, bypass) or said,
        }
        answers = [*list_of(state, "answers"), answer]
        saves = "yes" if text_of(state, "bypass") or without_word(said, bypass) != said else None
        return GOES_ON | left(clarified="replied", replied="yes", answers=answers, clarifications=asked, bypass=saves)
    return GOES_ON | left(clarified="failed", clarifications=asked, fault=NO_ANSWER)
