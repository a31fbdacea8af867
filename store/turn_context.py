"""What a fresh turn loads, in one transaction: its message, working memory, requests opened before."""

from dataclasses import dataclass

from pydantic import JsonValue

from contracts.memory import LoadAsk
from contracts.messages import MessageRef, Role
from contracts.turns import Usage
from policy.text import preview
from store.database import Connection
from store.gates import Gate, find_gate
from store.injections import INJECTED
from store.rule_actions import ACTIONS
from store.waivers import WAIVERS
from store.working_memory import TOUCH, read


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows that a turn starts from; None fields where the turn is new."""

    user_message: MessageRef
    user_text: str
    """The whole of it."""
    user_id: str
    user_name: str
    user_role: str
    metadata: dict[str, JsonValue]
    limits: dict[str, JsonValue]
    working: dict[str, JsonValue]
    injected: tuple[str, ...]
    """Skills that earlier turns of the conversation have injected."""
    gate: Gate | None
    """Of a turn that is started again and had opened one."""
    used: Usage
    memory_text: str | None
    """Set where the turn has loaded before: what was injected then stays."""
    events_through: int
    """The number of the last event that its nodes have written."""
    rule_actions: dict[str, str]
    """What the tenant makes of rules (store/rule_actions.py)."""
    waivers: tuple[str, ...]
    """The tools that the tenant lets run without a person."""
    waived: tuple[str, ...]
    """Those of them that an earlier load of the turn has taken."""
    persona: dict[str, JsonValue] | None = None
    """What an earlier load has fixed of a persona that comes from a template (store/turn_persona.py)."""


_LOAD = f"""
WITH {TOUCH}
SELECT t.metadata, t.limits, t.memory_text, t.persona, t.events_through, t.attempts, t.ended_at, t.stop_requested_at,
  m.id AS message_id, t.input_tokens, t.output_tokens, t.cost_microusd, m.content, m.tokens, u.name, u.display_name,
  u.id AS user_id, u.roles, ({INJECTED}) AS injected, {ACTIONS} AS rule_actions,
  {WAIVERS} AS waivers, t.waived_tools,
  (SELECT jsonb_object_agg(field, value) FROM live) AS working
FROM turns t JOIN messages m ON m.id = t.message_id JOIN users u ON u.id = t.user_id WHERE t.id = $2 FOR UPDATE OF t
"""


async def load(tx: Connection, ask: LoadAsk) -> Loaded | None:
    """Everything a fresh turn needs; None where the turn has ended or was stopped."""
    row = await tx.fetchrow(_LOAD, ask.address.conversation_id, ask.address.turn_id)
    if row is None or row["ended_at"] or row["stop_requested_at"]:
        return None
    gate, working = None, row["working"]
    if row["attempts"]:
        # Started again. What that run's own work wrote is read anew: the statement above may have waited for the
        # turn's lock, and then it has seen every other row as it was before.
        gate = await find_gate(tx, ask.address)
        working = await read(tx, ask.address.conversation_id)
    return Loaded(
        MessageRef(id=str(row["message_id"]), role=Role.USER, text=preview(row["content"]), tokens=row["tokens"]),
        row["content"],
        str(row["user_id"]),
        row["display_name"] or row["name"],
        row["roles"][0] if row["roles"] else "",
        row["metadata"],
        row["limits"],
        working or {},
        tuple(row["injected"] or ()),
        gate,
        Usage(input_tokens=row["input_tokens"], output_tokens=row["output_tokens"], cost_microusd=row["cost_microusd"]),
        row["memory_text"],
        row["events_through"],
        row["rule_actions"],
        tuple(row["waivers"]),
        tuple(row["waived_tools"]),
        row["persona"],
    )


async def keep_memory_text(tx: Connection, turn_id: str, text: str, *, remembers: bool = False) -> None:
    """Fix the memory text that this turn injects; every model call of the turn sends the same.

    With `remembers` a summary of the turn is kept when it completes.
    """
    await tx.execute("UPDATE turns SET memory_text = $2, remembers = $3 WHERE id = $1", turn_id, text, remembers)
