"""Published agents with their data tables, and what a tenant sets for them: rule actions, exemptions, prompt templates.

Every version of an agent is stored, because a turn is pinned to the version that was current at its start.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import asyncpg
from pydantic import JsonValue

from perdure.contracts.agents import PublishedAgent, ToolCard
from perdure.contracts.errors import CallerError, InvariantBroken
from perdure.contracts.skills import DataTable, Rule
from perdure.contracts.values import sha256_hex
from perdure.core.agents.rules import override_fault
from perdure.core.agents.templates import (
    PREVIOUS_STAGE,
    PROMOTER_ROLES,
    Stage,
    archive_refusal,
    promotion_refusal,
    text_refusal,
)
from perdure.core.approvals.gates import EXEMPTIBLE_TOOLS, exemption_fault
from perdure.store import audit
from perdure.store.database import Connection, new_id
from perdure.store.paging import cursor_after, read_cursor

SHARED = "*"
"""The tenant whose content all tenants can read."""


async def publish_agent(
    tx: Connection, agents: Sequence[tuple[str, PublishedAgent]], tables: Sequence[DataTable] = ()
) -> None:
    """Makes these (app, agent) pairs the only current ones. It runs as the database owner, in a transaction of the
    shared tenant.

    `tables` are the tables that the agents use; tables that exist already can be omitted.
    """
    await store_tables(tx, SHARED, tables)
    for app, agent in agents:
        await tx.execute(
            "INSERT INTO agent_versions (tenant_id, agent_id, version, body) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT DO NOTHING",
            SHARED,
            agent.definition.id,
            agent.version,
            agent.model_dump(mode="json"),
        )
        await tx.execute(
            "INSERT INTO agents (tenant_id, agent_id, version, app) VALUES ($1, $2, $3, $4) "
            "ON CONFLICT (tenant_id, agent_id) DO UPDATE SET version = excluded.version, app = excluded.app",
            SHARED,
            agent.definition.id,
            agent.version,
            app,
        )
    await tx.execute(
        "DELETE FROM agents WHERE tenant_id = $1 AND NOT agent_id = ANY($2)",
        SHARED,
        [agent.definition.id for _, agent in agents],
    )


_CURRENT_VERSION = (
    "SELECT a.agent_id, a.app, v.body FROM agents a JOIN agent_versions v USING (tenant_id, agent_id, version)"
)


async def current_agent(tx: Connection, agent_id: str) -> PublishedAgent:
    """Returns the current version, which a new turn would use.

    Raises: CallerError 404 `agent_not_found`.
    """
    agent = await published_agent(tx, agent_id)
    if agent is None:
        raise CallerError(
            "agent_not_found",
            "no agent of this name is published; see GET /v1/agents",
            {"agent": agent_id[:80]},
            status=404,
        )
    return agent


async def list_agents(tx: Connection) -> list[tuple[str, PublishedAgent]]:
    """Returns all current agents with the names of their apps, sorted by agent id."""
    rows = await tx.fetch(f"{_CURRENT_VERSION} ORDER BY a.agent_id")
    return [(row["app"], _stored(row["body"])) for row in rows]


async def agent_ids(tx: Connection) -> list[str]:
    """Returns the ids of the published agents, sorted."""
    return [row["agent_id"] for row in await tx.fetch("SELECT agent_id FROM agents ORDER BY agent_id")]


_CARD_OF_VERSION = """
SELECT card FROM agent_versions v, jsonb_array_elements(v.body->'cards') card
WHERE v.agent_id = $1 AND card->>'name' = $2 AND $3 IN (card->>'version', card->>'version_1')
  AND ($4::text IS NULL OR v.version = $4) LIMIT 1
