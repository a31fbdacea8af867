"""asp_solving_node: what the specification leaves open is decided once, after every branch (S4-09, S4-10, S4-33)."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import MessageRef, Patch, Role
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.reducers import replace
from graph.spec import State
from graph.topologies.clarify_solve.nodes.tools import done
from graph.topologies.clarify_solve.state import bucket, left, list_of, object_of, text_of, warnings_of


@dataclass(frozen=True, slots=True)
class SolveDesign:
    """Unsatisfiable, out of time and broken are outcomes, and each is told (S4-33, S4-35)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """In the client's form the run ends here with the design; whoever has the data draws."""
        if error_of(state) is not None:
            return left(asp="failed")
        if text_of(state, "viz") == "nothing":
            return _handed_out(state, {}) if _is_client(state) else left(asp="web")
        xml = text_of(state, "specification")
        if not xml:
            return left(asp="failed", fault=text_of(state, "xml_fault") or "no specification came")
        solved = await done(
            state,
            ports,
            "solve",
            xml=xml,
            columns=object_of(state, "run").get("columns"),
            marks=list_of(state, "likely"),
            exclusions=list_of(state, "exclusions"),
        )
        if solved.ends:
            return solved.ends | left(asp="failed")
        if solved.fault or solved.output.get("success") is not True:
            fault = solved.fault or str(solved.output.get("message", ""))
            return left(asp="failed", solved=solved.output, fault=fault)
        if _is_client(state):
            return _handed_out(state, solved.output)
        return left(asp="web", solved=solved.output)


def _is_client(state: State) -> bool:
    return bool(bucket(state, "input").get("is_client"))


def _handed_out(state: State, solved: dict[str, JsonValue]) -> Patch:
    """S4-45: what the client gets, and the last word, which no model says here."""
    told, fault = warnings_of(object_of(state, "run"), solved), text_of(state, "fault")
    nothing = f"{fault[:1].upper()}{fault[1:]}" or "The plan was carried out; no picture was asked for."
    shown = text_of(state, "visualization").strip() or nothing
    before = state["messages"]
    last = MessageRef(role=Role.ASSISTANT, text=shown)
    output: dict[str, JsonValue] = {
        "specification": solved.get("specification"),
        "design": solved.get("design"),
        "plan": text_of(state, "plan_xml"),
        "explanation": shown,
        "warnings": [*told, fault] if fault else told,
        "retries": bucket(state, "turn_metrics"),
    }
    return {
        "status": "completed",
        "messages": [*(before if isinstance(before, list) else []), last.model_dump(mode="json")],
        "output": {name: replace(value) for name, value in output.items()},
        **left(asp="api", solved=solved),
    }
