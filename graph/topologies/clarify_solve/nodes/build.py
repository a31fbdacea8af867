"""viz_building_node: the design is drawn, with the rows that the plan has left."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.messages import Patch
from graph.nodes.reading import error_of, plan_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.tools import done
from graph.topologies.clarify_solve.state import left, object_of, text_of, warnings_of


@dataclass(frozen=True, slots=True)
class Build:
    """Nothing where nothing was to be shown; a drawing that fails is told."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The palette is the agent's own."""
        if error_of(state) is not None or text_of(state, "viz") == "nothing":
            return {}
        run, solved = object_of(state, "run"), object_of(state, "solved")
        design, told = solved.get("design"), warnings_of(run, solved)
        if told and isinstance(design, dict):
            design = {**design, "notes": told}  # a picture goes further than the words beside it
        args: dict[str, JsonValue] = {"rows_file": run.get("rows_file"), "design": design}
        colours: list[JsonValue] = [*palette_of(state)]
        if colours:
            args["palette"] = colours
        drawn = await done(state, ports, "draw", **args)
        if drawn.ends:
            return drawn.ends
        return left(fault=drawn.fault) if drawn.fault else left(drawn=drawn.output)


def palette_of(state: State) -> list[str]:
    """The colours that the agent's words name, in order."""
    return [colour.strip() for colour in plan_of(state).words.get("palette", "").split(",") if colour.strip()]
