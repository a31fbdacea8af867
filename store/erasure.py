"""Erasing a person: all words of theirs go, and the audit chain still verifies, since its rows hold digests alone.

It takes many small transactions. The first disables the person and announces what goes, in a signed row that accounts
for it; the last one looks once more at everything, takes the name for good, and says that it is done. In between it may
be cut off and asked for again: it goes on where it was.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from contracts.errors import CallerError
from policy.audit_erasures import DONE, KEPT_KINDS
from store import audit
from store.audit_erasures import announce, announced
from store.database import Connection, Database
from store.erasable import may_be_erased
from store.erased_names import retire
from store.erasure_elsewhere import ELSEWHERE, NAMED, NAMING, TOUCHED
from store.erasure_steps import OWN, Step
from store.live import LiveTokens

Histories = Callable[[Sequence[str]], Awaitable[tuple[int, int]]]
"""Takes away what is kept of turns beside Postgres: how many runs went, and of how many turns some are left."""
_SCAN_SECONDS = 300.0
_TURNS = "SELECT id::text FROM turns WHERE user_id = $1 AND id <> ALL($2::uuid[])"
_NAMED = f"""
SELECT a.id FROM audit_bodies b JOIN audit a ON a.id = b.audit_id
WHERE b.data IS NOT NULL AND position('"' || $2 || '"' IN b.data::text) > 0 AND a.kind <> ALL($3)
  AND a.actor IS DISTINCT FROM $1 AND a.subject <> $1::text
  AND NOT EXISTS (SELECT FROM turns t WHERE t.id = a.turn_id AND t.user_id = $1)
  -- An escalation goes from a role to a role, and a person may be called as a role is.
  AND (a.kind <> 'approval.escalated' OR b.data::jsonb->>'fallback' = $2)
  AND jsonb_path_exists(b.data::jsonb, '{NAMED}', jsonb_build_object('name', $2::text)) ORDER BY a.id
"""
_CARRIED = f"SELECT id::text FROM turns WHERE (user_id = $1 OR id IN ({TOUCHED})) AND ended_at IS NOT NULL"
_ALSO = "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $2 WHERE audit_id = ANY($1) AND data IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure under way: what its statements are given."""

    user_id: str
    name: str
    audit_id: int
    """The row that accounts for it."""
    turns: tuple[str, ...] = ()
    """The person's, as announced."""
    also: tuple[int, ...] = ()
    """Audit rows of others that name the person, as announced."""

    @property
    def pseudonym(self) -> str:
        """Who the person is afterwards."""
        return f"erased-{self.user_id}"

    @property
    def naming(self) -> str:
        """The pattern of a JSON text that names the person."""
        return f'"({"|".join(NAMING)})": "{re.escape(self.name)}"'

    @property
    def unraised(self) -> str:
        """The pattern of what a turn ends with whose limit the person did not raise."""
        return f"; {re.escape(self.name)} did not raise it.*"

    @property
    def renamed(self) -> str:
        """What comes in the place of that."""
        return f'"\\1": "{self.pseudonym}"'

    def given(self, step: Step) -> list[Any]:
        """The parameters of a step."""
        return [getattr(self, name) for name in step.takes]


async def erase(
    db: Database,
    tenant_id: str,
    name: str,
    actor: str,
    live: LiveTokens | None = None,
    histories: Histories | None = None,
) -> dict[str, object]:
    """Erase the person of this name; who it is from now on, and how many rows of each table went. Nobody else can have
    the name afterwards. `live` is where live tokens are, which would go by themselves within an hour; `histories` takes
    away what was carried from activity to activity of turns, which goes by itself when their retention is over.

    Raises: CallerError 404 `user_not_found`, 409 `own_data`, `turns_open`, `effects_unsettled`; nothing is lost where
    it is raised or cut off half-way: ask again.
    """
    async with db.transaction(tenant_id) as tx:
        erasure = await _begin(tx, name, actor)
    erased: Counter[str] = Counter()
    for step in (*OWN, *ELSEWHERE):
        while True:
            async with db.transaction(tenant_id) as tx:
                rows = await _do(tx, step, erasure)
            if not rows:
                break
            erased[step.table] += rows
    runs, left = await _forgotten(db, tenant_id, erasure, histories)
    kept: dict[str, JsonValue] = {"runs": runs, "turns_left": left}
    async with db.transaction(tenant_id) as tx:
        await _end(tx, erasure, actor, erased, kept)
    if live is not None:
        await live.forget(tenant_id, await _conversations(db, tenant_id, erasure.user_id))
    told = {"erased": dict(sorted(erased.items())), "histories": kept}
    return {"name": erasure.pseudonym, "user_id": erasure.user_id, **told}


