"""The application: intake, errors, routes, and the clients that live as long as it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from perdure.api import errors
from perdure.api.middleware import Intake
from perdure.api.routes import (
    agents,
    approvals,
    audit,
    budgets,
    calls,
    delivery,
    documents,
    events,
    files,
    identity,
    memory,
    status,
    turns,
)
from perdure.api.services import open_services
from perdure.settings import Settings
from perdure.telemetry.hangs import watched

ROUTERS = (
    turns.conversations_router,
    turns.turns_router,
    turns.answers_router,
    turns.limits_router,
    turns.execute_router,
    files.router,
    events.router,
    approvals.approvals_router,
    approvals.verbs_router,
    approvals.bulk_router,
    approvals.previews_router,
    approvals.delegations_router,
    calls.router,
    audit.router,
    agents.agents_router,
    agents.prompt_templates_router,
    budgets.router,
    memory.memory_router,
    documents.documents_router,
    documents.promotions_router,
    agents.rules_router,
    memory.entities_router,
    identity.auth_router,
    identity.oidc_router,
    identity.sign_in_router,
    identity.team_router,
    identity.users_router,
    delivery.router,
    status.status_router,
    status.health_router,
)


def create_app(settings: Settings) -> FastAPI:
    """Returns the API and pages as an ASGI application. It connects to its services when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings) as services, watched(settings.ready_file, settings.exit_seconds()):
            app.state.services = services
            yield

    app = FastAPI(
        title="Perdure",
        version="1",
        description=(
            "Durable AI agent turns with approvals. Send an `Idempotency-Key` with every POST; a repeated key "
            "returns the first answer."
        ),
        lifespan=lifespan,
        responses=errors.DOCUMENTED_RESPONSES,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's own page loads from another host; the page is in perdure/pages/.
        redoc_url=None,
    )
    errors.install_error_handlers(app)
    app.add_middleware(Intake, max_bytes=settings.body_bytes)
    for router in ROUTERS:
        app.include_router(router)
    return app
