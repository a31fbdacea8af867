"""Prompt templates: versions of a text under a key, each in one stage (policy/stages.py, S0-84).

At most one draft a user, one version in pre-production and one active version a template and tenant; unique indexes
hold that. Every move is one conditional UPDATE with its audit row: of two who promote a version, one does.
"""

from typing import NamedTuple

import asyncpg
from pydantic import JsonValue

from contracts.digests import sha256_hex
from contracts.errors import CallerError, InvariantBroken
from policy.stages import BEFORE, Stage, archive_refusal, promotion_refusal, text_refusal
from store import audit
from store.database import Connection
from store.ids import new_id
from store.prompt_views import Seer, View, get, shown


class Mover(NamedTuple):
    """Who moves a version."""

    user_id: str
    roles: frozenset[str]

    @property
    def seer(self) -> Seer:
        """The same as a reader."""
        return Seer(self.user_id, self.roles)


_SAVE = """
INSERT INTO prompt_versions AS v (id, tenant_id, template, text, digest, author)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5)
ON CONFLICT (tenant_id, template, author) WHERE stage = 'draft' DO UPDATE
  SET text = excluded.text, digest = excluded.digest, changed_at = now() WHERE v.digest <> excluded.digest
RETURNING id
"""


async def save_draft(tx: Connection, template: str, text: str, author: str) -> View:
    """Make `text` the author's draft of this template; the one before it is overwritten.

    Raises: CallerError 422 `template_variable_unknown` with each place.
    """
    refused = text_refusal(text)
    if refused is not None:
        raise refused
    digest = sha256_hex(text)
    version_id = await tx.fetchval(_SAVE, new_id(), template, text, digest, author)
    if version_id is not None:  # None: the draft says just that already
        await _record(tx, "prompt.draft_saved", version_id, {"template": template, "digest": digest}, author)
    row = await tx.fetchrow(
        "SELECT v.*, u.name AS author_name FROM prompt_versions v JOIN users u ON u.id = v.author "
        "WHERE v.template = $1 AND v.author = $2 AND v.stage = 'draft'",
        template,
        author,
    )
    if row is None:
        raise InvariantBroken("draft_vanished", "a draft went away in the transaction that saved it")
    return shown(row)


async def promote(tx: Connection, version_id: str, to: Stage, digest: str, mover: Mover) -> View:
    """Move a version on to `to`; `digest` is that of the text which was read. What was active before is archived.

    Raises: CallerError 404, 403 `role_required` or `own_draft`, 422 `stage_invalid`, 409 `prompt_stage_changed` or
    `prompt_text_changed` (with what it is now), 409 `prompt_stage_taken` where another version waits in pre-production.
    """
    before = await get(tx, version_id, mover.seer)
    refused = promotion_refusal(to, before["author_id"] == mover.user_id, mover.roles)
    if refused is not None:
        raise refused
    if to not in BEFORE:
        raise CallerError("stage_invalid", "a version is promoted to pre_production or active", {"to": to.value})
    if to is Stage.ACTIVE:  # goes back with the transaction where the version itself cannot be promoted
        await _retire_active(tx, str(before["template"]), version_id, mover)
    try:
        row = await tx.fetchrow(
            "UPDATE prompt_versions SET stage = $2, changed_at = now() "
            "WHERE id = $1 AND stage = $3 AND digest = $4 RETURNING id",
            version_id,
            to.value,
            BEFORE[to].value,
            digest,
        )
    except asyncpg.UniqueViolationError:
        taken = f"another version of this template is {to.value} already; promote or archive that one first"
        raise CallerError("prompt_stage_taken", taken, {"stage": to.value}, status=409) from None
    now = await get(tx, version_id, mover.seer)
    if row is None:
        raise _changed(now, BEFORE[to])
    moved: dict[str, JsonValue] = {"template": str(now["template"]), "to": to.value, "digest": digest}
    await _record(tx, "prompt.promoted", version_id, moved, mover.user_id)
    return now


async def archive(tx: Connection, version_id: str, mover: Mover) -> View:
    """Take a version out of use; an author may do it to the own draft.

    Raises: CallerError 404, 403, 409 `prompt_stage_changed` where it is archived already or moves meanwhile.
    """
    before = await get(tx, version_id, mover.seer)
    stage = Stage(str(before["stage"]))
    refused = archive_refusal(stage, before["author_id"] == mover.user_id, mover.roles)
    if refused is not None:
        raise refused
    row = await tx.fetchrow(
        "UPDATE prompt_versions SET stage = 'archived', changed_at = now() "
        "WHERE id = $1 AND stage = $2 AND stage <> 'archived' RETURNING id",
        version_id,
        stage.value,
    )
    now = await get(tx, version_id, mover.seer)
    if row is None:
        raise _changed(now, stage)
    left: dict[str, JsonValue] = {"template": str(now["template"]), "from": stage.value}
    await _record(tx, "prompt.archived", version_id, left, mover.user_id)
    return now


async def _retire_active(tx: Connection, template: str, successor: str, mover: Mover) -> None:
    """Archive the active version: first, as the index allows no moment with two."""
    row = await tx.fetchrow(
        "UPDATE prompt_versions SET stage = 'archived', changed_at = now() "
        "WHERE template = $1 AND stage = 'active' AND id <> $2 RETURNING id",
        template,
        successor,
    )
    if row is not None:
        left: dict[str, JsonValue] = {"template": template, "from": Stage.ACTIVE.value, "for": successor}
        await _record(tx, "prompt.archived", row["id"], left, mover.user_id)


async def _record(tx: Connection, kind: str, version_id: object, data: dict[str, JsonValue], actor: str) -> None:
    await audit.record(tx, kind, str(version_id), data, actor=actor, turn_id=None)


def _changed(now: View, expected: Stage) -> CallerError:
    """Why a conditional UPDATE found nothing: somebody was first, or the text is another."""
    details: dict[str, object] = {"stage": now["stage"], "digest": now["digest"]}
    if now["stage"] == expected.value and expected is not Stage.ARCHIVED:
        return CallerError(
            "prompt_text_changed", "the text is not the one you read; read it again", details, status=409
        )
    return CallerError("prompt_stage_changed", f"the version is {now['stage']} by now", details, status=409)
