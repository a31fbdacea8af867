"""Prompt templates as they are read: one version, the list, and the one that speaks to a user."""

from typing import NamedTuple

import asyncpg

from contracts.errors import CallerError
from policy.stages import PROMOTERS, Stage
from store.database import Connection
from store.paging import cursor_after, read_cursor

View = dict[str, object]
_SELECT = "SELECT v.*, u.name AS author_name FROM prompt_versions v JOIN users u ON u.id = v.author"
_SEEN = "(v.stage IN ('pre_production', 'active') OR v.author = {user} OR {sees_all})"


class Seer(NamedTuple):
    """Who reads. Another one's draft, and what was archived, is there for those who may promote."""

    user_id: str
    roles: frozenset[str]

    @property
    def sees_all(self) -> bool:
        """Whether versions of every stage and author are shown."""
        return bool(self.roles & PROMOTERS)


async def get(tx: Connection, version_id: str, seer: Seer) -> View:
    """One version with its text and history.

    Raises: CallerError 404 `prompt_version_not_found`.
    """
    seen = _SEEN.format(user="$2", sees_all="$3")
    row = await tx.fetchrow(f"{_SELECT} WHERE v.id = $1 AND {seen}", version_id, seer.user_id, seer.sees_all)
    if row is None:
        raise CallerError("prompt_version_not_found", "there is no such version", status=404)
    history = await tx.fetch(
        "SELECT h.kind, h.at, h.data, u.name AS actor FROM audit_trail h LEFT JOIN users u ON u.id = h.actor "
        "WHERE h.subject = $1 ORDER BY h.id",
        version_id,
    )
    told = [{"what": h["kind"], "at": h["at"], "by": h["actor"], "data": h["data"] or {}} for h in history]
    return shown(row) | {"history": told}


async def listed(
    tx: Connection, seer: Seer, template: str | None, stage: str | None, limit: int, cursor: str | None
) -> tuple[list[View], str | None]:
    """Versions without their texts, the one changed last first."""
    at, last_id = read_cursor(cursor)
    seen = _SEEN.format(user="$1", sees_all="$2")
    rows = await tx.fetch(
        f"{_SELECT} WHERE {seen} AND ($3::text IS NULL OR v.template = $3) AND ($4::text IS NULL OR v.stage = $4) "
        "AND ($5::timestamptz IS NULL OR (v.changed_at, v.id) < ($5, $6::uuid)) "
        "ORDER BY v.changed_at DESC, v.id DESC LIMIT $7",
        seer.user_id,
        seer.sees_all,
        template,
        stage,
        at,
        last_id,
        limit + 1,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    following = cursor_after(last["changed_at"], str(last["id"])) if last else None
    items = [{name: value for name, value in shown(row).items() if name != "text"} for row in rows[:limit]]
    return items, following


async def resolved(tx: Connection, template: str, user_id: str, stage: Stage | None = None) -> View:
    """The version that speaks to this user: the own draft, else the active one; with `stage` the one in that stage.

    Raises: CallerError 404 `prompt_template_not_found`.
    """
    row = await tx.fetchrow(
        f"{_SELECT} WHERE v.template = $1 AND v.stage = ANY($3) AND (v.stage <> 'draft' OR v.author = $2) "
        "ORDER BY v.stage = 'draft' DESC, v.changed_at DESC LIMIT 1",
        template,
        user_id,
        [stage.value] if stage else [Stage.DRAFT.value, Stage.ACTIVE.value],
    )
    if row is None:
        raise CallerError(
            "prompt_template_not_found",
            "there is no such template, or no version of it that speaks to you",
            {"template": template[:80]},
            status=404,
        )
    return shown(row)


def shown(row: asyncpg.Record) -> View:
    """A version as the API tells it."""
    return {
        "id": str(row["id"]),
        "template": row["template"],
        "stage": row["stage"],
        "author": row["author_name"],
        "author_id": str(row["author"]),
        "digest": row["digest"],
        "characters": len(row["text"]),
        "created_at": row["created_at"],
        "changed_at": row["changed_at"],
        "text": row["text"],
    }


async def named(tx: Connection, user_id: str) -> tuple[str, str]:
    """(name, role) of a user, as prompts tell them."""
    row = await tx.fetchrow("SELECT name, display_name, roles FROM users WHERE id = $1", user_id)
    if row is None:
        return "user", ""
    return row["display_name"] or row["name"], row["roles"][0] if row["roles"] else ""
