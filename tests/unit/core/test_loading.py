"""Which skills are loaded, and so which tools are offered."""

import pytest
from hypothesis import given

from perdure.contracts.agents import AgentDefinition, PlanCard, PublishedAgent, ToolCard, TurnPlan
from perdure.contracts.calls import EffectClass
from perdure.contracts.skills import PlanSkill
from perdure.contracts.turns import Limits
from perdure.core.agents.plans import turn_plan
from perdure.core.agents.toolsets import loaded_ids, loaded_skills, offered_tools
from tests.unit.core.skilled import IDS, agent, agents, block, injections, skill


def plan(*tools: str, **fields: object) -> TurnPlan:
    cards = tuple(PlanCard(name=name, effect=EffectClass.READ, needs_approval=False) for name in tools)
    plain = {"agent_id": "a", "agent_version": "v", "persona_key": "k", "limits": Limits(), "cards": cards}
    return TurnPlan.model_validate({**plain, **fields})


PLAN = plan(
    "resolve",
    "space",
    "shared",
    "tell",
    skill_ids=("a", "b", "c"),
    root_skill="c",
    skills=(
        PlanSkill(id="a", dependencies=("b",), tools=("space", "shared")),
        PlanSkill(id="c", tools=("tell", "shared")),
    ),
)


@pytest.mark.parametrize(
    ("injected", "loaded", "offered"),
    [
        ([], ("c",), ("resolve", "shared", "tell")),
        (["a"], ("a", "b", "c"), ("resolve", "space", "shared", "tell")),
        (["b"], ("b", "c"), ("resolve", "shared", "tell")),
        (["nowhere"], ("c",), ("resolve", "shared", "tell")),
    ],
)
def test_a_model_is_offered_core_tools_and_the_blocks_of_loaded_skills_each_once(
    injected: list[str], loaded: tuple[str, ...], offered: tuple[str, ...]
) -> None:
    assert loaded_ids(PLAN, injected) == loaded
    assert offered_tools(PLAN, injected) == offered


def test_an_agent_without_skill_folders_is_offered_all_that_it_has() -> None:
    assert offered_tools(plan("x", "y", skill_ids=("a",)), []) == ("x", "y")


@given(agents, injections)
def test_a_loaded_skill_brings_all_that_it_depends_on_and_nothing_else(
    definition: AgentDefinition, injected: list[str]
) -> None:
    loaded = loaded_skills(definition, injected)
    ids = {each.id for each in loaded}
    asked = {definition.root_skill, *injected}
    own = {each.id for each in definition.skills}
    assert asked & own <= ids <= own
    for each in loaded:
        assert set(each.dependencies) & own <= ids
        assert each.id in asked or any(each.id in other.dependencies for other in loaded)
    assert list(loaded) == [each for each in definition.skills if each.id in ids]


@given(agents, injections)
def test_a_plan_tells_the_same_as_the_agent_itself(definition: AgentDefinition, injected: list[str]) -> None:
    pinned = turn_plan(PublishedAgent(definition=definition, cards=(), version="v"), Limits())
    read = TurnPlan.model_validate(pinned.model_dump(mode="json"))
    assert loaded_ids(read, injected) == tuple(each.id for each in loaded_skills(definition, injected))


def test_a_block_that_no_model_may_see_is_never_offered() -> None:
    hidden = agent(skill("a", blocks=(block("inner", llm_visible=False), block("outer"))), root_skill="a")
    card = ToolCard(
        name="outer", description="d", parameters={}, effect=EffectClass.READ, needs_approval=False, version="1"
    )
    pinned = turn_plan(PublishedAgent(definition=hidden, cards=(card,), version="v"), Limits())
    assert offered_tools(pinned, IDS) == ("outer",)
