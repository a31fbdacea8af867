"""Resolves `assembly:` of an agent's file: the registry that it names, reduced to the listed tools.

If the list omits a dependency of one of its tools, there is a warning.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.apps.files import AppProblem, Place, YamlFile, did_you_mean, has_mistakes, read_form, read_yaml
from perdure.apps.skills import Content
from perdure.contracts.agents import ToolCard
from perdure.contracts.calls import EffectClass
from perdure.contracts.context_assembly import TOPOLOGY, PipelineToolConfig
from perdure.core.agents.message_verdicts import Question
from perdure.core.agents.safety_keywords import is_phrase
from perdure.core.calls.context_assembly import group_phases, left_out
from perdure.sdk.tools import Tool

Registry = tuple[PipelineToolConfig, ...]
SAID = "said"
"""The parameter of a tool that receives the conversation."""
_TOOLS: Place = ("assembly", "tools")


def read_pipelines(
    folder: Path, tools: Mapping[str, Tool], lost: Collection[str]
) -> tuple[dict[str, Registry | None], list[AppProblem]]:
    """Returns the registries by name, None for an invalid one. `lost` are tools whose own file does not load. A
    registry, `pipelines/<name>.yaml`, has the tools that assemble a turn's context, with their dependencies. A registry
    that could not run is rejected here, so that no turn encounters it."""
    registries: dict[str, Registry | None] = {}
    problems: list[AppProblem] = []
    for path in sorted(path for path in folder.glob("pipelines/*") if path.suffix in (".yaml", ".yml")):
        file = read_yaml(path)
        if not isinstance(file, YamlFile):
            registries[path.stem], mistakes = None, file
        else:
            registries[path.stem], mistakes = _read(file, tools, lost)
        problems += mistakes
    return registries, problems


def _read(file: YamlFile, tools: Mapping[str, Tool], lost: Collection[str]) -> tuple[Registry | None, list[AppProblem]]:
    listed = file.value.get("tools") if isinstance(file.value, dict) else None
    if not isinstance(listed, list) or not listed or len(file.value) > 1:
        return None, [file.problem((), "must be `tools:` with a list of tools, each with a `name`")]
    problems: list[AppProblem] = []
    configs: dict[str, PipelineToolConfig] = {}
    for index, entry in enumerate(listed):
        place: Place = ("tools", index)
        config, mistakes = read_form(PipelineToolConfig, entry, file, place)
        problems += mistakes
        if config is None:
            continue
        if config.name in configs:
            problems.append(file.problem((*place, "name"), f"the tool {config.name} is listed twice"))
        configs[config.name] = config
        problems += _tool_mistakes(config, file, place, tools, lost)
    names = [entry.get("name") for entry in listed if isinstance(entry, dict)]
    for index, entry in enumerate(listed):
        problems += _dependency_mistakes(
            entry, file, ("tools", index), [name for name in names if isinstance(name, str)]
        )
    if not has_mistakes(problems):
        try:
            group_phases({name: config.dependencies for name, config in configs.items()})
        except ValueError as cycle:
            problems.append(file.problem(("tools", _place_of(names, str(cycle)), "dependencies"), str(cycle)))
    return (None if has_mistakes(problems) else tuple(configs.values())), problems


def _place_of(names: Sequence[object], cycle: str) -> int:
    """Returns the first tool of the registry that the cycle names."""
    circle = cycle.partition(": ")[2].split(" -> ")
    return next(index for index, name in enumerate(names) if name in circle)


def _dependency_mistakes(entry: object, file: YamlFile, place: Place, names: Collection[str]) -> Iterator[AppProblem]:
    dependencies = entry.get("dependencies") if isinstance(entry, dict) else None
    for index, name in enumerate(dependencies if isinstance(dependencies, list) else []):
        if isinstance(name, str) and name not in names:
            hint = did_you_mean(name, names)
            yield file.problem((*place, "dependencies", index), f"unknown dependency {name!r}{hint}")


def _tool_mistakes(
    config: PipelineToolConfig, file: YamlFile, place: Place, tools: Mapping[str, Tool], lost: Collection[str]
) -> Iterator[AppProblem]:
    if config.name not in tools:
        hint = "" if config.name in lost else did_you_mean(config.name, tools)
        reason = "its file cannot be loaded" if config.name in lost else f"the app has no such tool{hint}"
        yield file.problem((*place, "name"), f"{config.name}: {reason}")
        return
    card = tools[config.name].card
    if card.effect is not EffectClass.READ:
        reason = (
            f"{config.name} has the effect class {card.effect.value}; pipeline tools are retried, so the class "
            "must be read"
        )
        yield file.problem((*place, "name"), reason)
    taken = parameters_of(card)
    if config.hears and SAID not in taken:
        yield file.problem(
            (*place, "hears"), f"{config.name} needs a parameter `{SAID}`, which receives the conversation"
        )
    for field, keys in (("inject_inputs", config.inject_inputs), ("defaults", config.defaults)):
        for index, key in enumerate(keys):
            if key not in taken:
                key_or_index = key if field == "defaults" else index
                yield file.problem(
                    (*place, field, key_or_index), f"{config.name} has no parameter {key!r}{did_you_mean(key, taken)}"
                )


def parameters_of(card: ToolCard) -> list[str]:
    """Returns the names of a tool's parameters."""
    properties = card.parameters.get("properties")
    return [*properties] if isinstance(properties, dict) else []


