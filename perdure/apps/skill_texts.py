"""The texts of a skill beside SKILL.md: context templates and artifacts, as far as its front matter lists them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from contracts.skills import SkillText
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.text_file import read_text
from perdure.apps.yaml_file import YamlFile
from policy.templates import VARIABLES, unknown_marks


def read_templates(
    folder: Path, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """The context templates; one with an unknown variable is told."""
    templates, problems = _listed(folder, "templates", names, front)
    for template in templates:
        problems += _mark_mistakes(folder / "templates" / template.name, template.text)
    return templates, problems


def read_artifacts(
    folder: Path, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """The reference documents, as they stand."""
    return _listed(folder, "artifacts", names, front)


def _listed(
    folder: Path, kind: str, names: Sequence[str], front: YamlFile
) -> tuple[tuple[SkillText, ...], list[AppProblem]]:
    """The files under `kind`/ that the front matter lists, in its order."""
    there = sorted(path.name for path in (folder / kind).glob("*") if path.is_file())
    texts: list[SkillText] = []
    problems: list[AppProblem] = []
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.append(front.problem((kind, index), f"{name} is given twice"))
        elif name not in there:  # so a name can lead nowhere else either
            problems.append(front.problem((kind, index), f"there is no {kind}/{name}{did_you_mean(name, there)}"))
        else:
            text = read_text(folder / kind / name)
            if isinstance(text, AppProblem):
                problems.append(text)
            else:
                texts.append(SkillText(name=name, text=text.rstrip()))
    forgotten = [name for name in there if name not in names and name.endswith(".md")]
    problems += [front.warning((kind,), f"{kind}/{name} is not listed, so nobody reads it") for name in forgotten]
    return tuple(texts), problems


def _mark_mistakes(path: Path, text: str) -> Iterator[AppProblem]:
    for line, name in unknown_marks(text):
        why = f"unknown variable {name!r}{did_you_mean(name, VARIABLES)}" if name else "a {{ that is never closed"
        yield AppProblem(path, line, why)
