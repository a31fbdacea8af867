"""Loads an agent from its YAML file and reports all mistakes with their lines."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from perdure.apps.code_blocks import BlockCheck, RunExample, check_source
from perdure.apps.context_assembly import put_assembly
from perdure.apps.files import (
    AppProblem,
    Place,
    YamlFile,
    did_you_mean,
    has_mistakes,
    problems_of,
    read_form,
    read_yaml,
    unknown_fields,
    unstorable,
    unstorable_problem,
)
from perdure.apps.model_settings import model_problems
from perdure.apps.skills import Content
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.approvals import EXPIRES_SECONDS, ApprovalPolicy, OnTimeout
from perdure.contracts.mcp import server_of
from perdure.contracts.skills import SKILL_ID_PATTERN, CodeBlock, Skill
from perdure.contracts.values import Frozen
from perdure.core.approvals.decisions import ROLES, USER_NAME

_APPROVALS = "approvals"
_INVALID_USER = (
    "{!r} is not a valid user name; use lower-case letters, digits, '.', '_' and '-', and start with a letter"
)
ALWAYS_OFFERED = ("entity_resolve", "context_assemble")
"""The core tools of every agent without `core_tools: false`."""
MEMORY_TOOLS = (
    *("memory_search", "memory_read", "memory_list", "memory_history"),
    *("memory_remember", "memory_patch", "memory_propose_promotion"),
)
"""The tools of document memory; those that write are in the toolset `memory`."""


class _InlineSkill(Frozen):
    """A skill in the agent's own file. Rules, blocks and similar parts have their own files, so they need a folder."""

    id: str = Field(pattern=SKILL_ID_PATTERN)
    name: str
    description: str
    body: str


def resolve_references(
    value: dict[str, Any], file: YamlFile, content: Content
) -> tuple[dict[str, Any], list[AppProblem]]:
    """Returns the agent's fields with resolved `skills` and `persona`, and the mistakes. An agent's file names the
    skills and the persona; the skills include all dependencies."""
    skills, problems = _skills(value, file, content)
    problems += _block_mistakes(skills, file)
    problems += _fence_mistakes(value, skills, file, content)
    persona, persona_problems = _persona(value, file, content)
    resolved = {**value, "skills": tuple(skills)} if "skills" in value or skills else value
    return resolved | persona, problems + persona_problems


