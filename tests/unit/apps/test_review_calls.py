"""The calls of reviewers, by either client: what is asked, what is read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import ApiError
from perdure.client import Ageing, Approval, Delegation, Effect
from tests.unit.apps.api_double import BROKEN, ApiDouble, Reply, said
from tests.unit.apps.conftest import Either

APPROVAL: dict[str, Any] = {"id": "a", "status": "pending", "tool": "t", "digest": "d", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("verb", "given", "body"),
    [
        ("withdraw", {"comment": "no need"}, {"comment": "no need"}),
        ("withdraw", {}, {}),
        ("claim", {}, {}),
        ("claim", {"seconds": 60}, {"seconds": 60}),
        ("release", {}, {}),
        ("reassign", {"to": "tom"}, {"to": "tom"}),
        ("escalate", {"comment": "urgent"}, {"comment": "urgent"}),
    ],
)
async def test_each_verb_is_a_change_under_a_key_that_survives_a_lost_answer(
    api: ApiDouble, client: Either, verb: str, given: dict[str, Any], body: dict[str, Any]
) -> None:
    api.will(BROKEN, said(APPROVAL))
    answer = await client.call(lambda c: getattr(c.approvals, verb)("a", **given))
    assert isinstance(answer, Approval)
    assert {(asked.method, asked.path) for asked in api.asked} == {("POST", f"/v1/approvals/a/{verb}")}
    assert [asked.body for asked in api.asked] == [body, body]
    assert len({asked.headers["idempotency-key"] for asked in api.asked}) == 1


async def test_an_approval_is_read_whole_and_given_back_as_it_came(api: ApiDouble, client: Either) -> None:
    cast = (("rita", None, "approve", "", True), ("una", "tom", "edit", "x", True), ("ina", None, "reject", "x", False))
    fixed = {"at": "2026-11-21T10:00:00Z", "signed_in": {"how": "password"}}
    votes = [
        {"by": by, "for": seat, "decision": decision, "comment": comment, "counts": counts, **fixed}
        for by, seat, decision, comment, counts in cast
    ]
    told = {**APPROVAL, "quorum": 3, "votes": votes, "fallback": {"reviewer": "una", "at": "2026-11-22T10:00:00Z"}}
    api.will(said(told))
    read = await client.call(lambda c: c.approvals.get("a"))
    assert (read.approving, read.quorum, read.votes[1].seat, read.fallback.reviewer) == (2, 3, "tom", "una")
    assert read.args_schema == {"type": "object"}
    assert {name: value for name, value in read.model_dump(mode="json").items() if name in told} == told


async def test_a_batch_is_one_change_and_each_item_is_answered(api: ApiDouble, client: Either) -> None:
    error = {"code": "claimed", "message": "no", "details": {}}
    api.will(said({"items": [{"id": "a", "status": "approved"}, {"id": "b", "error": error}]}))
    items = [{"id": "a", "digest": "d", "decision": "approve"}, {"id": "b", "digest": "e", "decision": "approve"}]
    page = await client.call(lambda c: c.approvals.decide_many(items))
    assert [(each.status, (each.error or {}).get("code")) for each in page.items] == [
        ("approved", None),
        (None, "claimed"),
    ]
    assert (api.asked[0].path, api.asked[0].body) == ("/v1/approvals/decisions", {"items": items})
    assert api.asked[0].headers["idempotency-key"]


async def test_delegations_name_whom_and_until_when(api: ApiDouble, client: Either) -> None:
    given = {"id": "d", "to": "tom", "until": "2026-12-24T00:00:00Z"}
    api.will(said(given, 201), said({"items": [given]}), Reply(204))
    until = datetime(2026, 12, 24, tzinfo=UTC)
    made = await client.call(lambda c: c.delegations.add("tom", until))
    assert isinstance(made, Delegation) and made.until == until
    assert api.asked[0].body == {"to": "tom", "until": "2026-12-24T00:00:00+00:00"}
    assert (await client.call(lambda c: c.delegations.list())).items == [made]
    assert await client.call(lambda c: c.delegations.remove("d")) is None
    assert (api.asked[2].method, api.asked[2].path) == ("DELETE", "/v1/delegations/d")


async def test_an_end_without_a_zone_is_not_guessed(api: ApiDouble, client: Either) -> None:
    with pytest.raises(ValueError):
        await client.call(lambda c: c.delegations.add("tom", datetime(2026, 12, 24)))
    assert api.asked == []


async def test_ageing_audit_and_one_effect_are_read(api: ApiDouble, client: Either) -> None:
    row = {"role": "reviewer", "waiting": 3, "buckets": {"1h": 3}}
    api.will(said({"items": [row]}), said({"items": [{"kind": "approval.opened", "actor": "u"}]}))
    api.will(said({"key": "k", "tool": "t", "state": "done", "call_id": "c", "attempts": 2}))
    ages = (await client.call(lambda c: c.approvals.ageing())).items
    assert ages == [Ageing(role="reviewer", waiting=3, buckets={"1h": 3})]
    assert (await client.call(lambda c: c.approvals.audit("a"))).items[0].kind == "approval.opened"
    effect = await client.call(lambda c: c.effects.get("k"))
    assert isinstance(effect, Effect) and effect.attempts == 2
    assert [asked.path for asked in api.asked] == ["/v1/approvals/ageing", "/v1/approvals/a/audit", "/v1/effects/k"]


async def test_a_list_is_narrowed_by_assignee_and_role(api: ApiDouble, client: Either) -> None:
    api.will(said({"items": [], "next": None}))
    await client.call(lambda c: c.approvals.list(assignee="rita", role="reviewer", mine=True, expiring_seconds=60))
    query = {"assignee": ["rita"], "role": ["reviewer"], "mine": ["true"], "expiring": ["60"]}
    assert api.asked[0].query == query


async def test_a_refusal_that_names_a_wait_is_raised_with_it(api: ApiDouble, client: Either) -> None:
    body = {"error": {"code": "too_many_decisions", "message": "slow down", "details": {}}}
    api.will(said(body, 429, Retry_After="17"))
    with pytest.raises(ApiError) as raised:
        await client.call(lambda c: c.approvals.decide("a", "approve", "d"))
    assert (raised.value.code, raised.value.retry_after_seconds) == ("too_many_decisions", 17)
