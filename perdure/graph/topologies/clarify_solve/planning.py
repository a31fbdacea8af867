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
from perdure.graph.topologies.clarify_solve.spec import (
    HANDED_IN,
    PLAN_OBJECT,
    PLAN_XML,
    PLANNING_ENTRIES,
    REPLY,
    count_up,
    list_of,
    object_of,
    read_bucket,
    read_counter,
    set_processing,
    text_of,
)
from perdure.graph.topologies.clarify_solve.understanding import (
    GOES_ON,
    at_fault,
    at_the_cap,
    call_stage_tool,
    describe_table,
    fault_lines,
    looked_at,
    pause_patch,
    question_messages,
)

NO_QUESTION = "No question may be asked any more: early_exit must be false. Decide what is open yourself."
"""The instruction at the limit of questions, and always if the data stays with a client."""
ANOTHER = "The last plan could not be used. Make another one, not the same again."


@dataclass(frozen=True, slots=True)
class Planning:
    """One entry: the plan, one more call if its XML is missing, and the check of the XML."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the plan, its fault or a question. Every entry counts, except one that follows a reply."""
        if error_of(state) is not None:
            return {}
        entries = read_counter(state, "entries") + (0 if text_of(state, "replied") else 1)
        own = set_processing(entries=entries, replied=None, planned="failed", fault=None)
        prompt = self._messages(state)
        got = await ask_object(state, ports, PLAN_OBJECT, prompt)
        if got.value is None:
            message = got.problem.message if got.problem else "the model gave no plan that could be read"
            return _patch(state, got, own, set_processing(fault=message))
        value = got.value
        asks = {name: value[name] for name in ("question", "options", "visualization", "suggestions")}
        own = _merge_patches(own, set_processing(**asks, early_exit="yes" if value["early_exit"] is True else "no"))
        if value["early_exit"] is True and not _closed(state):
            return _patch(state, got, own, set_processing(planned="asks"))
        xml = str(value["xml"]).strip()
        if not xml and str(value["transformation"]).strip():
            more = await ask_object(
                state, ports, PLAN_XML, [*prompt, engine_note(f"The plan: {value['transformation']}")]
            )
            got = replace(more, tokens=got.tokens + more.tokens, cost_microusd=got.cost_microusd + more.cost_microusd)
            xml = str((more.value or {}).get("xml", "")).strip()
            if not xml:
                return _patch(state, got, own, set_processing(planned="xsd", fault="the plan came without its XML"))
        return _patch(state, got, own, await self._check_xml(state, ports, xml))

    def _messages(self, state: State) -> list[MessageRef]:
        fault = text_of(state, "fault")
        prompt = [describe_table(state), *at_fault("plan", fault), *question_messages(state)]
        if _closed(state):
            prompt.append(engine_note(NO_QUESTION))
        return [*prompt, engine_note(ANOTHER)] if fault else prompt

    async def _check_xml(self, state: State, ports: Ports, xml: str) -> Patch:
        """Checks the XML. Without XML, the table stays as it is. The same XML again is not a new try."""
        if not xml:
            return set_processing(planned="ok", plan_xml="")
        digest, tried = sha256_hex(xml), list_of(state, "tried")
        if digest in tried:
            return set_processing(planned="xsd", fault=text_of(state, "fault") or "this plan was tried before")
        remembered: list[JsonValue] = [*tried, digest]
        checked = await call_stage_tool(state, ports, "check_plan", xml=xml)
        if checked.ends:
            return checked.ends | set_processing(planned="failed")
        if checked.fault or checked.output.get("ok") is not True:
            return set_processing(planned="xsd", tried=remembered, fault=checked.fault or fault_lines(checked.output))
        return set_processing(planned="ok", tried=remembered, plan_xml=xml)


def _closed(state: State) -> bool:
    return at_the_cap(state) or bool(read_bucket(state, "input").get("is_client"))


def _merge_patches(one: Patch, other: Patch) -> Patch:
    first, second = one.get("processing"), other.get("processing")
    joined = {**(first if isinstance(first, dict) else {}), **(second if isinstance(second, dict) else {})}
    return {**one, **other, "processing": joined}


def _patch(state: State, got: OutputResult, own: Patch, more: Patch) -> Patch:
    return {**got.cost, **count_up(state, "planning"), **_merge_patches(own, more)}


