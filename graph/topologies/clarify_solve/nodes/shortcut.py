"""expand_shortcut_node: a specification that the person wrote goes straight to the solver (S4-04, S4-05)."""

from dataclasses import dataclass

from contracts.messages import PREVIEW_CHARACTERS, Patch
from graph.nodes.reading import messages_of, plan_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.tools import done, told_faults
from graph.topologies.clarify_solve.state import left


@dataclass(frozen=True, slots=True)
class ExpandShortcut:
    """Nothing where there is no specification, no table, or one that does not fit."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """No model is asked; the table is taken as it is."""
        said = messages_of(state)[0].text
        xml = said.removeprefix(plan_of(state).words.get("shortcut", "")).strip()
        if not xml or len(said) >= PREVIEW_CHARACTERS:
            return left(fault=f"a shortcut has a specification of less than {PREVIEW_CHARACTERS} characters")
        table = await done(state, ports, "profile")
        if table.fault or not table.output.get("table"):
            return (table.ends or {}) | left(fault=table.fault or "there is no table")
        ran = await done(state, ports, "run", table=table.output["table"], xml="")
        if ran.fault:
            return (ran.ends or {}) | left(fault=ran.fault)
        checked = await done(state, ports, "check_specification", xml=xml, columns=ran.output.get("columns"))
        if checked.fault or not checked.output.get("ok"):
            return (checked.ends or {}) | left(fault=checked.fault or told_faults(checked.output))
        return left(shortcut="yes", table=table.output, run=ran.output, specification=xml)
