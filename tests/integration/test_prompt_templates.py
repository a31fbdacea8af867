"""Prompt templates over HTTP: drafts, promotions and conflicts; the persona that a turn takes from a template; the
model's messages: a prefix that no skill changes, then the texts of the loaded skills."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.contracts.activities import LoadRequest, TurnContext
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import TurnAddress
from perdure.core.agents.templates import Stage
from perdure.store import agents
from perdure.store.agents import PromptPromoter
from perdure.store.database import new_id
from perdure.store.memory import facts
from tests.conftest import Urls, as_owner
from tests.doubles.desk_variants import as_desk, published
from tests.doubles.message_script import Line
from tests.harness import Harness
from tests.integration.conftest import Api, Caller, in_transaction
from tests.integration.test_api_turns import code, refusal

AGENT, TEMPLATE = "voiced", "desk_voice"
OWN = "You speak with your own voice."
PERSONA = "SELECT persona FROM turns WHERE id = $1"


def fresh() -> str:
    return f"t{new_id().replace('-', '')}"


async def put_draft(client: httpx.AsyncClient, template: str, text: str) -> dict[str, str]:
    answer = await client.put(f"/v1/prompt-templates/{template}/draft", json={"text": text})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def promote_version(client: httpx.AsyncClient, version: dict[str, str], to: str) -> httpx.Response:
    body = {"to": to, "digest": version["digest"]}
    return await client.post(f"/v1/prompt-versions/{version['id']}/promote", json=body)


async def activated(api: Api, template: str, text: str) -> dict[str, str]:
    """A version that has come all the way, by two people."""
    async with api.client("reviewer") as author, api.client("admin") as other:
        version = await put_draft(author, template, text)
        for to in ("pre_production", "active"):
            answer = await promote_version(other, version, to)
            assert (answer.status_code, answer.json()["stage"]) == (200, to)
    return version


async def listed(client: httpx.AsyncClient, template: str, **given: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query: dict[str, str] | None = {"template": template, "limit": "2", **given}
    while query:
        page = (await client.get("/v1/prompt-templates", params=query)).json()
        found += page["items"]
        query = {**query, "cursor": page["next"]} if page["next"] else None
    return found


async def speaks(client: httpx.AsyncClient, template: str) -> str | None:
    answer = await client.get(f"/v1/prompt-templates/{template}")
    if answer.status_code == 404:
        assert code(answer) == "prompt_template_not_found"
        return None
    return str(answer.json()["text"])


async def test_a_version_goes_from_draft_to_archive_and_reaches_its_users(api: Api) -> None:
    template = fresh()
    async with api.client() as author, api.client("reviewer") as reviewer:
        first = await put_draft(author, template, "First.")
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("First.", None)
        assert (await promote_version(reviewer, first, "pre_production")).status_code == 200
        assert (await speaks(author, template), await speaks(reviewer, template)) == (None, None)
        waits = (await author.get(f"/v1/prompt-templates/{template}", params={"stage": "pre_production"})).json()
        assert waits["text"] == "First."
        assert (await promote_version(reviewer, first, "active")).status_code == 200
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("First.", "First.")
        second = await put_draft(author, template, "Second.")
        assert (await speaks(author, template), await speaks(reviewer, template)) == ("Second.", "First.")
        for to in ("pre_production", "active"):
            assert (await promote_version(reviewer, second, to)).status_code == 200
        assert await speaks(reviewer, template) == "Second."
        shown = (await reviewer.get(f"/v1/prompt-versions/{first['id']}")).json()
        assert shown["stage"] == "archived"
        what = [entry["what"].removeprefix("prompt.") for entry in shown["history"]]
        assert what == ["draft_saved", "promoted", "promoted", "archived"]
        assert {each["id"] for each in await listed(author, template)} == {first["id"], second["id"]}
        assert shown["history"][-1]["data"]["for"] == second["id"]
        assert (await reviewer.post(f"/v1/prompt-versions/{second['id']}/archive")).status_code == 200
        assert await speaks(reviewer, template) is None


async def test_each_user_has_one_draft_even_after_simultaneous_saves(requester: Caller, admin: Caller) -> None:
    template = fresh()
    saved = await asyncio.gather(*(put_draft(requester, template, f"text {number}") for number in range(10)))
    again = await put_draft(requester, template, "b")
    assert {each["id"] for each in saved} == {again["id"]} and again["text"] == "b"
    assert (await put_draft(admin, template, "c"))["id"] != again["id"]
    path = f"/v1/prompt-versions/{again['id']}"
    before = (await requester.get(path)).json()["history"]
    assert (await put_draft(requester, template, "b"))["text"] == "b"
    assert (await requester.get(path)).json()["history"] == before, "nothing is new"
    mine, every = await listed(requester, template), await listed(admin, template)
    assert [item["author"] for item in mine] == ["requester"], "another one's draft is not shown to a requester"
    assert {item["author"] for item in every} == {"requester", "admin"}
    assert all("text" not in item for item in every)


@pytest.mark.parametrize("to", ["pre_production", "active"])
async def test_of_many_simultaneous_promotions_one_succeeds_and_others_are_told(api: Api, to: str) -> None:
    template = fresh()
    await activated(api, template, "Old.")
    async with api.client() as author, api.client("reviewer") as one, api.client("admin") as two:
        version = await put_draft(author, template, "New.")
        if to == "active":
            await promote_version(one, version, "pre_production")
        answers = await asyncio.gather(*(promote_version(each, version, to) for _ in range(6) for each in (one, two)))
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 11
        lost = next(answer for answer in answers if answer.status_code == 409)
        assert (code(lost), lost.json()["error"]["details"]["stage"]) == ("prompt_stage_changed", to)
        (found,) = await listed(one, template, stage="active")
        assert found["id"] == version["id"] or to == "pre_production"
        history = (await one.get(f"/v1/prompt-versions/{version['id']}")).json()["history"]
        assert [entry["what"] for entry in history].count("prompt.promoted") == (1 if to == "pre_production" else 2)


async def test_a_draft_that_changed_since_it_was_read_is_not_promoted(api: Api) -> None:
    template = fresh()
    async with api.client() as author, api.client("reviewer") as reviewer:
        read = await put_draft(author, template, "Harmless.")
        now = await put_draft(author, template, "Something else.")
        assert refusal(await promote_version(reviewer, read, "pre_production")) == (409, "prompt_text_changed")
        assert (await reviewer.get(f"/v1/prompt-versions/{read['id']}")).json()["stage"] == "draft"
        body, key = {"to": "pre_production", "digest": now["digest"]}, {"Idempotency-Key": template}
        path = f"/v1/prompt-versions/{now['id']}/promote"
        first, again = [await reviewer.post(path, json=body, headers=key) for _ in range(2)]
        assert (first.status_code, again.status_code) == (200, 200) and first.json() == again.json()


async def test_no_role_can_activate_its_own_text_alone(api: Api) -> None:
    template = fresh()
    await activated(api, template, "Ours.")
    async with api.client("admin") as author, api.client("reviewer") as other, api.client() as reader:
        version = await put_draft(author, template, "Mine alone.")
        assert refusal(await promote_version(other, version, "active")) == (409, "prompt_stage_changed"), "not at once"
        assert (await promote_version(author, version, "pre_production")).status_code == 200
        assert refusal(await promote_version(author, version, "active")) == (403, "own_draft")
        assert await speaks(reader, template) == "Ours.", "what was active has not gone with the attempt"
        assert (await promote_version(other, version, "active")).status_code == 200
        assert await speaks(reader, template) == "Mine alone."


async def test_a_second_version_does_not_enter_pre_production_beside_the_first(reviewer: Caller, admin: Caller) -> None:
    template = fresh()
    first, second = await put_draft(reviewer, template, "One."), await put_draft(admin, template, "Two.")
    assert (await promote_version(reviewer, first, "pre_production")).status_code == 200
    assert refusal(await promote_version(admin, second, "pre_production")) == (409, "prompt_stage_taken")
    assert (await reviewer.post(f"/v1/prompt-versions/{first['id']}/archive")).status_code == 200
    assert (await promote_version(admin, second, "pre_production")).status_code == 200


async def test_a_requester_can_write_and_drop_their_draft_but_not_promote(api: Api) -> None:
    template = fresh()
    active = await activated(api, template, "Ours.")
    async with api.client() as client, api.client("admin") as other:
        mine, theirs = await put_draft(client, template, "Mine."), await put_draft(other, template, "Theirs.")
        for version, path, expected in (
            (mine, "promote", (403, "role_required")),
            (active, "archive", (403, "role_required")),
            (theirs, "archive", (404, "prompt_version_not_found")),
        ):
            body = {"to": "pre_production", "digest": version["digest"]} if path == "promote" else None
            assert refusal(await client.post(f"/v1/prompt-versions/{version['id']}/{path}", json=body)) == expected
        assert (await client.post(f"/v1/prompt-versions/{mine['id']}/archive")).status_code == 200
        again = await client.post(f"/v1/prompt-versions/{mine['id']}/archive")
        assert again.status_code in (403, 409), "it is archived, and no draft any more"
        assert await speaks(client, template) == "Ours."


async def test_a_text_is_rendered_for_its_user_once_and_an_unknown_variable_refused(api: Api) -> None:
    rendered, template = fresh(), fresh()
    await activated(api, rendered, "{{agent_title}} serves {{user_name}} ({{user_role}}){{skill_name}}.")
    async with api.client() as client:
        given = {"agent_title": "{{user_role}}"}
        shown = (await client.get(f"/v1/prompt-templates/{rendered}/render", params=given)).json()["text"]
        assert shown.startswith("{{user_role}} serves ") and shown.endswith("(requester).")
        text = {"text": "Dear {{user_name}},\n{{user_pasword}}"}
        answer = await client.put(f"/v1/prompt-templates/{template}/draft", json=text)
        assert refusal(answer) == (422, "template_variable_unknown")
        assert answer.json()["error"]["details"]["unknown"] == [{"line": 2, "name": "user_pasword"}]
        assert await speaks(client, template) is None


async def draft(harness: Harness, text: str, by: str = "requester") -> dict[str, object]:
    return await in_transaction(harness.db, agents.save_prompt_draft, TEMPLATE, text, harness.people[by].user_id)


async def active(harness: Harness, text: str) -> str:
    """Activates this version, and removes every user's draft."""
    await harness.write("UPDATE prompt_versions SET stage = 'archived' WHERE template = $1", TEMPLATE)
    version = await draft(harness, text, "admin")
    mover = PromptPromoter(harness.people["reviewer"].user_id, frozenset({"reviewer"}))
    for to in (Stage.PRE_PRODUCTION, Stage.ACTIVE):
        async with harness.db.transaction("local") as tx:
            await agents.promote_prompt_template(tx, str(version["id"]), to, str(version["digest"]), mover)
    return str(version["id"])


