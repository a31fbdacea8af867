"""Loads skills from their folders: SKILL.md, templates/, artifacts/ and blocks/, with their dependencies."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from perdure.apps.code_blocks import BlockScope, read_blocks
from perdure.apps.files import (
    AppProblem,
    FrontMatter,
    Place,
    YamlFile,
    did_you_mean,
    has_mistakes,
    read_form,
    read_front_matter,
    read_text,
)
from perdure.apps.rules import RuleScope, read_rules
from perdure.contracts.context_assembly import PipelineToolConfig
from perdure.contracts.mcp import McpServer
from perdure.contracts.skills import SKILL_ID_PATTERN, Checkpoint, CodeBlock, Rule, Skill, SkillText
from perdure.contracts.values import Frozen
from perdure.core.agents.prompts import manifest_entry
from perdure.core.agents.templates import VARIABLES, unknown_marks
from perdure.core.text import estimated_tokens
from perdure.sdk.tools import Tool

SECTIONS = ("Steps", "Requirements", "Output format")
"""Sections that a body must have."""
ENTRY_TOKENS = 50
BODY_TOKENS = 800
_OWN_SECTIONS = ("description", "entity context")
"""Sections that the engine writes around the body."""


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
    """Parts that are read separately."""


@dataclass(frozen=True, slots=True)
class SkillScope:
    """The environment that a skill is checked against."""

    app: str
    personas: Mapping[str, str | None]
    """Texts by key; None for an invalid one."""
    tools: Collection[str]
    """Every tool and block of the app and the engine."""
    blocks: BlockScope


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A skill folder after reading."""

    folder: Path
    problems: list[AppProblem]
    front: YamlFile | None = None
    """Its fields with their lines; None if they cannot be read."""
    dependencies: tuple[str, ...] = ()
    """Also set if the skill has other mistakes."""
    skill: Skill | None = None
    """The loaded skill; None if there is a mistake."""


def read_skill(folder: Path, scope: SkillScope) -> SkillFolder:
    """Returns the skill in `folder`, or its mistakes. Dependencies are not checked here."""
    path = folder / "SKILL.md"
    if not path.is_file():
        return SkillFolder(folder, [AppProblem(folder, None, "has no SKILL.md")])
    read = read_front_matter(path)
    if not isinstance(read, FrontMatter):
        return SkillFolder(folder, read)
    front, value = read.front, _plain(read.front.value)
    form, problems = read_form(_Front, value, front)
    problems += body_problems(read)
    blocks, mistakes = read_blocks(folder, scope.blocks)
    problems += mistakes
    rules, mistakes = _rules(read.front.value, front, folder.name, form, scope)
    problems += mistakes
    if form is None:
        return SkillFolder(folder, _in_order(path, problems), front)
    problems += _front_mistakes(form, front, folder.name, scope)
    templates, mistakes = read_templates(folder, form.templates, front)
    problems += mistakes
    artifacts, mistakes = read_artifacts(folder, form.artifacts, front)
    problems += mistakes
    skill = _skill(form, read.body, scope, templates, artifacts, rules, blocks)
    problems += entry_problems(front, f"{skill.id}: {manifest_entry(skill)}")
    opened = {rule.checkpoint for rule in rules}
    problems += [
        front.warning(("checkpoints", index), f"no rule of the skill opens the checkpoint {checkpoint.name}")
        for index, checkpoint in enumerate(skill.checkpoints)
        if checkpoint.name not in opened
    ]
    valid_skill = None if has_mistakes(problems) else skill
    return SkillFolder(folder, _in_order(path, problems), front, form.dependencies, valid_skill)


