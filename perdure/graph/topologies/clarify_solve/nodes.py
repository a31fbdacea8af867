"""The nodes of `clarify_solve` by their ids, and those of its nested topology."""

from dataclasses import dataclass

from pydantic import JsonValue

from perdure.contracts.messages import Patch
from perdure.graph.nodes.call_model import ask_object, engine_note
from perdure.graph.nodes.fields import error_of
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State
from perdure.graph.topologies.clarify_solve import spec
from perdure.graph.topologies.clarify_solve.faults import (
    Cause,
    clear_faults,
    has_fault,
    set_end,
    set_fault,
    set_model_fault,
    was_refused,
)
from perdure.graph.topologies.clarify_solve.feedback import (
    Feedback,
    FormatFeedback,
    client_output_patch,
    palette_of,
)
from perdure.graph.topologies.clarify_solve.planning import Clarify, Planning, RunPlan
from perdure.graph.topologies.clarify_solve.spec import (
    MARKS_OUTPUT,
    MAX_XML_GENERATIONS,
    SPECIFICATION_OUTPUT,
    count_up,
    list_of,
    object_of,
    read_bucket,
    read_counter,
    set_processing,
    text_of,
    warnings_of,
)
from perdure.graph.topologies.clarify_solve.understanding import (
    Classify,
    Exclude,
    ExpandShortcut,
    Initialize,
    call_stage_tool,
    describe_table,
    fault_lines,
    fault_messages,
    question_messages,
)

# Nodes of viz_processing_branch: a specification as XML is generated and checked; its faults go into the next try.
REPAIR_NOTE = "The last specification does not fit. Mend it."


@dataclass(frozen=True, slots=True)
class EnterViz:
    """A node that clears the results of an earlier try."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns a patch that clears each value by name, because a merge cannot clear."""
        return set_processing(specification=None, xml=None, xml_fault=None, generations=0)


@dataclass(frozen=True, slots=True)
class GenerateXml:
    """A node that generates the specification once."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the specification; the prompt contains the last fault."""
        if error_of(state) is not None:
            return {}
        fault = text_of(state, "xml_fault")
        prompt = [describe_table(state, "run"), *fault_messages("specification", fault), *question_messages(state)]
        prompt += [engine_note(REPAIR_NOTE)] if fault else []
        prompt.append(engine_note(f"To show: {text_of(state, 'visualization')}"))
        result = await ask_object(state, ports, SPECIFICATION_OUTPUT, prompt)
        xml = str((result.value or {}).get("xml", "")).strip()
        generations = read_counter(state, "generations") + 1
        failed = set_model_fault(state, "specify", result)
        return {
            **result.cost,
            **count_up(state, "specify"),
            **set_processing(specification=xml or None, generations=generations),
            **(failed or clear_faults(state, "specify")),
        }


@dataclass(frozen=True, slots=True)
class ValidateXml:
    """A node that checks the specification: valid, another try, or no tries left."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the result of the check. An invalid specification never passes as an empty one."""
        if error_of(state) is not None:
            return {}
        xml = text_of(state, "specification")
        columns = object_of(state, "run").get("columns")
        checked = await call_stage_tool(state, ports, "check_specification", xml=xml, columns=columns) if xml else None
        if checked is not None and checked.ends:
            return set_end(state, "specify", checked.ends)
        if checked is not None and not checked.fault and checked.output.get("ok") is True:
            return set_processing(xml="valid", xml_fault=None)
        fault = "no specification came" if checked is None else checked.fault or fault_lines(checked.output)
        may_retry = read_counter(state, "generations") < MAX_XML_GENERATIONS and not was_refused(state, "specify")
        patch = set_processing(xml="retry" if may_retry else "spent", xml_fault=fault)
        is_known = may_retry or has_fault(state, "specify")
        return patch if is_known else patch | set_fault(state, "specify", Cause.SPENT, fault)


@dataclass(frozen=True, slots=True)
class FinalizeXml:
    """The end of the branch."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Keeps a valid specification and requests its marks; removes an invalid one."""
        if text_of(state, "xml") == "valid":
            return set_processing(marks="yes")
        return set_processing(marks="no", specification=None)