async def loaded(harness: Harness, address: TurnAddress, agent_id: str = AGENT) -> TurnContext:
    ask = LoadRequest(address=address, agent_id=agent_id, agent_version=await harness.version(agent_id))
    context: TurnContext = await harness.activity(MemoryActivities(harness.deps).load, ask)
    assert context.problem is None
    return context


async def ask_model(harness: Harness, address: TurnAddress, step: int = 1, agent_id: str = AGENT) -> Any:
    call = await harness.model_call(address, step, agent_id)
    await harness.activity(ModelActivities(harness.deps).complete, call)
    return harness.model.seen[-1]


async def began(harness: Harness, by: str = "requester") -> TurnAddress:
    address, _ = await harness.start(Line("one"), Line("two"), agent_id=AGENT, by=by)
    return address


async def test_a_turn_uses_its_users_draft_or_else_the_active_version(harness: Harness) -> None:
    version = await active(harness, "You serve {{user_name}} at {{agent_title}}.")
    await draft(harness, "You try something.")
    theirs, own = await began(harness, "admin"), await began(harness, "requester")
    said = {}
    for address in (theirs, own):
        await loaded(harness, address)
        said[address.turn_id] = (await ask_model(harness, address)).messages[0]["content"]
    assert said[theirs.turn_id].startswith("You serve ")
    assert "{{" not in said[theirs.turn_id] and "A desk whose voice is a template" in said[theirs.turn_id]
    assert said[own.turn_id].startswith("You try something.")
    assert OWN not in said[theirs.turn_id] + said[own.turn_id]
    assert (await harness.value(PERSONA, theirs.turn_id))["version_id"] == version
    (stage,) = await harness.event_data(theirs.turn_id, "stage")
    assert (stage["template"], stage["version_id"], stage["stage"]) == (TEMPLATE, version, "active")
    assert "You serve" not in str(stage), "the text stays out of the events"


