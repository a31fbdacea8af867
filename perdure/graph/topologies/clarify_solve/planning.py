"""planning_transformation_node: a checked plan of work on the tables as XML, or a question."""

from dataclasses import dataclass, replace

from pydantic import JsonValue

from perdure.contracts.approvals import Question, RequestKind, Verdict, VerdictState
from perdure.contracts.messages import MessageRef, Patch
from perdure.contracts.values import sha256_hex
from perdure.core.text import without_word
from perdure.graph.nodes.call_model import OutputResult, ask_object, engine_note
from perdure.graph.nodes.fields import error_of, plan_of, requests_of
from perdure.graph.ports import Ports
from perdure.graph.spec import State
from perdure.graph.topologies.clarify_solve.faults import (
    Cause,
    clear_faults,
    has_fault,
    set_end,
    set_fault,
    set_model_fault,
)
from perdure.graph.topologies.clarify_solve.spec import (
    CLIENT_RESULT_SCHEMA,
    MAX_PLANNING_ENTRIES,
    PLAN_OUTPUT,
    PLAN_XML_OUTPUT,
    REPLY_SCHEMA,
    count_up,
    list_of,
    merge_patches,
    object_of,
    read_bucket,
    read_counter,
    set_processing,
    text_of,
)
from perdure.graph.topologies.clarify_solve.understanding import (
    RESUMED,
    call_stage_tool,
    describe_table,
    fault_lines,
    fault_messages,
    pause_patch,
    question_messages,
    questions_exhausted,
    read_pause_result,
)

NO_QUESTION = "No question may be asked any more: early_exit must be false. Decide what is open yourself."
"""The instruction at the limit of questions, and always if the data stays with a client."""
ANOTHER_PLAN = "The last plan could not be used. Make another one, not the same again."


@dataclass(frozen=True, slots=True)
class Planning:
    """One entry: the plan, one more call if its XML is missing, and the check of the XML."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the plan, its fault or a question. Every entry counts, except one that follows a reply."""
        if error_of(state) is not None:
            return {}
        entries = read_counter(state, "entries") + (0 if text_of(state, "replied") else 1)
        patch = set_processing(entries=entries, replied=None, planned="failed", fault=None)
        prompt = self._messages(state)
        result = await ask_object(state, ports, PLAN_OUTPUT, prompt)
        if result.value is None:
            message = result.problem.message if result.problem else "the model gave no plan that could be read"
            fault = {**clear_faults(state, "run"), **set_processing(fault=message)}
            return _plan_patch(state, result, patch, merge_patches(fault, set_model_fault(state, "plan", result)))
        value = result.value
        asks = {name: value[name] for name in ("question", "options", "visualization", "suggestions")}
        patch = merge_patches(patch, set_processing(**asks, early_exit="yes" if value["early_exit"] is True else "no"))
        if value["early_exit"] is True and not _may_not_ask(state):
            asking = {**set_processing(planned="asks"), **clear_faults(state, "plan", "run")}
            return _plan_patch(state, result, patch, asking)
        xml = str(value["xml"]).strip()
        if not xml and str(value["transformation"]).strip():
            xml_result = await ask_object(
                state, ports, PLAN_XML_OUTPUT, [*prompt, engine_note(f"The plan: {value['transformation']}")]
            )
            result = replace(
                xml_result,
                tokens=result.tokens + xml_result.tokens,
                cost_microusd=result.cost_microusd + xml_result.cost_microusd,
            )
            xml = str((xml_result.value or {}).get("xml", "")).strip()
            if not xml:
                fault = _fault_patch(state, "the plan came without its XML")
                if xml_result.problem is not None:
                    fault = merge_patches(fault, set_model_fault(state, "plan", xml_result))
                return _plan_patch(state, result, patch, fault)
        return _plan_patch(state, result, patch, await self._check_xml(state, ports, xml))

    def _messages(self, state: State) -> list[MessageRef]:
        fault = text_of(state, "fault")
        prompt = [describe_table(state), *fault_messages("plan", fault), *question_messages(state)]
        if _may_not_ask(state):
            prompt.append(engine_note(NO_QUESTION))
        return [*prompt, engine_note(ANOTHER_PLAN)] if fault else prompt

    async def _check_xml(self, state: State, ports: Ports, xml: str) -> Patch:
        """Checks the XML. Without XML, the table stays as it is. The same XML again is not a new try."""
        passed = clear_faults(state, "plan", "run")
        if not xml:
            return set_processing(planned="ok", plan_xml="") | passed
        digest, tried = sha256_hex(xml), list_of(state, "tried")
        if digest in tried:
            return set_processing(planned="xsd", fault=text_of(state, "fault") or "this plan was tried before")
        tried_now: list[JsonValue] = [*tried, digest]
        checked = await call_stage_tool(state, ports, "check_plan", xml=xml)
        if checked.ends:
            return set_end(state, "plan", checked.ends) | set_processing(planned="failed")
        if checked.fault or checked.output.get("ok") is not True:
            fault = _fault_patch(state, checked.fault or fault_lines(checked.output))
            return merge_patches(fault, set_processing(tried=tried_now))
        return set_processing(planned="ok", tried=tried_now, plan_xml=xml) | passed


