"""initialize_processing_state: loads the turn's plan and request, and the location of its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.approvals import RequestRef, Verdict, VerdictState
from perdure.contracts.calls import CallState, PlannedAsk
from perdure.contracts.memory import CLIENT_TABLE, ClientTables, client_tables_fault
from perdure.contracts.messages import PREVIEW_CHARACTERS, MessageRef, Patch, Role
from perdure.core.text import without_word
from perdure.graph.nodes.call_model import STOP_CODES, ask_object, engine_note
from perdure.graph.nodes.fields import messages_of, plan_of
from perdure.graph.ports import Ports
from perdure.graph.spec import State
from perdure.graph.topologies.clarify_solve.faults import (
    MAX_FAULT_CHARACTERS,
    Cause,
    reports_faults,
    set_end,
    set_fault,
    set_model_fault,
)
from perdure.graph.topologies.clarify_solve.spec import (
    CLASSIFICATION_OUTPUT,
    EXCLUSIONS_OUTPUT,
    MAX_CLARIFICATIONS,
    count_up,
    list_of,
    merge_patches,
    object_of,
    read_bucket,
    read_counter,
    set_processing,
)


@dataclass(frozen=True, slots=True)
class Initialize:
    """The first node of both forms, which differ only in whether the data stays with the client."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Loads the context once. If the plan cannot be loaded, the run ends."""
        context = await ports.memory.load()
        if context.problem is not None:
            status = STOP_CODES.get(context.problem.code, "failed")
            return _end_early(state, context.problem.code, context.problem.message, status)
        plan, message = context.plan, context.user_message
        if plan is None or message is None:
            return _end_early(state, "nothing_loaded", "the turn has no plan", "failed")
        text = without_word(message.text, plan.words.get("bypass", ""))
        bypass = "yes" if text != message.text else None
        message = message.model_copy(update={"text": text or message.text})
        patch: Patch = {
            "plan": plan.model_dump(mode="json"),
            "agent_id": plan.agent_id,
            "agent_type": plan.agent_id,
            "user": {"name": context.user_name or "user", "role": context.user_role},
            "max_tokens": plan.limits.max_tokens,
            "max_cost_microusd": plan.limits.max_cost_microusd,
            "messages": [message.model_dump(mode="json")],
        }
        client_tables = context.metadata.get(CLIENT_TABLE)
        if client_tables is not None:
            fault = client_tables_fault(client_tables)
            if fault:
                return patch | _end_early(state, "client_table_invalid", fault, "failed")
            table = ClientTables.model_validate(client_tables)
            patch["input"] = {"message": message.text, "is_client": True}
            return patch | set_processing(
                start="request",
                bypass=bypass,
                table=table.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
            )
        patch["input"] = {"message": message.text, "is_client": False}
        return patch | set_processing(start=_message_kind(message.text, plan.words), bypass=bypass)


def _message_kind(text: str, words: Mapping[str, str]) -> str:
    for label, word in (("shortcut", words.get("shortcut")), ("upload", words.get("upload"))):
        if word and text.startswith(word):
            return label
    return "request"


def _end_early(state: State, code: str, message: str, status: str) -> Patch:
    problem: dict[str, JsonValue] = {"code": code, "message": message}
    fault = {} if status == "stopped" else set_fault(state, "classify", Cause.FAILED, message)
    return {"error": problem, "status": status, **set_processing(start="upload"), **fault}


# entry_classif_message_type finds the kind of the request, and whether there is data for it.
@dataclass(frozen=True, slots=True)
class Classify:
    """A node that reads the table, if it is here, and calls the model. Without a valid answer, the feedback follows."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the kind of the request. A request for a drawing without data is `no_data`."""
        patch: Patch = {}
        table = object_of(state, "table")
        if not read_bucket(state, "input").get("is_client"):
            profile = await call_stage_tool(state, ports, "profile")
            if profile.ends:
                return set_end(state, "classify", profile.ends) | set_processing(classified="question")
            table = profile.output
            patch = set_processing(table=table, fault=profile.fault or None)
            if profile.fault:
                patch |= set_fault(state, "classify", Cause.FAILED, profile.fault)
        after = {**state, "processing": {**read_bucket(state, "processing"), "table": table}}
        result = await ask_object(
            after, ports, CLASSIFICATION_OUTPUT, [describe_table(after), *question_messages(after)]
        )
        patch = merge_patches({**patch, **result.cost}, set_model_fault(state, "classify", result))
        patch |= count_up(state, "classify", result.tries)
        kind = str((result.value or {}).get("kind", "question"))
        if kind in ("visualization", "transformation") and not table.get("columns"):
            kind = "no_data"
        asks_exclusion = "yes" if (result.value or {}).get("excludes") is True else "no"
        return merge_patches(patch, set_processing(classified=kind, exclusion_asked=asks_exclusion))


