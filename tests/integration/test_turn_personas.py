"""The persona that a turn takes from a template: whose it is, that it stays, and what an outage costs."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import pytest

from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.contracts.activities import LoadAsk, TurnContext
from perdure.contracts.turns import ENDED, TurnAddress
from perdure.core.agents.templates import Stage
from perdure.store import agents
from perdure.store.agents import Mover
from tests.conftest import Urls
from tests.desk import Desk
from tests.doubles.spoken import Line
from tests.served import Served

AGENT, TEMPLATE = "voiced", "desk_voice"
OWN = "You speak with your own voice."


@pytest.fixture(autouse=True)
async def clean(desk: Desk) -> AsyncIterator[None]:
    """No version of the template is left over."""
    yield
    await desk.write("UPDATE prompt_versions SET stage = 'archived'")


async def draft(desk: Desk, text: str, by: str = "requester") -> dict[str, object]:
    async with desk.db.transaction("local") as tx:
        return await agents.save_prompt_draft(tx, TEMPLATE, text, desk.people[by].user_id)


async def active(desk: Desk, text: str) -> str:
    version = await draft(desk, text, "admin")
    mover = Mover(desk.people["reviewer"].user_id, frozenset({"reviewer"}))
    for to in (Stage.PRE_PRODUCTION, Stage.ACTIVE):
        async with desk.db.transaction("local") as tx:
            await agents.promote_prompt_template(tx, str(version["id"]), to, str(version["digest"]), mover)
    return str(version["id"])


async def loaded(desk: Desk, address: TurnAddress, agent_id: str = AGENT) -> TurnContext:
    """What memory.load answers."""
    ask = LoadAsk(address=address, agent_id=agent_id, agent_version=await desk.version(agent_id))
    context: TurnContext = await desk.activity(MemoryActivities(desk.deps).load, ask)
    assert context.problem is None
    return context


async def asked(desk: Desk, address: TurnAddress, step: int = 1, agent_id: str = AGENT) -> Any:
    """The request that the model got."""
    call = await desk.model_call(address, step, agent_id)
    await desk.activity(ModelActivities(desk.deps).complete, call)
    return desk.model.seen[-1]


async def began(desk: Desk, by: str = "requester") -> TurnAddress:
    address, _ = await desk.start(Line("one"), Line("two"), agent_id=AGENT, by=by)
    return address


async def persona_of(desk: Desk, address: TurnAddress) -> dict[str, str]:
    found: dict[str, str] = await desk.value("SELECT persona FROM turns WHERE id = $1", address.turn_id)
    return found


async def events_of(desk: Desk, address: TurnAddress) -> list[dict[str, object]]:
    rows = await desk.rows("SELECT data FROM events WHERE turn_id = $1 AND kind = 'stage'", address.turn_id)
    return [row["data"] for row in rows]


async def test_a_turn_speaks_with_the_active_version_and_its_own_users_draft_comes_first(desk: Desk) -> None:
    version = await active(desk, "You serve {{user_name}} at {{agent_title}}.")
    await draft(desk, "You try something.")
    theirs, own = await began(desk, "admin"), await began(desk, "requester")
    said = {}
    for address in (theirs, own):
        await loaded(desk, address)
        said[address.turn_id] = (await asked(desk, address)).messages[0]["content"]
    assert said[theirs.turn_id].startswith("You serve ")
    assert "{{" not in said[theirs.turn_id] and "A desk whose voice is a template" in said[theirs.turn_id]
    assert said[own.turn_id].startswith("You try something.")
    assert OWN not in said[theirs.turn_id] + said[own.turn_id]
    assert (await persona_of(desk, theirs))["version_id"] == version
    (told,) = await events_of(desk, theirs)
    assert (told["template"], told["version_id"], told["stage"]) == (TEMPLATE, version, "active")
    assert "You serve" not in str(told), "the text stays out of the events"


async def test_a_version_that_is_promoted_meanwhile_does_not_change_a_running_turn(desk: Desk) -> None:
    await active(desk, "Old voice.")
    address = await began(desk)
    await loaded(desk, address)
    first = (await asked(desk, address)).messages[0]
    await active(desk, "New voice.")
    await draft(desk, "Newest voice.")
    await loaded(desk, address)  # started again, by a worker that knows nothing of the first time
    second = (await asked(desk, address, step=2)).messages[0]
    assert first == second and str(first["content"]).startswith("Old voice.")
    assert len(await events_of(desk, address)) == 1


async def test_a_whole_turn_keeps_its_voice_through_a_pause(served: Served) -> None:
    await active(served.desk, "Old voice.")
    address = await served.paused(Line("asking", [("pay", {})]), Line("paid"), agent_id=AGENT)
    await active(served.desk, "New voice.")
    await served.decide(address)
    assert (await served.until(address, *ENDED))["answer"] == "paid"
    seen = [each for each in served.desk.model.seen if each.idempotency_key.startswith(address.turn_id)]
    assert len(seen) == 2 and all(str(each.messages[0]["content"]).startswith("Old voice.") for each in seen)


async def test_without_a_version_the_agents_own_persona_speaks_to_the_end(desk: Desk) -> None:
    address = await began(desk)
    await loaded(desk, address)
    await active(desk, "Too late.")
    assert str((await asked(desk, address)).messages[0]["content"]).startswith(OWN)
    assert (await persona_of(desk, address))["problem"] == "not_found"


async def test_a_text_that_renders_to_nothing_is_no_persona(desk: Desk) -> None:
    await active(desk, "{{skill_name}}")
    address = await began(desk)
    await loaded(desk, address)
    assert str((await asked(desk, address)).messages[0]["content"]).startswith(OWN)
    assert (await persona_of(desk, address))["problem"] == "empty"


@asynccontextmanager
async def unreadable(urls: Urls, how: str) -> AsyncIterator[None]:
    """The templates cannot be read: not allowed, or locked by somebody who does not let go."""
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    try:
        if how == "forbidden":
            await owner.execute("REVOKE SELECT ON prompt_versions FROM perdure_app")
            yield
            await owner.execute("GRANT SELECT ON prompt_versions TO perdure_app")
        else:
            async with owner.transaction():
                await owner.execute("LOCK TABLE prompt_versions IN ACCESS EXCLUSIVE MODE")
                yield
    finally:
        await owner.close()


@pytest.mark.parametrize("how", ["forbidden", "locked"])
async def test_an_outage_of_the_templates_costs_the_text_and_no_tool(desk: Desk, urls: Urls, how: str) -> None:
    await active(desk, "A fine voice.")
    whole = await began(desk)
    with_template = await loaded(desk, whole)
    tools_whole = (await asked(desk, whole)).tools
    address = await began(desk)
    async with unreadable(urls, how):
        without = await loaded(desk, address)
    assert with_template.plan is not None and without.plan is not None
    assert without.plan.cards == with_template.plan.cards
    request = await asked(desk, address)
    assert request.tools == tools_whole and len(request.tools) == 5
    assert str(request.messages[0]["content"]).startswith(OWN)
    (told,) = await events_of(desk, address)
    assert told["problem"] == "unavailable"
    await loaded(desk, address)
    again = await asked(desk, address, step=2)
    assert str(again.messages[0]["content"]).startswith(OWN), "one turn, one voice"


async def test_an_agent_without_a_template_asks_for_none(desk: Desk) -> None:
    address, _ = await desk.start(Line("hi"))
    with statements(desk) as said:
        await loaded(desk, address, "desk")
    assert not [each for each in said if "prompt_versions" in each or "SAVEPOINT" in each]
    assert await persona_of(desk, address) is None


@contextmanager
def statements(desk: Desk) -> Iterator[list[str]]:
    """What is said to Postgres meanwhile."""
    said: list[str] = []
    plain = asyncpg.Connection.fetchrow
    executed = asyncpg.Connection.execute

    async def fetchrow(self: asyncpg.Connection, query: str, *args: Any, **given: Any) -> Any:
        said.append(query)
        return await plain(self, query, *args, **given)

    async def execute(self: asyncpg.Connection, query: str, *args: Any, **given: Any) -> Any:
        said.append(query)
        return await executed(self, query, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "fetchrow", fetchrow)
        patch.setattr(asyncpg.Connection, "execute", execute)
        yield said
