"""The registries of an app, `pipelines/<name>.yaml`: the tools that put a turn's context together, each with what it
depends on. What could not run is refused here, so that no turn can come upon it (S1-22, S1-23).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from contracts.agents import EffectClass, ToolCard
from contracts.pipeline import PipelineToolConfig
from perdure.apps.form import read_form
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.yaml_file import Place, YamlFile, read_yaml
from perdure.tools import Tool
from policy.phases import phases

Registry = tuple[PipelineToolConfig, ...]
SAID = "said"
"""The parameter of a tool that hears the conversation."""


def read_pipelines(
    folder: Path, tools: Mapping[str, Tool], lost: Collection[str]
) -> tuple[dict[str, Registry | None], list[AppProblem]]:
    """The registries by name, None for one with mistakes. `lost` are tools whose own file does not load."""
    registries: dict[str, Registry | None] = {}
    problems: list[AppProblem] = []
    for path in sorted(path for path in folder.glob("pipelines/*") if path.suffix in (".yaml", ".yml")):
        file = read_yaml(path)
        if not isinstance(file, YamlFile):
            registries[path.stem], found = None, file
        else:
            registries[path.stem], found = _read(file, tools, lost)
        problems += found
    return registries, problems


def _read(file: YamlFile, tools: Mapping[str, Tool], lost: Collection[str]) -> tuple[Registry | None, list[AppProblem]]:
    listed = file.value.get("tools") if isinstance(file.value, dict) else None
    if not isinstance(listed, list) or not listed or len(file.value) > 1:
        return None, [file.problem((), "must be `tools:` with a list of tools, each with its name")]
    problems: list[AppProblem] = []
    configs: dict[str, PipelineToolConfig] = {}
    for index, each in enumerate(listed):
        place: Place = ("tools", index)
        config, mistakes = read_form(PipelineToolConfig, each, file, place)
        problems += mistakes
        if config is None:
            continue
        if config.name in configs:
            problems.append(file.problem((*place, "name"), f"the tool {config.name} is given twice"))
        configs[config.name] = config
        problems += _tool_mistakes(config, file, place, tools, lost)
    names = [each.get("name") for each in listed if isinstance(each, dict)]
    for index, each in enumerate(listed):
        problems += _dependency_mistakes(
            each, file, ("tools", index), [name for name in names if isinstance(name, str)]
        )
    if not has_mistakes(problems):
        try:
            phases({name: config.dependencies for name, config in configs.items()})
        except ValueError as cycle:
            problems.append(file.problem(("tools", _place_of(names, str(cycle)), "dependencies"), str(cycle)))
    return (None if has_mistakes(problems) else tuple(configs.values())), problems


def _place_of(names: Sequence[object], cycle: str) -> int:
    """The first tool of the registry that the cycle names."""
    circle = cycle.partition(": ")[2].split(" -> ")
    return next(index for index, name in enumerate(names) if name in circle)


def _dependency_mistakes(each: object, file: YamlFile, place: Place, names: Collection[str]) -> Iterator[AppProblem]:
    needed = each.get("dependencies") if isinstance(each, dict) else None
    for index, name in enumerate(needed if isinstance(needed, list) else []):
        if isinstance(name, str) and name not in names:
            hint = did_you_mean(name, names)
            yield file.problem((*place, "dependencies", index), f"unknown dependency {name!r}{hint}")


def _tool_mistakes(
    config: PipelineToolConfig, file: YamlFile, place: Place, tools: Mapping[str, Tool], lost: Collection[str]
) -> Iterator[AppProblem]:
    if config.name not in tools:
        hint = "" if config.name in lost else did_you_mean(config.name, tools)
        why = "its file does not load" if config.name in lost else f"the app has no such tool{hint}"
        yield file.problem((*place, "name"), f"{config.name}: {why}")
        return
    card = tools[config.name].card
    if card.effect is not EffectClass.READ:
        why = f"{config.name} is {card.effect.value}: a tool of a pipeline is tried again, so it must be read"
        yield file.problem((*place, "name"), why)
    taken = parameters_of(card)
    if config.hears and SAID not in taken:
        yield file.problem((*place, "hears"), f"{config.name} has no parameter `{SAID}` to hear with")
    for field, keys in (("inject_inputs", config.inject_inputs), ("defaults", config.defaults)):
        for index, key in enumerate(keys):
            if key not in taken:
                where = key if field == "defaults" else index
                yield file.problem(
                    (*place, field, where), f"{config.name} has no parameter {key!r}{did_you_mean(key, taken)}"
                )


def parameters_of(card: ToolCard) -> list[str]:
    """The names of a tool's parameters."""
    found = card.parameters.get("properties")
    return [*found] if isinstance(found, dict) else []