"""
_PINNED_VERSION = "SELECT agent_version FROM turns WHERE id = $1"


async def card_of_version(tx: Connection, approval: asyncpg.Record) -> ToolCard | None:
    """Returns the card that an approval was requested for, or None: from the agent's version that its turn pinned, or
    else from all stored versions, which takes longer."""
    named = approval["agent_id"], approval["tool"], approval["tool_version"]
    pinned = await tx.fetchval(_PINNED_VERSION, approval["turn_id"])
    for version in (pinned, None):
        stored = await tx.fetchval(_CARD_OF_VERSION, *named, version)
        if stored is not None:
            return ToolCard.model_validate(stored, extra="ignore")
    return None


async def published_agent(tx: Connection, agent_id: str) -> PublishedAgent | None:
    """Returns the current version, which a new turn would use, or None if the agent is not published."""
    row = await tx.fetchrow(f"{_CURRENT_VERSION} WHERE a.agent_id = $1", agent_id)
    return _stored(row["body"]) if row is not None else None


def _stored(body: object) -> PublishedAgent:
    """Parses a stored version. A later deployment may have written it, so unknown fields are ignored."""
    return PublishedAgent.model_validate(body, extra="ignore")


class AgentCache:
    """A cache of published versions by digest. Each process reads a version once, because versions never change."""

    def __init__(self) -> None:
        self._agents: dict[str, PublishedAgent] = {}

    def cached(self, version: str) -> PublishedAgent | None:
        """Returns the version if this process has read it, else None."""
        return self._agents.get(version)

    async def read_pinned(self, tx: Connection | asyncpg.Connection, agent_id: str, version: str) -> PublishedAgent:
        """Returns the version that a turn is pinned to.

        Raises: CallerError 404 `agent_version_not_found`.
        """
        agent = self._agents.get(version)
        if agent is None:
            body = await tx.fetchval(
                "SELECT body FROM agent_versions WHERE agent_id = $1 AND version = $2", agent_id, version
            )
            if body is None:
                raise CallerError(
                    "agent_version_not_found",
                    "The published version that the turn started with no longer exists",
                    {"agent": agent_id, "version": version},
                    status=404,
                )
            agent = self._agents[version] = _stored(body)
        return agent

    async def read_published(self, tx: Connection | asyncpg.Connection, agent_id: str) -> PublishedAgent | None:
        """Returns the version that a new turn would use, or None if the agent is no longer published."""
        version = await tx.fetchval("SELECT version FROM agents WHERE agent_id = $1", agent_id)
        return None if version is None else await self.read_pinned(tx, agent_id, version)


async def store_tables(tx: Connection, tenant_id: str, tables: Iterable[DataTable]) -> None:
    """Adds these tables to the stored ones. A table never changes, and turns may still use an older one."""
    for table in tables:
        await tx.execute(
            "INSERT INTO app_tables (tenant_id, digest, name, body) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            tenant_id,
            table.digest,
            table.name,
            json.dumps(table.body),
        )


class TableCache:
    """A cache of tables by digest. The returned tables are shared and must not be modified. A table is stored once per
    digest."""

    def __init__(self) -> None:
        self._bodies: dict[str, JsonValue] = {}

    async def read_tables(self, tx: Connection, digests: Mapping[str, str]) -> dict[str, JsonValue]:
        """Returns the tables with these digests, by name.

        Raises: CallerError 404 `app_table_not_found`.
        """
        missing = [digest for digest in digests.values() if digest not in self._bodies]
        if missing:
            rows = await tx.fetch("SELECT digest, body FROM app_tables WHERE digest = ANY($1)", missing)
            self._bodies |= {row["digest"]: json.loads(row["body"]) for row in rows}
        for name, digest in digests.items():
            if digest not in self._bodies:
                raise CallerError(
                    "app_table_not_found",
                    "A table that the turn's agent was published with no longer exists",
                    {"table": name, "digest": digest},
                    status=404,
                )
        return {name: self._bodies[digest] for name, digest in digests.items()}


RULE_ACTIONS = "(SELECT rule_actions FROM tenants WHERE tenant_id = current_setting('perdure.tenant'))"
"""A subselect: the tenant's actions by rule id."""


async def rule_actions(tx: Connection) -> dict[str, str]:
    """Returns the actions that the tenant has set, by rule id. They are stricter than the rule's own action, and pinned
    at the start of a turn."""
    found: dict[str, str] = await tx.fetchval(f"SELECT {RULE_ACTIONS}")
    return found


async def set_action(tx: Connection, rules: Iterable[Rule], rule_id: str, do: str, user_id: str) -> None:
    """Sets the action of a rule, starting with the next turn. The rule's own action removes the tenant's setting.

    Raises: CallerError 404 `rule_not_found`, 422 `rule_looser`.
    """
    rule = next((each for each in rules if each.id == rule_id), None)
    if rule is None:
        raise CallerError("rule_not_found", "Rule not found; GET /v1/rules lists all rules", status=404)
    fault = override_fault(rule, do)
    if fault is not None:
        raise CallerError("rule_looser", fault, {"rule": rule_id}, status=422)
    before = await tx.fetchval(f"SELECT {RULE_ACTIONS}->>$1", rule_id)
    await tx.execute(
        "UPDATE tenants SET rule_actions = CASE WHEN $3 THEN rule_actions - $1::text "
        "ELSE rule_actions || jsonb_build_object($1::text, $2::text) END "
        "WHERE tenant_id = current_setting('perdure.tenant')",
        rule_id,
        do,
        do == rule.do,
    )
    data = {"do": do, "before": before or rule.do}
    await audit.record(tx, "rule.action_set", rule_id, {**data}, actor=user_id, turn_id=None)