# exclusion_processing finds what must not be shown, as facts for the solver; none if the model gives no valid answer.
@dataclass(frozen=True, slots=True)
class Exclude:
    """The branch for exclusions, in parallel with the branch that writes the specification."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns selector, value and scope of each exclusion. An unnamed scope means the whole."""
        result = await ask_object(state, ports, EXCLUSIONS_OUTPUT, question_messages(state))
        found = (result.value or {}).get("exclusions", [])
        patch = {**result.cost, **count_up(state, "exclude", result.tries), **set_processing(exclusions=found)}
        return patch | set_model_fault(state, "exclude", result)


# expand_shortcut_node: a specification that the user wrote goes directly to the solver.
@dataclass(frozen=True, slots=True)
class ExpandShortcut:
    """A node that checks the user's specification. If it or the table is missing or invalid, there is only a fault."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the specification and the unchanged table. No model is called."""
        text = messages_of(state)[0].text
        xml = text.removeprefix(plan_of(state).words.get("shortcut", "")).strip()
        if not xml or len(text) >= PREVIEW_CHARACTERS:
            message = f"a shortcut has a specification of less than {PREVIEW_CHARACTERS} characters"
            return _shortcut_fault(state, "specify", message)
        table = await call_stage_tool(state, ports, "profile")
        if table.fault or not table.output.get("table"):
            return _shortcut_fault(state, "classify", table.fault or "there is no table", table.ends)
        ran = await call_stage_tool(state, ports, "run", table=table.output["table"], xml="")
        if ran.fault:
            return _shortcut_fault(state, "run", ran.fault, ran.ends)
        checked = await call_stage_tool(state, ports, "check_specification", xml=xml, columns=ran.output.get("columns"))
        if checked.fault or not checked.output.get("ok"):
            return _shortcut_fault(state, "specify", checked.fault or fault_lines(checked.output), checked.ends)
        return set_processing(shortcut="yes", table=table.output, run=ran.output, specification=xml)


def _shortcut_fault(state: State, stage: str, message: str, ends: Patch | None = None) -> Patch:
    fault = set_end(state, stage, ends) if ends else set_fault(state, stage, Cause.FAILED, message)
    return fault | set_processing(fault=message)


# Messages to the model in addition to the instructions of the stage: tables, faults, the user's texts. Texts from data
# or from users have the user's role, never the system's. The user's texts come last among them.
MAX_TABLE_CHARACTERS = 6_000
MAX_COLUMNS = 60
ANSWERED_NOTE = (
    "The person was asked back and has answered: each answer stands behind its question. Do not ask the same again."
)


def describe_table(state: State, name: str = "table") -> MessageRef:
    """Returns a description of the table by its columns, and of the other tables. It never contains their location."""
    table = object_of(state, name)
    lines = _table_lines(table, "Table")
    others = table.get("others")
    for other in others if isinstance(others, list) else []:
        lines += _table_lines(other, "Another table") if isinstance(other, dict) else []
    return _user_message("\n".join(lines)[:MAX_TABLE_CHARACTERS])


def _table_lines(table: dict[str, JsonValue], title: str) -> list[str]:
    columns = table.get("columns")
    lines = [f"{title} {table.get('name') or 'table'}, {table.get('rows')} rows. Columns:"]
    for column in columns[:MAX_COLUMNS] if isinstance(columns, list) else []:
        if isinstance(column, dict):
            value_range = f", {column['least']} to {column['most']}" if "least" in column and "most" in column else ""
            lines.append(f"- {column.get('name')} ({column.get('kind')}, {column.get('distinct')} values{value_range})")
    return lines


def fault_messages(what: str, fault: str) -> list[MessageRef]:
    """Returns the fault of the last try. It quotes column names and texts of the tool or the client."""
    return [_user_message(f"What was wrong with the last {what}:\n{fault}")] if fault else []


