"""The nodes of viz_processing_branch: what to show as XML, checked, its faults told to the next try (S4-11, S4-27)."""

from dataclasses import dataclass

from contracts.messages import Patch
from graph.nodes.ask_object import ask_object, note
from graph.nodes.reading import error_of
from graph.ports import Ports
from graph.spec import State
from graph.topologies.clarify_solve.nodes.prompts import asked, at_fault, described
from graph.topologies.clarify_solve.nodes.tools import done, told_faults
from graph.topologies.clarify_solve.shapes import MARKS, SPECIFY
from graph.topologies.clarify_solve.state import XML_GENERATIONS, counted, left, number, object_of, text_of

MEND = "The last specification does not fit. Mend it."


@dataclass(frozen=True, slots=True)
class EnterViz:
    """What an earlier try has left is no part of this one."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Cleared by name: merging cannot (S4-15)."""
        return left(specification=None, xml=None, xml_fault=None, generations=0)


@dataclass(frozen=True, slots=True)
class GenerateXml:
    """One generation."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The last fault goes into the prompt."""
        if error_of(state) is not None:
            return {}
        fault = text_of(state, "xml_fault")
        said = [described(state, "run"), *at_fault("specification", fault), *asked(state)]
        said += [note(MEND)] if fault else []
        said.append(note(f"To show: {text_of(state, 'visualization')}"))
        got = await ask_object(state, ports, SPECIFY, said)
        xml = str((got.value or {}).get("xml", "")).strip()
        generations = number(state, "generations") + 1
        return {**got.cost, **counted(state, "specify"), **left(specification=xml or None, generations=generations)}


@dataclass(frozen=True, slots=True)
class ValidateXml:
    """Valid, once more, or no more."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """A specification that does not fit is never handed on as an empty one (S4-28)."""
        if error_of(state) is not None:
            return {}
        xml = text_of(state, "specification")
        columns = object_of(state, "run").get("columns")
        checked = await done(state, ports, "check_specification", xml=xml, columns=columns) if xml else None
        if checked is not None and checked.ends:
            return checked.ends
        if checked is not None and not checked.fault and checked.output.get("ok") is True:
            return left(xml="valid", xml_fault=None)
        fault = "no specification came" if checked is None else checked.fault or told_faults(checked.output)
        more = number(state, "generations") < XML_GENERATIONS
        return left(xml="retry" if more else "spent", xml_fault=fault)


@dataclass(frozen=True, slots=True)
class FinalizeXml:
    """What the branch came to."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """The marks are asked about only where there is something to mark."""
        if text_of(state, "xml") == "valid":
            return left(marks="yes")
        return left(marks="no", specification=None)


@dataclass(frozen=True, slots=True)
class ClassifyMarks:
    """Which marks the person may mean; nothing where the model cannot say (S4-36)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Scores as they come: the rules take those of a half and more."""
        said = [*asked(state), note(f"The specification: {text_of(state, 'specification')}")]
        got = await ask_object(state, ports, MARKS, said)
        return {**got.cost, **counted(state, "marks", got.tries), **left(likely=(got.value or {}).get("marks", []))}
