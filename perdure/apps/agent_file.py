"""An agent from its YAML file: every mistake with its line, not only the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts.agents import AgentDefinition
from perdure.apps.agent_assembly import put_assembly
from perdure.apps.agent_skills import put_in_place
from perdure.apps.content import Content
from perdure.apps.engine import Engine
from perdure.apps.form import told, unfit_problem, unknown_fields, unstorable
from perdure.apps.mcp_files import server_of
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.reviewing import unmet_policy
from perdure.apps.yaml_file import Place, YamlFile, read_yaml


def read_agent(path: Path, content: Content, engine: Engine) -> tuple[AgentDefinition | None, list[AppProblem]]:
    """The agent in `path`, or None and why.

    `script:` may be the path of a file, relative to this one; its content is then part of the agent's version.
    """
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return None, file
    if not isinstance(file.value, dict):
        return None, [file.problem((), "must be a list of fields with their values")]
    problems = unknown_fields(AgentDefinition, file.value, file)
    value, script_file = dict(file.value), file
    script_place: Place = ("script",)
    if isinstance(value.get("script"), str):
        script_path = path.parent / value["script"]
        script = read_yaml(script_path) if script_path.is_file() else None
        if script is None:
            problems.append(file.problem(("script",), f"there is no file {value['script']}"))
            value["script"] = None
        elif isinstance(script, YamlFile):
            value["script"], script_file, script_place = script.value, script, ()
        else:
            problems += script
            value["script"] = None
    problems += _script_problems(value.get("script"), script_file, script_place, engine)
    problems += _unknown_names(value, file, content, engine)
    if isinstance(approvals := value.get("approvals", {}), dict):
        value["approvals"] = {"expires_seconds": engine.expires_seconds, **approvals}
    problems += unmet_policy(value["approvals"], file)
    unfit = dict(unstorable(file.value))
    problems += [unfit_problem(file, each, why) for each, why in unfit.items()]
    if script_file is not file:
        problems += [unfit_problem(script_file, each, why) for each, why in unstorable(script_file.value)]
    for put in (put_in_place, put_assembly):
        value, mistakes = put(value, file, content)
        problems += mistakes
    definition = None
    try:
        definition = AgentDefinition.model_validate(value)
    except ValidationError as error:
        problems += told(error, file, (), unfit)
    problems.sort(key=lambda problem: (problem.file != path, problem.line or 0))
    return None if has_mistakes(problems) else definition, problems


def _script_problems(script: Any, file: YamlFile, place: Place, engine: Engine) -> list[AppProblem]:
    if script is None or engine.script is None:
        return []
    try:
        engine.script.model_validate(script)
    except ValidationError as error:
        return told(error, file, place, unknown=True)
    return []


def _unknown_names(value: Mapping[str, Any], file: YamlFile, content: Content, engine: Engine) -> list[AppProblem]:
    known = {*content.tools, *engine.core_tools}
    # These have a mistake of their own (agent_skills.py).
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
    """A line for each tool file that does not load: it says itself why, here only what that costs the agent."""
    lost: dict[Path, list[str]] = {}
    for name in named if isinstance(named, list) else []:
        if isinstance(name, str) and name in content.lost:
            lost.setdefault(content.lost[name], []).append(name)
    return [
        file.problem(
            ("tools",), f"{path.parent.name}/{path.name} does not load, so these are missing: {', '.join(names)}"
        )
        for path, names in lost.items()
    ]
