"""The rest of the protocol over HTTP: claims, handovers, withdrawals, many at once, standing in, ageing, limits."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from perdure.store.database import new_id
from tests.integration.conftest import Api
from tests.integration.test_api_approvals import Paused, ended, paused
from tests.integration.test_api_turns import refusal


@pytest.fixture(scope="module")
async def second(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Another reviewer than the local one, with a token from the API."""
    async with api.client("admin") as admin:
        made = await admin.post("/v1/users", json={"name": "second", "roles": ["reviewer"]})
        assert made.status_code in (200, 201, 409), made.text
        token = (await admin.post("/v1/users/second/tokens", json={"label": "t"})).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as client:
        yield client


async def stopped(client: httpx.AsyncClient, *asked: Paused) -> None:
    for each in asked:
        await client.post(f"/v1/turns/{each.turn_id}/stop")


async def test_a_claim_shows_who_has_it_and_keeps_others_out(api: Api, second: httpx.AsyncClient) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client, api.client("admin") as admin, api.client() as requester:
        claimed = await client.post(f"{asked.path}/claim")
        assert (claimed.status_code, claimed.json()["claimed_by"]) == (200, "reviewer")
        assert claimed.json()["claimed_until"] > datetime.now(UTC).isoformat()
        other = await second.post(f"{asked.path}/decision", json=asked.body())
        assert refusal(other) == (409, "claimed")
        assert other.json()["error"]["details"]["claimed_by"] == "reviewer"
        assert (await second.get(asked.path)).json()["allowed_decisions"] == []
        assert refusal(await requester.post(f"{asked.path}/claim", json={})) == (403, "role_required")
        assert (await admin.post(f"{asked.path}/release", json={})).json()["claimed_by"] is None
        assert refusal(await client.post(f"{asked.path}/release")) == (409, "not_claimed")
        assert (await second.post(f"{asked.path}/decision", json=asked.body())).status_code == 200
        assert refusal(await client.post(f"{asked.path}/claim", json={"seconds": 60})) == (409, "already_decided")
        await ended(client, asked.turn_id)


async def test_a_request_is_given_to_somebody_and_shows_on_their_list(api: Api, second: httpx.AsyncClient) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client:
        wrong = await client.post(f"{asked.path}/reassign", json={"to": "requester", "comment": "you do it"})
        assert refusal(wrong) == (422, "cannot_decide")
        given = await client.post(f"{asked.path}/reassign", json={"to": "second"})
        assert (given.status_code, given.json()["assignee"]) == (200, "second")
        listed = (await client.get("/v1/approvals", params={"assignee": "second"})).json()["items"]
        assert [item["id"] for item in listed] == [asked.approval["id"]]
        up = await second.post(f"{asked.path}/escalate", json={"comment": "above me"})
        assert (up.status_code, up.json()["reviewer_role"], up.json()["assignee"]) == (200, "admin", None)
        assert [entry["what"] for entry in up.json()["history"]] == [
            "approval.opened",
            "approval.reassigned",
            "approval.escalated",
        ]
        async with api.client("admin") as admin:
            assert refusal(await admin.post(f"{asked.path}/escalate")) == (409, "already_escalated")
            await stopped(admin, asked)


async def test_a_withdrawn_request_ends_in_an_answer_and_a_repeated_key_in_the_same_one(api: Api) -> None:
    asked = await paused(api)
    async with api.client() as requester, api.client("reviewer") as reviewer:
        assert refusal(await reviewer.post(f"{asked.path}/withdraw", json={})) == (403, "role_required")
        key = {"Idempotency-Key": new_id()}
        done = await requester.post(f"{asked.path}/withdraw", json={"comment": "not needed"}, headers=key)
        assert (done.status_code, done.json()["status"]) == (200, "withdrawn")
        again = await requester.post(f"{asked.path}/withdraw", json={"comment": "not needed"}, headers=key)
        assert again.json() == done.json()
        turn = await ended(reviewer, asked.turn_id)
        assert turn["status"] == "completed"
        assert refusal(await reviewer.post(f"{asked.path}/decision", json=asked.body())) == (409, "already_decided")


