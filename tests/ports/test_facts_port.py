"""What the memory port promises of facts, of the double and of the real activity behind a real run alike."""

import pytest

from perdure.contracts.memory import Fact, FactsAnswer, FactScope, FactsRequest, FactStatus
from tests.doubles.hub import KEEPER, keeper
from tests.doubles.spoken import Line
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app
from tests.ports.contract import NewTurn, Run

C, U, S = FactScope.CONVERSATION, FactScope.USER, FactStatus


@pytest.fixture(scope="module", autouse=True)
async def published(harness: Harness) -> None:
    await publish_app(harness.owner_url, [*app_agents()[0], ("desk", keeper())])


def fact(content: str, kind: str = "likes", confidence: float = 0.5) -> Fact:
    return Fact(type=kind, content=content, confidence=confidence)


async def kept(run: Run, scope: FactScope, *facts: Fact) -> FactStatus:
    return (await run.facts(FactsRequest(scope=scope, authorized=True, write=True, facts=facts))).status


async def known(run: Run, scope: FactScope) -> FactsAnswer:
    return await run.facts(FactsRequest(scope=scope, authorized=True))


async def test_of_a_conversation_the_newest_of_a_type_stands(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    assert await known(run, C) == FactsAnswer(status=S.NOT_FOUND)
    assert await kept(run, C, fact("tea"), fact("Ann", "name")) is S.SUCCESS
    assert await kept(run, C, fact("coffee")) is S.SUCCESS
    assert (await known(run, C)).facts == (fact("coffee"), fact("Ann", "name"))


async def test_of_a_person_each_is_kept_once_and_the_oldest_comes_first(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    assert (await known(run, U)).status is S.SUCCESS
    for _ in range(2):
        assert await kept(run, U, fact("tea"), fact("coffee")) is S.SUCCESS
    assert await kept(run, U, fact("tea", confidence=0.9)) is S.SUCCESS
    assert (await known(run, U)).facts == (fact("tea"), fact("coffee")), "what was said first stays as it was said"


async def test_without_leave_nothing_is_read_or_kept(new_turn: NewTurn) -> None:
    run = await (await new_turn(Line("hi"), agent_id=KEEPER)).run()
    for write in (False, True):
        ask = FactsRequest(scope=C, authorized=False, write=write, facts=(fact("tea"),) if write else ())
        assert (await run.facts(ask)).status is S.UNAUTHORIZED
    assert (await known(run, C)).status is S.NOT_FOUND
    other = await (await new_turn(Line("hi"))).run()
    assert (await known(other, C)).status is S.UNAUTHORIZED, "the agent of this one may keep none"
    assert await kept(other, U, fact("tea")) is S.UNAUTHORIZED


async def test_a_turn_that_is_to_stop_keeps_nothing(new_turn: NewTurn) -> None:
    turn = await new_turn(Line("hi"), agent_id=KEEPER)
    run = await turn.run()
    await turn.stop()
    assert await kept(run, C, fact("tea")) is S.FAILED
    assert (await known(run, C)).status is S.UNAVAILABLE
