"""A round whose gated calls are decided one by one: each starts as it is decided, and nothing of it is asked twice."""

from itertools import permutations
from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import RequestKind
from perdure.contracts.calls import CallState, EffectClass
from perdure.contracts.ids import tool_call_id
from perdure.contracts.messages import Role
from perdure.contracts.skills import Rule
from perdure.contracts.turns import Limits
from perdure.contracts.values import canonical_json
from perdure.graph.nodes.fields import messages_of, outcomes_of
from perdure.graph.nodes.pause import MAX_CARRIED_CHARACTERS
from perdure.graph.spec import Outcome
from tests.doubles.fake_context import FakeContext
from tests.doubles.fake_turn import Args, FakeTurn, Says
from tests.topologies.played import (
    BREAKS,
    CARDS,
    LOOK,
    PAY,
    POST,
    TOOLS,
    Call,
    Played,
    V,
    Way,
    again_from_the_store,
    begin,
    decided,
    each_way,
    play,
    ran,
    resume,
    roles,
    settled,
    turn,
)

PAY_TWICE = Says("asking", (PAY, PAY))


def waits_for(played: Played) -> list[str]:
    """The calls whose requests the pause waits for; those whose outcome a person must say after a bar."""
    found: Any = played.state["pending_requests"]
    return [("|" if each["kind"] == RequestKind.EFFECT else "") + str(each["call_id"]) for each in found]


@pytest.mark.parametrize("order", [*permutations(("t1.0", "t1.1", "t1.2"))], ids="-".join)
async def test_three_calls_decided_in_any_order_start_as_decided_and_are_asked_for_once(order: tuple[str, ...]) -> None:
    played = await play(Says("asking", (PAY, PAY, PAY, LOOK)), Says("well"))
    for number, call_id in enumerate(order, 1):
        outcome = await decided(played, call_id, V.APPROVED)
        assert set(ran(played.turn)) == {*order[:number], "t1.3"}
        if number < 3:
            assert (outcome, waits_for(played)) == (Outcome.AWAITING, sorted(order[number:]))
            assert roles(played) == ["user"], "no dangling call crosses the pause"
            assert sorted(outcomes_of(played.state)) == sorted({*order[:number], "t1.3"})
    assert played.outcome() is Outcome.COMPLETED
    ids = ["t1.0", "t1.1", "t1.2", "t1.3"]
    assert sorted(played.turn.called) == ids, "four calls, four times the tools port"
    assert roles(played) == ["user", "assistant" + ",".join(ids), *(f"tool{each}" for each in ids), "assistant"]
    assert (played.state["settled_calls"], played.state["pending_round"]) == ([], None)
    assert len(played.turn.asks) == 2


ONE_BY_ONE = {
    "refused first, then allowed": ([("t1.0", V.REJECTED), ("t1.1", V.APPROVED)], [[], ["t1.1"]], "denied done"),
    "allowed first, then refused": ([("t1.0", V.APPROVED), ("t1.1", V.REJECTED)], [["t1.0"]] * 2, "done denied"),
    "allowed first, then expired": ([("t1.1", V.EDITED), ("t1.0", V.EXPIRED)], [["t1.1"]] * 2, "denied done"),
    "allowed first, then void": ([("t1.0", V.APPROVED), ("t1.1", V.CANCELLED)], [["t1.0"]] * 2, "done denied"),
    "refused both": ([("t1.1", V.REJECTED), ("t1.0", V.WITHDRAWN)], [[], []], "planned planned"),
}

REMIT: Call = ("remit", {"day": "2026-02-30"})
REMITTING: dict[str, Any] = {
    "cards": {**CARDS, "remit": PlanCard(name="remit", effect=EffectClass.OPAQUE, needs_approval=True, checks=True)},
    "refuses": {"remit": REMIT[1]},
}


@pytest.mark.parametrize("of", ["skill_pipeline", "tool_loop"])
async def test_nobody_is_asked_about_a_call_that_its_tools_types_refuse(of: str) -> None:
    made = turn(Says("asking", (REMIT, LOOK)), Says("well"))
    made.cards, made.refuses = REMITTING["cards"], REMITTING["refuses"]
    played = await begin(made, of)
    assert (played.outcome(), played.run.asked, ran(made)) == (Outcome.COMPLETED, None, ["t1.1"])
    assert (made.checked, "hitl.rule_fire" in {kind for kind, _ in played.run.events}) == (["t1.0"], False)
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]


@each_way
async def test_the_other_calls_of_the_round_are_asked_about_and_the_refused_one_keeps_its_answer(way: Way) -> None:
    made = turn(Says("asking", (REMIT, PAY)), Says("well"))
    made.cards, made.refuses = REMITTING["cards"], REMITTING["refuses"]
    played = await begin(made)
    assert (played.outcome(), played.asked_for()) == (Outcome.AWAITING, ["t1.1"])
    assert await decided(played, "t1.1", V.APPROVED, way=way) is Outcome.COMPLETED
    assert (ran(made), made.rows["t1.0"].state) == (["t1.1"], CallState.FAILED)
    assert roles(played)[2:4] == ["toolt1.0", "toolt1.1"]