def item(asked: Paused, decision: str = "reject", **given: object) -> dict[str, object]:
    return {"id": asked.approval["id"], "digest": asked.approval["digest"], "decision": decision, **given}


async def test_many_are_rejected_at_once_each_for_itself(api: Api) -> None:
    asked = [await paused(api) for _ in range(3)]
    own = await paused(api, by="admin")
    items = [item(each, comment="not today") for each in (*asked[:2], own)]
    items += [item(asked[2]), {"id": new_id(), "digest": "x", "decision": "reject", "comment": "c"}]
    items += [{"id": "nothing", "digest": "x", "decision": "reject", "comment": "c"}]
    key = {"Idempotency-Key": new_id()}
    async with api.client("admin") as client:
        done = await client.post("/v1/approvals/decisions", json={"items": items}, headers=key)
        assert done.status_code == 200, done.text
        answers = done.json()["items"]
        assert [(each.get("status"), each.get("error", {}).get("code")) for each in answers] == [
            ("rejected", None),
            ("rejected", None),
            (None, "own_request"),
            (None, "reason_required"),
            (None, "approval_not_found"),
            (None, "approval_not_found"),
        ]
        assert [each["id"] for each in answers] == [each["id"] for each in items]
        again = await client.post("/v1/approvals/decisions", json={"items": items}, headers=key)
        assert again.json() == done.json()
        other = await client.post("/v1/approvals/decisions", json={"items": items[:1]}, headers=key)
        assert refusal(other) == (422, "idempotency_key_reused")
        for each in asked[:2]:
            assert (await ended(client, each.turn_id))["status"] == "completed"
        await stopped(client, asked[2], own)


async def test_only_calls_of_low_risk_and_of_one_tool_are_approved_together(api: Api) -> None:
    low = [await paused(api) for _ in range(2)]
    high = await paused(api)
    ids = [each.approval["id"] for each in low]
    async with api.services.db.transaction("local") as tx:
        await tx.execute("UPDATE approvals SET risk = 'low' WHERE id = ANY($1)", ids)
    async with api.client("reviewer") as client:
        mixed = [item(each, "approve") for each in (*low, high)]
        refused = (await client.post("/v1/approvals/decisions", json={"items": mixed})).json()["items"]
        assert [each["error"]["code"] for each in refused] == ["not_in_bulk"] * 3
        assert {each["error"]["status"] for each in refused} == {422}
        edit = (await client.post("/v1/approvals/decisions", json={"items": [item(high, "edit")]})).json()["items"]
        assert edit[0]["error"]["code"] == "not_in_bulk"
        together = [item(each, "approve") for each in low] + [item(high, "reject", reason_code="too_much")]
        done = (await client.post("/v1/approvals/decisions", json={"items": together})).json()["items"]
        assert [each["status"] for each in done] == ["approved", "approved", "rejected"]
        for each in (*low, high):
            assert (await ended(client, each.turn_id))["status"] == "completed"
        shown = (await client.get(low[0].path)).json()
        assert shown["decision"]["channel"] == "bulk"