def _skill(
    form: _Front,
    body: str,
    scope: SkillScope,
    templates: tuple[SkillText, ...],
    artifacts: tuple[SkillText, ...],
    rules: Sequence[Rule],
    blocks: tuple[CodeBlock, ...],
) -> Skill:
    return Skill(
        id=form.id,
        name=form.name.strip(),
        description=form.description.strip(),
        body=body,
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


def _plain(value: object) -> object:
    """Returns the fields without the rules, which have their own form. A checkpoint can be only a name."""
    if not isinstance(value, dict):
        return value
    plain = {name: inner for name, inner in value.items() if name != "rules"}
    checkpoints = plain.get("checkpoints")
    if isinstance(checkpoints, list):
        plain["checkpoints"] = [
            {"name": checkpoint} if isinstance(checkpoint, str) else checkpoint for checkpoint in checkpoints
        ]
    return plain


def _rules(
    value: object, front: YamlFile, skill_id: str, form: _Front | None, scope: SkillScope
) -> tuple[list[Rule], list[AppProblem]]:
    """Returns the skill's rules. They are checked even if its other fields cannot be read."""
    if not isinstance(value, dict) or "rules" not in value:
        return [], []
    checkpoints = None if form is None else [checkpoint.name for checkpoint in form.checkpoints]
    return read_rules(value["rules"], front, ("rules",), RuleScope(scope.app, skill_id, scope.tools, checkpoints))


def _front_mistakes(form: _Front, front: YamlFile, folder: str, scope: SkillScope) -> Iterator[AppProblem]:
    if form.id != folder:
        yield front.problem(("id",), f"the id {form.id!r} must equal the folder's name {folder!r}")
    for key in ("name", "description"):
        if "\n" in getattr(form, key).strip():
            yield front.problem((key,), f"{key}: must be one line")
    if form.persona and form.persona not in scope.personas:
        hint = did_you_mean(form.persona, scope.personas)
        yield front.problem(("persona",), f"unknown persona: personas/{form.persona}.md does not exist{hint}")
    elif form.persona and scope.personas[form.persona] is None:
        yield front.problem(("persona",), f"the persona {form.persona} is invalid; see its own problems")
    for key in ("dependencies", "checkpoints"):
        listed = getattr(form, key)
        for index, entry in enumerate(listed):
            if entry in listed[:index]:
                yield front.problem((key, index), f"{key}: given twice")


def _in_order(path: Path, problems: list[AppProblem]) -> list[AppProblem]:
    return sorted(problems, key=lambda problem: (problem.file != path, str(problem.file), problem.line or 0))


@dataclass(frozen=True, slots=True)
class SkillSet:
    """The skills of one app. A skill is available only if all its dependencies are."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    """The valid ones, by id."""
    broken: frozenset[str] = frozenset()
    """The folders of the invalid ones."""

    def with_dependencies(self, skill_id: str) -> Iterator[Skill]:
        """Returns the skill and then all its dependencies, without duplicates."""
        waiting, seen = [skill_id], set()
        while waiting:
            skill = self.skills[waiting.pop(0)]
            if skill.id not in seen:
                seen.add(skill.id)
                waiting += skill.dependencies
                yield skill


def skill_folders(app: Path) -> list[Path]:
    """Returns the folders under `skills/`, except those that only tools or people need."""
    return sorted(path for path in app.glob("skills/*") if path.is_dir() and path.name[0] not in "._")


def read_skills(app: Path, scope: SkillScope) -> tuple[SkillSet, list[AppProblem]]:
    """Returns the usable skills of an app's folder, and the mistakes by skill. A skill that depends on itself or on an
    unusable one is unusable."""
    folders = {folder.name: read_skill(folder, scope) for folder in skill_folders(app)}
    problems_of = {name: [*skill_folder.problems] for name, skill_folder in folders.items()}
    for name, skill_folder in folders.items():
        problems_of[name] += _unknown_dependencies(skill_folder, folders)
    for cycle in _cycles(folders):
        message = f"depends on itself: {' -> '.join((*cycle, cycle[0]))}"
        problems_of[cycle[0]].append(_problem(folders[cycle[0]], (*cycle, cycle[0])[1], message))
    broken = {name for name, problems in problems_of.items() if has_mistakes(problems)}
    broken |= {name for cycle in _cycles(folders) for name in cycle}
    while needing := [name for name in folders if name not in broken and _broken_dependency(folders[name], broken)]:
        for name in needing:
            dependency = _broken_dependency(folders[name], broken)
            problems_of[name].append(
                _problem(folders[name], dependency, f"depends on {dependency}, which is invalid; see its own problems")
            )
        broken |= {*needing}
    skills = {
        name: skill_folder.skill
        for name, skill_folder in folders.items()
        if skill_folder.skill is not None and name not in broken
    }
    return SkillSet(skills, frozenset(broken)), [problem for name in folders for problem in problems_of[name]]


def _unknown_dependencies(skill: SkillFolder, folders: Mapping[str, SkillFolder]) -> Iterator[AppProblem]:
    for name in dict.fromkeys(skill.dependencies):
        if name not in folders:
            yield _problem(
                skill, name, f"unknown skill {name!r}: skills/{name} does not exist{did_you_mean(name, folders)}"
            )


def _broken_dependency(skill: SkillFolder, broken: set[str]) -> str:
    """Returns the first invalid skill among its dependencies; empty if there is none."""
    return next((name for name in skill.dependencies if name in broken), "")


def _cycles(folders: Mapping[str, SkillFolder]) -> list[tuple[str, ...]]:
    """Returns the shortest dependency cycle of each skill that has one, each cycle once, starting at its first name."""
    cycles: dict[tuple[str, ...], None] = {}
    for name in folders:
        if cycle := _cycle_from(name, folders):
            first = cycle.index(min(cycle))
            cycles[cycle[first:] + cycle[:first]] = None
    return list(cycles)


def _cycle_from(start: str, folders: Mapping[str, SkillFolder]) -> tuple[str, ...]:
    """Returns the shortest path from a skill back to itself; empty if there is none."""
    waiting: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop(0)
        for name in folders[path[-1]].dependencies:
            if name == start:
                return path
            if name in folders and name not in seen:
                seen.add(name)
                waiting.append((*path, name))
    return ()


def _problem(skill: SkillFolder, dependency: str, message: str) -> AppProblem:
    """Returns a mistake at the line on which a skill names another."""
    if skill.front is None:
        return AppProblem(skill.folder / "SKILL.md", None, message)
    return skill.front.problem(("dependencies", skill.dependencies.index(dependency)), message)


def body_problems(read: FrontMatter) -> Iterator[AppProblem]:
    """Returns the mistakes of a body's sections and length."""
    path = read.front.path
    seen: set[str] = set()
    for section in read.sections():
        title = section.title.lower()
        if title in _OWN_SECTIONS:
            yield AppProblem(path, section.line, f"the section {section.title!r} is written by the engine; remove it")
        elif title in seen:
            yield AppProblem(path, section.line, f"the section {section.title!r} appears twice")
        elif not section.text.strip():
            yield AppProblem(path, section.line, f"the section {section.title!r} is empty")
        seen.add(title)
    for required_title in SECTIONS:
        if required_title.lower() not in seen:
            yield AppProblem(path, read.body_line, f"the section '## {required_title}' is missing")
    yield from too_long(YamlFile(path, None, {(): read.body_line}), (), "the body", read.body, BODY_TOKENS)


def entry_problems(front: YamlFile, entry: str) -> Iterator[AppProblem]:
    """Returns the mistakes of a manifest entry's length."""
    yield from too_long(front, ("description",), "the skill's entry in the manifest", entry, ENTRY_TOKENS)


def too_long(file: YamlFile, place: Place, subject: str, text: str, tokens: int) -> Iterator[AppProblem]:
    """Returns a warning above `tokens`, a mistake above twice as many. A manifest entry should have about 50 tokens, a
    body (tier 2) 200 to 800. A larger text is a warning. More than twice as much is rejected, because every call of
    every agent with the skill would pay for it."""
    token_count = estimated_tokens(text)
    message = f"{subject} has about {token_count} tokens; the recommended maximum is {tokens}"
    if token_count > 2 * tokens:
        yield file.problem(place, f"{message} and the limit is {2 * tokens}")
    elif token_count > tokens:
        yield file.warning(place, message)


def read_templates(
    folder: Path, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """Returns the context templates; one with an unknown variable is reported."""
    templates, problems = _listed(folder, "templates", names, front)
    for template in templates:
        problems += _mark_mistakes(folder / "templates" / template.name, template.text)
    return templates, problems


def read_artifacts(
    folder: Path, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """Returns the reference documents unchanged."""
    return _listed(folder, "artifacts", names, front)


def _listed(
    folder: Path, kind: str, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """Returns the files under `kind`/ that the front matter lists, in its order."""
    there = sorted(path.name for path in (folder / kind).glob("*") if path.is_file())
    texts: list[SkillText] = []
    problems: list[AppProblem] = []
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.append(front.problem((kind, index), f"{name} is listed twice"))
        elif name not in there:  # this also prevents names that lead elsewhere
            problems.append(front.problem((kind, index), f"{kind}/{name} does not exist{did_you_mean(name, there)}"))
        else:
            text = read_text(folder / kind / name)
            if isinstance(text, AppProblem):
                problems.append(text)
            else:
                texts.append(SkillText(name=name, text=text.rstrip()))
    forgotten = [name for name in there if name not in names and name.endswith(".md")]
    problems += [front.warning((kind,), f"{kind}/{name} is not listed, so it is never used") for name in forgotten]
    return tuple(texts), problems


def _mark_mistakes(path: Path, text: str) -> Iterator[AppProblem]:
    for line, name in unknown_marks(text):
        message = f"unknown variable {name!r}{did_you_mean(name, VARIABLES)}" if name else "a {{ is not closed"
        yield AppProblem(path, line, message)


@dataclass(frozen=True, slots=True)
class Content:
    """The tools, skills and personas of one app. They are read before its agents."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    skills: SkillSet = field(default_factory=SkillSet)
    personas: Mapping[str, str | None] = field(default_factory=dict)
    """Texts by key; None for an invalid one."""
    reserved: frozenset[str] = frozenset()
    """Names that are never offered."""
    fenced: frozenset[str] = frozenset()
    """Tools only for agents without skills."""
    lost: Mapping[str, Path] = field(default_factory=dict)
    """Tools whose file does not load, with that file."""
    pipelines: Mapping[str, tuple[PipelineToolConfig, ...] | None] = field(default_factory=dict)
    """Registries by name; None for an invalid one."""
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """MCP servers by name; their tools are known when the app is published."""