EXEMPT_TOOLS = "(SELECT waived_tools FROM tenants WHERE tenant_id = current_setting('perdure.tenant'))"
"""A subselect: the names of the tenant's exempt tools."""


async def exempt_tools(tx: Connection) -> list[str]:
    """Returns the names of the tenant's exempt tools. Exempt tools run without approval
    (perdure/core/approvals/gates.py)."""
    found: list[str] = await tx.fetchval(f"SELECT {EXEMPT_TOOLS}")
    return found


async def set_exemption(tx: Connection, tool: str, *, exempt: bool, user_id: str) -> None:
    """Exempts a tool from its approval, or ends the exemption, starting with the next turn.

    Raises: CallerError 422 `approval_not_waivable`.
    """
    fault = exemption_fault(tool)
    if fault is not None:
        raise CallerError("approval_not_waivable", fault, {"tool": tool, "waivable": [*EXEMPTIBLE_TOOLS]}, status=422)
    before = await tx.fetchval(
        "SELECT $1 = ANY(waived_tools) FROM tenants WHERE tenant_id = current_setting('perdure.tenant') FOR UPDATE",
        tool,
    )
    await tx.execute(
        "UPDATE tenants SET waived_tools = array_remove(waived_tools, $1) || CASE WHEN $2 THEN ARRAY[$1] "
        "ELSE '{}'::text[] END WHERE tenant_id = current_setting('perdure.tenant')",
        tool,
        exempt,
    )
    data = {"approval": not exempt, "before": not before}
    await audit.record(tx, "approval.waiver_set", tool, {**data}, actor=user_id, turn_id=None)


RELATED_DECIDE = "(SELECT related_decide FROM tenants WHERE tenant_id = current_setting('perdure.tenant'))"
"""A subselect: whether the tenant lets related users decide on each other's high-risk calls."""


async def related_can_decide(tx: Connection) -> bool:
    """Returns whether the tenant lets related users decide on each other's high-risk calls
    (perdure/core/approvals/relations.py)."""
    return bool(await tx.fetchval(f"SELECT {RELATED_DECIDE}"))


async def set_related_decide(tx: Connection, *, allowed: bool, user_id: str) -> None:
    """Lets related users decide on each other's high-risk calls, or ends that, for all later decisions."""
    before = await tx.fetchval(f"SELECT {RELATED_DECIDE}")
    await tx.execute(
        "UPDATE tenants SET related_decide = $1 WHERE tenant_id = current_setting('perdure.tenant')", allowed
    )
    data: dict[str, JsonValue] = {"related_decide": allowed, "before": bool(before)}
    await audit.record(tx, "approval.four_eyes_set", "related_decide", data, actor=user_id, turn_id=None)


async def pin_exemptions(tx: Connection, turn_id: str, exempt: Sequence[str]) -> None:
    """Pins the turn to these exemptions at its start. Its calls are checked against them."""
    await tx.execute("UPDATE turns SET waived_tools = $2 WHERE id = $1", turn_id, [*exempt])


PromptVersion = dict[str, object]
_PROMPTS = "SELECT v.*, u.name AS author_name FROM prompt_versions v JOIN users u ON u.id = v.author"
_READABLE = "(v.stage IN ('pre_production', 'active') OR v.author = {user} OR {sees_all})"


class PromptReader(NamedTuple):
    """The user who reads. Drafts of other users and archived versions are visible only to users who can promote."""

    user_id: str
    roles: frozenset[str]

    @property
    def sees_all(self) -> bool:
        """True if versions of every stage and author are visible."""
        return bool(self.roles & PROMOTER_ROLES)


async def get_prompt_template(tx: Connection, version_id: str, reader: PromptReader) -> PromptVersion:
    """Returns one version with its text and history.

    Raises: CallerError 404 `prompt_version_not_found`.
    """
    seen = _READABLE.format(user="$2", sees_all="$3")
    row = await tx.fetchrow(f"{_PROMPTS} WHERE v.id = $1 AND {seen}", version_id, reader.user_id, reader.sees_all)
    if row is None:
        raise CallerError("prompt_version_not_found", "Version not found", status=404)
    history = await tx.fetch(
        "SELECT h.kind, h.at, h.data, u.name AS actor FROM audit_trail h LEFT JOIN users u ON u.id = h.actor "
        "WHERE h.subject = $1 ORDER BY h.id",
        version_id,
    )
    entries = [{"what": h["kind"], "at": h["at"], "by": h["actor"], "data": h["data"] or {}} for h in history]
    return _prompt_version(row) | {"history": entries}