@each_way
@pytest.mark.parametrize(("decisions", "dispatched", "states"), ONE_BY_ONE.values(), ids=list(ONE_BY_ONE))
async def test_two_calls_decided_separately_each_follow_their_own_decision(
    way: Way, decisions: list[tuple[str, V]], dispatched: list[list[str]], states: str
) -> None:
    played = await play(PAY_TWICE, Says("well"))
    for (call_id, state), expected in zip(decisions, dispatched, strict=True):
        assert played.outcome() is Outcome.AWAITING
        edit: Args | None = {"amount": 1} if state is V.EDITED else None
        await decided(played, call_id, state, f"because {call_id}", edit, way=way)
        assert ran(played.turn) == expected
    assert played.outcome() is Outcome.COMPLETED
    assert [row.state.value for row in played.turn.rows.values()] == states.split()
    if states == "planned planned":
        assert roles(played) == ["user", "system", "assistant"], "acknowledged, as one refusal is"
        return
    assert roles(played) == ["user", "assistantt1.0,t1.1", "toolt1.0", "toolt1.1", "assistant"]
    (denied,) = (message for message in played.messages if '"denied"' in message.text)
    assert f"because {denied.call_id}" in denied.text


async def test_a_call_approved_while_another_runs_starts_in_the_same_run() -> None:
    def pay(args: Args) -> JsonValue:
        if args["amount"] == 5:
            made.decide("t1.1", V.APPROVED)
            made.decide("t1.2", V.REJECTED, "no")
        return {"paid": args["amount"]}

    made = FakeTurn(CARDS, {**TOOLS, "pay": pay}, [Says("asking", (PAY, ("pay", {"amount": 6}), POST)), Says("well")])
    played = await begin(made)
    assert await decided(played, "t1.0", V.APPROVED) is Outcome.COMPLETED
    assert len(played.runs) == 2, "no pause between them"
    assert (ran(made), made.called) == (["t1.0", "t1.1"], ["t1.0", "t1.1", "t1.2"])
    assert roles(played)[2:5] == ["toolt1.0", "toolt1.1", "toolt1.2"]


@each_way
async def test_an_unknown_outcome_asks_a_person_while_its_siblings_continue(way: Way) -> None:
    played = await play(Says("asking", (BREAKS, PAY, PAY)), Says("well"))
    made = played.turn
    await decided(played, "t1.0", V.APPROVED, way=way)
    assert waits_for(played) == ["t1.1", "t1.2", "|t1.0"]
    assert played.asked_for() == ["t1.1", "t1.2", "|t1.0"], "all that the pause waits for, in one transaction"
    await decided(played, "t1.1", V.APPROVED, way=way)
    assert (ran(made), waits_for(played)) == (["t1.0", "t1.1"], ["t1.2", "|t1.0"])
    await settled(played, "t1.0", happened=True, way=way)
    assert waits_for(played) == ["t1.2"]
    assert await decided(played, "t1.2", V.REJECTED, "no", way=way) is Outcome.COMPLETED
    assert ran(made) == ["t1.0", "t1.1"]
    twice = ["t1.0", "t1.1", "t1.0", "t1.2"]
    assert way is again_from_the_store or made.called == twice, "only the settled one was asked for twice"
    assert roles(played) == ["user", "assistantt1.0,t1.1,t1.2", "toolt1.0", "toolt1.1", "toolt1.2", "assistant"]
    assert '"settled_by":"reviewer"' in played.messages[2].text


async def test_rules_are_evaluated_once_for_the_whole_round() -> None:
    paid = {"id": "desk:paid", "on": "after_tool_call", "do": "require_hitl", "app": "desk", "when": {"tool": "pay"}}
    played = await play(PAY_TWICE, Says("well"), rules=(Rule.model_validate(paid),))
    await decided(played, "t1.1", V.APPROVED)
    assert waits_for(played) == ["t1.0"]
    assert await decided(played, "t1.0", V.APPROVED) is Outcome.AWAITING
    assert (played.asked_for(), played.fires()) == (["c1.0", "c1.1"], ["desk:paid", "desk:paid"])


async def test_state_changes_of_calls_survive_the_pauses_of_their_round() -> None:
    find: Call = ("find", {})
    played = await play(Says("asking", (find, PAY, find, PAY)), Says("well"))
    await decided(played, "t1.1", V.APPROVED)
    assert played.state["consecutive_failed_resolves"] == 0, "not before the round is settled"
    await decided(played, "t1.3", V.APPROVED)
    assert played.state["consecutive_failed_resolves"] == 2
    assert played.state["iteration"] == 2, "one round of tools, and output_format"


