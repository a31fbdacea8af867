"""What an agent's file says under `assembly:`, put in its place: the registry that it names, cut to the tools that it
lists, with a warning where the list leaves out what one of them depends on (S1-24).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from contracts.pipeline import TOPOLOGY
from perdure.apps.content import Content
from perdure.apps.pipeline_files import Registry, parameters_of
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import Place, YamlFile
from policy.classification import Question
from policy.danger import is_phrase
from policy.phases import left_out

_TOOLS: Place = ("assembly", "tools")


def put_assembly(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[dict[str, Any], list[AppProblem]]:
    """The agent's fields with the assembly as the engine needs it, and what is wrong with it."""
    own, needed = value.get("assembly"), value.get("topology") == TOPOLOGY
    if not isinstance(own, dict):
        why = f"the topology {TOPOLOGY} needs `assembly:`"
        return value, [file.problem(("topology",), why)] if needed and own is None else []
    entries = _entries(own.get("tools"))
    if entries is not None:  # whatever else is wrong, a name alone is no mistake
        own = {**own, "tools": entries}
        value = {**value, "assembly": own}
    if not needed:
        return value, [file.problem(("assembly",), f"assembly: only the topology {TOPOLOGY} has one")]
    if "registry" in own:
        return value, [file.problem(("assembly", "registry"), "name the registry under `pipeline:`")]
    problems = [*_stage_mistakes(value, file), *_danger_mistakes(own.get("danger"), file)]
    name = own.get("pipeline")
    if not isinstance(name, str):
        return value, problems  # what pydantic says of it is enough
    registry = content.pipelines.get(name)
    if registry is None:
        hint = did_you_mean(name, content.pipelines)
        why = f"the pipeline {name} has mistakes" if name in content.pipelines else f"unknown pipeline {name!r}{hint}"
        return value, [*problems, file.problem(("assembly", "pipeline"), why)]
    if entries is None:
        if "tools" in own:
            return value, problems  # it is no list
        entries = [{"name": config.name} for config in registry]
    problems += [*_mistakes(entries, registry, file, content)]
    names = [each["name"] for each in entries if isinstance(each, dict) and "name" in each]
    problems += [
        file.warning(
            (*_TOOLS, names.index(tool)), f"{tool} depends on {dependency}, which this agent's list leaves out"
        )
        for tool, dependency in left_out(names, {config.name: config.dependencies for config in registry})
    ]
    kept = tuple(config for config in registry if config.name in names)
    return {**value, "assembly": {**own, "tools": entries, "registry": kept}}, problems


def _entries(listed: object) -> list[Any] | None:
    """What a list of tools says, each as a mapping; None where it is no list."""
    if not isinstance(listed, list):
        return None
    return [{"name": each} if isinstance(each, str) else each for each in listed]


def _stage_mistakes(value: Mapping[str, Any], file: YamlFile) -> Iterator[AppProblem]:
    """Each question needs instructions, and these alone: a persona or a caller's own prompt could talk it over."""
    stages = value.get("stages")
    for question in Question:
        stage = stages.get(question.value) if isinstance(stages, dict) else None
        if not isinstance(stage, dict) or not stage.get("prompt") or stage.get("alone") is not True:
            place: Place = ("stages", question.value) if isinstance(stage, dict) else ("assembly",)
            yield file.problem(place, f"the stage `{question.value}` needs a `prompt`, and `alone: true`")


def _danger_mistakes(danger: object, file: YamlFile) -> Iterator[AppProblem]:
    """Each phrase must be one that can be found in a message."""
    for category, phrases in danger.items() if isinstance(danger, dict) else ():
        for index, phrase in enumerate(phrases if isinstance(phrases, list) else []):
            if isinstance(phrase, str) and not is_phrase(phrase):
                why = f"{phrase!r} is no phrase: words, and a `*` behind the last of them where it may go on"
                yield file.problem(("assembly", "danger", category, index), why)


def _mistakes(entries: list[Any], registry: Registry, file: YamlFile, content: Content) -> Iterator[AppProblem]:
    known = [config.name for config in registry]
    seen: list[object] = []
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            yield file.problem((*_TOOLS, index), f"the tool {name} is given twice")
        elif name not in known:
            yield file.problem((*_TOOLS, index), f"{name!r} is not in the pipeline{did_you_mean(name, known)}")
        else:
            yield from _argument_mistakes(entry, index, file, parameters_of(content.tools[name].card))
        seen.append(name)


def _argument_mistakes(entry: Mapping[str, Any], index: int, file: YamlFile, taken: list[str]) -> Iterator[AppProblem]:
    given = entry.get("arguments")
    for key in given if isinstance(given, dict) else ():
        if key not in taken:
            why = f"{entry['name']} has no parameter {key!r}{did_you_mean(str(key), taken)}"
            yield file.problem((*_TOOLS, index, "arguments", key), why)