async def list_prompt_templates(
    tx: Connection, reader: PromptReader, template: str | None, stage: str | None, limit: int, cursor: str | None
) -> tuple[list[PromptVersion], str | None]:
    """Returns a page of versions without their texts, last changed first, and the cursor of the next page."""
    at, last_id = read_cursor(cursor)
    seen = _READABLE.format(user="$1", sees_all="$2")
    rows = await tx.fetch(
        f"{_PROMPTS} WHERE {seen} AND ($3::text IS NULL OR v.template = $3) AND ($4::text IS NULL OR v.stage = $4) "
        "AND ($5::timestamptz IS NULL OR (v.changed_at, v.id) < ($5, $6::uuid)) "
        "ORDER BY v.changed_at DESC, v.id DESC LIMIT $7",
        reader.user_id,
        reader.sees_all,
        template,
        stage,
        at,
        last_id,
        limit + 1,
    )
    last = rows[limit - 1] if len(rows) > limit else None
    following = cursor_after(last["changed_at"], str(last["id"])) if last else None
    items = [{name: value for name, value in _prompt_version(row).items() if name != "text"} for row in rows[:limit]]
    return items, following


async def resolved_prompt_template(
    tx: Connection, template: str, user_id: str, stage: Stage | None = None
) -> PromptVersion:
    """Returns the version for this user: the user's own draft, else the active version. With `stage`, returns the
    version in that stage.

    Raises: CallerError 404 `prompt_template_not_found`.
    """
    row = await tx.fetchrow(
        f"{_PROMPTS} WHERE v.template = $1 AND v.stage = ANY($3) AND (v.stage <> 'draft' OR v.author = $2) "
        "ORDER BY v.stage = 'draft' DESC, v.changed_at DESC LIMIT 1",
        template,
        user_id,
        [stage.value] if stage else [Stage.DRAFT.value, Stage.ACTIVE.value],
    )
    if row is None:
        raise CallerError(
            "prompt_template_not_found",
            "Template not found, or no version of it applies to you",
            {"template": template[:80]},
            status=404,
        )
    return _prompt_version(row)


def _prompt_version(row: asyncpg.Record) -> PromptVersion:
    """Returns a version as the API shows it."""
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


async def name_and_role(tx: Connection, user_id: str) -> tuple[str, str]:
    """Returns the display name and the first role of a user for prompts; `user` without a role if the user is gone."""
    row = await tx.fetchrow("SELECT name, display_name, roles FROM users WHERE id = $1", user_id)
    if row is None:
        return "user", ""
    return row["display_name"] or row["name"], row["roles"][0] if row["roles"] else ""


class PromptPromoter(NamedTuple):
    """The user who changes the stage of a version. A version is a text under a key, in one stage
    (perdure/core/agents/templates.py). Unique indexes allow one draft per user, and one pre-production and one active
    version per template and tenant. Every change of stage is one conditional UPDATE with its audit row, so that only
    one of two concurrent promotions succeeds."""

    user_id: str
    roles: frozenset[str]

    @property
    def reader(self) -> PromptReader:
        """The user's access to versions."""
        return PromptReader(self.user_id, self.roles)


_SAVE = """
INSERT INTO prompt_versions AS v (id, tenant_id, template, text, digest, author)
VALUES ($1, current_setting('perdure.tenant'), $2, $3, $4, $5)
ON CONFLICT (tenant_id, template, author) WHERE stage = 'draft' DO UPDATE
  SET text = excluded.text, digest = excluded.digest, changed_at = now() WHERE v.digest <> excluded.digest
RETURNING id
"""


async def save_prompt_draft(tx: Connection, template: str, text: str, author: str) -> PromptVersion:
    """Stores `text` as the author's draft of this template, replacing the previous draft.

    Raises: CallerError 422 `template_variable_unknown` with each position.
    """
    refused = text_refusal(text)
    if refused is not None:
        raise refused
    digest = sha256_hex(text)
    version_id = await tx.fetchval(_SAVE, new_id(), template, text, digest, author)
    if version_id is not None:  # None: the draft already has this text
        await _record_prompt(tx, "prompt.draft_saved", version_id, {"template": template, "digest": digest}, author)
    row = await tx.fetchrow(
        "SELECT v.*, u.name AS author_name FROM prompt_versions v JOIN users u ON u.id = v.author "
        "WHERE v.template = $1 AND v.author = $2 AND v.stage = 'draft'",
        template,
        author,
    )
    if row is None:
        raise InvariantBroken("draft_vanished", "a draft was deleted in the transaction that saved it")
    return _prompt_version(row)


