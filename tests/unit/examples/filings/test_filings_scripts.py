"""The filings app as it is loaded and published, and how the scripted model plays its five agents: each text gives its
calls, and the figures come from the results."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from syrupy.assertion import SnapshotAssertion

from perdure.activities.providers.scripted import Script
from perdure.activities.toolbox.engine_tools import CORE_BY_NAME
from perdure.apps import App, Engine, load_app, publish
from perdure.contracts.agents import DayLimits, PublishedAgent
from perdure.contracts.values import canonical_json
from perdure.core.agents import prompts
from perdure.core.agents.plans import turn_plan
from perdure.core.agents.toolsets import offered_tools
from perdure.core.text import estimated_tokens
from tests.local_egress import new_client
from tests.unit.apps.tool_contexts import context
from tests.unit.examples.filings.blocks import FILINGS, blocks, run
from tests.unit.examples.scripted_answers import scripted_answer

AGENTS = FILINGS / "agents"
BARE = ("flaring_monitor", "compliance_monitor")
"""Their tools answer without a wrapper."""
REFUSED = "The call to {} was rejected by rita: the plat is old\nIt has not run. Tell the user so."
DOMAIN = re.compile(r"\b(wells?|leases?|rule|flar\w+|filing|texas|rrc|gas|oil|spacing|operator|commission)\b", re.I)
DESK_DAY = DayLimits(max_tokens=2_000_000, max_cost_microusd=100_000_000)
MONITOR_DAY = DayLimits(max_tokens=500_000, max_cost_microusd=30_000_000)
RULE_37_TOOLS = {"spacing_assessment", "offset_well_analysis", "rule37_filing_assembly", "good_cause_narrative"}
RULE_32_TOOLS = {"flaring_volume_calc", "gas_analysis", "rule32_filing_assembly", "emissions_estimate"}
CORE = {"entity_resolve", "context_assemble"}


@cache
def _agent(agent_id: str) -> str:
    return (AGENTS / f"{agent_id}.yaml").read_text()


def agent(agent_id: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(_agent(agent_id))
    read["script"] = yaml.safe_load((AGENTS / read["script"]).read_text())
    return read


def agent_ids() -> list[str]:
    return sorted(path.stem for path in Path(AGENTS).glob("*.yaml"))


@dataclass(slots=True)
class Turn:
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    answer: str = ""


async def answer(agent_id: str, messages: Sequence[dict[str, Any]], offered: Sequence[str]) -> tuple[str, list[Any]]:
    return await scripted_answer(agent(agent_id)["script"], messages, offered)


async def play(agent_id: str, text: str, before: Turn | None = None) -> Turn:
    """The turn that `text` starts, to its end; after `before`, in the same conversation."""
    turn = Turn(list(before.messages), loaded=list(before.loaded)) if before else Turn()
    turn.messages.append({"role": "user", "content": text})
    definition = agent(agent_id)
    for _ in range(6):
        shown = [name for name, block in blocks().items() if block.skill in turn.loaded]
        offered = ["entity_resolve", "context_assemble", *definition.get("tools", ()), *shown]
        turn.answer, calls = await answer(agent_id, turn.messages, offered)
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        turn.messages.append(message)
        if calls:
            assert {name for name, _ in calls} <= set(offered)
            message["tool_calls"] = [
                {"id": f"c{len(turn.calls)}", "type": "function", "function": {"name": name}} for name, _ in calls
            ]
            for name, args in calls:
                output = _output(agent_id, name, args)
                call_id = f"c{len(turn.calls)}"
                turn.messages.append({"role": "tool", "tool_call_id": call_id, "content": json.dumps(output)})
                turn.calls.append((name, args))
            continue
        selected = [each for each in re.findall(r"SKILL_SELECT:(\w+)", turn.answer) if each not in turn.loaded]
        if not selected:
            return turn
        assert set(selected) <= set(definition["skills"])
        turn.loaded += selected
        for each in selected:
            body = (FILINGS / "skills" / each / "SKILL.md").read_text().split("---\n", 2)[2]
            turn.messages.append({"role": "system", "content": f"=== Skill Activated: {each} ===\n{body}"})
    raise AssertionError(f"{agent_id} does not come to an end: {turn.calls}")


def _output(agent_id: str, name: str, args: dict[str, Any]) -> dict[str, Any]:
    if name == "create_entity":
        assert sorted(args) == ["attributes", "kind", "name"]
        return {"status": "created", "entity": {"id": "e1", **args}}
    if name == "entity_resolve":
        return {"status": "not_found", "candidates": []}
    Draft202012Validator(blocks()[name].card["input"]).validate(args)
    result = run(name, args)
    return result if agent_id in BARE else {"status": "ok", "message": "", "result": result}


SPACING, REGISTER = "330.00", "Register the well Lone Star 1, API 42-999-00099"
WELL, LEASE = "Mitchell Ranch 1H", "Mitchell Ranch"
SPRING = {"lease_name": "North Pasture", "from_month": "2026-03", "to_month": "2026-05"}
ASKED = {"requested_mcf_per_day": 85, "from_day": "2026-07-01", "to_day": "2026-12-27"}
ASKED_TEXT = "Prepare the Rule 32 filing for Cottonwood at 85 mcf a day from 2026-07-01 to 2026-12-27"
OFFSETS = {"well_name": "Dry Fork 2", "radius_ft": 2000}
RULE_37: list[tuple[str, str, dict[str, Any], str]] = [
    (f"Assess spacing for {WELL}", "spacing_assessment", {"well_name": WELL}, SPACING),
    ("assess the spacing of Al's Well 7.", "spacing_assessment", {"well_name": "Al's Well 7"}, "Al's Well 7"),
    ("List the offset wells around Dry Fork 2 within 2000 ft", "offset_well_analysis", OFFSETS, "216.9"),
    ("Find offset wells for Dry Fork 2", "offset_well_analysis", {"well_name": "Dry Fork 2"}, "2,640"),
    (f"Assess spacing for the well {WELL}", "spacing_assessment", {"well_name": WELL}, SPACING),
    (f"Prepare the Rule 37 filing for {WELL}", "rule37_filing_assembly", {"well_name": WELL}, "plat"),
]
RULE_32: list[tuple[str, str, dict[str, Any], str]] = [
    (f"Calculate flaring for {LEASE}", "flaring_volume_calc", {"lease_name": LEASE}, "22,744"),
    ("Calculate flaring of North Pasture from 2026-03 to 2026-05", "flaring_volume_calc", SPRING, "30"),
    ("Analyze the gas of Cottonwood", "gas_analysis", {"lease_name": "Cottonwood"}, "1,076.9"),
    (f"Estimate emissions for {LEASE}", "emissions_estimate", {"lease_name": LEASE}, "22,744"),
    (f"Prepare the Rule 32 filing for {LEASE}", "rule32_filing_assembly", {"lease_name": LEASE}, "requested"),
    (ASKED_TEXT, "rule32_filing_assembly", {"lease_name": "Cottonwood"} | ASKED, "180"),
]


@pytest.mark.parametrize(
    ("agent_id", "asked"), [*(("rule_37", each) for each in RULE_37), *(("rule_32", each) for each in RULE_32)]
)
async def test_a_desk_selects_calls_and_reports(agent_id: str, asked: tuple[str, str, dict[str, Any], str]) -> None:
    text, tool, args, said = asked
    turn = await play(agent_id, text)
    assert (turn.loaded, turn.calls) == ([f"rrc_{agent_id.replace('_', '')}"], [(tool, args)])
    assert said in turn.answer and "SKILL_SELECT" not in turn.answer


async def test_a_loaded_skill_is_not_selected_again() -> None:
    first = await play("rule_37", "Assess spacing for Mitchell Ranch 1H")
    second = await play("rule_37", "Prepare the Rule 37 filing for Dry Fork 2", first)
    assert [name for name, _ in second.calls] == ["rule37_filing_assembly"] and second.loaded == ["rrc_rule37"]
    assert not any("SKILL_SELECT" in str(each["content"]) for each in second.messages[len(first.messages) :])


async def test_good_cause_is_argued_from_the_users_fact_alone() -> None:
    turn = await play("rule_37", "Draft the good cause for Dry Fork 2, waste: a regular location leaves oil behind")
    ((tool, args),) = turn.calls
    assert tool == "good_cause_narrative" and args["facts"][0]["statement"] == "a regular location leaves oil behind"
    assert "a regular location leaves oil behind" in turn.answer and "F1" in turn.answer


@pytest.mark.parametrize("text", [REGISTER, "register the well Lone Star 1 API number 42-999-00099."])
async def test_registering_a_well_creates_an_entity_without_a_skill(text: str) -> None:
    turn = await play("rule_37", text)
    well = {"kind": "well", "name": "Lone Star 1", "attributes": {"api_number": "42-999-00099"}}
    assert turn.calls == [("create_entity", well)]
    assert "Lone Star 1" in turn.answer and "e1" in turn.answer and turn.loaded == []


@pytest.mark.parametrize(("agent_id", "text", "tool"), [
    ("flaring_monitor", "Report flaring for Mitchell Ranch", "flaring_volume_calc"),
    ("flaring_monitor", "Estimate emissions for Twin Windmills", "emissions_estimate"),
    ("compliance_monitor", "Check compliance of Twin Windmills", "flaring_volume_calc"),
    ("compliance_monitor", "Check compliance of Dry Fork", "flaring_volume_calc"),
])  # fmt: skip
async def test_monitors_tell_without_a_skill(agent_id: str, text: str, tool: str, snapshot: SnapshotAssertion) -> None:
    turn = await play(agent_id, text)
    assert [name for name, _ in turn.calls] == [tool] and turn.loaded == [] and turn.answer == snapshot


@pytest.mark.parametrize("text", [
    "Prepare the Rule 37 filing for Mitchell Ranch 1H", "Assess spacing for Mitchell Ranch 1H",
    "How much did Cottonwood flare, and was the flaring allowed?", REGISTER, "Is this lease in compliance?",
])  # fmt: skip
async def test_the_general_agent_refuses_the_work_of_a_field(text: str) -> None:
    turn = await play("general", text)
    assert turn.calls == [] and turn.answer and turn.answer != agent("general")["script"]["fallback"].strip()


@pytest.mark.parametrize("agent_id", agent_ids())
async def test_every_agent_echoes_says_what_it_can_and_ends(agent_id: str) -> None:
    assert (await play(agent_id, "/echo Assess spacing for x")).answer == "Assess spacing for x"
    help_text = (await play(agent_id, "What?")).answer
    assert help_text == agent(agent_id)["script"]["fallback"].strip()
    looked_up = await play(agent_id, "Find Lone Star 1")
    assert looked_up.answer not in ("", help_text) and ("entity_resolve", {"name": "Lone Star 1"}) in looked_up.calls


@pytest.mark.parametrize("agent_id", ["rule_37", "rule_32", "compliance_monitor", "flaring_monitor"])
async def test_every_suggested_message_is_understood(agent_id: str) -> None:
    fallback = agent(agent_id)["script"]["fallback"]
    offered = fallback.split('"')[1::2]
    assert len(offered) >= 2
    for text in offered:
        turn = await play(agent_id, " ".join(text.split()))
        assert turn.calls and turn.answer != fallback.strip(), text


@pytest.mark.parametrize(("agent_id", "text", "tool"), [
    ("rule_37", REGISTER, "create_entity"),
    ("rule_37", "Prepare the Rule 37 filing for Dry Fork 2", "rule37_filing_assembly"),
    ("rule_32", "Prepare the Rule 32 filing for Cottonwood", "rule32_filing_assembly"),
])  # fmt: skip
async def test_a_rejection_is_reported_with_its_reason_and_no_call_follows(agent_id: str, text: str, tool: str) -> None:
    """Whether the call never ran, or its result is there and a person refused it."""
    done = await play(agent_id, text)
    note = {"role": "system", "content": REFUSED.format(tool)}
    with_result = [*done.messages[:-1], note]
    for messages in ([{"role": "user", "content": text}, note], with_result):
        said, calls = await answer(agent_id, messages, [tool])
        assert calls == [] and "rita" in said and "the plat is old" in said


@pytest.mark.parametrize("notes", [[], [{"role": "system", "content": "The checkpoint pre_filing was approved."}]])
async def test_an_approved_package_is_reported_and_not_assembled_again(notes: list[dict[str, Any]]) -> None:
    done = await play("rule_37", "Prepare the Rule 37 filing for Dry Fork 2")
    said, calls = await answer("rule_37", [*done.messages[:-1], *notes], ["rule37_filing_assembly"])
    assert calls == [] and said == done.answer


async def test_a_failed_call_and_a_changed_one_are_reported_as_such() -> None:
    done = await play("rule_37", "Assess spacing for Mitchell Ranch 1H")
    *before, result, _ = done.messages
    failed = {**result, "content": '{"status": "error", "message": "the block ran too long"}'}
    said, calls = await answer("rule_37", [*before, failed], [])
    assert "the block ran too long" in said and calls == []
    changed = {**result, "content": canonical_json(prompts.with_changed_arguments({}, json.loads(result["content"])))}
    said, calls = await answer("rule_37", [*before, changed], [])
    assert said != done.answer and said.endswith(done.answer) and calls == []


def load(folder: Path) -> App:
    return load_app(folder, Engine(topologies=("skill_pipeline",), script=Script))


@pytest.fixture(scope="module")
def filings_app(tmp_path_factory: pytest.TempPathFactory) -> App:
    return load(Path(shutil.copytree(FILINGS, tmp_path_factory.mktemp("app") / "filings")))


@pytest.fixture(scope="module")
def agents(filings_app: App) -> dict[str, PublishedAgent]:
    return {each.definition.id: each for each in publish(filings_app, [tool.card for tool in CORE_BY_NAME.values()])}


def test_the_keyless_model_is_the_fallback_of_one_with_a_key(agents: dict[str, PublishedAgent]) -> None:
    """With the scripted model it is not called, and its library is not loaded."""
    second = {agent_id: agent.definition.fallback_model for agent_id, agent in agents.items()}
    assert second.pop("general") == ""
    assert set(second.values()) == {"openai/gpt-4o-mini"}
    definition = agents["rule_37"].definition
    assert (definition.model, definition.second_model) == ("scripted", "")
    assert definition.model_copy(update={"model": "openai/gpt-4o"}).second_model == "openai/gpt-4o-mini"


def test_every_agent_remembers_turns_and_the_desks_well(agents: dict[str, PublishedAgent]) -> None:
    """Turns recall the nearest three; the well comes from the fields of working memory that the agent names."""
    remembering = {agent_id: agent.definition.memory for agent_id, agent in agents.items()}
    memories = {agent_id: (each.episodic, each.hits) for agent_id, each in remembering.items() if each}
    assert memories == dict.fromkeys(agents, (True, 3))
    for desk in ("rule_37", "rule_32"):
        fields = turn_plan(agents[desk], agents[desk].definition.limits).entity_fields
        assert fields == {"well_api": "api_number", "entity_id": "id"}


@pytest.mark.parametrize(("agent_id", "tokens", "dollars", "day"), [
    ("rule_37", 150_000, 10, DESK_DAY), ("rule_32", 100_000, 8, DESK_DAY),
    ("compliance_monitor", 200_000, 15, MONITOR_DAY), ("flaring_monitor", 300_000, 20, MONITOR_DAY),
    ("general", 100_000, 5, None),
])  # fmt: skip
def test_each_agent_has_its_budget_per_turn_and_per_day(
    agents: dict[str, PublishedAgent], agent_id: str, tokens: int, dollars: int, day: DayLimits | None
) -> None:
    definition = agents[agent_id].definition
    limits = definition.limits
    assert (limits.max_tokens, limits.max_cost_microusd) == (tokens, dollars * 1_000_000)
    assert limits.max_iterations == 20 and definition.day_limits == day
    assert (definition.topology, definition.model) == ("skill_pipeline", "scripted")


@pytest.mark.parametrize(("agent_id", "skill", "own", "brought"), [
    ("rule_37", "rrc_rule37", {"create_entity"}, RULE_37_TOOLS),
    ("rule_32", "rrc_rule32", set(), RULE_32_TOOLS),
    ("compliance_monitor", "rrc_rule32", {"flaring_volume_calc"}, set()),
    ("flaring_monitor", "rrc_rule32", {"flaring_volume_calc", "emissions_estimate"}, set()),
    ("general", "rrc_rule37", set(), set()),
])  # fmt: skip
def test_a_turn_has_core_tools_and_those_of_its_skills(
    agents: dict[str, PublishedAgent], agent_id: str, skill: str, own: set[str], brought: set[str]
) -> None:
    plan = turn_plan(agents[agent_id], agents[agent_id].definition.limits)
    assert set(offered_tools(plan, [])) == CORE | own
    assert set(offered_tools(plan, [skill])) == CORE | own | brought


def test_the_checkpoints_come_from_the_skills_own_rules(filings_app: App) -> None:
    """The monitors have none."""
    rules = [rule for skill in filings_app.skills.values() for rule in skill.rules]
    assert {(str(rule.when["tool"]), rule.checkpoint) for rule in rules} == {
        ("rule37_filing_assembly", "pre_filing"),
        ("good_cause_narrative", "good_cause_review"),
        ("rule32_filing_assembly", "pre_filing"),
    }
    assert {(rule.on, rule.do) for rule in rules} == {("after_tool_call", "require_hitl")}
    assert filings_app.rules == () and all(
        not agent.skills for agent in filings_app.agents if agent.id.endswith("_monitor")
    )


def test_the_persona_is_the_agents_or_else_its_root_skills(agents: dict[str, PublishedAgent]) -> None:
    """The persona of a skill that is only selected has no effect."""
    personas = {agent_id: prompts.persona_of(each.definition) for agent_id, each in agents.items()}
    assert {agent_id: (persona.key, persona.source) for agent_id, persona in personas.items()} == {
        "rule_37": ("spacing_specialist", "agent"), "rule_32": ("flaring_specialist", "agent"),
        "compliance_monitor": ("monitor", "agent"), "flaring_monitor": ("monitor", "agent"),
        "general": ("platform_default", "platform_default"),
    }  # fmt: skip
    bare = agents["rule_37"].definition.model_copy(update={"persona": "", "persona_key": ""})
    assert (prompts.persona_of(bare).key, prompts.persona_of(bare).source) == ("filing_specialist", "root_skill")


def test_the_general_agents_prompt_names_no_field(agents: dict[str, PublishedAgent]) -> None:
    general = agents["general"].definition
    assert general.root_skill is None and general.skills == ()
    desk = agents["rule_37"].definition
    assert not DOMAIN.search(prompts.system_prefix(general, prompts.persona_of(general), prompts.User("Ann", "clerk")))
    assert DOMAIN.search(prompts.system_prefix(desk, prompts.persona_of(desk), prompts.User("Ann", "clerk")))


def test_a_skills_parts_fit_their_tiers_and_its_templates_are_filled(filings_app: App) -> None:
    """The loader reports what is too long; this checks what is too short."""
    (rule_37,) = (agent for agent in filings_app.agents if agent.id == "rule_37")
    for skill in filings_app.skills.values():
        assert 200 <= estimated_tokens(skill.body) <= 800, skill.id
        assert skill.artifacts and skill.templates and skill.triggers and skill.domain_tags
        assert skill.artifacts[0].text in prompts.skill_activation(skill)
    texts = prompts.template_messages(rule_37, list(filings_app.skills.values()), prompts.User("Ann"))
    assert "Ann" in texts[0]
    assert not any("{{" in text for text in texts)


def test_a_block_with_a_reserved_name_is_refused_and_the_rest_loads(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILINGS, tmp_path / "filings"))
    place = folder / "skills" / "rrc_rule37" / "blocks"
    for suffix in (".py", ".yaml"):
        (place / f"spacing_assessment{suffix}").rename(place / f"spacing_calculation{suffix}")
    app = load(folder)
    told = [str(problem) for problem in app.problems]
    assert any("spacing_calculation" in each for each in told)
    assert {agent.id for agent in app.agents} == {"rule_32", "compliance_monitor", "flaring_monitor", "general"}


@pytest.mark.parametrize(("name", "args"), [
    ("flaring_volume_calc", {"lease_name": "Mitchell Ranch"}),
    ("flaring_volume_calc", {"lease_name": "North Pasture", "from_month": "2026-03", "to_month": "2026-05"}),
    ("emissions_estimate", {"lease_name": "Twin Windmills", "from_month": "2026-04"}),
    ("emissions_estimate", {"lease_name": "Nowhere"}),
])  # fmt: skip
async def test_a_fenced_tool_returns_its_blocks_result(filings_app: App, name: str, args: dict[str, Any]) -> None:
    tool = filings_app.tools[name]
    assert tool.card.effect.value == "read" and not tool.card.needs_approval
    async with new_client() as http:
        assert (await tool.run(args, context(tool.card, http=http))).output == run(name, args)