async def test_a_version_that_is_promoted_meanwhile_does_not_change_a_running_turn(harness: Harness) -> None:
    await active(harness, "Old voice.")
    address = await began(harness)
    await loaded(harness, address)
    first = (await ask_model(harness, address)).messages[0]
    await active(harness, "New voice.")
    await draft(harness, "Newest voice.")
    await loaded(harness, address)  # started again, by a worker that knows nothing of the first time
    second = (await ask_model(harness, address, step=2)).messages[0]
    assert first == second and str(first["content"]).startswith("Old voice.")
    assert len(await harness.event_data(address.turn_id, "stage")) == 1


@pytest.mark.parametrize("problem", ["not_found", "empty"])
async def test_without_a_version_or_its_text_the_agents_persona_is_used(harness: Harness, problem: str) -> None:
    await active(harness, "{{skill_name}}")
    if problem == "not_found":
        await harness.write("UPDATE prompt_versions SET stage = 'archived' WHERE template = $1", TEMPLATE)
    address = await began(harness)
    await loaded(harness, address)
    await active(harness, "Too late.")
    assert str((await ask_model(harness, address)).messages[0]["content"]).startswith(OWN)
    assert (await harness.value(PERSONA, address.turn_id))["problem"] == problem


@asynccontextmanager
async def unreadable(urls: Urls, how: str) -> AsyncIterator[None]:
    """The templates cannot be read: not allowed, or locked by a transaction that does not end."""
    async with as_owner(urls.owner) as owner:
        if how == "forbidden":
            await owner.execute("REVOKE SELECT ON prompt_versions FROM perdure_app")
            yield
            await owner.execute("GRANT SELECT ON prompt_versions TO perdure_app")
        else:
            async with owner.transaction():
                await owner.execute("LOCK TABLE prompt_versions IN ACCESS EXCLUSIVE MODE")
                yield