def _fault_patch(state: State, message: str) -> Patch:
    """Returns the patch for a plan that does not fit. The fault of an earlier plan's run is removed."""
    fault = merge_patches(clear_faults(state, "run"), set_fault(state, "plan", Cause.FAILED, message))
    return fault | set_processing(planned="xsd", fault=message)


def _may_not_ask(state: State) -> bool:
    return questions_exhausted(state) or bool(read_bucket(state, "input").get("is_client"))


def _plan_patch(state: State, result: OutputResult, patch: Patch, other: Patch) -> Patch:
    return {**result.cost, **count_up(state, "planning"), **merge_patches(patch, other)}


# transformation_clarification_gate asks the user if the plan has a question that is allowed, and reads the answer.
NO_ANSWER_IN_TIME = "No answer arrived in time."


@dataclass(frozen=True, slots=True)
class Clarify:
    """A node that opens a question, reads its answer, or passes a plan."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the pause or the next step. The answer is read from its record every time."""
        if error_of(state) is not None:
            return set_processing(clarified="failed")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            result = await read_pause_result(ports, waiting)
            return _reply_patch(state, result) if isinstance(result, Verdict) else result
        planned = text_of(state, "planned")
        if planned == "asks":
            question = Question(
                call_id="",
                kind=RequestKind.CLARIFICATION,
                asked={"question": text_of(state, "question"), "options": list_of(state, "options")},
                answer_schema=REPLY_SCHEMA,
            )
            return pause_patch(ports.people.open_question(question))
        if planned == "ok":
            return set_processing(clarified="run")
        if planned == "xsd" and read_counter(state, "entries") < MAX_PLANNING_ENTRIES:
            return set_processing(clarified="xsd_retry")
        if planned == "xsd":
            stage = "run" if has_fault(state, "run") else "plan"  # a plan that failed and came again
            return set_processing(clarified="spent") | set_fault(state, stage, Cause.SPENT, text_of(state, "fault"))
        return set_processing(clarified="failed")


def _reply_patch(state: State, verdict: Verdict) -> Patch:
    count, bypass = read_counter(state, "clarifications") + 1, plan_of(state).words.get("bypass", "")
    if verdict.state is VerdictState.ANSWERED:
        text = str(verdict.answer.get("text", ""))
        answer: dict[str, JsonValue] = {
            "question": text_of(state, "question"),
            "options": list_of(state, "options"),
            "reply": without_word(text, bypass) or text,
        }
        answers = [*list_of(state, "answers"), answer]
        bypass_flag = "yes" if text_of(state, "bypass") or without_word(text, bypass) != text else None
        return RESUMED | set_processing(
            clarified="replied", replied="yes", answers=answers, clarifications=count, bypass=bypass_flag
        )
    fault = set_fault(state, "plan", Cause.FAILED, NO_ANSWER_IN_TIME)
    return RESUMED | set_processing(clarified="failed", clarifications=count, fault=NO_ANSWER_IN_TIME) | fault


