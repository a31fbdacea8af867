"""The stores of documents: four a tenant, made when they are first asked for (S2-66).

One store holds the notes of all conversations and one those of all users; whose a document is, it says itself.
"""

from typing import NamedTuple

import asyncpg
from pydantic import JsonValue

from contracts.documents import Scope
from contracts.errors import CallerError
from policy.documents.writing import Place
from store import audit
from store.database import Connection

CONVENTIONS = "workspace_conventions"
RUNBOOKS = "workspace_runbooks"
OF_USERS = "user_memory"
OF_CONVERSATIONS = "conversation_memory"
SEEDED = {
    CONVENTIONS: Scope.WORKSPACE,
    RUNBOOKS: Scope.WORKSPACE,
    OF_USERS: Scope.USER,
    OF_CONVERSATIONS: Scope.CONVERSATION,
}
ONLY_STORE = {Scope.USER: OF_USERS, Scope.CONVERSATION: OF_CONVERSATIONS}
"""Where a scope has one store, it need not be named."""


class Store(NamedTuple):
    """A store, and whether it is closed for writing."""

    id: str
    slug: str
    scope: Scope
    archived: bool

    def place(self, owner_id: str | None) -> Place:
        """Where a document of this owner would lie in it."""
        return Place(self.slug, self.scope, None if self.scope is Scope.WORKSPACE else owner_id, self.archived)


async def seed(tx: Connection) -> None:
    """Make what is missing; safe to repeat, and beside others."""
    await tx.execute(
        "INSERT INTO memory_stores (tenant_id, slug, scope) "
        "SELECT current_setting('perdure.tenant'), slug, scope FROM unnest($1::text[], $2::text[]) AS s(slug, scope) "
        "WHERE NOT EXISTS (SELECT FROM memory_stores m WHERE m.slug = s.slug) ON CONFLICT DO NOTHING",
        list(SEEDED),
        [scope.value for scope in SEEDED.values()],
    )


async def named(tx: Connection, scope: Scope, slug: str | None) -> Store:
    """The store of this scope; its slug may be left out where the scope has only one.

    Raises: CallerError 404 `store_not_found`.
    """
    await seed(tx)
    row = await tx.fetchrow(
        "SELECT * FROM memory_stores WHERE slug = $1 AND scope = $2", slug or ONLY_STORE.get(scope, ""), scope.value
    )
    if row is None:
        known = sorted(name for name, its in SEEDED.items() if its is scope)
        said = f"there is no such store of the scope {scope.value}; there is {', '.join(known)}"
        raise CallerError("store_not_found", said, status=404)
    return _store(row)


async def listed(tx: Connection) -> list[dict[str, object]]:
    """All stores."""
    await seed(tx)
    rows = await tx.fetch("SELECT slug, scope, archived_at, created_at FROM memory_stores ORDER BY scope, slug")
    return [dict(row) for row in rows]


async def set_archived(tx: Connection, slug: str, archived: bool, actor: str) -> dict[str, object]:
    """Close a store, or open it again: what is in a closed one is kept, and neither found nor written.

    Raises: CallerError 404 `store_not_found`.
    """
    await seed(tx)
    row = await tx.fetchrow(
        "UPDATE memory_stores SET archived_at = CASE WHEN $2 THEN coalesce(archived_at, now()) END WHERE slug = $1 "
        "RETURNING id, slug, scope, archived_at, created_at",
        slug,
        archived,
    )
    if row is None:
        raise CallerError("store_not_found", "there is no such store", status=404)
    told: dict[str, JsonValue] = {"store": slug, "archived": archived}
    await audit.record(tx, "memory.store_changed", str(row["id"]), told, actor=actor, turn_id=None)
    return {name: value for name, value in row.items() if name != "id"}


def _store(row: asyncpg.Record) -> Store:
    return Store(str(row["id"]), row["slug"], Scope(row["scope"]), row["archived_at"] is not None)