def question_messages(state: State) -> list[MessageRef]:
    """Returns the user's message, with each question to the user and its answer."""
    messages = messages_of(state)[:1]
    answers = [answer for answer in list_of(state, "answers") if isinstance(answer, dict)]
    for answer in answers:
        messages += [
            _user_message(f"Asked back: {answer.get('question')}{_format_options(answer.get('options'))}"),
            _user_message(str(answer["reply"])),
        ]
    return [*messages, engine_note(ANSWERED_NOTE)] if answers else messages


def _format_options(options: JsonValue) -> str:
    listed = ", ".join(str(option) for option in options) if isinstance(options, list) else ""
    return f" Offered: {listed}." if listed else ""


def _user_message(text: str) -> MessageRef:
    return MessageRef(role=Role.USER, text=text)


def questions_exhausted(state: State) -> bool:
    """Returns whether the turn has used all its questions."""
    return read_counter(state, "clarifications") >= MAX_CLARIFICATIONS


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool, or the reason why there is none."""

    output: dict[str, JsonValue]
    fault: str = ""
    ends: Patch | None = None
    """The end of the run, if the turn was stopped."""


async def call_stage_tool(state: State, ports: Ports, stage: str, **args: JsonValue) -> ToolOutput:
    """Calls the tool of a stage. Any failure is returned as a fault, in one sentence."""
    plan = plan_of(state)
    name = plan.stage_tools.get(stage, "")
    card = plan.card(name)
    if card is None:
        return ToolOutput({}, f"the agent names no tool for {stage}")
    (outcome,) = await ports.tools.make([PlannedAsk(tool=name, args=args, timeout_seconds=card.timeout_seconds)])
    output = outcome.output if isinstance(outcome.output, dict) else {}
    if outcome.problem is not None:
        code = outcome.problem.code
        end: Patch = {"error": outcome.problem.model_dump(mode="json"), "status": STOP_CODES.get(code, "failed")}
        return ToolOutput({}, outcome.problem.message, end if code in STOP_CODES else None)
    if outcome.state is not CallState.DONE:
        message = output.get("message")
        return ToolOutput({}, str(message)[:MAX_FAULT_CHARACTERS] if message else f"{name} could not be done")
    lacks = _lacks(stage, outcome.output) if reports_faults(state) else ""
    return ToolOutput({}, f"{name} returned no {lacks}") if lacks else ToolOutput(output)


_REQUIRED: Final = {"run": "rows", "solve": "success", "check_plan": "ok", "check_specification": "ok"}
"""The field that the output of a stage's tool must have. An empty profile means that there is no table."""


def _lacks(stage: str, output: JsonValue) -> str:
    """Returns what the output of a stage's tool lacks, or an empty string."""
    if not isinstance(output, dict):
        return "object"
    if stage == "draw":
        return "" if output else "picture"
    if stage == "solve" and output.get("success") is True and not isinstance(output.get("design"), dict):
        return "design"
    field = _REQUIRED.get(stage, "")
    return field if field and output.get(field) is None else ""


def fault_lines(output: dict[str, JsonValue]) -> str:
    """Returns the faults of a check, one per line, each with its path. There is always a sentence."""
    faults = output.get("faults")
    lines = (
        [f"{fault.get('path')}: {fault.get('reason')}" for fault in faults if isinstance(fault, dict)]
        if isinstance(faults, list)
        else []
    )
    return "\n".join(lines)[:MAX_FAULT_CHARACTERS] or "the check found it invalid and named no fault"


RESUMED: Final[Patch] = {"status": "running", "pending_requests": []}
"""The patch at the end of a pause, whatever its result."""


def pause_patch(request: RequestRef) -> Patch:
    """Returns the patch that pauses the run until this request is answered."""
    return {"status": "awaiting", "pending_requests": [request.model_dump(mode="json")]}


async def read_pause_result(ports: Ports, requests: Sequence[RequestRef]) -> Verdict | Patch:
    """Reads the result of the pause from its record. Without a result, returns the patch that keeps the turn paused or
    ends the run."""
    read = await ports.people.verdicts(requests)
    if read.problem is not None and read.problem.code in STOP_CODES:
        problem: JsonValue = read.problem.model_dump(mode="json")
        return {"error": problem, "status": STOP_CODES[read.problem.code], "pending_requests": []}
    verdict = read.verdicts[0] if read.problem is None and read.verdicts else None
    if verdict is None or verdict.state in (VerdictState.PENDING, VerdictState.UNREADABLE):
        return pause_patch(requests[0])
    return verdict
