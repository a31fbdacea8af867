"""What the model is told beside the stage's instructions: the tables as they are described, what went wrong, the
person's words. What comes from data or from people is said in the user's role, never in the system's; the person's own
words come last of it."""

from pydantic import JsonValue

from contracts.messages import MessageRef, Role
from graph.nodes.ask_object import note
from graph.nodes.reading import messages_of
from graph.spec import State
from graph.topologies.clarify_solve.state import CLARIFICATIONS, list_of, number, object_of

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
