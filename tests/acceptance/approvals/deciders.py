"""People who decide over HTTP, each through an API process of their own choosing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from tests.acceptance.turns import json_of


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
