"""Prompt templates: a draft of one's own, what speaks to whom, and the stages up to active."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import JSONResponse

from api.auth import Open, Principal, Reader
from api.bodies import DraftBody, PromotionBody
from api.ids import as_uuid
from api.once import Key, once
from api.pages import Limit
from policy.stages import Stage
from policy.templates import filled
from store import prompt_templates, prompt_views
from store.database import Connection
from store.outbox import Note
from store.prompt_templates import Mover
from store.prompt_views import Seer

router = APIRouter(prefix="/v1", tags=["prompt templates"])
MOST = 200
_KEY = r"^[a-z][a-z0-9_-]{0,63}$"


def _version(version_id: Annotated[str, Path()]) -> str:
    return as_uuid(version_id, "prompt_version")


VersionId = Annotated[str, Depends(_version)]
Template = Annotated[str, Path(max_length=64)]
Shown = Literal["draft", "pre_production", "active"]


@router.get("/prompt-templates")
async def listed(
    services: Open,
    who: Reader,
    template: Annotated[str | None, Query(max_length=64)] = None,
    stage: Stage | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> dict[str, object]:
    """Versions without their texts, changed last first: what is used, your own, and for a reviewer all of them."""
    async with services.db.transaction(who.tenant_id) as tx:
        found = await prompt_views.listed(
            tx, _seer(who), template, stage.value if stage else None, min(limit, MOST), cursor
        )
    return {"items": found[0], "next": found[1]}


@router.get("/prompt-templates/{template}")
async def get(services: Open, who: Reader, template: Template, stage: Shown | None = None) -> dict[str, object]:
    """The version that speaks to you: your draft, else the active one; with `stage` the one in that stage."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await prompt_views.resolved(tx, template, who.user_id, Stage(stage) if stage else None)


@router.get("/prompt-templates/{template}/render")
async def render(
    services: Open,
    who: Reader,
    template: Template,
    stage: Shown | None = None,
    agent_title: Annotated[str, Query(max_length=200)] = "",
    skill_name: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, object]:
    """The same with its variables filled in, as your own turns get it."""
    async with services.db.transaction(who.tenant_id) as tx:
        version = await prompt_views.resolved(tx, template, who.user_id, Stage(stage) if stage else None)
        name, role = await prompt_views.named(tx, who.user_id)
    values = {"user_name": name, "user_role": role, "agent_title": agent_title, "skill_name": skill_name}
    return version | {"text": filled(str(version["text"]), values)}


@router.put("/prompt-templates/{template}/draft")
async def save_draft(
    services: Open, who: Reader, template: Annotated[str, Path(pattern=_KEY)], body: DraftBody
) -> dict[str, object]:
    """Your draft of this template, which speaks in your own turns; the draft before it is overwritten."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await prompt_templates.save_draft(tx, template, body.text, who.user_id)


@router.get("/prompt-versions/{version_id}")
async def version(services: Open, who: Reader, version_id: VersionId) -> dict[str, object]:
    """One version with its text and history."""
    async with services.db.transaction(who.tenant_id) as tx:
        return await prompt_views.get(tx, version_id, _seer(who))


@router.post("/prompt-versions/{version_id}/promote")
async def promote(
    services: Open, who: Reader, version_id: VersionId, body: PromotionBody, key: Key = None
) -> JSONResponse:
    """Move a version on by one stage; the digest is that of the text which you read. Needs reviewer or admin, and for
    active somebody else than its author."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        mover = Mover(who.user_id, who.roles)
        return 200, await prompt_templates.promote(tx, version_id, Stage(body.to), body.digest, mover), None

    return await once(services, who, f"prompt-promote/{version_id}", key, body, work)


@router.post("/prompt-versions/{version_id}/archive")
async def archive(services: Open, who: Reader, version_id: VersionId, key: Key = None) -> JSONResponse:
    """Take a version out of use. Needs reviewer or admin, except for your own draft."""

    async def work(tx: Connection) -> tuple[int, dict[str, object], Note | None]:
        return 200, await prompt_templates.archive(tx, version_id, Mover(who.user_id, who.roles)), None

    return await once(services, who, f"prompt-archive/{version_id}", key, None, work)


def _seer(who: Principal) -> Seer:
    return Seer(who.user_id, who.roles)