async def promote_prompt_template(
    tx: Connection, version_id: str, to: Stage, digest: str, promoter: PromptPromoter
) -> PromptVersion:
    """Moves a version to the stage `to`. `digest` is the digest of the text that the caller read. The previously active
    version is archived.

    Raises: CallerError 404, 403 `role_required` or `own_draft`, 422 `stage_invalid`, 409 `prompt_stage_changed` or
    `prompt_text_changed` (with the current stage and digest). 409 `prompt_stage_taken` if another version is in that
    stage.
    """
    before = await get_prompt_template(tx, version_id, promoter.reader)
    refused = promotion_refusal(to, before["author_id"] == promoter.user_id, promoter.roles)
    if refused is not None:
        raise refused
    if to not in PREVIOUS_STAGE:
        raise CallerError(
            "stage_invalid", "A version can only be promoted to pre_production or active", {"to": to.value}
        )
    if to is Stage.ACTIVE:  # rolled back with the transaction if the version itself cannot be promoted
        await _retire_active(tx, str(before["template"]), version_id, promoter)
    try:
        row = await tx.fetchrow(
            "UPDATE prompt_versions SET stage = $2, changed_at = now() "
            "WHERE id = $1 AND stage = $3 AND digest = $4 RETURNING id",
            version_id,
            to.value,
            PREVIOUS_STAGE[to].value,
            digest,
        )
    except asyncpg.UniqueViolationError:
        taken = f"Another version of this template is already {to.value}; promote or archive it first"
        raise CallerError("prompt_stage_taken", taken, {"stage": to.value}, status=409) from None
    now = await get_prompt_template(tx, version_id, promoter.reader)
    if row is None:
        raise _prompt_changed(now, PREVIOUS_STAGE[to])
    moved: dict[str, JsonValue] = {"template": str(now["template"]), "to": to.value, "digest": digest}
    await _record_prompt(tx, "prompt.promoted", version_id, moved, promoter.user_id)
    return now


async def archive_prompt_template(tx: Connection, version_id: str, promoter: PromptPromoter) -> PromptVersion:
    """Archives a version. Authors can archive their own drafts.

    Raises: CallerError 404, 403, 409 `prompt_stage_changed` if the version is archived already or its stage changes
    meanwhile.
    """
    before = await get_prompt_template(tx, version_id, promoter.reader)
    stage = Stage(str(before["stage"]))
    refused = archive_refusal(stage, before["author_id"] == promoter.user_id, promoter.roles)
    if refused is not None:
        raise refused
    row = await tx.fetchrow(
        "UPDATE prompt_versions SET stage = 'archived', changed_at = now() "
        "WHERE id = $1 AND stage = $2 AND stage <> 'archived' RETURNING id",
        version_id,
        stage.value,
    )
    now = await get_prompt_template(tx, version_id, promoter.reader)
    if row is None:
        raise _prompt_changed(now, stage)
    left: dict[str, JsonValue] = {"template": str(now["template"]), "from": stage.value}
    await _record_prompt(tx, "prompt.archived", version_id, left, promoter.user_id)
    return now


async def _retire_active(tx: Connection, template: str, successor: str, promoter: PromptPromoter) -> None:
    """Archives the active version. It must run first, because the index never allows two active versions."""
    row = await tx.fetchrow(
        "UPDATE prompt_versions SET stage = 'archived', changed_at = now() "
        "WHERE template = $1 AND stage = 'active' AND id <> $2 RETURNING id",
        template,
        successor,
    )
    if row is not None:
        left: dict[str, JsonValue] = {"template": template, "from": Stage.ACTIVE.value, "for": successor}
        await _record_prompt(tx, "prompt.archived", row["id"], left, promoter.user_id)


async def _record_prompt(tx: Connection, kind: str, version_id: object, data: dict[str, JsonValue], actor: str) -> None:
    await audit.record(tx, kind, str(version_id), data, actor=actor, turn_id=None)


def _prompt_changed(now: PromptVersion, expected: Stage) -> CallerError:
    """Returns why a conditional UPDATE found no row: the stage or the text has changed in the meantime."""
    details: dict[str, object] = {"stage": now["stage"], "digest": now["digest"]}
    if now["stage"] == expected.value and expected is not Stage.ARCHIVED:
        return CallerError(
            "prompt_text_changed",
            "The text has changed since you read it; read it again and send its current digest",
            details,
            status=409,
        )
    return CallerError("prompt_stage_changed", f"The version is now {now['stage']}; read it again", details, status=409)
