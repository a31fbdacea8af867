"""A turn that has spent its limit and asks for more: raised it goes on where it was, refused or late it is limited."""

from perdure.contracts.errors import LimitReached
from perdure.contracts.ids import approval_id
from perdure.contracts.turns import ENDED, Limits, OnSpent, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decider, Decision
from perdure.store.approvals.decisions import Raise, raise_limits
from tests.doubles.spoken import Line
from tests.served import Served, refused
from tests.workflow.test_cold_resumes import start_cold

ASKS = Limits(max_tokens=10, on_spent=OnSpent.ASK)
LOOK = Line("let me look", [("look", {"what": "a"})])


async def raise_to(served: Served, address: TurnAddress, by: str = "reviewer", **given: int) -> None:
    person = served.desk.people[by]
    async with served.desk.db.transaction("local") as tx:
        decider = Decider(person.user_id, person.roles)
        _, note = await raise_limits(tx, address.turn_id, decider, person.name, Raise(**given))
    assert note is not None
    await served.desk.deps.doorbell.deliver_soon(note)


async def test_a_raised_limit_lets_the_turn_go_on_with_all_it_had(served: Served) -> None:
    address = await served.paused(LOOK, Line("found"), limits=ASKS)
    row = await served.row(address)
    assert (row["status"], row["waiting"]["kind"]) == ("awaiting_approval", "limit")
    assert row["waiting"]["ids"] == [approval_id(address.turn_id, "l1")] and row["waiting"]["expires_at"]
    assert (await served.nodes(address))[-2:] == ["initial_llm_call", "output_format"]
    await raise_to(served, address, max_tokens=100)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["answer"]) == ("completed", "found")
    assert (row["limits"]["max_tokens"], row["attempts"]) == (100, 2), "nothing was asked of the model twice"
    sent = served.sent_to_model(address)
    assert [message["role"] for message in sent[-1]] == ["user", "assistant", "tool"]
    assert (await served.states(address)) == {"t1.0": "done"}
    told = await served.desk.rows(
        "SELECT data->>'code' AS code FROM events WHERE turn_id = $1 AND kind = 'budget' ORDER BY seq", address.turn_id
    )
    assert [each["code"] for each in told] == ["limit_spent", "limit_raised"]
    audited = await served.desk.rows(
        "SELECT data FROM audit_trail WHERE kind = 'turn.limits_raised' AND turn_id = $1", address.turn_id
    )
    assert audited[0]["data"]["limits"]["max_tokens"] == 100 and audited[0]["data"]["limits_before"]["max_tokens"] == 10
    approvals = await served.desk.rows("SELECT status FROM approvals WHERE turn_id = $1", address.turn_id)
    assert [each["status"] for each in approvals] == ["approved"]


async def test_a_limit_may_be_asked_for_again_and_again(served: Served) -> None:
    address = await served.paused(LOOK, LOOK, Line("found"), limits=ASKS)
    await raise_to(served, address, max_tokens=20)
    await served.waits_for(address, approval_id(address.turn_id, "l2"))
    await raise_to(served, address, max_tokens=30)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["attempts"]) == ("completed", 3)


async def test_an_answer_that_went_on_beyond_its_limit_is_asked_about_and_made_anew(served: Served) -> None:
    broken = served.desk.model.broken
    broken["scripted"] = LimitReached("answer_over_budget", "the answer went on", {"output_tokens": 50})
    address = await served.begin(Line("never said"), Line("well"), limits=ASKS)
    try:
        await served.waits_for(address, approval_id(address.turn_id, "l1"))
    finally:
        broken.clear()
    row = await served.row(address)
    assert row["waiting"]["kind"] == "limit" and row["output_tokens"] == 50, "what broke off is paid for"
    await raise_to(served, address, max_tokens=10_000)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "well", 2)


async def test_a_refused_raise_ends_the_turn_as_limited_with_the_reason(served: Served) -> None:
    address = await served.paused(LOOK, Line("never said"), limits=ASKS)
    await served.decide(address, "l1", Decision.REJECT, comment="dear enough")
    row = await served.until(address, *ENDED)
    assert (row["status"], row["problem"]["code"], row["attempts"]) == ("limited", "token_budget_spent", 1)
    assert "dear enough" in row["problem"]["message"]
    _, row = await served.ended(Line("goes on"), conversation_id=address.conversation_id)
    assert row["status"] == "completed"


async def test_a_raise_that_nobody_gives_in_time_ends_the_turn_as_limited(served: Served) -> None:
    address = await served.paused(LOOK, Line("never said"), limits=ASKS)
    await served.desk.write("UPDATE approvals SET expires_at = now() WHERE turn_id = $1", address.turn_id)
    await served.ring(address, {"kind": "request"})
    row = await served.until(address, *ENDED)
    assert (row["status"], row["problem"]["code"]) == ("limited", "token_budget_spent")


async def test_a_turn_started_again_over_its_records_finds_the_limit_that_it_waits_for(served: Served) -> None:
    address = await served.paused(LOOK, Line("found"), limits=ASKS)
    await start_cold(served, address)
    await served.waits(address)
    await raise_to(served, address, max_tokens=100)
    row = await served.until(address, *ENDED)
    assert (row["status"], row["answer"], row["attempts"]) == ("completed", "found", 2)


REFUSED: list[tuple[str, dict[str, int], str]] = [
    ("requester", {"max_tokens": 100}, "role_required"),
    ("reviewer", {"max_tokens": 9}, "limit_not_raised"),
    ("reviewer", {"max_tokens": 10}, "still_spent"),
    ("reviewer", {"max_cost_microusd": 10_000_000}, "still_spent"),
]


async def test_a_raise_that_may_not_be_or_would_not_help_is_refused(served: Served) -> None:
    address = await served.paused(LOOK, Line("found"), limits=ASKS)
    for by, given, code in REFUSED:
        with refused(code):
            await raise_to(served, address, by, **given)
    await served.stop(address)
    assert (await served.until(address, *ENDED))["status"] == TurnStatus.STOPPED.value
    with refused("already_decided"):
        await raise_to(served, address, max_tokens=100)


async def test_a_limit_is_raised_once_and_is_not_approved_like_a_call(served: Served) -> None:
    address = await served.paused(LOOK, Line("found"), limits=ASKS)
    with refused("raise_the_limit"):
        await served.decide(address, "l1", Decision.APPROVE)
    await raise_to(served, address, max_tokens=100)
    with refused("already_decided"):
        await raise_to(served, address, max_tokens=200)
    await served.until(address, *ENDED)
    other, _ = await served.ended(Line("no limit met"))
    with refused("not_waiting_for_a_limit"):
        await raise_to(served, other, max_tokens=5)