@pytest.mark.parametrize("how", ["forbidden", "locked"])
async def test_an_outage_of_the_templates_costs_the_text_and_no_tool(harness: Harness, urls: Urls, how: str) -> None:
    await active(harness, "A fine voice.")
    whole = await began(harness)
    with_template = await loaded(harness, whole)
    tools_whole = (await ask_model(harness, whole)).tools
    address = await began(harness)
    async with unreadable(urls, how):
        without = await loaded(harness, address)
    assert with_template.plan is not None and without.plan is not None
    assert without.plan.cards == with_template.plan.cards
    request = await ask_model(harness, address)
    assert request.tools == tools_whole and len(request.tools) == 5
    assert str(request.messages[0]["content"]).startswith(OWN)
    (stage,) = await harness.event_data(address.turn_id, "stage")
    assert stage["problem"] == "unavailable"
    await loaded(harness, address)
    assert str((await ask_model(harness, address, step=2)).messages[0]["content"]).startswith(OWN), (
        "one turn, one voice"
    )


async def messages_with_skills(
    harness: Harness, address: TurnAddress, step: int, *skills: str, refs: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The messages of a call in a turn that has injected these skills, told of these entities."""
    call = await harness.model_call(address, step, "checked")
    notes = tuple(MessageRef(role=Role.SYSTEM, skill_id=skill, entities=refs) for skill in skills)
    update = {"messages": (*call.ask.messages, *notes), "prompt": {"name": "Ann", "role": "clerk"}}
    ask = call.ask.model_copy(update=update)
    reply = await harness.activity(ModelActivities(harness.deps).complete, call.model_copy(update={"ask": ask}))
    assert reply.problem is None
    return [dict(message) for message in harness.model.seen[-1].messages]


async def test_templates_follow_the_prefix_and_a_skills_text_is_where_it_was_injected(harness: Harness) -> None:
    address, _ = await harness.start(Line("a"), Line("b"), Line("c"), agent_id="checked")
    plain = await messages_with_skills(harness, address, 1)
    assert [message["role"] for message in plain] == ["system", "system", "user"]
    hours = "The desk is open from nine to five."
    assert plain[1]["content"] == f"{hours} You speak for A desk whose skills have rules and checkpoints to Ann."
    loaded = await messages_with_skills(harness, address, 2, "weights", "parcels")
    assert loaded[:3] == plain, "loading moves nothing before it"
    weights, parcels = (str(message["content"]) for message in loaded[3:])
    assert weights.startswith("=== Skill Activated: Weights ===\n## Description\nHow a parcel is weighed.")
    for section in ("## Steps", "## Requirements", "## Output format", "## Artifact: sizes.md"):
        assert section in parcels
    assert "## Entity Context" not in parcels
    statement = "SELECT skill_id, tier FROM injection_ledger WHERE turn_id = $1 ORDER BY skill_id"
    marks = await harness.rows(statement, address.turn_id)
    assert [tuple(mark) for mark in marks] == [("parcels", 3), ("weights", 2)], "one mark each, however often"
    await harness.write("UPDATE turns SET system_prompt = 'Only count.' WHERE id = $1", address.turn_id)
    own = await messages_with_skills(harness, address, 3)
    assert [message["content"] for message in own[:-1]] == ["Only count."], "the caller's own instead of all of it"


async def test_a_skill_gets_the_entities_of_the_turn(harness: Harness) -> None:
    address, _ = await harness.start(Line("a"), agent_id="checked")
    number = new_id()
    async with harness.db.transaction("local") as tx:
        made = await facts.create_entity(tx, "parcel", "The blue one", {"number": number, "weight": 3}, None, None)
    refs = (f"number={number}", f"id={made.id}", "name=nobody", "id=no-id")
    (*_, told) = await messages_with_skills(harness, address, 1, "weights", refs=refs)
    known = f"parcel: The blue one ({made.id})\n- number: {number}\n- weight: 3"
    assert str(told["content"]).endswith(f"## Entity Context\n{known}\n{known}")


async def test_a_claude_model_is_asked_with_a_cache_breakpoint_after_the_prefix(harness: Harness) -> None:
    async with published(harness, as_desk(model="anthropic/claude-sonnet-4-5")):
        address, _ = await harness.start(Line("a"))
        first, *rest = (await ask_model(harness, address, agent_id="desk")).messages
    assert [part["cache_control"] for part in first["content"]] == [{"type": "ephemeral"}]
    assert "cache_control" not in str(rest)
