"""A running stack in which few reviewers decide on many approvals, each over HTTP through an API of their choosing."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from temporalio.client import Client

from perdure.store.database import Database
from perdure.temporal.client import DATA_CONVERTER
from tests.acceptance.approvals.paused_turns import Paused, paused_turns
from tests.acceptance.running import RunningStack, running
from tests.acceptance.turns import Turns, json_of
from tests.scale import NO_RATE_LIMIT


@dataclass(frozen=True, slots=True)
class LoadedStack:
    """A stack, its stores, and the target of its refunds."""

    stack: RunningStack
    db: Database
    temporal: Client
    turns: Turns
    payments: httpx.AsyncClient

    async def paused(self, count: int) -> list[Paused]:
        """So many turns that wait for the approval of a refund."""
        pattern = await self.turns.begin("Refund order 1042")
        assert await self.turns.until([pattern], "awaiting_approval") == []
        made = await paused_turns(self.db, self.temporal, pattern, count)
        (await self.turns.requester.post(f"/v1/turns/{pattern}/stop")).raise_for_status()
        return made

    async def refunds(self) -> list[str]:
        """The keys of the refunds that were made, in order."""
        return [str(each["key"]) for each in (await json_of(self.payments.get("/ledger")))["effects"]]


@pytest.fixture(scope="package")
def busy_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """`python -m perdure up --examples` in a data folder of its own."""
    with running(
        tmp_path_factory.mktemp("approvals") / "home",
        "--examples",
        PERDURE_LIVE_TURNS_PER_USER="1000000",
        **NO_RATE_LIMIT,
    ) as started:
        yield started


@pytest.fixture(scope="package")
async def refund_stack(busy_stack: RunningStack) -> AsyncIterator[LoadedStack]:
    run_file = busy_stack.read()
    db = await Database.connect(run_file["postgres"], max_connections=8, wait_seconds=60)
    temporal = await Client.connect(run_file["temporal"], data_converter=DATA_CONVERTER)
    bearer = {"Authorization": f"Bearer {busy_stack.companion_token('payments')}"}
    async with (
        Turns(busy_stack, "refunds") as turns,
        httpx.AsyncClient(base_url=run_file["companions"]["payments"], headers=bearer, timeout=60) as payments,
    ):
        yield LoadedStack(busy_stack, db, temporal, turns, payments)
    await db.close()


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    client: httpx.AsyncClient


@dataclass(frozen=True, slots=True)
class Answer:
    approval_id: str
    by: str
    status: int
    says: str
    """The approval's status if it was decided, else the code of the refusal."""


@asynccontextmanager
async def with_tokens(admin_token: str, names: Sequence[str], apis: Sequence[str]) -> AsyncIterator[list[Person]]:
    """These users as reviewers with tokens, created if they are missing; they use the APIs in turn."""
    async with AsyncExitStack() as held:
        admin = await held.enter_async_context(_client(apis[0], admin_token))
        known = {user["name"]: user for user in (await json_of(admin.get("/v1/users")))["items"]}
        people = []
        for number, name in enumerate(names):
            if name not in known:
                known[name] = await json_of(admin.post("/v1/users", json={"name": name, "roles": ["reviewer"]}))
            roles = sorted({*known[name]["roles"], "reviewer"})
            await json_of(admin.post(f"/v1/users/{name}/roles", json={"roles": roles}))
            minted = await json_of(admin.post(f"/v1/users/{name}/tokens", json={"label": "figures"}))
            client = _client(apis[number % len(apis)], minted["token"])
            people.append(Person(name, await held.enter_async_context(client)))
        yield people


def _client(api: str, token: str) -> httpx.AsyncClient:
    bearer, limits = {"Authorization": f"Bearer {token}"}, httpx.Limits(max_connections=32)
    return httpx.AsyncClient(base_url=api, headers=bearer, timeout=30, limits=limits)


async def decide(
    person: Person, approval_id: str, decision: str, digest: str, comment: str = "", key: str | None = None
) -> Answer:
    """Sends one decision. Raises httpx.TransportError if the API does not answer."""
    answer = await person.client.post(
        f"/v1/approvals/{approval_id}/decision",
        json={"decision": decision, "digest": digest, "comment": comment},
        headers={"Idempotency-Key": key} if key else {},
    )
    body = answer.json()
    says = body["status"] if answer.status_code == 200 else body["error"]["code"]
    return Answer(approval_id, person.name, answer.status_code, says)
