"""entry_classif_message_type: what is asked for, and whether there is data for it (S4-06)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.ask_object import ask_object
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.prompts import asked, described
from graph.topologies.clarify_solve.nodes.tools import done
from graph.topologies.clarify_solve.shapes import CLASSIFY
from graph.topologies.clarify_solve.state import bucket, counted, left, object_of


@dataclass(frozen=True, slots=True)
class Classify:
    """Look at the table where it is here, then ask the model; what it cannot say goes to the feedback (S4-25)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A request for a picture without data is `no_data`."""
        patch: Patch = {}
        table = object_of(state, "table")
        if not bucket(state, "input").get("is_client"):
            looked = await done(state, ports, "profile")
            if looked.ends:
                return looked.ends | left(classified="question")
            table = looked.output
            patch = left(table=table, fault=looked.fault or None)
        after = {**state, "processing": {**bucket(state, "processing"), "table": table}}
        got = await ask_object(after, ports, CLASSIFY, [described(after), *asked(after)])
        patch = {**patch, **got.cost, **counted(state, "classify", got.tries)}
        kind = str((got.value or {}).get("kind", "question"))
        if kind in ("visualization", "transformation") and not table.get("columns"):
            kind = "no_data"
        excludes = "yes" if (got.value or {}).get("excludes") is True else "no"
        return _merged(patch, left(classified=kind, exclusion_asked=excludes))


def _merged(patch: Patch, more: Patch) -> Patch:
    """Two patches of which both write `processing`."""
    before, new = patch.get("processing"), more["processing"]
    both = {**(before if isinstance(before, dict) else {}), **(new if isinstance(new, dict) else {})}
    return {**patch, "processing": both}