# trigger_choregraph_run_node carries the plan out, with a tool here or by the client that has the data. The client's
# result has counts and ranges; the rows stay with the client.
NO_CLIENT_RESULT = "The client did not return its result in time."
STILL_OPEN = "the request is still unclear, and no question is left. Name the columns to show; available are"
MAX_NAMED_COLUMNS = 12
"""The number of columns that a message to the user lists."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A node that runs the plan. After a failure, planning is entered again while entries are left."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Opens a request to the client if the client has the data. Otherwise calls the tool."""
        if error_of(state) is not None:
            return set_processing(choregraph="spent")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            result = await read_pause_result(ports, waiting)
            return _client_result_patch(state, result) if isinstance(result, Verdict) else result
        if read_bucket(state, "input").get("is_client"):
            content: dict[str, JsonValue] = {
                "plan": text_of(state, "plan_xml"),
                "table": object_of(state, "table").get("name"),
                "visualization": text_of(state, "visualization"),
            }
            question = Question(
                call_id="", kind=RequestKind.CLIENT_RUN, asked=content, answer_schema=CLIENT_RESULT_SCHEMA
            )
            return pause_patch(ports.people.open_question(question))
        table = object_of(state, "table")
        args: dict[str, JsonValue] = {"table": table.get("table"), "xml": text_of(state, "plan_xml")}
        others = table.get("others")
        if isinstance(others, list) and args["xml"]:
            args["others"] = [other.get("table") for other in others if isinstance(other, dict)]
        ran = await call_stage_tool(state, ports, "run", **args)
        if ran.ends:
            return set_end(state, "run", ran.ends)
        return _failure_patch(state, ran.fault) if ran.fault else _run_result(state, ran.output)


def _client_result_patch(state: State, verdict: Verdict) -> Patch:
    if verdict.state is not VerdictState.ANSWERED:
        fault = set_fault(state, "run", Cause.FAILED, NO_CLIENT_RESULT)
        return RESUMED | set_processing(choregraph="spent", fault=NO_CLIENT_RESULT) | fault
    if verdict.answer.get("ok") is not True:
        return RESUMED | _failure_patch(state, str(verdict.answer.get("error") or "the client could not carry it out"))
    return RESUMED | _run_result(state, verdict.answer)


def _failure_patch(state: State, fault: str) -> Patch:
    may_retry = read_counter(state, "entries") < MAX_PLANNING_ENTRIES
    patch = set_processing(choregraph="retry" if may_retry else "spent", fault=fault)
    return patch | set_fault(state, "run", Cause.FAILED if may_retry else Cause.SPENT, fault)


def _run_result(state: State, run: dict[str, JsonValue]) -> Patch:
    """Returns the result to show. If no drawing was requested, it shows none; if that remained open, its fault explains
    it."""
    wanted = text_of(state, "visualization").strip()
    fault = None if wanted or text_of(state, "early_exit") != "yes" else f"{STILL_OPEN}: {_column_names(state)}."
    patch = set_processing(choregraph="ran", run=run, fault=fault, viz="asked" if wanted else "nothing")
    return patch | (set_fault(state, "plan", Cause.FAILED, fault) if fault else {})


def _column_names(state: State) -> str:
    columns = object_of(state, "table").get("columns")
    names = (
        [str(column.get("name"))[:40] for column in columns if isinstance(column, dict)]
        if isinstance(columns, list)
        else []
    )
    return ", ".join(names[:MAX_NAMED_COLUMNS]) + (", ..." if len(names) > MAX_NAMED_COLUMNS else "")
