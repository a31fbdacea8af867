"""A skill from its folder: SKILL.md, templates/, artifacts/, blocks/. What it depends on: skill_set.py."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from contracts.frozen import Frozen
from contracts.skills import SKILL_ID_PATTERN, Checkpoint, Rule, Skill
from perdure.apps.block_files import BlockScope, read_blocks
from perdure.apps.form import read_form
from perdure.apps.front_matter import FrontMatter, read_front_matter
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.rule_files import RuleScope, read_rules
from perdure.apps.skill_body import body_problems, entry_problems
from perdure.apps.skill_texts import read_artifacts, read_templates
from perdure.apps.yaml_file import YamlFile
from policy.assembly import manifest_entry


class _Front(Frozen):
    id: str = Field(pattern=SKILL_ID_PATTERN)
    name: str = Field(min_length=1, max_length=80)
    description: str = Field(min_length=1)
    triggers: tuple[str, ...] = ()
    domain_tags: tuple[str, ...] = ()
    persona: str = ""
    dependencies: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    rules: None = None
    """Read apart."""


@dataclass(frozen=True, slots=True)
class SkillScope:
    """What a skill is checked against."""

    app: str
    personas: Mapping[str, str | None]
    """Texts by key; None for one with mistakes."""
    tools: Collection[str]
    """Every tool and block of the app and the engine."""
    blocks: BlockScope


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A folder as it was read."""

    folder: Path
    problems: list[AppProblem]
    front: YamlFile | None = None
    """Its fields with their lines; None where there are none to read."""
    dependencies: tuple[str, ...] = ()
    """Known also where the skill has other mistakes."""
    skill: Skill | None = None
    """None where there is a mistake."""


def read_skill(folder: Path, scope: SkillScope) -> SkillFolder:
    """The skill in `folder`, or why there is none; what it depends on is not looked at here."""
    path = folder / "SKILL.md"
    if not path.is_file():
        return SkillFolder(folder, [AppProblem(folder, None, "has no SKILL.md")])
    read = read_front_matter(path)
    if not isinstance(read, FrontMatter):
        return SkillFolder(folder, read)
    front, value = read.front, _plain(read.front.value)
    form, problems = read_form(_Front, value, front)
    problems += body_problems(read)
    blocks, found = read_blocks(folder, scope.blocks)
    problems += found
    rules, found = _rules(read.front.value, front, folder.name, form, scope)
    problems += found
    if form is None:
        return SkillFolder(folder, _in_order(path, problems), front)
    problems += _front_mistakes(form, front, folder.name, scope)
    templates, found = read_templates(folder, form.templates, front)
    problems += found
    artifacts, found = read_artifacts(folder, form.artifacts, front)
    problems += found
    skill = Skill(
        id=form.id,
        name=form.name.strip(),
        description=form.description.strip(),
        body=read.body,
        triggers=form.triggers,
        domain_tags=form.domain_tags,
        persona_key=form.persona,
        persona=scope.personas.get(form.persona) or "",
        dependencies=form.dependencies,
        templates=templates,
        artifacts=artifacts,
        checkpoints=form.checkpoints,
        rules=tuple(rules),
        blocks=blocks,
    )
    problems += entry_problems(front, f"{skill.id}: {manifest_entry(skill)}")
    opened = {rule.checkpoint for rule in rules}
    problems += [
        front.warning(("checkpoints", index), f"no rule of the skill opens the checkpoint {checkpoint.name}")
        for index, checkpoint in enumerate(skill.checkpoints)
        if checkpoint.name not in opened
    ]
    kept = None if has_mistakes(problems) else skill
    return SkillFolder(folder, _in_order(path, problems), front, form.dependencies, kept)


def _plain(value: object) -> object:
    """The fields without the rules, which have a form of their own; a checkpoint may be its name alone."""
    if not isinstance(value, dict):
        return value
    plain = {name: inner for name, inner in value.items() if name != "rules"}
    checkpoints = plain.get("checkpoints")
    if isinstance(checkpoints, list):
        plain["checkpoints"] = [{"name": each} if isinstance(each, str) else each for each in checkpoints]
    return plain


def _rules(
    value: object, front: YamlFile, skill_id: str, form: _Front | None, scope: SkillScope
) -> tuple[list[Rule], list[AppProblem]]:
    """The skill's rules, looked at also where its other fields cannot be read."""
    if not isinstance(value, dict) or "rules" not in value:
        return [], []
    checkpoints = None if form is None else [checkpoint.name for checkpoint in form.checkpoints]
    return read_rules(value["rules"], front, ("rules",), RuleScope(scope.app, skill_id, scope.tools, checkpoints))


def _front_mistakes(form: _Front, front: YamlFile, folder: str, scope: SkillScope) -> Iterator[AppProblem]:
    if form.id != folder:
        yield front.problem(("id",), f"the id is {form.id!r}, the name of its folder {folder!r}")
    for field in ("name", "description"):
        if "\n" in getattr(form, field).strip():
            yield front.problem((field,), f"{field}: must be one line")
    if form.persona and form.persona not in scope.personas:
        hint = did_you_mean(form.persona, scope.personas)
        yield front.problem(("persona",), f"unknown persona: there is no personas/{form.persona}.md{hint}")
    elif form.persona and scope.personas[form.persona] is None:
        yield front.problem(("persona",), f"the persona {form.persona} has mistakes")
    for field in ("dependencies", "checkpoints"):
        listed = getattr(form, field)
        for index, each in enumerate(listed):
            if each in listed[:index]:
                yield front.problem((field, index), f"{field}: given twice")


def _in_order(path: Path, problems: list[AppProblem]) -> list[AppProblem]:
    return sorted(problems, key=lambda problem: (problem.file != path, str(problem.file), problem.line or 0))
