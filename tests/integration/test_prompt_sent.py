"""What the model is sent: a prefix that no skill moves, then what the loaded skills bring (S0-17 to S0-23, S0-41)."""

from itertools import permutations
from typing import Any

import pytest

from perdure.activities.model import ModelActivities
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import canonical_json
from perdure.store.database import new_id
from perdure.store.memory import facts
from tests.desk import Desk
from tests.doubles.spoken import Line

SKILLS = ("house", "parcels", "weights")
ORDERS = [order for size in range(len(SKILLS) + 1) for order in permutations(SKILLS, size)]


async def sent(
    desk: Desk, address: TurnAddress, step: int, *skills: str, refs: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The messages of a call in a turn that has injected these skills, told of these entities."""
    call = await desk.model_call(address, step, "checked")
    notes = tuple(MessageRef(role=Role.SYSTEM, skill_id=skill, entities=refs) for skill in skills)
    ask = call.ask.model_copy(
        update={"messages": (*call.ask.messages, *notes), "prompt": {"name": "Ann", "role": "clerk"}}
    )
    reply = await desk.activity(ModelActivities(desk.deps).complete, call.model_copy(update={"ask": ask}))
    assert reply.problem is None
    return [dict(message) for message in desk.model.seen[-1].messages]


async def test_the_prefix_is_the_same_bytes_whatever_is_loaded_and_unloaded_and_in_whichever_order(desk: Desk) -> None:
    address, _ = await desk.start(*[Line("yes")] * len(ORDERS), agent_id="checked")
    seen = [await sent(desk, address, step, *order) for step, order in enumerate(ORDERS, 1)]
    assert len({canonical_json(messages[0]) for messages in seen}) == 1
    assert len({canonical_json(messages) for messages in seen}) > 3, "what follows does change"
    prefix = str(seen[0][0]["content"])
    assert prefix.startswith("You are the clerk of a parcel desk"), "the root skill's persona (S0-17)"
    assert "Name: Ann\nRole: clerk" in prefix
    for skill in SKILLS:
        assert f"- {skill}: " in prefix, "the manifest names every skill (S0-64)"
    assert "Triggers: parcel, send. Tags: post." in prefix


async def test_templates_follow_the_prefix_and_a_skills_text_stands_where_it_was_injected(desk: Desk) -> None:
    address, _ = await desk.start(Line("a"), Line("b"), agent_id="checked")
    plain = await sent(desk, address, 1)
    assert [message["role"] for message in plain] == ["system", "system", "user"]
    assert plain[1]["content"] == (
        "The desk is open from nine to five. You speak for A desk whose skills have rules and checkpoints to Ann."
    )
    loaded = await sent(desk, address, 2, "weights", "parcels")
    assert loaded[:3] == plain, "loading moves nothing before it"
    weights, parcels = (str(message["content"]) for message in loaded[3:])
    assert weights.startswith("=== Skill Activated: Weights ===\n## Description\nHow a parcel is weighed.")
    for section in ("## Steps", "## Requirements", "## Output format", "## Artifact: sizes.md"):
        assert section in parcels
    assert "## Entity Context" not in parcels
    marks = await desk.rows(
        "SELECT skill_id, tier FROM injection_ledger WHERE turn_id = $1 ORDER BY skill_id", address.turn_id
    )
    assert [tuple(mark) for mark in marks] == [("parcels", 3), ("weights", 2)], "one mark each, however often"


async def test_a_skill_is_told_of_the_entities_at_hand(desk: Desk) -> None:
    address, _ = await desk.start(Line("a"), agent_id="checked")
    number = new_id()
    async with desk.db.transaction("local") as tx:
        made = await facts.create_entity(tx, "parcel", "The blue one", {"number": number, "weight": 3}, None, None)
    refs = (f"number={number}", f"id={made.id}", "name=nobody", "id=no-id")
    (*_, told) = await sent(desk, address, 1, "weights", refs=refs)
    known = f"parcel: The blue one ({made.id})\n- number: {number}\n- weight: 3"
    assert str(told["content"]).endswith(f"## Entity Context\n{known}\n{known}")


async def test_the_callers_own_prompt_takes_the_place_of_all_of_it(desk: Desk) -> None:
    address, _ = await desk.start(Line("a"), agent_id="checked")
    await desk.write("UPDATE turns SET system_prompt = 'Only count.' WHERE id = $1", address.turn_id)
    assert [message["content"] for message in (await sent(desk, address, 1))[:-1]] == ["Only count."]


async def test_how_a_prompt_was_put_together_is_told_with_the_generation(desk: Desk) -> None:
    address, _ = await desk.start(Line("a"), agent_id="checked")
    await sent(desk, address, 1, "parcels")
    told = await desk.value(
        "SELECT data->'assembly' FROM events WHERE turn_id = $1 AND kind = 'generation.complete'", address.turn_id
    )
    tokens = told["prompt.assemble"].pop("token_estimate")
    assert tokens > 50
    assert told["agent.resolve_definition"] == {"persona": "clerk"}
    assert told["prompt.assemble"] == {
        "persona_key": "clerk",
        "persona_source": "root_skill",
        "context_template_count": 1,
        "user_identity_injected": True,
    }
    tools = told["tools.assemble"]
    assert tools["skills_loaded"] == ["house", "parcels", "weights"]
    assert tools["core_capability_count"] == tools["total_tools_visible"] == 8
    assert tools["skill_exposed_tool_count"] == 0


@pytest.mark.parametrize("model", ["anthropic/claude-x", "openai/gpt-4o", "scripted"])
async def test_only_anthropic_is_given_a_cache_breakpoint_at_the_end_of_the_prefix(
    desk: Desk, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = await desk.start(Line("a"), agent_id="checked")
    call = await desk.model_call(address, 1, "checked")
    async with desk.db.transaction("local") as tx:
        agent = await desk.deps.shelf.at(tx, "checked", call.agent_version)
    other = agent.model_copy(update={"definition": agent.definition.model_copy(update={"model": model})})
    monkeypatch.setitem(desk.deps.shelf._agents, call.agent_version, other)
    messages = await sent(desk, address, 1)
    marked = [place for place, message in enumerate(messages) if "cache_control" in canonical_json(message)]
    assert marked == ([0] if model.startswith("anthropic/") else [])
