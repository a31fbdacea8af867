"""What the memory port promises, of the double and of the real load behind a real run alike."""

import pytest

from perdure.contracts.activities import TurnContext
from perdure.contracts.approvals import RequestKind, VerdictState
from perdure.contracts.calls import EffectClass
from perdure.contracts.memory import Fact, FactsAnswer, FactScope, FactsRequest, FactStatus
from perdure.contracts.messages import Role
from tests.doubles.desk_variants import KEEPER, keeper
from tests.doubles.message_script import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.ports.contract import ASK, NewTurn, Run, asks, gated, line, paused, planned, problem

V = VerdictState
C, U, S = FactScope.CONVERSATION, FactScope.USER, FactStatus


@pytest.fixture(scope="module", autouse=True)
async def keeper_agent(harness: Harness) -> None:
    await publish_app(harness.owner_url, [*app_agents()[0], ("desk", keeper())])


def gate(context: TurnContext) -> list[str]:
    return [request.call_id for request in context.pending]


async def test_a_fresh_turn_loads_its_plan_its_message_and_its_user(new_turn: NewTurn) -> None:
    context = await (await (await new_turn(Line("hi"))).run()).load()
    plan, user = context.plan, context.user_message
    assert context.problem is None and plan is not None and user is not None
    assert (plan.agent_id, plan.persona_key, plan.skill_ids) == ("desk", "agent", ("plan",))
    assert plan.agent_version
    assert plan.limits.max_iterations == 20
    pay, look = plan.card("pay"), plan.card("look")
    assert pay is not None and (pay.effect, pay.needs_approval, pay.timeout_seconds) == (EffectClass.KEYED, True, 10)
    assert look is not None and (look.effect, look.needs_approval) == (EffectClass.READ, False)
    resolve = plan.card("entity_resolve")
    assert resolve is not None and "consecutive_failed_resolves" in resolve.wants_state
    assert plan.card("nobodys") is None
    assert user.id and user.text and user.role is Role.USER
    assert context.user_name and context.user_role
    assert (context.pending, context.pending_round) == ((), None)


async def test_metadata_and_working_memory_are_reduced_to_what_nodes_read(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("hi"), metadata={"hitl_checkpoint_type": "before_answer", "ticket": "T-1"})
    await turn.remember({"recent_entity_context": ["e1"], "jotting": "a long text that stays in Postgres"})
    context = await (await turn.run()).load()
    assert context.metadata == {"hitl_checkpoint_type": "before_answer"}
    assert context.working == {"recent_entity_context": ["e1"]}
    assert context.injected_fields == 2, "the model sees both"


async def test_a_run_loads_once_and_a_later_run_loads_again(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("hi"))
    run = await turn.run()
    first = await run.load()
    await turn.remember({"recent_entity_context": ["e2"]})
    assert await run.load() == first, "one answer for all nodes of a run"
    assert (await (await turn.run()).load()).working == {"recent_entity_context": ["e2"]}


async def test_a_failure_and_a_stop_return_problems_and_load_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("hi"))
    run = await turn.run(gone=True)
    context = await run.load()
    assert problem(context) == "agent_version_not_found"
    assert (context.plan, context.user_message, context.pending) == (None, None, ())
    assert await run.load() == context, "read once too"
    await turn.stop()
    stopped = await (await turn.run()).load()
    assert (problem(stopped), stopped.plan) == ("stopped", None)


async def test_a_restarted_run_finds_the_whole_gated_round(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("look", {}), ("pay", {}), ("post", {})), Line("well"))
    run = await planned(turn)
    requests = await run.ask([*gated("look", "pay", "post")[1:]])
    assert gate(await (await turn.run()).load()) == [], "what was asked for and not opened is no gate"
    await run.pause()
    context = await (await turn.run()).load()
    assert [request.request_id for request in context.pending] == [request.request_id for request in requests]
    assert gate(context) == ["t1.1", "t1.2"]
    assert all(request.kind is RequestKind.APPROVAL and request.expires_at for request in context.pending)
    assert context.pending_round is not None and context.pending_round.role is Role.ASSISTANT
    assert context.pending_round.id
    calls = context.pending_round.calls
    assert [(call.call_id, call.tool) for call in calls] == [("t1.0", "look"), ("t1.1", "pay"), ("t1.2", "post")]
    assert not any(call.settled for call in calls) and all(call.digest for call in calls)


async def test_a_run_restarted_at_a_gate_continues_its_step_count(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("look", [("look", {})]), line(("pay", {})), line(("look", {}), text="third"))
    run = await planned(turn)
    await run.run_tools(asks("look"))
    await run.complete(ASK)
    await run.ask(gated("pay", step=2))
    await run.pause()
    cold = await turn.run()
    await cold.load()
    reply = await cold.complete(ASK)
    assert reply.message is not None and [call.call_id for call in reply.message.calls] == ["t3.0"]


