"""Facts in Postgres: of a conversation the newest stands, of a person each is added, and no trouble is an exception."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from perdure.activities.memory import FactsActivities
from perdure.contracts.agents import MemoryPolicy
from perdure.contracts.memory import MOST_FACTS, Fact, FactsAnswer, FactsCall, FactScope, FactsRequest, FactStatus
from perdure.contracts.turns import TurnAddress
from perdure.store.identity.erasure import erase
from tests.doubles.embedder import Hashing
from tests.doubles.hub import KEEPER, keeper, without
from tests.doubles.target import app_agents
from tests.harness import Harness, publish_app

C, U, S = FactScope.CONVERSATION, FactScope.USER, FactStatus


@pytest.fixture(scope="module")
async def keepers(harness: Harness) -> Harness:
    ours = [keeper(), keeper("brief", memory=MemoryPolicy(facts=(C,)))]
    await publish_app(harness.owner_url, [*app_agents()[0], *(("desk", each) for each in ours)])
    return harness


async def used(
    harness: Harness,
    address: TurnAddress,
    scope: FactScope,
    *facts: Fact,
    agent_id: str = KEEPER,
    attempt: int = 1,
    **ask: object,
) -> FactsAnswer:
    """One operation as the activity makes it."""
    given = FactsRequest.model_validate(
        {"scope": scope, "authorized": True, "write": bool(facts), "facts": facts, **ask}
    )
    call = FactsCall(address=address, agent_id=agent_id, agent_version=await harness.version(agent_id), ask=given)
    return await harness.activity(FactsActivities(harness.deps).facts, call, attempt=attempt)


async def turn(harness: Harness, by: str = "requester", **given: object) -> TurnAddress:
    return (await harness.start(agent_id=KEEPER, by=by, **given))[0]  # type: ignore[arg-type]


def said(*contents: str, kind: str = "likes", confidence: float = 0.5) -> list[Fact]:
    return [Fact(type=kind, content=each, confidence=confidence) for each in contents]


async def test_a_conversation_keeps_the_newest_of_a_type_and_no_other_sees_it(keepers: Harness) -> None:
    first, other = await turn(keepers), await turn(keepers)
    for content in ("tea", "coffee"):
        assert (await used(keepers, first, C, *said(content))).status is S.SUCCESS
    assert (await used(keepers, first, C)).facts == (Fact(type="likes", content="coffee", confidence=0.5),)
    assert (await used(keepers, first, C, types=("name",))).status is S.NOT_FOUND
    assert (await used(keepers, other, C)).status is S.NOT_FOUND


async def test_a_persons_facts_are_only_added_and_kept_once_however_often_they_are_written(keepers: Harness) -> None:
    first = await turn(keepers, by="admin")
    assert (await used(keepers, first, U)) == FactsAnswer(status=S.SUCCESS), "nothing known is a success (S3-30)"
    for attempt in (1, 2, 3):
        assert (await used(keepers, first, U, *said("tea", "coffee"), attempt=attempt)).status is S.SUCCESS
    later = await turn(keepers, by="admin")
    await used(keepers, later, U, *said("water"))
    assert [fact.content for fact in (await used(keepers, later, U)).facts] == ["tea", "coffee", "water"]
    assert {fact.confidence for fact in (await used(keepers, later, U)).facts} == {0.5}
    stranger = await turn(keepers, by="reviewer")
    assert (await used(keepers, stranger, U)).facts == ()


@asynccontextmanager
async def owner_of(harness: Harness) -> AsyncIterator[asyncpg.Connection]:
    """Whoever owns the tables: what a migration may do."""
    owner = await asyncpg.connect(harness.owner_url, server_settings={"search_path": "perdure"})
    try:
        await owner.execute("SELECT set_config('perdure.tenant', 'local', false)")
        yield owner
    finally:
        await owner.close()


async def test_nobody_changes_what_is_only_added_and_a_write_that_would_is_refused_and_says_so(
    keepers: Harness,
) -> None:
    address = await turn(keepers)
    await used(keepers, address, U, *said("tea"))
    for statement in ("UPDATE user_facts SET content = 'x'", "DELETE FROM user_facts"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await keepers.write(statement)
    async with owner_of(keepers) as owner:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await owner.execute("UPDATE user_facts SET content = 'x'")
        await owner.execute(
            "CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
            "UPDATE perdure.user_facts SET content = NEW.content WHERE user_id = NEW.user_id; RETURN NULL; END $$; "
            "CREATE TRIGGER rewrites BEFORE INSERT ON user_facts FOR EACH ROW EXECUTE FUNCTION rewrite()"
        )
        try:
            answer = await used(keepers, address, U, *said("coffee"))
        finally:
            await owner.execute("DROP TRIGGER rewrites ON user_facts; DROP FUNCTION rewrite()")
    assert (answer.status, answer.refused_change) == (S.FAILED, True)
    assert "tea" in {fact.content for fact in (await used(keepers, address, U)).facts}


async def test_of_many_facts_the_nearest_are_given_oldest_first_by_words_or_by_meaning(keepers: Harness) -> None:
    for embedder, by in ((None, "reviewer"), (Hashing(), "requester")):
        harness = replace(keepers, deps=replace(keepers.deps, embedder=embedder))
        address = await turn(harness, by=by)
        await used(harness, address, U, *said("green tea"))
        await used(harness, address, U, *said(*(f"number {n}" for n in range(MOST_FACTS)), kind="number"))
        await used(harness, address, U, *said(*(f"late {n}" for n in range(MOST_FACTS)), kind="late"))
        found = [fact.content for fact in (await used(harness, address, U, about="green tea")).facts]
        assert len(found) == MOST_FACTS and "green tea" in found and (embedder or found[0] == "green tea")
        rows = await harness.rows(
            "SELECT embedder FROM user_facts WHERE content = 'green tea' ORDER BY id DESC LIMIT 1"
        )
        assert rows[0]["embedder"] == (embedder.name if embedder else None)
        late = (await used(harness, address, U, types=("late",))).facts
        assert [fact.content for fact in late] == [f"late {n}" for n in range(MOST_FACTS)]


async def test_what_is_not_granted_cannot_be_kept_or_is_away_is_a_status(keepers: Harness) -> None:
    address = await turn(keepers)
    for facts in ((), said("tea")):
        assert (await used(keepers, address, U, *facts, agent_id="brief")).status is S.UNAUTHORIZED
    for scope, table in ((C, "conversation_facts"), (U, "user_facts")):
        assert (await used(keepers, address, scope, *said("a\x00b"))).status is S.FAILED
        async with without(keepers, table):
            assert (await used(keepers, address, scope)).status is S.UNAVAILABLE
            assert (await used(keepers, address, scope, *said("tea"))).status is S.FAILED
        assert (await used(keepers, address, scope, *said("tea"))).status is S.SUCCESS
    off = replace(keepers, deps=replace(keepers.deps, keeps_facts=False))
    assert (await used(off, address, U)).status is S.UNAVAILABLE, "the operator took it away"
    assert (await used(off, address, C, *said("tea"))).status is S.FAILED


async def test_facts_go_with_the_person_and_with_the_conversation(keepers: Harness) -> None:
    person, ended = (
        keepers.people["reviewer"],
        "UPDATE turns SET status = 'completed', ended_at = now() WHERE ended_at IS NULL",
    )
    await keepers.write(ended)
    address = await turn(keepers, by="reviewer")
    for scope in (C, U):
        await used(keepers, address, scope, *said("tea"))
    await keepers.write(ended)
    told = await erase(keepers.db, person.tenant_id, person.name, keepers.people["admin"].user_id)
    assert isinstance(told["erased"], dict) and told["erased"]["user_facts"] >= 1
    assert await keepers.value("SELECT count(*) FROM user_facts WHERE user_id = $1", person.user_id) == 0
    assert await keepers.value("SELECT count(*) FROM conversation_facts WHERE turn_id = $1", address.turn_id) == 0
