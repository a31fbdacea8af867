"""What the model is told beside the stage's instructions: the table as it is described, the person's words, what went
wrong. What comes from data or from people is said in the user's role, never in the system's."""

from contracts.messages import MessageRef, Role
from graph.nodes.ask_object import note
from graph.nodes.reading import messages_of
from graph.spec import State
from graph.topologies.clarify_solve.state import CLARIFICATIONS, list_of, number, object_of, text_of

MOST_TABLE_CHARACTERS = 6_000
MOST_COLUMNS = 60


def described(state: State, name: str = "table") -> MessageRef:
    """The table, by its columns; where it lies is no part of it (S4-32)."""
    table = object_of(state, name)
    columns = table.get("columns")
    lines = [f"Table {table.get('name') or 'table'}, {table.get('rows')} rows. Columns:"]
    for column in columns[:MOST_COLUMNS] if isinstance(columns, list) else []:
        if isinstance(column, dict):
            ranged = f", {column['least']} to {column['most']}" if "least" in column and "most" in column else ""
            lines.append(f"- {column.get('name')} ({column.get('kind')}, {column.get('distinct')} values{ranged})")
    return MessageRef(role=Role.USER, text="\n".join(lines)[:MOST_TABLE_CHARACTERS])


def asked(state: State) -> list[MessageRef]:
    """What the person said, and what they answered when they were asked back (S4-19)."""
    said = messages_of(state)[:1]
    reply = text_of(state, "reply")
    if reply:
        options = ", ".join(str(one) for one in list_of(state, "options"))
        before = f"You asked back: {text_of(state, 'question')}" + (f" You offered: {options}." if options else "")
        said += [note(f"{before} The person has answered, below. Do not ask again."), _person(reply)]
    return said


def _person(text: str) -> MessageRef:
    return MessageRef(role=Role.USER, text=text)


def at_the_cap(state: State) -> bool:
    """Whether no further question may be asked in this turn."""
    return number(state, "clarifications") >= CLARIFICATIONS
