"""The skills of a turn as state: those that its conversation has loaded, and those that it loads."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from perdure.contracts.agents import TurnPlan
from perdure.contracts.calls import ModelReply
from perdure.contracts.errors import Problem
from perdure.contracts.events import SKILL_INJECTED
from perdure.contracts.messages import MessageRef, Patch, Role
from perdure.core.agents.skills import LOAD_SKILL, SKILL_ARGUMENT
from perdure.core.agents.toolsets import with_dependencies
from perdure.core.text import preview
from perdure.graph.nodes.fields import messages_of, plan_of
from perdure.graph.ports import Ports
from perdure.graph.spec import State

NO_ANSWER = Problem(
    code="model_empty_answer", message="The model gave no answer. It only named skills that cannot be loaded."
)
_NOT_LOADABLE = "is already loaded or is not one of the skills. Answer without loading another skill."
MAX_ENTITIES = 3
"""A skill receives at most this many entities; those that the app names come first."""


def current_entities(state: State, plan: TurnPlan) -> tuple[str, ...]:
    """Returns the current entities as `attribute=value`: those of working memory in the agent's fields, then the one
    that was used last."""
    working, recent = state["working"], state["recent_entity_context"]
    fields = working if isinstance(working, dict) else {}
    named = [
        f"{attribute}={preview(str(fields[field]))}"
        for field, attribute in plan.entity_fields.items()
        if fields.get(field)
    ]
    newest = [f"id={recent[-1]}"] if isinstance(recent, list) and recent else []
    return tuple(dict.fromkeys([*named, *newest]))[:MAX_ENTITIES]


def carried_patch(state: State, plan: TurnPlan) -> Patch:
    """Returns the fields of a turn that starts with the skills of its conversation; empty if there are none. A
    reference to each precedes the turn's messages, so that each request has one copy of its text.

    A turn that is restored from a pause has its skills already.
    """
    messages, injected = messages_of(state), state["injected_skill_ids"]
    before = [str(each) for each in injected] if isinstance(injected, list) else []
    new_ids = [each for each in plan.loaded_skills if each not in before]
    if not new_ids:
        return {}
    entities = current_entities(state, plan)
    refs = [MessageRef(role=Role.SYSTEM, skill_id=each, entities=entities, carried=True) for each in new_ids]
    patch: Patch = {
        "messages": [each.model_dump(mode="json") for each in (*refs, *messages)],
        "injected_skill_ids": [*before, *new_ids],
    }
    if "active_skills" in state:
        patch["active_skills"] = with_tiers(state["active_skills"], plan, new_ids)
    return patch


def can_load(plan: TurnPlan) -> bool:
    """Returns whether `load_skill` is offered: the agent has skills, and no tool of this name."""
    return bool(plan.skill_ids) and plan.card(LOAD_SKILL) is None


def loaded_patch(state: State, ports: Ports, reply: ModelReply, *, always: bool) -> Patch:
    """Returns the fields after the skills that an answer loads: with `load_skill`, and with markers in an answer with
    calls, or in each answer with `always`. `selected_skill_ids` then has those that markers load.

    The references precede the turn's messages, so that a pause of the round keeps them.
    """
    plan, injected = plan_of(state), state["injected_skill_ids"]
    before = [str(each) for each in injected] if isinstance(injected, list) else []
    calls = reply.message.calls if reply.message is not None else ()
    called = [str(each.args[SKILL_ARGUMENT]) for each in calls if each.tool == LOAD_SKILL and each.args]
    marked = [each for each in reply.extracted if calls or always]
    new_ids = [each for each in with_dependencies(plan, [*called, *marked]) if each not in before]
    patch: Patch = {"selected_skill_ids": [each for each in new_ids if each in marked]} if always else {}
    if not new_ids:
        return patch
    messages, tiers = messages_of(state), with_tiers({}, plan, new_ids)
    start = next((at for at, message in enumerate(messages) if not message.skill_id), len(messages))
    refs = [MessageRef(role=Role.SYSTEM, skill_id=each, entities=current_entities(state, plan)) for each in new_ids]
    for each in new_ids:
        ports.events.emit(SKILL_INJECTED, {"skill_id": each, "tier": tiers[each]})
    patch["messages"] = [each.model_dump(mode="json") for each in (*messages[:start], *refs, *messages[start:])]
    patch["injected_skill_ids"] = [*before, *new_ids]
    if "active_skills" in state:
        patch["active_skills"] = with_tiers(state["active_skills"], plan, new_ids)
    return patch


def explained_patch(state: State, marks: Sequence[str]) -> Patch:
    """Returns the fields after an answer without text whose markers load nothing. The first time, a note asks the model
    for an answer; the second time, the turn fails."""
    if state["skills_explained"]:
        return {"error": NO_ANSWER.model_dump(mode="json"), "status": "failed"}
    note = MessageRef(role=Role.SYSTEM, text=f"No skill was loaded: {', '.join(marks) or 'a marker'} {_NOT_LOADABLE}")
    messages: list[JsonValue] = [each.model_dump(mode="json") for each in (*messages_of(state), note)]
    return {"messages": messages, "skills_explained": True}


def ends_with_note(state: State) -> bool:
    """Returns whether the last message is a note to the model, after which it is called again."""
    last = messages_of(state)[-1]
    return last.role is Role.SYSTEM and not last.skill_id


def carried_ids(messages: Sequence[MessageRef]) -> set[str]:
    """Returns the skills that an earlier turn loaded and that this turn has not loaded again."""
    return {message.skill_id for message in messages if message.carried}


def without_skills(messages: Sequence[JsonValue], skill_ids: Sequence[str]) -> list[JsonValue]:
    """Returns the messages of a state without the references to these skills."""
    return [each for each in messages if not (isinstance(each, dict) and each.get("skill_id") in skill_ids)]


def with_tiers(active: JsonValue, plan: TurnPlan, new_ids: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the loaded skills with their tiers, after these are loaded."""
    tiers: Mapping[str, JsonValue] = {skill.id: 3 for skill in plan.skills if skill.artifacts}
    return {**(active if isinstance(active, dict) else {}), **{each: tiers.get(each, 2) for each in new_ids}}