def put_assembly(value: dict[str, Any], file: YamlFile, content: Content) -> tuple[dict[str, Any], list[AppProblem]]:
    """Returns the agent's fields with the resolved assembly, and the mistakes."""
    assembly, is_needed = value.get("assembly"), value.get("topology") == TOPOLOGY
    if not isinstance(assembly, dict):
        message = f"the topology {TOPOLOGY} needs `assembly:`"
        return value, [file.problem(("topology",), message)] if is_needed and assembly is None else []
    entries = _entries(assembly.get("tools"))
    if entries is not None:  # even with other mistakes, a plain name is valid
        assembly = {**assembly, "tools": entries}
        value = {**value, "assembly": assembly}
    if not is_needed:
        return value, [file.problem(("assembly",), f"assembly: only the topology {TOPOLOGY} has one")]
    if "registry" in assembly:
        return value, [file.problem(("assembly", "registry"), "must name a registry under `pipeline:`")]
    problems = [*_stage_mistakes(value, file), *_danger_mistakes(assembly.get("danger"), file)]
    name = assembly.get("pipeline")
    if not isinstance(name, str):
        return value, problems  # pydantic's message is sufficient
    registry = content.pipelines.get(name)
    if registry is None:
        hint = did_you_mean(name, content.pipelines)
        message = (
            f"the pipeline {name} is invalid; see its own problems"
            if name in content.pipelines
            else f"unknown pipeline {name!r}{hint}"
        )
        return value, [*problems, file.problem(("assembly", "pipeline"), message)]
    if entries is None:
        if "tools" in assembly:
            return value, problems  # it is not a list
        entries = [{"name": config.name} for config in registry]
    problems += [*_mistakes(entries, registry, file, content)]
    names = [entry["name"] for entry in entries if isinstance(entry, dict) and "name" in entry]
    problems += [
        file.warning((*_TOOLS, names.index(tool)), f"{tool} depends on {dependency}, which is not in this agent's list")
        for tool, dependency in left_out(names, {config.name: config.dependencies for config in registry})
    ]
    used_configs = tuple(config for config in registry if config.name in names)
    return {**value, "assembly": {**assembly, "tools": entries, "registry": used_configs}}, problems


def _entries(listed: object) -> list[Any] | None:
    """Returns the entries of a list of tools as mappings, or None if it is not a list."""
    if not isinstance(listed, list):
        return None
    return [{"name": entry} if isinstance(entry, str) else entry for entry in listed]


def _stage_mistakes(value: Mapping[str, Any], file: YamlFile) -> Iterator[AppProblem]:
    """Checks that each question has its own instructions and nothing else: a persona or a caller's own system prompt
    could override them."""
    stages = value.get("stages")
    for question in Question:
        stage = stages.get(question.value) if isinstance(stages, dict) else None
        if not isinstance(stage, dict) or not stage.get("prompt") or stage.get("alone") is not True:
            place: Place = ("stages", question.value) if isinstance(stage, dict) else ("assembly",)
            yield file.problem(place, f"the stage `{question.value}` needs a `prompt` and `alone: true`")


def _danger_mistakes(danger: object, file: YamlFile) -> Iterator[AppProblem]:
    """Checks that each phrase can be searched in a message."""
    for category, phrases in danger.items() if isinstance(danger, dict) else ():
        for index, phrase in enumerate(phrases if isinstance(phrases, list) else []):
            if isinstance(phrase, str) and not is_phrase(phrase):
                message = f"{phrase!r} is not a valid phrase; write words, with `*` only at the end of the last word"
                yield file.problem(("assembly", "danger", category, index), message)


def _mistakes(entries: list[Any], registry: Registry, file: YamlFile, content: Content) -> Iterator[AppProblem]:
    known = [config.name for config in registry]
    seen: list[object] = []
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            yield file.problem((*_TOOLS, index), f"the tool {name} is listed twice")
        elif name not in known:
            yield file.problem((*_TOOLS, index), f"{name!r} is not in the pipeline{did_you_mean(name, known)}")
        else:
            yield from _argument_mistakes(entry, index, file, parameters_of(content.tools[name].card))
        seen.append(name)


def _argument_mistakes(entry: Mapping[str, Any], index: int, file: YamlFile, taken: list[str]) -> Iterator[AppProblem]:
    arguments = entry.get("arguments")
    for key in arguments if isinstance(arguments, dict) else ():
        if key not in taken:
            message = f"{entry['name']} has no parameter {key!r}{did_you_mean(str(key), taken)}"
            yield file.problem((*_TOOLS, index, "arguments", key), message)