async def test_somebody_stands_in_until_a_date_or_until_it_is_ended(api: Api, second: httpx.AsyncClient) -> None:
    until = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    asked = await paused(api)
    async with api.services.db.transaction("local") as tx:
        named = "UPDATE approvals SET reviewers = ARRAY['reviewer'] WHERE id = $1"
        await tx.execute(named, asked.approval["id"])
    async with api.client("reviewer") as client, api.client("admin") as admin:
        await admin.post("/v1/users", json={"name": "trainee", "roles": ["requester"]})
        token = (await admin.post("/v1/users/trainee/tokens", json={})).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as trainee:
            refused = await trainee.post(f"{asked.path}/decision", json=asked.body())
            assert refusal(refused) == (404, "approval_not_found")
            assert (await trainee.get(asked.path)).status_code == 404
            refused = await client.post("/v1/delegations", json={"to": "trainee", "until": until})
            assert refusal(refused) == (422, "cannot_decide")
            refused = await trainee.post("/v1/delegations", json={"to": "second", "until": until})
            assert refusal(refused) == (422, "nothing_to_delegate")
            await admin.post("/v1/users/trainee/roles", json={"roles": ["requester", "reviewer"]})
            assert refusal(await trainee.post(f"{asked.path}/decision", json=asked.body())) == (403, "not_a_reviewer")
            made = await client.post("/v1/delegations", json={"to": "trainee", "until": until})
            assert (made.status_code, made.json()["to"], made.json()["by"]) == (201, "trainee", "reviewer")
            listed = (await client.get("/v1/delegations")).json()["items"]
            assert [each["id"] for each in listed] == [made.json()["id"]]
            assert (await second.get("/v1/delegations")).json()["items"] == []
            assert refusal(await second.delete(f"/v1/delegations/{made.json()['id']}")) == (404, "delegation_not_found")
            # Without the role the place is worth nothing, and shows nothing.
            await admin.post("/v1/users/trainee/roles", json={"roles": ["requester"]})
            assert (await trainee.get(asked.path)).status_code == 404
            for mine in (True, False):
                assert (await trainee.get("/v1/approvals", params={"mine": mine})).json()["items"] == []
            for verb, body in (("decision", asked.body()), ("claim", {}), ("escalate", {})):
                refused = await trainee.post(f"{asked.path}/{verb}", json=body)
                assert refusal(refused) == (404, "approval_not_found"), verb
            await admin.post("/v1/users/trainee/roles", json={"roles": ["requester", "reviewer"]})
            seen = (await trainee.get(asked.path)).json()
            assert (seen["digest"], "approve" in seen["allowed_decisions"]) == (asked.body()["digest"], True)
            mine = (await trainee.get("/v1/approvals", params={"mine": True})).json()["items"]
            assert asked.path.rpartition("/")[2] in [each["id"] for each in mine]
            done = await trainee.post(f"{asked.path}/decision", json=asked.body())
            assert (done.status_code, done.json()["decided_by"]) == (200, "trainee"), done.text
            assert (done.json()["decision"]["for"], done.json()["votes"][0]["for"]) == ("reviewer", "reviewer")
            assert (await client.delete(f"/v1/delegations/{made.json()['id']}")).status_code == 204
            assert (await client.delete(f"/v1/delegations/{made.json()['id']}")).status_code == 404
            await admin.post("/v1/users/trainee/roles", json={"roles": ["requester"]})
        await ended(client, asked.turn_id)


async def test_an_admin_sees_whose_place_is_lent_to_whom_and_ends_it(api: Api, second: httpx.AsyncClient) -> None:
    until = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    async with api.client("reviewer") as client, api.client("admin") as admin:
        made = [
            (await giver.post("/v1/delegations", json={"to": to, "until": until})).json()
            for giver, to in ((client, "second"), (second, "reviewer"))
        ]
        assert refusal(await client.get("/v1/delegations", params={"all": True})) == (403, "role_required")
        assert (await admin.get("/v1/delegations")).json()["items"] == []
        page = (await admin.get("/v1/delegations", params={"all": True, "limit": 1})).json()
        assert [(each["by"], each["to"]) for each in page["items"]] == [("second", "reviewer")]
        rest = (await admin.get("/v1/delegations", params={"all": True, "cursor": page["next"]})).json()
        assert [(each["by"], each["to"]) for each in rest["items"]] == [("reviewer", "second")]
        assert rest["next"] is None
        for each in made:
            assert (await admin.delete(f"/v1/delegations/{each['id']}")).status_code == 204
            assert refusal(await admin.delete(f"/v1/delegations/{each['id']}")) == (404, "delegation_not_found")
        assert (await client.get("/v1/delegations")).json()["items"] == []


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"to": "nobody", "until": in_days(1)}, 404, "user_not_found"),
        ({"to": "reviewer", "until": in_days(1)}, 422, "to_yourself"),
        ({"to": "admin", "until": in_days(-1)}, 422, "until_invalid"),
        ({"to": "admin", "until": in_days(90.1)}, 422, "until_invalid"),
        ({"to": "admin", "until": "2030-01-01T00:00:00"}, 422, "invalid_input"),
        ({"to": "admin", "until": "tomorrow"}, 422, "invalid_input"),
        ({"to": "", "until": in_days(1)}, 422, "invalid_input"),
        ({"to": "admin"}, 422, "invalid_input"),
        ({"to": "admin", "until": in_days(1), "from": "second"}, 422, "invalid_input"),
    ],
)
async def test_a_delegation_that_cannot_be_is_refused(
    api: Api, body: dict[str, object], status: int, expected: str
) -> None:
    async with api.client("reviewer") as client:
        assert refusal(await client.post("/v1/delegations", json=body)) == (status, expected)
        assert (await client.get("/v1/delegations")).json()["items"] == []


