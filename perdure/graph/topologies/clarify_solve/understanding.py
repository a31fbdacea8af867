"""initialize_processing_state: the plan of the turn, what was asked, and where the data is (S4-01, S4-04)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from perdure.contracts.approvals import RequestRef, Verdict, VerdictState
from perdure.contracts.calls import CallState, PlannedAsk
from perdure.contracts.memory import CLIENT_TABLE, ClientTables, why_no_tables
from perdure.contracts.messages import PREVIEW_CHARACTERS, MessageRef, Patch, Role
from perdure.core.text import without_word
from perdure.graph.nodes.call_model import STOP_CODES, ask_object, note
from perdure.graph.nodes.fields import messages_of, plan_of
from perdure.graph.ports import Ports
from perdure.graph.spec import State
from perdure.graph.topologies.clarify_solve.spec import (
    CLARIFICATIONS,
    CLASSIFY_OBJECT,
    EXCLUDE_OBJECT,
    bucket,
    counted,
    left,
    list_of,
    number,
    object_of,
)


@dataclass(frozen=True, slots=True)
class Initialize:
    """Both forms begin here; whether the data stays with the client is all that differs (S4-01)."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """One load; a plan that cannot be loaded ends the run."""
        context = await ports.memory.load()
        if context.problem is not None:
            status = STOP_CODES.get(context.problem.code, "failed")
            return _ended(context.problem.code, context.problem.message, status)
        plan, message = context.plan, context.user_message
        if plan is None or message is None:
            return _ended("nothing_loaded", "the turn has no plan", "failed")
        heard = without_word(message.text, plan.words.get("bypass", ""))
        bypass = "yes" if heard != message.text else None
        message = message.model_copy(update={"text": heard or message.text})
        patch: Patch = {
            "plan": plan.model_dump(mode="json"),
            "agent_id": plan.agent_id,
            "agent_type": plan.agent_id,
            "user": {"name": context.user_name or "user", "role": context.user_role},
            "max_tokens": plan.limits.max_tokens,
            "max_cost_microusd": plan.limits.max_cost_microusd,
            "messages": [message.model_dump(mode="json")],
        }
        given = context.metadata.get(CLIENT_TABLE)
        if given is not None:
            fault = why_no_tables(given)
            if fault:
                return patch | _ended("client_table_invalid", fault, "failed")
            table = ClientTables.model_validate(given)
            patch["input"] = {"message": message.text, "is_client": True}
            return patch | left(
                start="request",
                bypass=bypass,
                table=table.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
            )
        patch["input"] = {"message": message.text, "is_client": False}
        return patch | left(start=_start(message.text, plan.words), bypass=bypass)


def _start(said: str, words: Mapping[str, str]) -> str:
    for label, word in (("shortcut", words.get("shortcut")), ("upload", words.get("upload"))):
        if word and said.startswith(word):
            return label
    return "request"


def _ended(code: str, message: str, status: str) -> Patch:
    problem: dict[str, JsonValue] = {"code": code, "message": message}
    return {"error": problem, "status": status, **left(start="upload")}


# --- entry_classif_message_type: what is asked for, and whether there is data for it (S4-06).


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
        got = await ask_object(after, ports, CLASSIFY_OBJECT, [described(after), *asked(after)])
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


# --- exclusion_processing: what must not be shown, as facts for the solver; none where the model cannot say (S4-25).


@dataclass(frozen=True, slots=True)
class Exclude:
    """Beside the branch that specifies."""

    async def __call__(self, state: State, ports: Ports) -> Patch:
        """Selector, value and scope of each; the whole where none is named."""
        got = await ask_object(state, ports, EXCLUDE_OBJECT, asked(state))
        found = (got.value or {}).get("exclusions", [])
        return {**got.cost, **counted(state, "exclude", got.tries), **left(exclusions=found)}


# --- expand_shortcut_node: a specification that the person wrote goes straight to the solver (S4-04, S4-05).


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


# --- What the model is told beside the stage's instructions: the tables as they are described, what went wrong, the
# person's words.
# What comes from data or from people is said in the user's role, never in the system's; the person's own
# words come last of it.

MOST_TABLE_CHARACTERS = 6_000
MOST_COLUMNS = 60
ANSWERED = (
    "The person was asked back and has answered: each answer stands behind its question. Do not ask the same again."
)


def described(state: State, name: str = "table") -> MessageRef:
    """The table, by its columns, and the others beside it; where they lie is no part of it (S4-32)."""
    table = object_of(state, name)
    lines = _lines(table, "Table")
    others = table.get("others")
    for other in others if isinstance(others, list) else []:
        lines += _lines(other, "Another table") if isinstance(other, dict) else []
    return _said("\n".join(lines)[:MOST_TABLE_CHARACTERS])


def _lines(table: dict[str, JsonValue], what: str) -> list[str]:
    columns = table.get("columns")
    lines = [f"{what} {table.get('name') or 'table'}, {table.get('rows')} rows. Columns:"]
    for column in columns[:MOST_COLUMNS] if isinstance(columns, list) else []:
        if isinstance(column, dict):
            ranged = f", {column['least']} to {column['most']}" if "least" in column and "most" in column else ""
            lines.append(f"- {column.get('name')} ({column.get('kind')}, {column.get('distinct')} values{ranged})")
    return lines


def at_fault(what: str, fault: str) -> list[MessageRef]:
    """What was wrong with the last try; it quotes names of columns and words of whoever carried the work out."""
    return [_said(f"What was wrong with the last {what}:\n{fault}")] if fault else []


def asked(state: State) -> list[MessageRef]:
    """What the person said, and what they answered each time that they were asked back (S4-19)."""
    said = messages_of(state)[:1]
    answers = [one for one in list_of(state, "answers") if isinstance(one, dict)]
    for one in answers:
        said += [_said(f"Asked back: {one.get('question')}{_offered(one.get('options'))}"), _said(str(one["reply"]))]
    return [*said, note(ANSWERED)] if answers else said


def _offered(options: JsonValue) -> str:
    found = ", ".join(str(one) for one in options) if isinstance(options, list) else ""
    return f" Offered: {found}." if found else ""


def _said(text: str) -> MessageRef:
    return MessageRef(role=Role.USER, text=text)


def at_the_cap(state: State) -> bool:
    """Whether no further question may be asked in this turn."""
    return number(state, "clarifications") >= CLARIFICATIONS


# --- Calls that the nodes make themselves: of the tools that the agent names for its stages.

MOST_TOLD_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a tool answered, or why it did not."""

    output: dict[str, JsonValue]
    fault: str = ""
    ends: Patch | None = None
    """The end of the run, where the turn was stopped meanwhile."""