async def _forgotten(db: Database, tenant_id: str, erasure: Erasure, histories: Histories | None) -> tuple[int, int]:
    """Take away the histories of the person's turns, and of those in which the person did something."""
    async with db.transaction(tenant_id) as tx:
        rows = await tx.fetch(_CARRIED, erasure.user_id, list(erasure.also), timeout=_SCAN_SECONDS)
    turns = [row[0] for row in rows]
    return (0, len(turns)) if histories is None else await histories(turns)


async def _begin(tx: Connection, name: str, actor: str) -> Erasure:
    row = await tx.fetchrow("SELECT id FROM users WHERE name = $1 FOR UPDATE", name)
    if row is None:
        raise CallerError("user_not_found", "there is no user of this name", status=404)
    user_id = str(row["id"])
    if user_id == actor:
        raise CallerError(
            "own_data", "another administrator must erase yours, so that somebody has seen it", status=409
        )
    await may_be_erased(tx, user_id)
    await tx.execute("UPDATE users SET disabled_at = coalesce(disabled_at, now()), roles = '{}' WHERE id = $1", user_id)
    await tx.execute("DELETE FROM api_tokens WHERE user_id = $1", user_id)
    begun = Erasure(user_id, name, 0, also=tuple(await announced(tx, user_id)))
    return await _announced(tx, begun, actor, again=False)


async def _announced(tx: Connection, erasure: Erasure, actor: str, *, again: bool) -> Erasure:
    """Put on record what has not been said yet to go with the person. `again`: only where there is anything."""
    turns = [row[0] for row in await tx.fetch(_TURNS, erasure.user_id, erasure.turns)]
    named = await tx.fetch(_NAMED, erasure.user_id, erasure.name, list(KEPT_KINDS), timeout=_SCAN_SECONDS)
    also = [row["id"] for row in named]
    if again and not turns and not also:
        return erasure
    audit_id = await announce(tx, erasure.user_id, actor, turns, also)
    await tx.execute(_ALSO, also, audit_id)
    return replace(erasure, audit_id=audit_id, turns=(*erasure.turns, *turns), also=(*erasure.also, *also))


async def _conversations(db: Database, tenant_id: str, user_id: str) -> list[str]:
    async with db.transaction(tenant_id) as tx:
        return [row[0] for row in await tx.fetch("SELECT id::text FROM conversations WHERE user_id = $1", user_id)]


async def _do(tx: Connection, step: Step, erasure: Erasure) -> int:
    """A chunk of a step; how many rows it took."""
    return int((await tx.execute(step.sql, *erasure.given(step))).rpartition(" ")[2])


async def _end(
    tx: Connection, erasure: Erasure, actor: str, erased: Counter[str], histories: dict[str, JsonValue]
) -> None:
    # Under this lock nobody begins a turn for the person any more; whoever held it before is seen by the steps.
    await tx.execute("SELECT FROM users WHERE id = $1 FOR UPDATE", erasure.user_id)
    await may_be_erased(tx, erasure.user_id)
    erasure = await _announced(tx, erasure, actor, again=True)
    await _rest(tx, (*OWN, *ELSEWHERE), erasure, erased)
    await tx.execute("UPDATE users SET name = $2, display_name = '' WHERE id = $1", erasure.user_id, erasure.pseudonym)
    await retire(tx, erasure.name, actor)
    counts: dict[str, JsonValue] = {"erasure": erasure.audit_id, "rows": {**erased}, "histories": histories}
    await audit.record(tx, DONE, erasure.user_id, counts, actor=actor, turn_id=None)


async def _rest(tx: Connection, steps: Sequence[Step], erasure: Erasure, erased: Counter[str]) -> None:
    for step in steps:
        while rows := await _do(tx, step, erasure):
            erased[step.table] += rows
