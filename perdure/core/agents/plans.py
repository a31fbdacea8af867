"""Reduces a published agent to the plan that its turns pin."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from perdure.contracts.agents import PlanCard, PublishedAgent, TurnPlan
from perdure.contracts.context_assembly import PipelineToolConfig, PlannedAssembly, PlannedTool
from perdure.contracts.skills import PlanSkill, Rule, Skill
from perdure.contracts.turns import Limits
from perdure.contracts.values import digest_of
from perdure.core.agents.prompts import ROOT_SKILL_PERSONA, persona_of
from perdure.core.agents.rules import applicable_rules, with_overrides


def turn_plan(
    agent: PublishedAgent,
    limits: Limits,
    rules: Sequence[Rule] = (),
    toolsets: Mapping[str, bool] | None = None,
    exempt_tools: Sequence[str] = (),
) -> TurnPlan:
    """Returns the plan of a turn that starts now.

    `rules` are those that apply to it (`rules_of`), `toolsets` those that its conversation has loaded, `exempt_tools`
    the tools that its tenant exempts from approval (`exempted_tools`).
    """
    persona = persona_of(agent.definition)
    cards = _plan_cards(agent)
    return TurnPlan(
        agent_id=agent.definition.id,
        agent_version=agent.version,
        persona_key=persona.key,
        limits=limits,
        cards=cards,
        model=agent.definition.model,
        reviewers=agent.definition.approvals.reviewers,
        skill_ids=tuple(skill.id for skill in agent.definition.skills),
        root_skill=agent.definition.root_skill or "",
        persona_source=ROOT_SKILL_PERSONA if persona.source == ROOT_SKILL_PERSONA else "",
        skills=tuple(planned for skill in agent.definition.skills if (planned := _plan_skill(skill)) is not None),
        entity_fields=agent.definition.entity_fields,
        stage_tools={name: stage.tool for name, stage in agent.definition.stages.items() if stage.tool},
        words=agent.definition.words,
        toolsets={**(toolsets or {})},
        facts=agent.definition.memory.facts if agent.definition.memory else (),
        rules=applicable_rules(rules, cards),
        waived=tuple(exempt_tools),
        assembly=_plan_assembly(agent),
    )


MAX_PLAN_BYTES = 96 * 1024
"""The maximum size of a plan as JSON, about 500 tools with long names. Every pause and every renewed run carries it,
besides a round of up to 512 calls, within 256 KiB (ADR 34)."""


def plan_bytes(agent: PublishedAgent, platform: Sequence[Rule]) -> int:
    """Returns the size of the agent's plan as JSON, with every rule that can apply to it."""
    plan = turn_plan(agent, agent.definition.limits, rules_of(agent, platform, {}))
    return len(plan.model_dump_json().encode())


def rules_of(agent: PublishedAgent, platform: Sequence[Rule], overrides: Mapping[str, str]) -> tuple[Rule, ...]:
    """Returns every rule of the agent's turns with the tenant's changes: the platform's, its app's and its skills'.

    A skill's rules apply even if it is not loaded: rules only stop calls, and its tools can be called only after
    loading.
    """
    own = [rule for skill in agent.definition.skills for rule in skill.rules]
    return with_overrides([*platform, *agent.rules, *own], overrides)


def _plan_cards(agent: PublishedAgent) -> tuple[PlanCard, ...]:
    """Returns the cards of the tools that a model can be offered, with the fields that a graph needs."""
    offered = _offered_tools(agent)
    return tuple(
        PlanCard(
            name=card.name,
            effect=card.effect,
            needs_approval=card.needs_approval,
            capability=card.capability,
            timeout_seconds=card.timeout_seconds,
            wants_state=card.wants_state,
            toolset=card.toolset,
            checks=card.checks,
        )
        for card in agent.cards
        if offered is None or card.name in offered
    )


def _offered_tools(agent: PublishedAgent) -> set[str] | None:
    """Returns the tools that a model can be offered, or None if it can be offered all. Tools that only assemble the
    context are excluded."""
    assembly = agent.definition.assembly
    if assembly is None:
        return None
    return {card.name for card in agent.cards if assembly.config(card.name) is None} | {*agent.definition.tools}


def _plan_assembly(agent: PublishedAgent) -> PlannedAssembly | None:
    assembly = agent.definition.assembly
    if assembly is None:
        return None
    names = {config.name for config in assembly.registry}
    return PlannedAssembly(
        tools=tuple(
            PlannedTool(
                name=config.name,
                dependencies=tuple(each for each in config.dependencies if each in names),
                optional=config.optional,
                hears=config.hears,
                timeout_seconds=config.timeout,
                injects=config.inject_inputs,
                basis=digest_of(
                    [
                        _version_of(agent, config.name),
                        _pinned_config(config),
                        assembly.tool_entry(config.name).arguments,
                    ]
                ),
            )
            for config in assembly.registry
        ),
        threshold=assembly.threshold,
        intents=assembly.intents,
        default_intent=assembly.default_intent,
        intervention=assembly.intervention,
        patience_seconds=assembly.patience_seconds,
    )


def _version_of(agent: PublishedAgent, tool: str) -> str:
    card = agent.card(tool)
    return card.version if card else ""


def _pinned_config(config: PipelineToolConfig) -> JsonValue:
    """Returns the parts of a configuration that an output depends on. The number of attempts is not one of them."""
    return config.model_dump(mode="json", include={"name", "dependencies", "inject_inputs", "defaults", "hears"})


def _plan_skill(skill: Skill) -> PlanSkill | None:
    planned = PlanSkill(
        id=skill.id,
        dependencies=skill.dependencies,
        tools=tuple(block.name for block in skill.blocks if block.llm_visible),
        templates=len(skill.templates),
        artifacts=len(skill.artifacts),
        checkpoints=skill.checkpoints,
    )
    return None if planned == PlanSkill(id=skill.id) else planned