async def done(state: State, ports: Ports, stage: str, **args: JsonValue) -> Done:
    """One call of the stage's tool. Whatever fails comes back as a fault, in a sentence."""
    plan = plan_of(state)
    name = plan.stage_tools.get(stage, "")
    card = plan.card(name)
    if card is None:
        return Done({}, f"the agent names no tool for {stage}")
    (outcome,) = await ports.tools.make([PlannedAsk(tool=name, args=args, timeout_seconds=card.timeout_seconds)])
    output = outcome.output if isinstance(outcome.output, dict) else {}
    if outcome.problem is not None:
        code = outcome.problem.code
        ended: Patch = {"error": outcome.problem.model_dump(mode="json"), "status": STOP_CODES.get(code, "failed")}
        return Done({}, outcome.problem.message, ended if code in STOP_CODES else None)
    if outcome.state is not CallState.DONE:
        told = output.get("message")
        return Done({}, str(told)[:MOST_TOLD_CHARACTERS] if told else f"{name} could not be done")
    return Done(output)


def told_faults(output: dict[str, JsonValue]) -> str:
    """The faults that a check found, one a line, each with its place."""
    faults = output.get("faults")
    lines = (
        [f"{one.get('path')}: {one.get('reason')}" for one in faults if isinstance(one, dict)]
        if isinstance(faults, list)
        else []
    )
    return "\n".join(lines)[:MOST_TOLD_CHARACTERS]


# --- A pause for a question or for the client's work: how a node opens it, looks at it, and goes on.

GOES_ON: Final[Patch] = {"status": "running", "pending_requests": []}
"""What the end of a pause does to the state, whatever came of it."""


def waits(request: RequestRef) -> Patch:
    """The run ends in a pause for this."""
    return {"status": "awaiting", "pending_requests": [request.model_dump(mode="json")]}


def ended(problem: dict[str, object], status: str) -> Patch:
    """The run ends here, not in a pause."""
    return {"error": problem, "status": status, "pending_requests": []}  # type: ignore[dict-item]


async def looked_at(ports: Ports, waiting: Sequence[RequestRef]) -> Verdict | Patch:
    """What came of the pause, read fresh from its record; where nothing did, the patch with which it goes on waiting,
    or with which the run ends."""
    read = await ports.people.verdicts(waiting)
    if read.problem is not None and read.problem.code in STOP_CODES:
        return ended(read.problem.model_dump(mode="json"), STOP_CODES[read.problem.code])
    verdict = read.verdicts[0] if read.problem is None and read.verdicts else None
    if verdict is None or verdict.state in (VerdictState.PENDING, VerdictState.UNREADABLE):
        return waits(waiting[0])
    return verdict
