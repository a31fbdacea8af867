"""An id that the caller may not see is answered like an id that nobody has, on every route, whatever else is sent."""

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from perdure.contracts.values import sha256_hex
from perdure.store.database import new_id
from perdure.store.identity import users
from tests.conftest import KEYRING, Urls
from tests.integration.conftest import Api
from tests.integration.test_charts import SALES, say
from tests.integration.test_charts import conversation as with_table

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LATER = (datetime.now(UTC) + timedelta(days=7)).isoformat()


@dataclass
class Owned:
    """What one user has, by the names that paths use for its id."""

    client: httpx.AsyncClient
    judge: httpx.AsyncClient
    """Of somebody else of the same tenant, who may decide."""
    ids: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    text_digest: str = sha256_hex("Short.")

    async def post(self, path: str, /, **body: Any) -> dict[str, Any]:
        answer = await self.client.post(path, json=body)
        assert answer.status_code in (200, 201, 202), (path, answer.text)
        return dict(answer.json())

    async def make(self, delegate: str) -> None:
        """One of everything."""
        talk = (await self.post("/v1/conversations", agent="refunds"))["id"]
        turns = f"/v1/conversations/{talk}/turns?wait=30"
        done = await self.post(turns, message="Refund order 1042")
        settled = done["waiting_for"]["ids"][0]
        digest = (await self.judge.get(f"/v1/approvals/{settled}")).json()["digest"]
        decided = await self.judge.post(
            f"/v1/approvals/{settled}/decision", json={"decision": "approve", "digest": digest}
        )
        assert decided.status_code == 200, decided.text
        await self.client.get(f"/v1/turns/{done['turn_id']}/events")
        waits = await self.post(turns, message="Refund order 1043")
        effects = (await self.client.get("/v1/effects")).json()["items"]
        asks = await say(self.client, await with_table(self.client, SALES), "Plot something")
        approval = waits["waiting_for"]["ids"][0]
        self.digest = (await self.client.get(f"/v1/approvals/{approval}")).json()["digest"]
        file = await self.client.post(
            f"/v1/conversations/{talk}/files?name=a.csv", content="a,b\n1,2\n", headers={"Content-Type": "text/csv"}
        )
        document = await self.post(
            "/v1/memory/documents", scope="user", path="prefs/tone", type="user_preference", title="t", content="Short."
        )
        proposal = await self.post(
            "/v1/memory/promotions", document_id=document["id"], store="workspace_conventions", path="policies/tone",
            risk="low", evidence_summary="e", source_refs=["s"],
        )  # fmt: skip
        draft = await self.client.put("/v1/prompt-templates/platform_rules/draft", json={"text": "Be brief."})
        lent = await self.post("/v1/delegations", to=delegate, until=LATER)
        self.ids = {
            "conversation_id": talk, "turn_id": waits["turn_id"], "approval_id": approval,
            "effect_key": effects[0]["key"], "request_id": asks["waiting_for"]["ids"][0],
            "asking_turn_id": asks["turn_id"], "file_id": file.json()["id"], "document_id": document["id"],
            "version_id": document["version_id"], "promotion_id": proposal["id"],
            "prompt_version_id": draft.json()["id"], "delegation_id": lent["id"],
        }  # fmt: skip


@dataclass(frozen=True)
class Walls:
    """A requester who asks, a colleague's things, and another tenant's."""

    asker: httpx.AsyncClient
    reviewer: httpx.AsyncClient
    colleague: Owned
    stranger: Owned
    operations: list[tuple[str, str]]


