"""The calls that a turn leaves open as it breaks off, told to whoever follows it: no call waits for ever for its end.

What became of one is said as truly as it is known: it was not run, or nobody knows whether it happened.
"""

from collections.abc import Sequence

from pydantic import JsonValue

from contracts.events import TOOL_DENIED, TOOL_ERROR, TOOL_RESULT
from contracts.tools import CallState
from policy.text import preview
from policy.transcript import told_of
from store.database import Connection
from store.journal import NewEvent, NewMessage

_OPEN = """
SELECT c.call_id, c.tool, c.key, c.state FROM tool_calls c
WHERE c.turn_id = $1 AND c.state IN ('planned', 'reserved', 'outcome_unknown') AND NOT EXISTS (
  SELECT FROM events e WHERE e.turn_id = c.turn_id AND e.call_id = c.call_id AND e.kind = ANY($2))
ORDER BY length(c.call_id), c.call_id
"""


async def ends_of_open_calls(tx: Connection, turn_id: str, answers: Sequence[NewMessage]) -> list[NewEvent]:
    """An event for each call of the turn of whose end nobody was told; `answers` are those that its transcript gets.

    `tx` holds the turn's lock, and what is under way has been given up (store/finish.py).
    """
    made = {message.call_id: message for message in answers if message.call_id}
    rows = await tx.fetch(_OPEN, turn_id, [TOOL_RESULT, TOOL_ERROR, TOOL_DENIED])
    told = []
    for row in rows:
        state = CallState(row["state"])
        code, sentence = told_of(state)
        data: dict[str, JsonValue] = {"tool": row["tool"], "code": code, "message": sentence}
        if state is CallState.OUTCOME_UNKNOWN:
            data |= {"code": state.value, "effect": row["key"]}
        if message := made.get(row["call_id"]):
            data |= {"message_id": message.id, "result": preview(message.content)}
        told.append(NewEvent(TOOL_ERROR, data, row["call_id"]))
    return told
