"""A published agent cut down to the plan that its turns pin."""

from collections.abc import Mapping, Sequence

from contracts.agents import PlanCard, PublishedAgent, TurnPlan
from contracts.skills import PlanSkill, Rule, Skill
from contracts.turns import Limits
from policy.assembly import ROOT_SKILL, persona_of
from policy.firing import that_can_fire
from policy.rules import with_overrides


def turn_plan(
    agent: PublishedAgent, limits: Limits, rules: Sequence[Rule] = (), toolsets: Mapping[str, bool] | None = None
) -> TurnPlan:
    """The plan of a turn that starts now; `rules` are those that hold for it (`rules_of`), `toolsets` what its
    conversation has loaded."""
    persona = persona_of(agent.definition)
    cards = tuple(
        PlanCard(
            name=card.name,
            effect=card.effect,
            needs_approval=card.needs_approval,
            capability=card.capability,
            timeout_seconds=card.timeout_seconds,
            wants_state=card.wants_state,
            toolset=card.toolset,
        )
        for card in agent.cards
    )
    return TurnPlan(
        agent_id=agent.definition.id,
        agent_version=agent.version,
        persona_key=persona.key,
        limits=limits,
        cards=cards,
        skill_ids=tuple(skill.id for skill in agent.definition.skills),
        root_skill=agent.definition.root_skill or "",
        persona_source=ROOT_SKILL if persona.source == ROOT_SKILL else "",
        skills=tuple(planned for skill in agent.definition.skills if (planned := _planned(skill)) is not None),
        entity_fields=agent.definition.entity_fields,
        stage_tools={name: stage.tool for name, stage in agent.definition.stages.items() if stage.tool},
        words=agent.definition.words,
        toolsets={**(toolsets or {})},
        rules=that_can_fire(rules, cards),
    )


def rules_of(agent: PublishedAgent, platform: Sequence[Rule], overrides: Mapping[str, str]) -> tuple[Rule, ...]:
    """Every rule of the agent's turns, as a tenant has them: the platform's, its app's and its skills'.

    A skill's rules hold whether or not it is loaded: rules only stop, and its tools can be called only once it is.
    """
    own = [rule for skill in agent.definition.skills for rule in skill.rules]
    return with_overrides([*platform, *agent.rules, *own], overrides)


def _planned(skill: Skill) -> PlanSkill | None:
    planned = PlanSkill(
        id=skill.id,
        dependencies=skill.dependencies,
        tools=tuple(block.name for block in skill.blocks if block.llm_visible),
        templates=len(skill.templates),
        artifacts=len(skill.artifacts),
        checkpoints=skill.checkpoints,
    )
    return None if planned == PlanSkill(id=skill.id) else planned
