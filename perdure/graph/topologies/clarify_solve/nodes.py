"""The nodes of `clarify_solve` by their ids, and those of its nested topology."""

from dataclasses import dataclass
from html import escape

from pydantic import JsonValue

from perdure.contracts.calls import ModelCallRequest
from perdure.contracts.errors import Problem
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.core.budgets import COST_SPENT, TOKENS_SPENT
from perdure.graph.nodes.call_model import STOP_CODES, ask_object, engine_note, reached_limit
from perdure.graph.nodes.fields import error_of, messages_of, plan_of
from perdure.graph.ports import Ports
from perdure.graph.spec import Node, State
from perdure.graph.state import replace
from perdure.graph.topologies.clarify_solve import spec
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
        return {
            **result.cost,
            **count_up(state, "specify"),
            **set_processing(specification=xml or None, generations=generations),
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
            return checked.ends
        if checked is not None and not checked.fault and checked.output.get("ok") is True:
            return set_processing(xml="valid", xml_fault=None)
        fault = "no specification came" if checked is None else checked.fault or fault_lines(checked.output)
        may_retry = read_counter(state, "generations") < MAX_XML_GENERATIONS
        return set_processing(xml="retry" if may_retry else "spent", xml_fault=fault)


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
            return _client_output_patch(state, {}) if _client_has_data(state) else set_processing(asp="web")
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
            return solved.ends | set_processing(asp="failed")
        if solved.fault or solved.output.get("success") is not True:
            fault = solved.fault or str(solved.output.get("message", ""))
            return set_processing(asp="failed", solved=solved.output, fault=fault)
        if _client_has_data(state):
            return _client_output_patch(state, solved.output)
        return set_processing(asp="web", solved=solved.output)


def _client_has_data(state: State) -> bool:
    return bool(read_bucket(state, "input").get("is_client"))


def _client_output_patch(state: State, solved: dict[str, JsonValue]) -> Patch:
    """Returns the output for the client and the last message, which is written without a model."""
    warnings, fault = warnings_of(object_of(state, "run"), solved), text_of(state, "fault")
    without_drawing = f"{fault[:1].upper()}{fault[1:]}" or "The plan was carried out. It requests no picture."
    explanation = text_of(state, "visualization").strip() or without_drawing
    before = state["messages"]
    last = MessageRef(role=Role.ASSISTANT, text=explanation)
    output: dict[str, JsonValue] = {
        "specification": solved.get("specification"),
        "design": solved.get("design"),
        "plan": text_of(state, "plan_xml"),
        "explanation": explanation,
        "warnings": [*warnings, fault] if fault else warnings,
        "retries": read_bucket(state, "turn_metrics"),
    }
    return {
        "status": "completed",
        "messages": [*(before if isinstance(before, list) else []), last.model_dump(mode="json")],
        "output": {name: replace(value) for name, value in output.items()},
        **set_processing(asp="api", solved=solved),
    }


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
            return drawn.ends
        return set_processing(fault=drawn.fault) if drawn.fault else set_processing(drawn=drawn.output)


def palette_of(state: State) -> list[str]:
    """Returns the colors that the agent's `words` name, in order."""
    return [color.strip() for color in plan_of(state).words.get("palette", "").split(",") if color.strip()]


# feedback_node gives the result, in the words of the model or of the engine.
@dataclass(frozen=True, slots=True)
class Feedback:
    """The only node of a turn whose text is streamed to the user."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Writes the engine's text after the bypass word, without an answer of the model, or on a spent budget."""
        if error_of(state) is not None:
            return {}
        messages = messages_of(state)
        if text_of(state, "bypass") or reached_limit(state) is not None:
            return _facts_message_patch(state)
        user = state["user"]
        reply = await ports.model.complete(
            ModelCallRequest(
                messages=(*messages[:1], engine_note(describe_facts(state))),
                tools=(),
                prompt=user if isinstance(user, dict) else {},
                stage="feedback",
            )
        )
        patch: Patch = {"tokens_used": reply.usage.tokens, "cost_microusd": reply.usage.cost_microusd}
        if reply.problem is not None and reply.problem.code in STOP_CODES and not _was_spent(reply.problem):
            patch |= {"error": reply.problem.model_dump(mode="json"), "status": STOP_CODES[reply.problem.code]}
            return patch
        if reply.problem is not None or reply.message is None or not reply.message.text.strip():
            return {**patch, **_facts_message_patch(state)}
        return {**patch, "messages": _append_message(state, reply.message)}


def _was_spent(problem: Problem) -> bool:
    """Returns whether the model was not called because the turn had spent more than its state showed."""
    return problem.code in (TOKENS_SPENT, COST_SPENT)


def describe_facts(state: State) -> str:
    """Returns one sentence for each thing that happened. The model receives no other facts; without a model, the user
    reads them."""
    lines = []
    if text_of(state, "classified") == "no_data":
        lines.append("There is no table yet: one must be uploaded first.")
    if text_of(state, "classified") == "palette":
        lines.append("A palette is proposed with this text.")
    if text_of(state, "start") == "upload":
        lines.append("The upload has arrived and can be worked with.")
    run, solved = object_of(state, "run"), object_of(state, "solved")
    if run:
        rows = run.get("rows")
        lines.append(f"The data was prepared: {'1 row is' if rows == 1 else f'{rows} rows are'} left.")
    design = solved.get("design")
    if isinstance(design, dict):
        lines.append(f"A design was found: {design.get('mark')}.")
    if object_of(state, "drawn"):
        lines.append("The picture was drawn.")
    lines += [_make_sentence(str(each)) for each in warnings_of(run, solved)]
    fault = text_of(state, "fault")
    if fault:
        lines.append(f"It could not be finished: {fault}")
    return "\n".join(lines) or "No work on the data was requested."


def _make_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def _facts_message_patch(state: State) -> Patch:
    return {"messages": _append_message(state, MessageRef(role=Role.ASSISTANT, text=describe_facts(state)))}


def _append_message(state: State, message: MessageRef) -> list[JsonValue]:
    before = state["messages"]
    return [*(before if isinstance(before, list) else []), message.model_dump(mode="json")]


# format_feedback is the only writer of `output` on the server: escaped text, suggestions, drawings.
DEFAULT_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2")


@dataclass(frozen=True, slots=True)
class FormatFeedback:
    """A node that builds the output. No text of a model or a table can contain markup."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the output. The answer itself stays plain text; its HTML is in `output`."""
        if error_of(state) is not None:
            return {}
        output: dict[str, JsonValue] = {
            "text": to_html(messages_of(state)[-1].text),
            "suggestions": _suggestions(state),
        }
        if text_of(state, "classified") == "palette":
            output["selection_prompt"] = "Pick a palette."
        drawn = object_of(state, "drawn")
        if drawn:
            output["pictures"] = {name: f"/v1/files/{file}" for name, file in drawn.items()}
        warnings, fault = warnings_of(object_of(state, "run"), object_of(state, "solved")), text_of(state, "fault")
        # A client that has the data does not read the conversation.
        output["warnings"] = [*warnings, fault] if fault and read_bucket(state, "input").get("is_client") else warnings
        output["retries"] = read_bucket(state, "turn_metrics")
        return {"status": "completed", "output": {name: replace(value) for name, value in output.items()}}


def to_html(text: str) -> str:
    """Returns plain text as HTML paragraphs, escaped."""
    parts = [escape(part).replace("\n", "<br>") for part in text.split("\n\n") if part.strip()]
    return "".join(f"<p>{part}</p>" for part in parts)


def _suggestions(state: State) -> list[JsonValue]:
    if text_of(state, "classified") == "palette":
        colors: list[JsonValue] = [*(palette_of(state) or DEFAULT_PALETTE)]
        return [{"kind": "custom_palette", "colors": colors}]
    if text_of(state, "fault"):
        return []  # suggestions of a failed plan would fail too
    return [{"kind": "text", "text": str(each)} for each in list_of(state, "suggestions")]


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