def _skills(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[list[Skill], list[AppProblem]]:
    """Returns the agent's skills: the root skill first, each followed by its dependencies, without duplicates."""
    listed = value.get("skills") or []
    if not isinstance(listed, list):
        return [], [file.problem(("skills",), "must be a list of skill folder ids or inline skills")]
    named, written, problems = _read_skill_ids(listed, file)
    root = value.get("root_skill")
    if isinstance(root, str):
        named.insert(0, (("root_skill",), root))
    skills: dict[str, Skill] = {}
    for place, skill_id in named:
        if skill_id in written:
            skills.setdefault(skill_id, written[skill_id])
        elif skill_id in content.skills.skills:
            skills |= {
                entry.id: entry for entry in content.skills.with_dependencies(skill_id) if entry.id not in skills
            }
        elif not any(isinstance(entry, dict) and entry.get("id") == skill_id for entry in listed):
            problems.append(file.problem(place, _missing_skill(skill_id, content)))
    problems += [
        file.problem(
            ("skills",), f"the skill {skill_id} is defined inline, but another skill depends on a folder with this id"
        )
        for skill_id, skill in written.items()
        if skills.get(skill_id) is not skill
    ]
    return list(skills.values()), problems


def _read_skill_ids(
    listed: list[Any], file: YamlFile
) -> tuple[list[tuple[Place, str]], dict[str, Skill], list[AppProblem]]:
    """Returns the ids in `skills`, each with its place; the skills that are written inline, by id; and the mistakes."""
    named: list[tuple[Place, str]] = []
    written: dict[str, Skill] = {}
    problems: list[AppProblem] = []
    for index, entry in enumerate(listed):
        place: Place = ("skills", index)
        skill_id = entry.get("id") if isinstance(entry, dict) else entry
        if any(skill_id == named_id for _, named_id in named):
            problems.append(file.problem(place, f"the skill {skill_id} is listed twice"))
            continue
        if isinstance(entry, dict):
            form, mistakes = read_form(_InlineSkill, entry, file, place)
            problems += mistakes
            if form is not None:
                written[form.id] = Skill(**form.model_dump())
        if isinstance(skill_id, str):
            named.append((place, skill_id))
        elif not isinstance(entry, dict):
            problems.append(file.problem(place, "must be a skill folder's id or an inline skill"))
    return named, written, problems


def _missing_skill(skill_id: str, content: Content) -> str:
    if skill_id in content.skills.broken:
        return f"the skill {skill_id} is invalid; see its own problems"
    return f"unknown skill {skill_id!r}{did_you_mean(skill_id, {*content.skills.skills, *content.skills.broken})}"


def _block_mistakes(skills: list[Skill], file: YamlFile) -> Iterator[AppProblem]:
    """Checks that a name means one block, even if several skills contain it."""
    first: dict[str, tuple[str, CodeBlock]] = {}
    for skill in skills:
        for block in skill.blocks:
            owner, known = first.setdefault(block.name, (skill.id, block))
            if block != known:
                message = f"the skills {owner} and {skill.id} define the block {block.name} differently"
                yield file.problem(("skills",), message)


def _fence_mistakes(
    value: dict[str, Any], skills: list[Skill], file: YamlFile, content: Content
) -> Iterator[AppProblem]:
    blocks = {block.name: skill.id for skill in content.skills.skills.values() for block in skill.blocks}
    named = value.get("tools")
    for index, name in enumerate(named if isinstance(named, list) else []):
        if not isinstance(name, str):
            continue
        if name in content.reserved:
            yield file.problem(("tools", index), f"{name} is reserved and cannot be offered")
        elif name in content.fenced and skills:
            yield file.problem(("tools", index), f"{name} is fenced; only agents without skills can list it")
        elif name in blocks and name not in content.tools:
            message = f"{name} is a code block; list its skill, {blocks[name]}, under `skills`"
            yield file.problem(("tools", index), message)


def _persona(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[dict[str, Any], list[AppProblem]]:
    """Returns the text of the persona that the agent names."""
    key = value.get("persona_key")
    if not isinstance(key, str) or not key:
        return {}, []
    if value.get("persona"):
        return {}, [file.problem(("persona_key",), "set either `persona` or `persona_key`")]
    text = content.personas.get(key)
    if text is None:
        hint = did_you_mean(key, content.personas)
        message = (
            f"the persona {key} is invalid; see its own problems"
            if key in content.personas
            else f"unknown persona {key!r}{hint}"
        )
        return {}, [file.problem(("persona_key",), message)]
    return {"persona": text}, []


def unmet_policy(stated: object, file: YamlFile) -> list[AppProblem]:
    """Returns the parts of the `approvals:` of `file` that can never be satisfied. An invalid form is reported
    elsewhere. A request that no user could ever decide on is rejected here. The check is not part of the policy's
    model, since versions that were published without it must stay readable. Which users exist is unknown before the app
    runs; names that are not valid for any user are known."""
    try:
        policy = ApprovalPolicy.model_validate(stated)
    except ValidationError:
        return []
    return [file.problem((_APPROVALS, *place), reason) for place, reason in _unmet_roles(policy)]


def _unmet_roles(policy: ApprovalPolicy) -> Iterator[tuple[Place, str]]:
    for field in ("reviewer_role", "escalation_role"):
        role = getattr(policy, field)
        if role not in ROLES:
            yield (field,), f"unknown role {role!r}{did_you_mean(role, ROLES)}"
    for index, name in enumerate(policy.reviewers):
        if not re.fullmatch(USER_NAME, name):
            yield ("reviewers", index), _INVALID_USER.format(name)
    if policy.fallback_reviewer and not re.fullmatch(USER_NAME, policy.fallback_reviewer):
        yield ("fallback_reviewer",), _INVALID_USER.format(policy.fallback_reviewer)
    # An escalation starts a second period of the same length.
    open_seconds = policy.expires_seconds * (2 if policy.on_timeout is OnTimeout.ESCALATE else 1)
    if policy.fallback_reviewer and policy.fallback_after_seconds >= open_seconds:
        yield (
            ("fallback_after_seconds",),
            f"the fallback after {policy.fallback_after_seconds} s never happens, because the request expires "
            f"after {open_seconds} s; lower fallback_after_seconds or raise expires_seconds",
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """The features of the engine that will run an app."""

    core_tools: Collection[str] = (*ALWAYS_OFFERED, "create_entity", *MEMORY_TOOLS)
    """Names that any agent can use and that no tool or code block of an app can have."""
    topologies: Collection[str] | None = None
    """Names of the registered topologies; None skips the check."""
    script: type[BaseModel] | None = None
    """The form of a scripted model's rules; None skips the check."""
    expires_seconds: int = EXPIRES_SECONDS
    """Seconds until a request expires, unless the agent's `approvals:` sets them."""
    reserved: Collection[str] = ()
    """Names that are reserved and never offered; an app adds its own with `reserved:` in app.yaml."""
    check_block: BlockCheck = check_source
    """Returns the mistakes of a code block; a sandbox provides its type checker here."""
    try_block: RunExample | None = None
    """Runs the examples of a block's card; None skips them."""


def read_agent(path: Path, content: Content, engine: Engine) -> tuple[AgentDefinition | None, list[AppProblem]]:
    """Returns the agent in `path`, or None, and the mistakes.

    `script:` can be the path of a file, relative to this one. Its content is then part of the agent's version.
    """
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return None, file
    if not isinstance(file.value, dict):
        return None, [file.problem((), "must be a mapping of fields")]
    problems = unknown_fields(AgentDefinition, file.value, file)
    value, script_file = dict(file.value), file
    if isinstance(value.get("script"), str):
        value["script"], script_file, mistakes = _script_beside(value["script"], file)
        problems += mistakes
    place: Place = ("script",) if script_file is file else ()
    problems += _script_problems(value.get("script"), script_file, place, engine)
    problems += _unknown_names(value, file, content, engine)
    problems += _fallback_mistakes(value, file)
    problems += model_problems(value, file)
    if isinstance(approvals := value.get("approvals", {}), dict):
        value["approvals"] = {"expires_seconds": engine.expires_seconds, **approvals}
    problems += unmet_policy(value["approvals"], file)
    unfit = dict(unstorable(file.value))
    problems += [unstorable_problem(file, unstorable_place, reason) for unstorable_place, reason in unfit.items()]
    if script_file is not file:
        problems += [
            unstorable_problem(script_file, unstorable_place, reason)
            for unstorable_place, reason in unstorable(script_file.value)
        ]
    for put in (resolve_references, put_assembly):
        value, mistakes = put(value, file, content)
        problems += mistakes
    definition = None
    try:
        definition = AgentDefinition.model_validate(value)
    except ValidationError as error:
        problems += problems_of(error, file, (), unfit)
    problems.sort(key=lambda problem: (problem.file != path, problem.line or 0))
    return None if has_mistakes(problems) else definition, problems


def _fallback_mistakes(value: Mapping[str, Any], file: YamlFile) -> Iterator[AppProblem]:
    fallback = value.get("fallback")
    if not isinstance(fallback, dict):
        return
    if value.get("fallback_model"):
        yield file.problem(("fallback_model",), "fallback_model and fallback name two models; remove one of them")
    params = fallback.get("params")
    if fallback.get("credential") and isinstance(params, dict):
        for name in ("api_key", "api_key_secret"):
            if name in params:
                message = f"fallback.params.{name} and fallback.credential name two keys; remove one of them"
                yield file.problem(("fallback", "params", name), message)


def _script_beside(name: str, file: YamlFile) -> tuple[Any, YamlFile, list[AppProblem]]:
    """Returns the content of the script's own file, and the file in which its mistakes are reported."""
    path = file.path.parent / name
    script = read_yaml(path) if path.is_file() else None
    if script is None:
        return None, file, [file.problem(("script",), f"there is no file {name}")]
    if not isinstance(script, YamlFile):
        return None, file, script
    return script.value, script, []


def _script_problems(script: Any, file: YamlFile, place: Place, engine: Engine) -> list[AppProblem]:
    if script is None or engine.script is None:
        return []
    try:
        engine.script.model_validate(script)
    except ValidationError as error:
        return problems_of(error, file, place, include_unknown=True)
    return []


def _unknown_names(value: Mapping[str, Any], file: YamlFile, content: Content, engine: Engine) -> list[AppProblem]:
    known = {*content.tools, *engine.core_tools}
    # These have their own mistakes with their own messages.
    elsewhere = (
        {*content.lost}
        | {block.name for skill in content.skills.skills.values() for block in skill.blocks}
        | content.reserved
    )
    named = value.get("tools")
    problems = [
        file.problem(("tools", index), f"unknown tool {name!r}{did_you_mean(name, known | {*content.lost})}")
        for index, name in enumerate(named if isinstance(named, list) else [])
        if isinstance(name, str)
        and name not in known
        and name not in elsewhere
        and server_of(name, content.servers) is None
    ]
    problems += _lost_tools(named, file, content)
    topology = value.get("topology")
    if engine.topologies is not None and isinstance(topology, str) and topology not in engine.topologies:
        hint = did_you_mean(topology, engine.topologies)
        problems.append(file.problem(("topology",), f"unknown topology {topology!r}{hint}"))
    return problems


def _lost_tools(named: object, file: YamlFile, content: Content) -> list[AppProblem]:
    """Returns a line for each tool file that does not load. The file's own mistake has the reason; this one has the
    consequence for the agent."""
    lost: dict[Path, list[str]] = {}
    for name in named if isinstance(named, list) else []:
        if isinstance(name, str) and name in content.lost:
            lost.setdefault(content.lost[name], []).append(name)
    return [
        file.problem(
            ("tools",), f"{path.parent.name}/{path.name} cannot be loaded, so these are missing: {', '.join(names)}"
        )
        for path, names in lost.items()
    ]