BAD: list[tuple[str, Any]] = [
    ("claim", {"seconds": 0}),
    ("claim", {"seconds": 3601}),
    ("claim", {"seconds": "60"}),
    ("claim", {"seconds": 1.5}),
    ("claim", {"seconds": True}),
    ("claim", {"minutes": 1}),
    ("claim", []),
    ("release", {"why": "x"}),
    ("withdraw", {"comment": 7}),
    ("withdraw", {"comment": "x" * 4_001}),
    ("escalate", {"to": "admin"}),
    ("reassign", {}),
    ("reassign", {"to": ""}),
    ("reassign", {"to": None}),
    ("reassign", {"to": "x" * 64}),
    ("reassign", None),
]
BAD_MANY: list[Any] = [
    {},
    {"items": []},
    {"items": {}},
    {"items": [{}]},
    {"items": [{"id": "x", "digest": "d", "decision": "shrug"}]},
    {"items": [{"id": "x", "digest": "d", "decision": "reject", "args": {}}]},
    {"items": [{"id": "x", "digest": "d", "decision": "reject"}] * 2},
    {"items": [{"id": str(n), "digest": "d", "decision": "reject"} for n in range(101)]},
    {"items": [{"id": "x", "digest": "d" * 129, "decision": "reject"}]},
]


