"""An agent from its YAML file: every mistake with its line, not only the first."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from contracts.agents import AgentDefinition
from contracts.digests import canonical_json
from perdure.apps.engine import Engine
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import Place, YamlFile, read_yaml
from policy.text import is_clean


def read_agent(path: Path, tools: Collection[str], engine: Engine) -> tuple[AgentDefinition | None, list[AppProblem]]:
    """The agent in `path`, or None and why; `tools` are the names of its app's tools.

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
    problems += _unknown_names(value, file, tools, engine)
    definition = None
    try:
        definition = AgentDefinition.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        # Unknown fields have been told already, with the nearest known name.
        problems += _told([each for each in mistakes if each["type"] != "extra_forbidden"], file, ())
    if definition is not None and not _storable(definition):
        problems.append(file.problem((), "holds a NUL or a number that is not finite, which cannot be stored"))
    problems.sort(key=lambda problem: (problem.file != path, problem.line or 0))
    return (None, problems) if problems else (definition, [])


def unknown_fields(model: type[BaseModel], value: Mapping[str, Any], file: YamlFile) -> list[AppProblem]:
    """Fields of `value`, at any depth, that `model` has not: also where the model itself would let them pass."""
    return _unknown_in(model, value, file, ())


def _unknown_in(model: type[BaseModel], value: Mapping[str, Any], file: YamlFile, place: Place) -> list[AppProblem]:
    problems = []
    for name, inner in value.items():
        if name not in model.model_fields:
            problems.append(
                file.problem((*place, name), f"unknown field {name!r}{did_you_mean(name, model.model_fields)}")
            )
            continue
        nested = _model_in(model.model_fields[name].annotation)
        if nested is not None and isinstance(inner, dict):
            problems += _unknown_in(nested, inner, file, (*place, name))
    return problems


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _script_problems(script: Any, file: YamlFile, place: Place, engine: Engine) -> list[AppProblem]:
    if script is None or engine.script is None:
        return []
    try:
        engine.script.model_validate(script)
    except ValidationError as error:
        return _told(error.errors(include_url=False, include_input=False), file, place)
    return []


def _told(mistakes: Sequence[ErrorDetails], file: YamlFile, place: Place) -> list[AppProblem]:
    problems = []
    for each in mistakes:
        where = ".".join(map(str, each["loc"]))
        problems.append(file.problem((*place, *each["loc"]), f"{where}: {each['msg']}" if where else each["msg"]))
    return problems


def _storable(definition: AgentDefinition) -> bool:
    try:
        text = canonical_json(definition.model_dump(mode="json"))
    except ValueError:
        return False
    return "\\u0000" not in text and is_clean(text)


def _unknown_names(
    value: Mapping[str, Any], file: YamlFile, tools: Collection[str], engine: Engine
) -> list[AppProblem]:
    known = {*tools, *engine.core_tools}
    named = value.get("tools")
    problems = [
        file.problem(("tools", index), f"unknown tool {name!r}{did_you_mean(name, known)}")
        for index, name in enumerate(named if isinstance(named, list) else [])
        if isinstance(name, str) and name not in known
    ]
    topology = value.get("topology")
    if engine.topologies is not None and isinstance(topology, str) and topology not in engine.topologies:
        hint = did_you_mean(topology, engine.topologies)
        problems.append(file.problem(("topology",), f"unknown topology {topology!r}{hint}"))
    return problems