@dataclass(frozen=True, slots=True)
class ClassifyMarks:
    """A node that asks the model which marks the user probably means. Without a valid answer, there are none."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the marks with their scores. The solver's rules use scores of 0.5 and more."""
        prompt = [*question_messages(state), engine_note(f"The specification: {text_of(state, 'specification')}")]
        result = await ask_object(state, ports, MARKS_OUTPUT, prompt)
        return {
            **result.cost,
            **count_up(state, "marks", result.tries),
            **set_processing(likely=(result.value or {}).get("marks", [])),
            **set_model_fault(state, "marks", result),
        }


# asp_solving_node solves what the specification leaves open, once, after every branch.
@dataclass(frozen=True, slots=True)
class SolveDesign:
    """A node that calls the solver. Unsatisfiable, timed out and failed are outcomes with a message each."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the design or a fault. If the client has the data, the run ends here and the client draws."""
        if error_of(state) is not None:
            return set_processing(asp="failed")
        if text_of(state, "viz") == "nothing":
            return client_output_patch(state, {}) if _client_has_data(state) else set_processing(asp="web")
        xml = text_of(state, "specification")
        if not xml:
            return set_processing(asp="failed", fault=text_of(state, "xml_fault") or "no specification came")
        solved = await call_stage_tool(
            state,
            ports,
            "solve",
            xml=xml,
            columns=object_of(state, "run").get("columns"),
            marks=list_of(state, "likely"),
            exclusions=list_of(state, "exclusions"),
        )
        if solved.ends:
            return set_end(state, "solve", solved.ends) | set_processing(asp="failed")
        if solved.fault or solved.output.get("success") is not True:
            fault = solved.fault or str(solved.output.get("message") or "no design was found")
            patch = set_processing(asp="failed", solved=solved.output, fault=fault)
            return patch | set_fault(state, "solve", Cause.FAILED, fault)
        if _client_has_data(state):
            return client_output_patch(state, solved.output)
        return set_processing(asp="web", solved=solved.output)


def _client_has_data(state: State) -> bool:
    return bool(read_bucket(state, "input").get("is_client"))


# viz_building_node draws the design with the rows that remain after the plan.
@dataclass(frozen=True, slots=True)
class Build:
    """A node that draws, if something must be shown. A failed drawing has a fault."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Draws with the agent's palette."""
        if error_of(state) is not None or text_of(state, "viz") == "nothing":
            return {}
        run, solved = object_of(state, "run"), object_of(state, "solved")
        design, warnings = solved.get("design"), warnings_of(run, solved)
        if warnings and isinstance(design, dict):
            design = {**design, "notes": warnings}  # a drawing travels further than the text of the answer
        args: dict[str, JsonValue] = {"rows_file": run.get("rows_file"), "design": design}
        colors: list[JsonValue] = [*palette_of(state)]
        if colors:
            args["palette"] = colors
        drawn = await call_stage_tool(state, ports, "draw", **args)
        if drawn.ends:
            return set_end(state, "draw", drawn.ends)
        if drawn.fault:
            return set_processing(fault=drawn.fault) | set_fault(state, "draw", Cause.FAILED, drawn.fault)
        return set_processing(drawn=drawn.output)


NODES: dict[str, Node] = {
    spec.INIT: Initialize(),
    spec.SHORTCUT: ExpandShortcut(),
    spec.CLASSIFY: Classify(),
    spec.PLAN: Planning(),
    spec.GATE: Clarify(),
    spec.RUN: RunPlan(),
    spec.EXCLUDE: Exclude(),
    spec.ASP: SolveDesign(),
    spec.BUILD: Build(),
    spec.FEEDBACK: Feedback(),
    spec.FORMAT: FormatFeedback(),
}
VIZ_NODES: dict[str, Node] = {
    "entry": EnterViz(),
    "xml_generation": GenerateXml(),
    "xml_validator": ValidateXml(),
    "finalize": FinalizeXml(),
    "mark_classification": ClassifyMarks(),
}