async def test_bodies_that_do_not_fit_are_refused_and_change_nothing(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client:
        for verb, body in BAD:
            answer = await client.post(f"{asked.path}/{verb}", json=body)
            assert refusal(answer) == (422, "invalid_input"), (verb, body, answer.text)
        for body in BAD_MANY:
            answer = await client.post("/v1/approvals/decisions", json=body)
            assert refusal(answer) == (422, "invalid_input"), (body, answer.text)
        for verb in ("claim", "release", "withdraw", "escalate"):
            for unknown in (new_id(), "x", "%00"):
                answer = await client.post(f"/v1/approvals/{unknown}/{verb}", json={})
                assert answer.status_code in (404, 400), (verb, unknown, answer.text)
        assert (await client.post(f"/v1/approvals/{new_id()}/reassign", json={"to": "admin"})).status_code == 404
        assert (await client.get("/v1/effects/nothing")).status_code == 404
        shown = (await client.get(asked.path)).json()
        assert (shown["status"], shown["version"], len(shown["history"])) == ("pending", 1, 1)
        await stopped(client, asked)


async def test_a_verb_on_what_has_expired_is_gone(api: Api) -> None:
    asked = await paused(api)
    async with api.services.db.transaction("local") as tx:
        await tx.execute("UPDATE approvals SET expires_at = now() WHERE id = $1", asked.approval["id"])
    async with api.client("admin") as client:
        for verb, body in (
            ("claim", {}),
            ("release", {}),
            ("escalate", {}),
            ("withdraw", {}),
            ("reassign", {"to": "a"}),
            ("decision", asked.body()),
        ):
            assert refusal(await client.post(f"{asked.path}/{verb}", json=body)) == (410, "approval_expired"), verb
        assert (await client.get(asked.path)).json()["status"] == "expired"


async def test_what_waits_is_counted_by_age_and_says_who_is_next(api: Api) -> None:
    asked = [await paused(api) for _ in range(3)]
    ids = [each.approval["id"] for each in asked]
    async with api.services.db.transaction("local") as tx:
        await tx.execute(
            "UPDATE approvals SET agent_id = 'ages', fallback_reviewer = 'second', fallback_at = now() "
            "WHERE id = ANY($1)",
            ids,
        )
        for approval_id, age in zip(ids, ("0 hours", "2 hours", "5 days"), strict=True):
            await tx.execute(f"UPDATE approvals SET requested_at = now() - interval '{age}' WHERE id = $1", approval_id)
    async with api.client("reviewer") as client, api.client() as requester:
        groups = (await client.get("/v1/approvals/ageing")).json()["items"]
        (mine,) = [group for group in groups if group["agent"] == "ages"]
        assert (mine["waiting"], mine["role"], mine["assignee"]) == (3, "reviewer", None)
        assert mine["buckets"] == {"1h": 1, "1d": 1, "3d": 0, "older": 1}
        assert mine["fallback"]["reviewer"] == "second"
        assert mine["oldest_at"] < mine["next_expiry_at"]
        own = (await requester.get("/v1/approvals/ageing")).json()["items"]
        assert [group["waiting"] for group in own if group["agent"] == "ages"] == [3]
        await stopped(client, *asked)


async def test_an_effect_is_shown_with_all_that_is_known_of_it(api: Api) -> None:
    asked = await paused(api)
    async with api.client("reviewer") as client, api.client() as requester:
        await client.post(f"{asked.path}/decision", json=asked.body(comment="fine"))
        assert (await ended(client, asked.turn_id))["status"] == "completed"
        effects = (await client.get("/v1/effects")).json()["items"]
        key = next(effect["key"] for effect in effects if effect["turn_id"] == asked.turn_id)
        shown = (await requester.get(f"/v1/effects/{key}")).json()
        assert (shown["tool"], shown["attempts"], shown["may_be_settled_as"]) == ("refund", 1, [])
        assert (shown["approval"]["id"], shown["approval"]["decided_by"]) == (asked.approval["id"], "reviewer")
        kinds = [event["kind"] for event in shown["events"]]
        assert kinds[0] == "tool.awaiting_approval" and "tool.executing" in kinds
    foreign = await paused(api, by="admin")
    async with api.client() as requester, api.client("admin") as admin:
        key = next(
            effect["key"]
            for effect in (await admin.get("/v1/effects")).json()["items"]
            if effect["turn_id"] == foreign.turn_id
        )
        assert (await requester.get(f"/v1/effects/{key}")).status_code == 404
        await stopped(admin, foreign)


async def test_a_reviewer_who_decides_too_fast_is_told_when_to_go_on(api: Api, second: httpx.AsyncClient) -> None:
    asked = await paused(api)
    async with api.services.db.transaction("local") as tx:
        who = await tx.fetchval("SELECT id FROM users WHERE name = 'second'")
        await tx.execute(
            "INSERT INTO approval_votes (tenant_id, approval_id, user_id, seat_id, role, decision, digest, record, "
            "voided_at) SELECT 'local', $1, $2, $2, 'reviewer', 'approve', 'd', '{}', now() "
            "FROM generate_series(1, 60)",
            asked.approval["id"],
            who,
        )
    fast = await second.post(f"{asked.path}/decision", json=asked.body())
    assert refusal(fast) == (429, "too_many_decisions")
    assert 1 <= int(fast.headers["Retry-After"]) <= 60
    many = await second.post("/v1/approvals/decisions", json={"items": [item(asked, comment="no")]})
    assert many.json()["items"][0]["error"]["code"] == "too_many_decisions"
    async with api.client("reviewer") as client:
        assert (await client.get(asked.path)).json()["status"] == "pending"
        await stopped(client, asked)
