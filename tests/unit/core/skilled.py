"""Agents with skills, for tests and for hypothesis."""

from typing import Any

from hypothesis import strategies as st

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.skills import CodeBlock, Skill, SkillText

IDS = ("a", "b", "c", "d")
texts = st.text(alphabet="xyz {}\n", max_size=12)


def skill(skill_id: str, **fields: Any) -> Skill:
    plain = {"id": skill_id, "name": skill_id.upper(), "description": f"Does {skill_id}."}
    return Skill.model_validate({**plain, "body": f"Body of {skill_id}.", **fields})


def block(name: str, **fields: Any) -> CodeBlock:
    """A code block that gives back what it is given."""
    plain = {"name": name, "description": "Does.", "source": "inputs", "llm_visible": True}
    return CodeBlock.model_validate({**plain, "input": {"type": "object"}, "output": {"type": "object"}, **fields})


def agent(*skills: Skill, **fields: Any) -> AgentDefinition:
    plain = {"id": "agent", "title": "The agent", "topology": "t"}
    return AgentDefinition.model_validate({**plain, "skills": skills, **fields})


def _skills(drawn: dict[str, tuple[list[str], list[str], str]]) -> list[Skill]:
    return [
        skill(
            skill_id,
            dependencies=tuple(dependencies),
            templates=tuple(SkillText(name=f"{n}.md", text=text) for n, text in enumerate(templates)),
            persona=persona,
        )
        for skill_id, (dependencies, templates, persona) in drawn.items()
    ]


skill_lists = st.dictionaries(
    st.sampled_from(IDS), st.tuples(st.lists(st.sampled_from(IDS), max_size=2), st.lists(texts, max_size=2), texts)
).map(_skills)
agents = st.builds(
    lambda skills, root, persona: agent(*skills, root_skill=root, persona=persona),
    skill_lists,
    st.none() | st.sampled_from(IDS),
    st.sampled_from(["", "Be brief."]),
)
injections = st.lists(st.sampled_from(IDS), max_size=3)