async def test_outcomes_too_large_for_the_state_are_read_from_the_ledger_at_the_end() -> None:
    names: list[JsonValue] = [f"e{number}" + "x" * 70 for number in range(100)]

    def resolve(args: Args) -> tuple[JsonValue, Args]:
        return {"status": "resolved"}, {"recent_entity_context": names}

    calls: list[Call] = [("resolve", {})] * 3
    made = FakeTurn(CARDS, {**TOOLS, "resolve": resolve}, [Says("", (*calls, PAY, PAY)), Says("well")])
    played = await begin(made)
    await decided(played, "t1.3", V.APPROVED)
    assert len(canonical_json(played.state["settled_calls"])) <= MAX_CARRIED_CHARACTERS + 200
    left = [call_id for call_id, outcome in outcomes_of(played.state).items() if outcome.message is None]
    assert left == ["t1.2"], "two of them fit"
    assert await decided(played, "t1.4", V.APPROVED) is Outcome.COMPLETED
    assert sorted(made.called) == ["t1.0", "t1.1", "t1.2", "t1.2", "t1.3", "t1.4"]
    assert ran(made).count("t1.2") == 1
    answered = [message.call_id for message in played.messages if message.role is Role.TOOL]
    assert answered == [f"t1.{index}" for index in range(5)]


async def test_a_stop_while_one_has_run_and_one_waits_ends_the_turn_stopped() -> None:
    played = await play(PAY_TWICE, Says("well"))
    await decided(played, "t1.0", V.APPROVED)
    played.turn.stopped = True
    assert await decided(played, "t1.1", V.APPROVED) is Outcome.STOPPED
    assert ran(played.turn) == ["t1.0"]


LOOPS: dict[str, tuple[str, list[Says], dict[str, Any]]] = {
    "skill_pipeline": ("skill_pipeline", [], {}),
    "its synthesis": ("skill_pipeline", [Says("SKILL_SELECT:plan")], {"skill_ids": ("plan",)}),
    "tool_loop": ("tool_loop", [], {}),
    "context_assembly": ("context_assembly", [], {"context": FakeContext((), {})}),
}
"""The topologies in which a model and its tools alternate: lines before the first round, and what the turn has."""
each_loop = pytest.mark.parametrize(("of", "first", "given"), LOOPS.values(), ids=list(LOOPS))


@each_loop
async def test_a_turn_whose_runs_are_renewed_ends_as_one_that_runs_through(
    of: str, first: list[Says], given: dict[str, Any]
) -> None:
    script = [*first, Says("", (LOOK, LOOK)), Says("", (LOOK, PAY)), Says("", (LOOK,)), Says("well")]
    ends, runs = [], []
    for is_long in (False, True):
        played = await begin(turn(*script, is_long=is_long, **given), of)
        (pay,) = (each["call_id"] for each in played.state["pending_requests"])  # type: ignore[union-attr, index, call-overload]
        played.turn.decide(str(pay), V.APPROVED)
        await resume(played)
        assert played.outcome() is Outcome.COMPLETED
        ends.append((roles(played), ran(played.turn), played.state["tokens_used"], played.state["iteration"]))
        runs.append(len(played.runs))
        assert sum(len(message.rounds) for message in messages_of(played.state)) == 1, "one range of steps"
    assert ends[0] == ends[1]
    renewals = 5 if of == "skill_pipeline" else 4
    assert runs[1] == runs[0] + renewals, "before each node that can call the model"


@each_loop
async def test_a_turn_of_six_hundred_rounds_of_one_call_ends_with_its_answer(
    of: str, first: list[Says], given: dict[str, Any]
) -> None:
    rounds, limits = 600, Limits(max_iterations=10_000, max_tokens=10**9)
    played = await begin(turn(*first, *[Says("", (LOOK,))] * rounds, Says("well"), limits=limits, **given), of)
    assert (played.outcome(), len(played.turn.called)) == (Outcome.COMPLETED, rounds)
    assert len(played.runs) > 2 and len(canonical_json(played.state)) < 16 * 1024


async def test_a_model_that_repeats_refused_calls_reaches_the_limit_of_rounds() -> None:
    played = await begin(turn(*[Says("", (PAY,))] * 5, limits=Limits(max_iterations=2)))
    for step in range(1, 4):
        assert played.outcome() is Outcome.AWAITING
        await decided(played, f"t{step}.0", V.REJECTED, "no")
    assert (played.outcome(), played.code, len(played.turn.asks)) == (Outcome.LIMITED, "iteration_limit", 3)


async def test_many_refused_rounds_of_many_calls_are_carried_as_one_range() -> None:
    rounds, limits = 20, Limits(max_iterations=10_000, max_tokens=10**9)
    made = turn(*[Says("", (PAY,) * 64)] * rounds, Says("I did not"), limits=limits)
    played = await begin(made)
    for step in range(1, rounds + 1):
        for index in range(64):
            made.decide(tool_call_id(step, index), V.REJECTED, "\N{PARTY POPPER}" * 400)
        await resume(played)
    assert (played.outcome(), ran(made)) == (Outcome.COMPLETED, [])
    sizes = [len(ask.model_dump_json()) for ask in made.asks]
    assert max(sizes) < 4 * 1024 and len(canonical_json(played.state)) < 16 * 1024
    assert [message.refused for message in messages_of(played.state) if message.refused] == [((1, rounds),)]
