"""The API as it is served: a real HTTP server in front of real parts, with workers for its turns."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

import httpx
import pytest
from fastapi import FastAPI
from temporalio.client import Client

from perdure.activities.dependencies import Deps
from perdure.activities.providers.registry import Models
from perdure.activities.toolbox.registry import Toolbox
from perdure.api.__main__ import server_config
from perdure.api.app import create_app
from perdure.api.services import Services
from perdure.apps import app_folders, find_apps
from perdure.contracts.turns import Kind, Routing
from perdure.local import DataParts
from perdure.settings import Settings
from perdure.store.database import Connection, Database
from perdure.store.events.live import LiveTokens
from perdure.store.valkey import Valkey
from perdure.temporal.workflow_client import Notifier
from perdure.worker.queues import tools_of, workers_for
from perdure.worker.reconcile import Reconciler
from tests.conftest import KEYRING, Person, Urls
from tests.doubles.local_server import LocalServer
from tests.harness import Harness, Rows, own_queues
from tests.integration.litellm_agent import LitellmAgent, clerk_at_work
from tests.integration.policies import Policies, publish_policies
from tests.integration.turn_writer import TurnWriter
from tests.local_egress import new_client

P = ParamSpec("P")
T = TypeVar("T")
Caller: TypeAlias = httpx.AsyncClient
"""A client of the API, with a user's token or with none."""


@dataclass(frozen=True, slots=True)
class Api(Rows):
    url: str
    services: Services
    people: dict[str, Person]
    app: FastAPI

    def client(self, name: str | None = "requester") -> Caller:
        return self.client_of(self.people[name].token if name else None)

    def client_of(self, token: str | None, timeout: float = 30) -> Caller:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout)

    async def new_user(self, name: str, *roles: str) -> str:
        """The token of a user whom the administrator adds."""
        async with self.client("admin") as admin:
            assert (await admin.post("/v1/users", json={"name": name, "roles": roles})).status_code == 201
            return str((await admin.post(f"/v1/users/{name}/tokens", json={})).json()["token"])

    @property
    def db(self) -> Database:
        return self.services.db


async def in_transaction(
    db: Database, work: Callable[Concatenate[Connection, P], Awaitable[T]], *args: P.args, **given: P.kwargs
) -> T:
    async with db.transaction("local") as tx:
        return await work(tx, *args, **given)


async def _forget_guesses(valkey: Valkey) -> None:
    """Those of the module before, which came from the same address."""

    async def work() -> None:
        async for key in valkey.client.scan_iter("perdure:guesses:*"):
            await valkey.client.delete(key)

    await valkey.attempt(work)


@asynccontextmanager
async def serving(
    parts: DataParts,
    urls: Urls,
    people: dict[str, Person],
    *,
    temporal: str = "",
    **settings: str,
) -> AsyncIterator[Api]:
    """The API on its own port; its turns have their own queues. Rate limits are off unless `settings` enable them.
    With a `temporal` of its own it waits for Postgres as long as the program does. Without, it waits longer, because a
    busy machine needs it."""
    assert parts.redis_url is not None and parts.temporal is not None
    outside = TemporaryDirectory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEMPORAL_ADDRESS", temporal or parts.temporal.address)
        patch.setenv("TEMPORAL_NAMESPACE", parts.temporal.namespace)
        patch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
        if not temporal:
            patch.setattr("perdure.api.services.DATABASE_SECONDS", 30.0)
        given = {"DATABASE_URL": urls.app, "REDIS_URL": parts.redis_url, "PERDURE_AUDIT_HEADS": f"{outside.name}/heads"}
        read = Settings(_env_file=None, **{"RATE_LIMITING_ENABLED": "0", **given, **settings})  # type: ignore[arg-type]
        app = create_app(read)
        config = server_config(app, read)
        config.timeout_graceful_shutdown = 1
        listening = LocalServer(config)
        await listening.start()
    await _forget_guesses(app.state.services.valkey)
    services: Services = replace(app.state.services, routing=own_queues(Routing.spread()))
    app.state.services = services
    try:
        yield Api(listening.url, services, people, app)
    finally:
        services.wakes.close()
        await listening.stop()
        outside.cleanup()


@pytest.fixture(scope="module")
async def api(parts: DataParts, urls: Urls, db: Database, people: dict[str, Person]) -> AsyncIterator[Api]:
    """The API with workers for every queue of it."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(parts, urls, people))
        services = running.services
        http = await stack.enter_async_context(new_client())

        def secret(name: str) -> str | None:
            return os.environ.get(f"PERDURE_SECRET_{name.upper()}")

        toolbox = Toolbox(tools_of(find_apps(app_folders((), examples=True))), secret, http)
        deps = Deps(db, services.live, toolbox, Models(lambda name: None), services.notifier)
        for kind in (Kind.APPROVALS, Kind.MEMORY, Kind.TOOLS, Kind.LLM, Kind.TURNS):
            for worker in workers_for(deps, kind, services.routing.queue(kind)):
                await stack.enter_async_context(worker)
        yield running


@pytest.fixture(scope="module")
async def relay(urls: Urls) -> AsyncIterator[Database]:
    """The database as the relay sees it."""
    database = await Database.connect(urls.relay, max_connections=8, keyring=KEYRING)
    yield database
    await database.close()


@pytest.fixture
def reconciler(relay: Database, temporal: Client) -> Reconciler:
    """A fresh one, as after a restart."""
    return Reconciler(relay, temporal, Notifier(temporal, relay))


@pytest.fixture(scope="module")
async def agent(harness: Harness, parts: DataParts, temporal: Client) -> AsyncIterator[LitellmAgent]:
    """An agent whose models are those of the provider double, at work."""
    assert parts.redis_url is not None
    async with clerk_at_work(harness, parts.redis_url, temporal) as opened:
        yield opened


@pytest.fixture(scope="module")
async def valkey(parts: DataParts) -> AsyncIterator[Valkey]:
    assert parts.redis_url is not None
    client = Valkey.connect(parts.redis_url)
    yield client
    await client.close()


@pytest.fixture(scope="module")
def live(valkey: Valkey) -> LiveTokens:
    return LiveTokens(valkey)


@pytest.fixture(scope="module")
async def policies(harness: Harness) -> Policies:
    return await publish_policies(harness)


@pytest.fixture
async def requester(api: Api) -> AsyncIterator[Caller]:
    async with api.client() as client:
        yield client


@pytest.fixture
async def reviewer(api: Api) -> AsyncIterator[Caller]:
    async with api.client("reviewer") as client:
        yield client


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[Caller]:
    async with api.client("admin") as client:
        yield client


@pytest.fixture
async def visitor(api: Api) -> AsyncIterator[Caller]:
    """A client without a token."""
    async with api.client(None) as client:
        yield client


@pytest.fixture
async def turn(db: Database, live: LiveTokens, people: dict[str, Person]) -> TurnWriter:
    return await TurnWriter.begin(db, live, people["requester"])