@pytest.mark.parametrize("run_first", [("t1.0",), ("t1.1",), ("t1.0", "t1.1")], ids="-".join)
async def test_a_gated_round_is_found_until_it_is_settled(new_turn: NewTurn, run_first: tuple[str, ...]) -> None:
    """Else the call that has run would count as one without an approval, and be asked for again."""
    turn = await new_turn(line(("pay", {}), ("post", {})))
    run, _ = await paused(turn, "pay", "post")
    await turn.decide("t1.0", V.APPROVED)
    await turn.decide("t1.1", V.REJECTED)
    await run.run_tools([ask for ask in asks("pay", "post") if ask.call_id in run_first])
    context = await (await turn.run()).load()
    whole = ["t1.0", "t1.1"] if len(run_first) == 1 else []
    assert gate(context) == whole
    assert [call.call_id for call in (context.pending_round.calls if context.pending_round else ())] == whole


async def test_a_gate_whose_last_call_waits_for_a_settlement_is_found(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("post", {"mode": "break"})))
    run, _ = await paused(turn, "post")
    await turn.decide("t1.0", V.APPROVED)
    await run.run_tools(asks("post"))
    context = await (await turn.run()).load()
    assert gate(context) == ["t1.0"] and context.pending_round is not None


async def test_an_acknowledged_gate_is_not_mistaken_for_the_open_one(new_turn: NewTurn) -> None:
    turn = await new_turn(line(("pay", {})), line(("post", {}), text="then"))
    run, _ = await paused(turn, "pay")
    await turn.decide("t1.0", V.REJECTED, "no")
    await run.complete(ASK)
    await run.ask(gated("post", step=2))
    await run.pause()
    context = await (await turn.run()).load()
    assert gate(context) == ["t2.0"] and context.pending_round is not None
    assert [call.call_id for call in context.pending_round.calls] == ["t2.0"]


async def test_the_tenth_round_is_newer_than_the_second(new_turn: NewTurn) -> None:
    """Ids are numbers in words: as words t10.0 comes before t9.0."""
    rounds = [line(("pay", {"amount": number}), text=f"round {number}") for number in range(1, 11)]
    turn = await new_turn(*rounds)
    run, _ = await paused(turn, "pay")
    for step in range(1, 11):
        await turn.decide(f"t{step}.0", V.REJECTED, "no")
        if step < 10:
            await run.complete(ASK)
            await run.ask(gated("pay", step=step + 1))
            await run.pause()
    context = await (await turn.run()).load()
    assert gate(context) == ["t10.0"]
    assert context.pending_round is not None and context.pending_round.text == "round 10"


def fact(content: str, kind: str = "likes", confidence: float = 0.5) -> Fact:
    return Fact(type=kind, content=content, confidence=confidence)


async def kept(run: Run, scope: FactScope, *facts: Fact) -> FactStatus:
    return (await run.facts(FactsRequest(scope=scope, authorized=True, write=True, facts=facts))).status


async def known(run: Run, scope: FactScope) -> FactsAnswer:
    return await run.facts(FactsRequest(scope=scope, authorized=True))


async def test_of_a_conversations_facts_the_newest_of_each_type_is_kept(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    assert await known(run, C) == FactsAnswer(status=S.NOT_FOUND)
    assert await kept(run, C, fact("tea"), fact("Ann", "name")) is S.SUCCESS
    assert await kept(run, C, fact("coffee")) is S.SUCCESS
    assert (await known(run, C)).facts == (fact("coffee"), fact("Ann", "name"))


async def test_each_fact_of_a_user_is_kept_once_oldest_first(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    assert (await known(run, U)).status is S.SUCCESS
    for _ in range(2):
        assert await kept(run, U, fact("tea"), fact("coffee")) is S.SUCCESS
    assert await kept(run, U, fact("tea", confidence=0.9)) is S.SUCCESS
    assert (await known(run, U)).facts == (fact("tea"), fact("coffee")), "what was said first stays as it was said"


async def test_without_permission_nothing_is_read_or_stored(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    for write in (False, True):
        ask = FactsRequest(scope=C, authorized=False, write=write, facts=(fact("tea"),) if write else ())
        assert (await run.facts(ask)).status is S.UNAUTHORIZED
    assert (await known(run, C)).status is S.NOT_FOUND
    other = await (await new_turn(Line("hi"))).run()
    assert (await known(other, C)).status is S.UNAUTHORIZED, "the agent of this one may keep none"
    assert await kept(other, U, fact("tea")) is S.UNAUTHORIZED


async def test_a_stopping_turn_stores_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("hi"), agent_id=KEEPER)
    run = await turn.run()
    await turn.stop()
    assert await kept(run, C, fact("tea")) is S.FAILED
    assert (await known(run, C)).status is S.UNAVAILABLE
