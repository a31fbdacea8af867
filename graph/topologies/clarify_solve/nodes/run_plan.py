"""trigger_choregraph_run_node: the plan is carried out, by a tool here or by the client where the data is (S4-08,
S4-18). What the client hands in are counts and ranges; the rows stay with it (S4-49)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Patch
from contracts.people import Question, RequestKind, Verdict, VerdictState
from graph.nodes.reading import error_of, requests_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.tools import done
from graph.topologies.clarify_solve.nodes.waiting import GOES_ON, looked_at, waits
from graph.topologies.clarify_solve.shapes import HANDED_IN
from graph.topologies.clarify_solve.state import PLANNING_ENTRIES, bucket, left, number, object_of, text_of

NOT_HANDED_IN = "The client did not hand its work in in time."
STILL_OPEN = "what is wanted is still open, and no more may be asked. Say which columns to show; there are"
MOST_NAMED = 12
"""Columns, where a person is told which there are."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Failures go back to the planning while its budget lasts."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A pause in the client's form, a call of a tool in the other."""
        if error_of(state) is not None:
            return left(choregraph="spent")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            came = await looked_at(ports, waiting)
            return _handed_in(state, came) if isinstance(came, Verdict) else came
        if bucket(state, "input").get("is_client"):
            asked: dict[str, JsonValue] = {
                "plan": text_of(state, "plan_xml"),
                "table": object_of(state, "table").get("name"),
                "visualization": text_of(state, "visualization"),
            }
            question = Question(call_id="", kind=RequestKind.CLIENT_RUN, asked=asked, answer_schema=HANDED_IN)
            return waits(ports.people.question(question))
        table = object_of(state, "table")
        args: dict[str, JsonValue] = {"table": table.get("table"), "xml": text_of(state, "plan_xml")}
        others = table.get("others")
        if isinstance(others, list) and args["xml"]:
            args["others"] = [other.get("table") for other in others if isinstance(other, dict)]
        ran = await done(state, ports, "run", **args)
        if ran.ends:
            return ran.ends
        return _failed(state, ran.fault) if ran.fault else _came_to(state, ran.output)


def _handed_in(state: State, verdict: Verdict) -> Patch:
    if verdict.state is not VerdictState.ANSWERED:
        return GOES_ON | left(choregraph="spent", fault=NOT_HANDED_IN)
    if verdict.answer.get("ok") is not True:
        return GOES_ON | _failed(state, str(verdict.answer.get("error") or "the client could not carry it out"))
    return GOES_ON | _came_to(state, verdict.answer)


def _failed(state: State, fault: str) -> Patch:
    left_to_try = number(state, "entries") < PLANNING_ENTRIES
    return left(choregraph="retry" if left_to_try else "spent", fault=fault)


def _came_to(state: State, run: dict[str, JsonValue]) -> Patch:
    """What is left to show; a turn that asked for no picture shows none, and says so where that was still open."""
    wanted = text_of(state, "visualization").strip()
    fault = None if wanted or text_of(state, "early_exit") != "yes" else f"{STILL_OPEN}: {_columns(state)}."
    return left(choregraph="ran", run=run, fault=fault, viz="asked" if wanted else "nothing")


def _columns(state: State) -> str:
    found = object_of(state, "table").get("columns")
    names = [str(one.get("name"))[:40] for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
