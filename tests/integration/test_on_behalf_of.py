"""A gateway acts on behalf of people through one token. Two subjects are two users in every respect."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from perdure.api.auth import has_same_access, on_behalf_of, token_principal
from perdure.client import AsyncClient, Client
from perdure.core.approvals.decisions import Decider
from perdure.store import agents
from perdure.store.approvals.review import with_delegations
from perdure.store.database import new_id
from tests.integration.conftest import Api, Caller
from tests.integration.test_api_approvals import final_turn
from tests.integration.test_api_turns import code, pages, refusal

GATEWAYS = {"portal": ("gateway",), "kiosk": ("gateway",), "chief": ("requester", "reviewer", "gateway")}
ANNA = {"subject": "anna@example.org", "name": "Anna"}
BERT = {"subject": "bert@example.org", "name": "Bert"}
PAUSES = "Refund order 1042"


@dataclass(frozen=True)
class Person:
    """A caller of one gateway's token with its subject's part of bodies and queries."""

    client: httpx.AsyncClient
    given: dict[str, str]

    @property
    def query(self) -> dict[str, str]:
        return {"on_behalf_of": self.given["subject"]} if self.given else {}

    @property
    def body(self) -> dict[str, Any]:
        return {"on_behalf_of": self.given} if self.given else {}

    async def talk(self, **more: object) -> str:
        made = await self.client.post("/v1/conversations", json={"agent": "refunds", **self.body, **more})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def turn(self, talk: str, message: str = PAUSES, **headers: str) -> httpx.Response:
        path, sent = f"/v1/conversations/{talk}/turns", {"message": message, **self.body}
        return await self.client.post(path, params={"wait": 20}, json=sent, headers=headers)

    async def objects(self) -> dict[str, str]:
        """A conversation with a file, and a turn that waits for an approval."""
        talk = await self.talk()
        path, headers = f"/v1/conversations/{talk}/files?name=t.csv", {"content-type": "text/csv"}
        file = (await self.client.post(path, content=b"a,b\n1,2\n", headers=headers)).json()
        turn = (await self.turn(talk)).json()
        return {
            "talk": talk, "turn": turn["turn_id"], "approval": turn["waiting_for"]["ids"][0], "file": file["id"]
        }  # fmt: skip

    async def ids(self, path: str) -> set[str]:
        items = await pages(self.client, path, 50, **self.query)
        return {item.get("id") or item["turn_id"] for item in items}


@pytest.fixture(scope="module")
async def callers(api: Api) -> AsyncIterator[dict[str, Person]]:
    clients = {name: api.client_of(await api.new_user(name, *roles)) for name, roles in GATEWAYS.items()}
    portal = clients["portal"]
    yield {
        "anna": Person(portal, ANNA), "bert": Person(portal, BERT), "portal": Person(portal, {}),
        "other anna": Person(clients["kiosk"], ANNA), "chief": Person(clients["chief"], {}),
    }  # fmt: skip
    for client in clients.values():
        await client.aclose()


@pytest.fixture(scope="module")
async def owned(callers: dict[str, Person]) -> dict[str, dict[str, str]]:
    return {name: await person.objects() for name, person in callers.items() if name != "chief"}


READS = [
    "conversations/{talk}", "conversations/{talk}/messages", "conversations/{talk}/story", "conversations/{talk}/files",
    "memory/working/{talk}", "turns/{turn}", "turns/{turn}/calls", "turns/{turn}/segments", "turns/{turn}/metrics",
    "approvals/{approval}", "approvals/{approval}/audit", "files/{file}",
]  # fmt: skip


async def test_a_gateway_reads_what_its_subjects_own_and_nothing_of_another_gateway(
    callers: dict[str, Person], owned: dict[str, dict[str, str]]
) -> None:
    wrong = []
    for path in READS:
        for name, ids in owned.items():
            for gateway in ("portal", "other anna"):
                at = f"/v1/{path.format(**ids)}"
                found = (await callers[gateway].client.get(at)).status_code
                if found != (200 if callers[gateway].client is callers[name].client else 404):
                    wrong.append((gateway, name, path, found))
    assert not wrong


WRITES = [
    ("PATCH", "conversations/{talk}", {"title": "t"}), ("PUT", "memory/working/{talk}", {"fields": {"a": 1}}),
    ("DELETE", "files/{file}", None), ("POST", "turns/{turn}/stop", None),
    ("POST", "approvals/{approval}/withdraw", {}), ("DELETE", "conversations/{talk}", None),
]  # fmt: skip


async def test_a_gateway_changes_what_its_subjects_own_and_nothing_of_another_gateway(
    callers: dict[str, Person],
) -> None:
    ids = await callers["anna"].objects()
    for gateway, statuses in (("other anna", {403, 404}), ("portal", {200, 202, 204})):
        for method, path, body in WRITES:
            answer = await callers[gateway].client.request(method, f"/v1/{path.format(**ids)}", json=body)
            # Once it stops, its approval is cancelled, and it is open for a moment.
            is_late = gateway == "portal" and answer.status_code == 409
            assert is_late or answer.status_code in statuses, (gateway, path, answer.text)


async def test_a_gateway_answers_the_question_of_its_subjects_turn(callers: dict[str, Person]) -> None:
    anna = callers["anna"]
    talk = await anna.talk(agent="chart_builder")
    path = f"/v1/conversations/{talk}/files?name=t.csv"
    await anna.client.post(path, content=b"region,sales\nNorth,1\n", headers={"content-type": "text/csv"})
    turn = (await anna.turn(talk, "Plot something")).json()
    at = f"/v1/turns/{turn['turn_id']}/answers/{turn['waiting_for']['ids'][0]}"
    answer = {"kind": "clarification", "payload": {"text": "sales by region"}}
    assert (await callers["other anna"].client.post(at, json=answer)).status_code == 404
    assert (await anna.client.post(at, json=answer)).status_code == 200


async def test_lists_are_those_of_one_subject_and_never_of_two(
    callers: dict[str, Person], owned: dict[str, dict[str, str]]
) -> None:
    for kind, path in (("talk", "/v1/conversations"), ("turn", "/v1/turns"), ("approval", "/v1/approvals")):
        for name, ids in owned.items():
            others = {ids[kind] for other, ids in owned.items() if other != name}
            found = await callers[name].ids(path)
            assert ids[kind] in found and not found & others, (kind, name)
        unused = replace(callers["anna"], given={"subject": "not used yet"})
        assert await unused.ids(path) == set()
    assert callers["anna"].client is callers["bert"].client


async def test_each_subject_meets_the_others_conversations_as_a_stranger(
    callers: dict[str, Person], owned: dict[str, dict[str, str]]
) -> None:
    for name, ids in owned.items():
        for other, person in callers.items():
            answers = [
                await person.turn(ids["talk"]),
                await person.client.post(
                    "/v1/execute",
                    json={"agent": "refunds", "message": "/echo a", "conversation_id": ids["talk"], **person.body},
                ),
            ]
            expected = (409, "conversation_busy") if name == other else (404, "conversation_not_found")
            assert [refusal(answer) for answer in answers] == [expected] * 2, (name, other)


BODIES = {"/v1/conversations": {"agent": "refunds"}, "/v1/execute": {"agent": "refunds", "message": "/echo hi"}}
SUBJECT_FAULTS: list[dict[str, object]] = [
    {**ANNA, "role": "reviewer"}, {**ANNA, "role": "gateway"}, {**ANNA, "more": 1}, {"name": "Anna"}, {"subject": ""},
    {"subject": " "}, {"subject": "a\nb"}, {"subject": "a\u200bb"}, {"subject": "x" * 201}, {**ANNA, "name": "a\nb"},
]  # fmt: skip


async def test_only_a_gateway_can_name_a_subject_and_only_as_a_requester(
    api: Api, callers: dict[str, Person], owned: dict[str, dict[str, str]], requester: Caller, admin: Caller
) -> None:
    turns = f"/v1/conversations/{owned['portal']['talk']}/turns"
    for path, body in {**BODIES, turns: {"message": "/echo hi"}}.items():
        for client in (requester, admin):
            answer = await client.post(path, json={**body, "on_behalf_of": ANNA})
            assert refusal(answer) == (403, "on_behalf_of_not_allowed")
        for fault in SUBJECT_FAULTS:
            answer = await callers["portal"].client.post(path, json={**body, "on_behalf_of": fault})
            assert answer.status_code == 422, (path, fault, answer.text)
    for path in ("conversations", "turns", "approvals"):
        answer = await requester.get(f"/v1/{path}", params={"on_behalf_of": "anna"})
        assert refusal(answer) == (403, "on_behalf_of_not_allowed")
        answer = await callers["portal"].client.get(f"/v1/{path}", params={"on_behalf_of": "a\nb"})
        assert refusal(answer) == (422, "subject_invalid")


async def test_a_gateway_decides_nothing_for_itself_or_a_subject_with_any_other_role(
    api: Api, callers: dict[str, Person], owned: dict[str, dict[str, str]], reviewer: Caller, admin: Caller
) -> None:
    for name in ("anna", "portal", "chief"):
        approval, turn = owned["anna"]["approval"], owned["anna"]["turn"]
        item = {"digest": "0" * 64, "decision": "approve"}
        promoted: dict[str, object] = {"decision": "reject", "sha256": "0" * 64, "comment": "no"}
        actions: dict[str, dict[str, object]] = {
            **{f"approvals/{approval}/decision": {**item, "decision": each} for each in ("approve", "edit", "reject")},
            "approvals/decisions": {"items": [{"id": approval, **item}]},
            f"approvals/{approval}/claim": {},
            f"approvals/{approval}/release": {},
            f"approvals/{approval}/escalate": {},
            f"approvals/{approval}/reassign": {"to": "reviewer"},
            "delegations": {"to": "reviewer", "until": "2099-01-01T00:00:00Z"},
            "effects/t1/settle": {"outcome": "happened", "comment": "seen"},
            f"turns/{turn}/limits": {"max_tokens": 10},
            f"memory/promotions/{new_id()}/decision": promoted,
        }
        for path, body in actions.items():
            answer = await callers[name].client.post(f"/v1/{path}", json=body)
            assert refusal(answer) == (403, "gateway_cannot_decide"), (name, path)
    shown = (await callers["chief"].client.get(f"/v1/approvals/{approval}")).json()
    mine = (await callers["chief"].client.get("/v1/approvals", params={"mine": True})).json()["items"]
    assert (shown["allowed_decisions"], mine) == ([], []) and shown["requested_by"] == "portal:anna@example.org"
    async with api.db.transaction("local") as tx:  # also if a route forgot it
        for row in await tx.fetch("SELECT id::text, roles FROM users WHERE name = 'chief' OR gateway_id IS NOT NULL"):
            assert (await with_delegations(tx, Decider(row["id"], frozenset(row["roles"])))).roles == frozenset()
    answer = await admin.post("/v1/users", json={"name": "both", "roles": ["admin", "gateway"]})
    assert refusal(answer) == refusal(await admin.post("/v1/users/chief/roles", json={"roles": ["gateway", "admin"]}))
    assert refusal(answer) == (422, "roles_conflict"), "it could mint a reviewer's token"
    decisions = (await reviewer.get(f"/v1/approvals/{approval}")).json()["allowed_decisions"]
    assert "approve" in decisions


async def test_an_approval_names_the_subject_and_the_trail_its_gateway(
    api: Api, callers: dict[str, Person], reviewer: Caller
) -> None:
    first, second = [await callers[name].objects() for name in ("anna", "bert")]
    taken_back = await callers["anna"].client.post(f"/v1/approvals/{first['approval']}/withdraw", json={})
    assert taken_back.status_code == 200
    approval = (await reviewer.get(f"/v1/approvals/{second['approval']}")).json()
    body = {"decision": "approve", "digest": approval["digest"]}
    assert (await reviewer.post(f"/v1/approvals/{second['approval']}/decision", json=body)).status_code == 200
    assert (await final_turn(callers["bert"].client, second["turn"]))["status"] == "completed"
    for ids, name, kind in ((first, "anna", "approval.withdrawn"), (second, "bert", "approval.requested")):
        rows = (await reviewer.get(f"/v1/approvals/{ids['approval']}/audit")).json()["items"]
        found = {row["kind"]: (row["actor"], row["gateway"]) for row in rows}
        if kind in found and found[kind][0] is not None:
            assert found[kind] == (f"portal:{name}@example.org", "portal")
        assert found.get("approval.decided", ("reviewer", None)) == ("reviewer", None)
    (added,) = await api.rows("SELECT * FROM audit_trail WHERE kind = 'user.added' AND data->>'given' = $1 AND "
                              "data->>'name' LIKE 'portal:%'", ANNA["subject"])  # fmt: skip
    portal = await api.value("SELECT id FROM users WHERE name = 'portal'")
    assert added["actor"] == portal and added["data"]["gateway_id"] == str(portal)


async def test_memory_prompts_and_documents_are_each_subjects_own(api: Api, callers: dict[str, Person]) -> None:
    for name in ("anna", "bert", "portal"):
        person = callers[name]
        talk, text = await person.talk(), f"{name} likes green tea"
        await person.client.put(f"/v1/memory/working/{talk}", json={"fields": {"who": name}})
        kept = {"conversation_id": talk, "summary": text}
        assert (await person.client.post("/v1/memory/episodic", params=person.query, json=kept)).status_code == 201
        document = {"scope": "user", "path": "notes/own.md", "type": "runbook", "title": "T", "content": text}
        made = await person.client.post("/v1/memory/documents", params=person.query, json=document)
        assert made.status_code == 201, made.text
        for others in (callers["bert"] if name == "anna" else callers["anna"], callers["other anna"]):
            at = f"/v1/memory/documents/{made.json()['id']}"
            assert (await others.client.get(at, params=others.query)).status_code == 404
    for name in ("anna", "bert", "portal"):
        person, query = callers[name], {"agent": "refunds", "query": "green tea"}
        episodes = await person.client.post("/v1/memory/episodic/search", params=person.query, json=query)
        assert [each["summary"] for each in episodes.json()["items"]] == [f"{name} likes green tea"]
        found = await person.client.post("/v1/memory/documents/search", params=person.query, json={"query": "tea"})
        assert len(found.json()["items"]) == 1
    async with api.db.transaction("local") as tx:
        ids = "SELECT id::text FROM users WHERE subject = $1 AND name LIKE 'portal:%'"
        user_id = await tx.fetchval(ids, ANNA["subject"])
        assert await agents.name_and_role(tx, user_id) == ("Anna", "requester")


async def test_limits_and_idempotency_keys_are_each_subjects_own(api: Api, callers: dict[str, Person]) -> None:
    one, two = (replace(callers["anna"], given={"subject": each}) for each in ("one", "two"))
    api.app.state.services = replace(api.services, caps=replace(api.services.caps, turns_a_user=1))
    try:
        talks = [await one.talk(), await one.talk(), await two.talk()]
        first, second, third = [await who.turn(talk) for who, talk in zip((one, one, two), talks, strict=True)]
        assert (first.status_code, refusal(second), third.status_code) == (200, (429, "too_many_turns"), 200)
    finally:
        api.app.state.services = api.services
    key, made = {"Idempotency-Key": "k-1"}, []
    for given in (one.given, two.given, {**one.given, "name": "One, renamed"}):
        sent = {"agent": "refunds", "on_behalf_of": given}
        made.append((await one.client.post("/v1/conversations", json=sent, headers=key)).json()["id"])
    assert made[0] == made[2] != made[1]
    assert await api.value("SELECT display_name FROM users WHERE name = 'portal:one'") == "One, renamed"


async def test_concurrent_first_uses_make_one_user(api: Api, callers: dict[str, Person]) -> None:
    many = [replace(callers["anna"], given={"subject": "Ünal / 7"}).talk() for _ in range(8)]
    await asyncio.gather(*many)
    assert await api.value("SELECT count(*) FROM users WHERE subject = $1", "Ünal / 7") == 1


async def test_a_subject_has_no_credentials_and_no_other_role(
    api: Api, callers: dict[str, Person], admin: Caller
) -> None:
    name = "portal:anna@example.org"
    actions = [
        ("POST", f"users/{name}/tokens", {}), ("POST", f"team/{name}/invitation", {}),
        ("POST", f"users/{name}/roles", {"roles": ["reviewer"]}), ("PATCH", f"team/{name}", {"roles": ["admin"]}),
    ]  # fmt: skip
    for method, path, body in actions:
        answer = await admin.request(method, f"/v1/{path}", json=body)
        assert refusal(answer) == (409, "user_of_gateway")
    names = {each["name"] for each in (await admin.get("/v1/users")).json()["items"]}
    assert "portal" in names and name not in names
    listed = await pages(admin, "/v1/users", 2, gateway="portal")
    assert {each["subject"] for each in listed} >= {ANNA["subject"], BERT["subject"]}
    assert name not in {each["name"] for each in (await admin.get("/v1/team")).json()["items"]}
    token = callers["anna"].client.headers["Authorization"].removeprefix("Bearer ")
    anna = await on_behalf_of(api.services, await token_principal(api.services, token), ANNA["subject"])
    for active, status in ((False, 403), (True, 201)):
        assert (await admin.patch(f"/v1/team/{name}", json={"active": active})).status_code == 200
        assert await has_same_access(api.services, anna) is active, "an open stream ends with the account"
        sent = {"agent": "refunds", "on_behalf_of": ANNA}
        assert (await callers["anna"].client.post("/v1/conversations", json=sent)).status_code == status


async def test_the_erasure_of_a_subject_leaves_the_others(api: Api, callers: dict[str, Person], admin: Caller) -> None:
    people = {each: replace(callers["other anna"], given={"subject": each}) for each in ("eve", "finn", "gil")}
    talks = {each: await person.talk(title=f"of {each}") for each, person in people.items()}
    for each, person in people.items():
        assert (await person.turn(talks[each], "/echo hi")).json()["status"] == "completed"
    left = await admin.delete("/v1/users/kiosk/data")
    assert refusal(left) == (409, "subjects_left")
    gil = await api.value("SELECT id::text FROM users WHERE name = 'kiosk:gil'")
    for path, query in (("kiosk", {"subject": "eve"}), (gil, {})):
        erased = await admin.delete(f"/v1/users/{path}/data", params=query)
        assert erased.status_code == 200, erased.text
    assert code(await admin.delete("/v1/users/kiosk/data", params={"subject": "eve"})) == "user_not_found"
    kiosk = people["eve"].client
    titles = [(await kiosk.get(f"/v1/conversations/{talk}")) for talk in talks.values()]
    assert [each.status_code for each in titles] == [404, 200, 404]
    assert await api.value("SELECT count(*) FROM users WHERE subject IN ('eve', 'gil')") == 0
    assert await people["eve"].ids("/v1/conversations") == set()
    again = await people["eve"].talk()  # the same text is a new user now
    assert await people["eve"].ids("/v1/conversations") == {again}


async def test_streams_and_stops_follow_the_subject(
    callers: dict[str, Person], owned: dict[str, dict[str, str]]
) -> None:
    talk = await callers["bert"].talk()
    turn = (await callers["bert"].turn(talk, "/echo one two")).json()
    client = callers["portal"].client
    assert "workflow_complete" in (await client.get(f"/v1/turns/{turn['turn_id']}/events")).text
    stopped = await client.post(f"/v1/turns/{owned['bert']['turn']}/stop")
    assert stopped.status_code == 202
    other = await callers["other anna"].client.get(f"/v1/turns/{turn['turn_id']}/events")
    assert other.status_code == 404


async def test_both_clients_act_on_behalf_of_a_subject(api: Api) -> None:
    token = await api.new_user("library", "gateway")
    async with AsyncClient(api.url, token) as perdure:
        made = await perdure.conversations.create("refunds", on_behalf_of={"subject": "s1", "name": "Sue"})
        turn = await perdure.turns.start(made.id, "/echo hi", on_behalf_of={"subject": "s1"}, wait_seconds=20)
        assert turn.answer == "hi"
        assert [each.id for each in (await perdure.conversations.list(on_behalf_of="s1")).items] == [made.id]

    def blocking() -> str | None:
        with Client(api.url, token) as perdure:
            return perdure.turns.execute("refunds", "/echo yes", on_behalf_of={"subject": "s2"}).answer

    assert await asyncio.to_thread(blocking) == "yes"
