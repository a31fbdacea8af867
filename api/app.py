"""The application: intake, errors, routes, and the clients that live as long as it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import errors
from api.intake import Intake
from api.routes import (
    agents,
    answers,
    approval_verbs,
    approvals,
    audit,
    auth,
    budgets,
    bulk_decisions,
    conversations,
    delegations,
    documents,
    effects,
    entities,
    execute,
    files,
    health,
    limits,
    memory,
    oidc,
    previews,
    promotions,
    prompt_templates,
    rules,
    sign_in,
    status,
    streams,
    team,
    turns,
    users,
    webhooks,
)
from api.services import opened
from settings import Settings
from store.heartbeat import beating

ROUTERS = (
    conversations,
    turns,
    answers,
    limits,
    execute,
    files,
    streams,
    approvals,
    approval_verbs,
    bulk_decisions,
    previews,
    delegations,
    effects,
    audit,
    agents,
    prompt_templates,
    budgets,
    memory,
    documents,
    promotions,
    rules,
    entities,
    auth,
    oidc,
    sign_in,
    team,
    users,
    webhooks,
    status,
    health,
)


def create_app(settings: Settings) -> FastAPI:
    """The API for these settings."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened(settings) as services, beating(settings.ready_file):
            app.state.services = services
            yield

    app = FastAPI(
        title="Perdure",
        version="1",
        description="AI agent turns that survive. Every POST takes an Idempotency-Key.",
        lifespan=lifespan,
        responses=errors.DOCUMENTED,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's own would be read from another host; the page is in reviewer/
        redoc_url=None,
    )
    errors.install(app)
    app.add_middleware(Intake, most_bytes=settings.body_bytes)
    for module in ROUTERS:
        app.include_router(module.router)
    return app