# transformation_clarification_gate asks the user if the plan has a question that is allowed, and reads the answer.
NO_ANSWER = "No answer arrived in time."


@dataclass(frozen=True, slots=True)
class Clarify:
    """A node that opens a question, reads its answer, or passes a plan."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Returns the pause or the next step. The answer is read from its record every time."""
        if error_of(state) is not None:
            return set_processing(clarified="failed")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            result = await looked_at(ports, waiting)
            return _reply_patch(state, result) if isinstance(result, Verdict) else result
        planned = text_of(state, "planned")
        if planned == "asks":
            question = Question(
                call_id="",
                kind=RequestKind.CLARIFICATION,
                asked={"question": text_of(state, "question"), "options": list_of(state, "options")},
                answer_schema=REPLY,
            )
            return pause_patch(ports.people.question(question))
        if planned == "ok":
            return set_processing(clarified="run")
        if planned == "xsd" and read_counter(state, "entries") < PLANNING_ENTRIES:
            return set_processing(clarified="xsd_retry")
        return set_processing(clarified="spent" if planned == "xsd" else "failed")


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
        saves = "yes" if text_of(state, "bypass") or without_word(text, bypass) != text else None
        return GOES_ON | set_processing(
            clarified="replied", replied="yes", answers=answers, clarifications=count, bypass=saves
        )
    return GOES_ON | set_processing(clarified="failed", clarifications=count, fault=NO_ANSWER)


# trigger_choregraph_run_node carries the plan out, with a tool here or by the client that has the data. The client's
# result has counts and ranges; the rows stay with the client.
NOT_HANDED_IN = "The client did not return its result in time."
STILL_OPEN = "the request is still unclear, and no question is left. Name the columns to show; available are"
MOST_NAMED = 12
"""The number of columns that a message to the user lists."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A node that carries the plan out. A failure goes back to the planning while entries are left."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Opens a request to the client if the client has the data. Otherwise calls the tool."""
        if error_of(state) is not None:
            return set_processing(choregraph="spent")
        waiting = requests_of(state, "pending_requests")
        if waiting:
            result = await looked_at(ports, waiting)
            return _handed_in(state, result) if isinstance(result, Verdict) else result
        if read_bucket(state, "input").get("is_client"):
            content: dict[str, JsonValue] = {
                "plan": text_of(state, "plan_xml"),
                "table": object_of(state, "table").get("name"),
                "visualization": text_of(state, "visualization"),
            }
            question = Question(call_id="", kind=RequestKind.CLIENT_RUN, asked=content, answer_schema=HANDED_IN)
            return pause_patch(ports.people.question(question))
        table = object_of(state, "table")
        args: dict[str, JsonValue] = {"table": table.get("table"), "xml": text_of(state, "plan_xml")}
        others = table.get("others")
        if isinstance(others, list) and args["xml"]:
            args["others"] = [other.get("table") for other in others if isinstance(other, dict)]
        ran = await call_stage_tool(state, ports, "run", **args)
        if ran.ends:
            return ran.ends
        return _failure_patch(state, ran.fault) if ran.fault else _run_result(state, ran.output)


def _handed_in(state: State, verdict: Verdict) -> Patch:
    if verdict.state is not VerdictState.ANSWERED:
        return GOES_ON | set_processing(choregraph="spent", fault=NOT_HANDED_IN)
    if verdict.answer.get("ok") is not True:
        return GOES_ON | _failure_patch(state, str(verdict.answer.get("error") or "the client could not carry it out"))
    return GOES_ON | _run_result(state, verdict.answer)


def _failure_patch(state: State, fault: str) -> Patch:
    left_to_try = read_counter(state, "entries") < PLANNING_ENTRIES
    return set_processing(choregraph="retry" if left_to_try else "spent", fault=fault)


def _run_result(state: State, run: dict[str, JsonValue]) -> Patch:
    """Returns the result to show. If no drawing was requested, it shows none; if that remained open, its fault explains
    it."""
    wanted = text_of(state, "visualization").strip()
    fault = None if wanted or text_of(state, "early_exit") != "yes" else f"{STILL_OPEN}: {_columns(state)}."
    return set_processing(choregraph="ran", run=run, fault=fault, viz="asked" if wanted else "nothing")


def _columns(state: State) -> str:
    found = object_of(state, "table").get("columns")
    names = [str(one.get("name"))[:40] for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