@pytest.fixture(scope="module")
async def walls(api: Api, urls: Urls) -> AsyncIterator[Walls]:
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    roles = ["requester", "reviewer", "admin"]
    try:
        async with owner.transaction():
            await users.ensure_tenant(owner, "other")
            await owner.execute("SELECT set_config('perdure.tenant', 'other', true)")
            for name in ("stranger", "judge"):
                await users.ensure_user(owner, "other", name, roles, sha256_hex(f"{name}-token"), KEYRING)
    finally:
        await owner.close()

    def of(token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    async with (
        api.client("requester") as asker, api.client("reviewer") as reviewer, api.client("admin") as admin,
        of("stranger-token") as stranger, of("judge-token") as judge,
    ):  # fmt: skip
        mine, theirs = Owned(admin, reviewer), Owned(stranger, judge)
        await mine.make("reviewer")
        await theirs.make("judge")
        paths = (await asker.get("/openapi.json")).json()["paths"]
        operations = [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" in path]
        yield Walls(asker, reviewer, mine, theirs, operations)


def name_of(parameter: str, path: str) -> str:
    """Under which name `Owned.ids` has the id for this parameter."""
    if parameter == "version_id" and "prompt" in path:
        return "prompt_version_id"
    return "asking_turn_id" if parameter == "turn_id" and "/answers/" in path else parameter


SHARED = {"agent_id", "name", "template", "slug", "entity_id", "webhook_id"}
"""Names and ids that are everybody's in the tenant, or an administrator's alone, before they are looked up."""


def bodies(method: str, path: str, owned: Owned) -> Iterable[dict[str, Any]]:
    """What may be sent there: all of it fits, so that a refusal is of the id."""
    basis = {"evidence_summary": "e", "source_refs": ["s"]}
    digests = (owned.digest, "0" * 64)
    known: Mapping[str, list[dict[str, Any]]] = {
        "/v1/approvals/{approval_id}/decision": [
            {"decision": decision, "digest": digest, **more}
            for decision in ("approve", "reject", "edit", "respond")
            for digest in digests
            for more in ({}, {"comment": "c"}, {"args": {"order": "1"}})
        ],
        "/v1/approvals/{approval_id}/reassign": [{"to": "reviewer"}, {"to": "nobody"}],
        "/v1/approvals/{approval_id}/claim": [{}, {"seconds": 60}],
        "/v1/turns/{turn_id}/limits": [{"max_tokens": 10**9}, {"max_tokens": 1}, {}],
        "/v1/turns/{turn_id}/answers/{request_id}": [
            {"kind": kind, "payload": {"text": "x"}} for kind in ("clarification", "client_run")
        ],
        "/v1/conversations/{conversation_id}/turns": [{"message": "hello"}, {"message": "hello", "on_busy": "queue"}],
        "/v1/effects/{effect_key}/settle": [{"outcome": "happened", "comment": "c"}],
        "/v1/memory/documents/{document_id}": [
            {"expected_sha256": digest, "content": "x", **basis} if method == "PUT"
            else {"expected_sha256": digest, "edits": [{"find": "Short", "replace": "x"}], **basis}
            for digest in (owned.text_digest, "0" * 64)
        ],
        "/v1/memory/documents/{document_id}/versions/{version_id}/redact": [{"reason": "r"}],
        "/v1/memory/promotions/{promotion_id}/decision": [
            {"decision": each, "sha256": digest, "comment": "c"}
            for each in ("approve", "reject") for digest in (owned.text_digest, "0" * 64)
        ],
        "/v1/prompt-versions/{version_id}/promote": [
            {"to": to, "digest": digest} for to in ("pre_production", "active") for digest in digests
        ],
        "/v1/memory/working/{conversation_id}": [{"fields": {"note": "x"}}],
    }  # fmt: skip
    return known.get(path, [{}])


def with_ids(path: str, ids: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: ids.get(name_of(found[1], path), new_id()), path)


async def answer(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and body of an answer without the ids in it, and without the file that an upload is."""
    given: dict[str, Any] = {"json": body} if method in ("POST", "PUT", "PATCH") else {}
    if path.endswith("/files") and method == "POST":
        given = {"content": "a\n1\n", "params": {"name": "a.csv"}, "headers": {"Content-Type": "text/csv"}}
    async with client.stream(method, path, **given) as stream:
        if "event-stream" in stream.headers.get("content-type", ""):
            return stream.status_code, "a stream"
        text = (await stream.aread()).decode()
    return stream.status_code, UUID.sub("ID", text)


async def test_every_route_answers_an_unseen_id_like_a_random_one(walls: Walls) -> None:
    assert len(walls.operations) > 40
    told_apart = []
    for method, path in walls.operations:
        names = {name_of(each, path) for each in re.findall(r"\{(\w+)\}", path)}
        if names & SHARED:
            continue
        assert names <= walls.colleague.ids.keys(), f"make one of {names} in this test, for {path}"
        for client, who, owners in (
            (walls.asker, "requester", (walls.colleague, walls.stranger)),
            (walls.reviewer, "reviewer", (walls.stranger,)),
        ):
            for owned in owners:
                for body in bodies(method, path, owned):
                    unseen = await answer(client, method, with_ids(path, owned.ids), body)
                    random = await answer(client, method, with_ids(path, {}), body)
                    assert random[0] in (403, 404), (who, method, path, body, random)
                    if unseen != random:
                        told_apart.append((who, method, path, json.dumps(body), unseen, random))
    assert not told_apart, "\n".join(map(str, told_apart))


async def test_the_ids_are_those_of_things_that_are_there(walls: Walls) -> None:
    for owned in (walls.colleague, walls.stranger):
        for method, path in walls.operations:
            names = {name_of(each, path) for each in re.findall(r"\{(\w+)\}", path)}
            if method == "GET" and names <= owned.ids.keys():
                status, _ = await answer(owned.client, method, with_ids(path, owned.ids), {})
                assert status in (200, 204), (path, status)


async def test_an_id_in_a_body_or_a_query_is_no_other(walls: Walls) -> None:
    named: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", "/v1/execute", {"agent": "refunds", "message": "x"}, "conversation_id"),
        ("POST", "/v1/memory/episodic", {"summary": "s"}, "conversation_id"),
        ("POST", "/v1/memory/documents/search", {"query": "q", "scope": "conversation"}, "conversation_id"),
        (
            "POST",
            "/v1/memory/promotions",
            {"store": "workspace_conventions", "path": "p/q", "risk": "low"},
            "document_id",
        ),
        ("GET", "/v1/turns?conversation=", {}, "conversation_id"),
        ("GET", "/v1/approvals?turn=", {}, "turn_id"),
        ("GET", "/v1/memory/episodic?conversation_id=", {}, "conversation_id"),
        ("GET", "/v1/memory/documents?conversation_id=", {}, "conversation_id"),
    ]
    for method, path, body, name in named:
        for owned in (walls.colleague, walls.stranger):
            found = []
            for given in (owned.ids[name], new_id()):
                where = path + given if path.endswith("=") else path
                found.append(await answer(walls.asker, method, where, {**body, name: given}))
            assert found[0] == found[1], (method, path, found)


def items(*ids: str, digest: str, decision: str = "approve") -> dict[str, Any]:
    return {"items": [{"id": each, "digest": digest, "decision": decision, "comment": "c"} for each in ids]}


@pytest.mark.parametrize("decision", ["approve", "reject", "edit", "respond"])
async def test_a_bulk_decision_says_nothing_of_ids_that_its_caller_cannot_see(walls: Walls, decision: str) -> None:
    stranger, colleague = walls.stranger.ids["approval_id"], walls.colleague.ids["approval_id"]
    for client, unseen, own in (
        (walls.asker, colleague, walls.asker),
        (walls.asker, stranger, walls.asker),
        (walls.reviewer, stranger, walls.reviewer),
    ):
        talk = (await own.post("/v1/conversations", json={"agent": "refunds"})).json()["id"]
        turn = await own.post(f"/v1/conversations/{talk}/turns?wait=30", json={"message": "Refund order 1044"})
        seen = turn.json()["waiting_for"]["ids"][0]
        alone: dict[str, str | None] = {}
        for given in (unseen, new_id()):
            for mixed in ((given,), (seen, given), (given, seen)):
                sent = await client.post(
                    "/v1/approvals/decisions", json=items(*mixed, digest="0" * 64, decision=decision)
                )
                by_id = {each["id"]: json.dumps(each["error"]) for each in sent.json()["items"]}
                said = json.loads(by_id[given])
                assert (said["status"], said["code"]) == (404, "approval_not_found"), (decision, mixed, said)
                assert by_id.get(seen) == alone.setdefault(f"{seen} in {len(mixed)}", by_id.get(seen))
        await own.post(f"/v1/turns/{turn.json()['turn_id']}/stop")
