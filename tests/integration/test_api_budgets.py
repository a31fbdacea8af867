"""Day budgets and raised limits over HTTP, as administrators and reviewers use them."""

from typing import Any

from tests.integration.conftest import Api
from tests.integration.test_api_approvals import ended


async def test_an_administrator_sets_and_sees_the_days_budget(api: Api) -> None:
    async with api.client("admin") as admin:
        before = (await admin.get("/v1/budgets")).json()
        assert before["tenant"] is None and before["resets_at"].startswith(before["day"][:4])
        given = {"max_tokens": 5_000_000, "max_cost_usd": 12.5}
        put = await admin.put("/v1/budgets", json=given)
        seen = (await admin.get("/v1/budgets")).json()
        await admin.put("/v1/budgets", json={"max_tokens": None, "max_cost_usd": None})
    assert put.status_code == 200 and put.json() == seen
    assert {name: seen["tenant"][name] for name in given} == given
    assert (seen["tenant"]["reserved_tokens"], seen["tenant"]["assumed_tokens"]) == (0, 0)


async def test_a_new_budget_shows_what_the_day_has_come_to_before_its_first_call(api: Api) -> None:
    async with api.client() as client:
        made = (await client.post("/v1/conversations", json={"agent": "refunds"})).json()
        body = {"message": "What is the status of order 1001?"}
        turn = (await client.post(f"/v1/conversations/{made['id']}/turns?wait=20", json=body)).json()
        assert turn["status"] == "completed"
    async with api.services.db.transaction("local") as tx:
        await tx.execute("DELETE FROM day_usage")
        used = await tx.fetchval("SELECT sum(input_tokens + output_tokens)::bigint FROM turns")
    async with api.client("admin") as admin:
        put = (await admin.put("/v1/budgets", json={"max_tokens": 10**9, "max_cost_usd": None})).json()
        seen = (await admin.get("/v1/budgets")).json()
        await admin.put("/v1/budgets", json={"max_tokens": None, "max_cost_usd": None})
    assert put["tenant"]["used_tokens"] == seen["tenant"]["used_tokens"] == used > 0
    assert seen["tenant"]["reserved_tokens"] == 0


async def paused(api: Api) -> dict[str, Any]:
    """A turn that has spent its limit and waits for more."""
    async with api.client() as client:
        made = (await client.post("/v1/conversations", json={"agent": "refunds"})).json()
        body = {"message": "What is the status of order 1001?", "limits": {"max_tokens": 5, "on_spent": "ask"}}
        started = await client.post(f"/v1/conversations/{made['id']}/turns?wait=20", json=body)
        turn: dict[str, Any] = started.json()
    return turn


async def test_a_reviewer_raises_the_limit_of_a_turn_that_waits_for_it(api: Api) -> None:
    turn = await paused(api)
    assert (turn["status"], turn["waiting_for"]["kind"]) == ("awaiting_approval", "limit")
    route = f"/v1/turns/{turn['turn_id']}/limits"
    async with api.client("reviewer") as reviewer:
        shown = (await reviewer.get(f"/v1/approvals/{turn['waiting_for']['ids'][0]}")).json()
        assert shown["kind"] == "limit" and shown["allowed_decisions"] == ["reject"]
        assert shown["args"]["max_tokens"] == 5 and shown["args"]["tokens_used"] >= 5
        approve = {"decision": "approve", "digest": shown["digest"]}
        refused = await reviewer.post(f"/v1/approvals/{shown['id']}/decision", json=approve)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "raise_the_limit")
        assert (await reviewer.post(route, json={"max_tokens": 4})).status_code == 422
        key = {"Idempotency-Key": "raise-it"}
        raised = await reviewer.post(route, json={"max_tokens": 5_000}, headers=key)
        again = await reviewer.post(route, json={"max_tokens": 5_000}, headers=key)
        assert raised.status_code == 200 and again.json() == raised.json()
        assert raised.json()["limits"]["max_tokens"] == 5_000
        done = await ended(reviewer, turn["turn_id"])
        history = (await reviewer.get(f"/v1/approvals/{shown['id']}")).json()["history"]
    assert done["status"] == "completed" and done["answer"]
    assert [entry["what"] for entry in history] == ["approval.opened", "turn.limits_raised"]


async def test_only_reviewers_raise_and_only_what_waits(api: Api) -> None:
    turn = await paused(api)
    async with api.client() as requester, api.client("reviewer") as reviewer:
        route = f"/v1/turns/{turn['turn_id']}/limits"
        assert (await requester.post(route, json={"max_tokens": 5_000})).status_code == 403
        assert (await reviewer.post(route, json={"max_tokens": 0})).status_code == 422
        assert (await reviewer.post(route, json={"tokens": 5})).status_code == 422
        unknown = "/v1/turns/01890000-0000-7000-8000-000000000000/limits"
        assert (await reviewer.post(unknown, json={"max_tokens": 5})).status_code == 404
        await requester.post(f"/v1/turns/{turn['turn_id']}/stop")
        await ended(reviewer, turn["turn_id"])
        late = await reviewer.post(route, json={"max_tokens": 5_000})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "already_decided")
