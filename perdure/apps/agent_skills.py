"""What an agent's file names of its app, put in its place: skills with all that they depend on, the persona's text."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from contracts.frozen import Frozen
from contracts.skills import SKILL_ID_PATTERN, CodeBlock, Skill
from perdure.apps.content import Content
from perdure.apps.form import read_form
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import Place, YamlFile


class _WrittenOut(Frozen):
    """A skill in the agent's own file. Rules, blocks and the like have files of their own, so they need a folder."""

    id: str = Field(pattern=SKILL_ID_PATTERN)
    name: str
    description: str
    body: str


def put_in_place(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[dict[str, Any], list[AppProblem]]:
    """The fields of an agent with `skills` and `persona` as the engine needs them, and what is wrong with them."""
    skills, problems = _skills(value, file, content)
    problems += _block_mistakes(skills, file)
    problems += _fence_mistakes(value, skills, file, content)
    persona, found = _persona(value, file, content)
    placed = {**value, "skills": tuple(skills)} if "skills" in value or skills else value
    return placed | persona, problems + found


def _skills(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[list[Skill], list[AppProblem]]:
    """The agent's skills: the root skill first, each followed by what it depends on, none twice."""
    skills: dict[str, Skill] = {}
    written: dict[str, Skill] = {}
    problems: list[AppProblem] = []
    named: list[tuple[Place, str]] = []
    listed = value.get("skills") or []
    if not isinstance(listed, list):
        return [], [file.problem(("skills",), "must be a list of ids of skill folders, or of skills written out")]
    for index, each in enumerate(listed):
        place: Place = ("skills", index)
        skill_id = each.get("id") if isinstance(each, dict) else each
        if any(skill_id == other for _, other in named):
            problems.append(file.problem(place, f"the skill {skill_id} is given twice"))
            continue
        if isinstance(each, dict):
            form, mistakes = read_form(_WrittenOut, each, file, place)
            problems += mistakes
            if form is not None:
                written[form.id] = Skill(**form.model_dump())
        if not isinstance(skill_id, str):
            if not isinstance(each, dict):
                problems.append(file.problem(place, "must be the id of a skill folder, or a skill written out"))
            continue
        named.append((place, skill_id))
    root = value.get("root_skill")
    if isinstance(root, str):
        named.insert(0, (("root_skill",), root))
    for place, skill_id in named:
        if skill_id in written:
            skills.setdefault(skill_id, written[skill_id])
        elif skill_id in content.skills.skills:
            skills |= {each.id: each for each in content.skills.with_dependencies(skill_id) if each.id not in skills}
        elif not any(isinstance(each, dict) and each.get("id") == skill_id for each in listed):
            problems.append(file.problem(place, _missing(skill_id, content)))
    problems += [
        file.problem(("skills",), f"the skill {skill_id} is written out here and is a folder that another one needs")
        for skill_id, skill in written.items()
        if skills.get(skill_id) is not skill
    ]
    return list(skills.values()), problems


def _missing(skill_id: str, content: Content) -> str:
    if skill_id in content.skills.broken:
        return f"the skill {skill_id} has mistakes"
    return f"unknown skill {skill_id!r}{did_you_mean(skill_id, {*content.skills.skills, *content.skills.broken})}"


def _block_mistakes(skills: list[Skill], file: YamlFile) -> Iterator[AppProblem]:
    """A name stands for one block, however many skills bring it (S0-41)."""
    first: dict[str, tuple[str, CodeBlock]] = {}
    for skill in skills:
        for block in skill.blocks:
            owner, known = first.setdefault(block.name, (skill.id, block))
            if block != known:
                why = f"the skills {owner} and {skill.id} define the block {block.name} differently"
                yield file.problem(("skills",), why)


def _fence_mistakes(
    value: dict[str, Any], skills: list[Skill], file: YamlFile, content: Content
) -> Iterator[AppProblem]:
    blocks = {block.name: skill.id for skill in content.skills.skills.values() for block in skill.blocks}
    named = value.get("tools")
    for index, name in enumerate(named if isinstance(named, list) else []):
        if not isinstance(name, str):
            continue
        if name in content.reserved:
            yield file.problem(("tools", index), f"{name} is a reserved name, which is never offered")
        elif name in content.fenced and skills:
            yield file.problem(("tools", index), f"{name} is fenced: only an agent without skills may name it")
        elif name in blocks and name not in content.tools:
            why = f"{name} is a code block: name its skill, {blocks[name]}, under skills"
            yield file.problem(("tools", index), why)


def _persona(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[dict[str, Any], list[AppProblem]]:
    """The text of the persona that the agent names."""
    key = value.get("persona_key")
    if not isinstance(key, str) or not key:
        return {}, []
    if value.get("persona"):
        return {}, [file.problem(("persona_key",), "give either a persona or the key of one")]
    text = content.personas.get(key)
    if text is None:
        hint = did_you_mean(key, content.personas)
        why = f"the persona {key} has mistakes" if key in content.personas else f"unknown persona {key!r}{hint}"
        return {}, [file.problem(("persona_key",), why)]
    return {"persona": text}, []
