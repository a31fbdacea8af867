"""The persona that a turn takes from a prompt template, fixed as the turn begins.

A template that cannot be read costs the turn its text and nothing else: the agent's own persona speaks, the tools are
those of the agent either way (S0-84). What was decided is kept, the failure too, so that every model call of the turn
sends the same prompt.
"""

import asyncpg
import structlog

from contracts.frozen import Tolerant
from policy.templates import filled
from store.database import Connection

_SECONDS = 2.0
"""How long a turn waits for its template's text."""
_log = structlog.get_logger(__name__)

_RESOLVE = """
SELECT v.id, v.stage, v.text FROM prompt_versions v, turns t
WHERE t.id = $1 AND v.template = $2 AND (v.stage = 'active' OR (v.stage = 'draft' AND v.author = t.user_id))
ORDER BY v.stage = 'draft' DESC LIMIT 1
"""


class TurnPersona(Tolerant):
    """What a turn's persona comes from, as its row keeps it."""

    template: str
    version_id: str = ""
    stage: str = ""
    text: str = ""
    """Rendered; empty where the agent's own persona speaks."""
    problem: str = ""
    """Why it does: `not_found`, `empty`, `unavailable`."""


async def fix_persona(tx: Connection, turn_id: str, template: str, values: dict[str, str]) -> TurnPersona:
    """Resolve by tenant and the turn's user, whose draft comes first; render, and keep it with the turn.

    Raises: what the database raises where it is away altogether.
    """
    persona = await _rendered(tx, turn_id, template, values)
    kept = persona.model_dump(mode="json", exclude_defaults=True)
    await tx.execute("UPDATE turns SET persona = $2 WHERE id = $1", turn_id, kept)
    return persona


async def _rendered(tx: Connection, turn_id: str, template: str, values: dict[str, str]) -> TurnPersona:
    await tx.execute("SAVEPOINT persona")  # a failed statement would take the whole transaction with it
    try:
        row = await tx.fetchrow(_RESOLVE, turn_id, template, timeout=_SECONDS)
    except (asyncpg.PostgresError, TimeoutError) as error:
        await tx.execute("ROLLBACK TO SAVEPOINT persona")
        _log.warning("prompt_template_unavailable", template=template, error=type(error).__name__)
        return TurnPersona(template=template, problem="unavailable")
    if row is None:
        return TurnPersona(template=template, problem="not_found")
    found = TurnPersona(template=template, version_id=str(row["id"]), stage=row["stage"])
    text = filled(row["text"], values)
    return found.model_copy(update={"text": text} if text.strip() else {"problem": "empty"})
