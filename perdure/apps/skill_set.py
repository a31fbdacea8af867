"""All the skills of an app, with what they depend on: a skill is there only where everything that it needs is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.skills import Skill
from perdure.apps.problems import AppProblem, did_you_mean, has_mistakes
from perdure.apps.skill_files import SkillFolder, SkillScope, read_skill


@dataclass(frozen=True, slots=True)
class SkillSet:
    """The skills of one app."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    """Those that may be used, by id."""
    broken: frozenset[str] = frozenset()
    """The folders of those with mistakes."""

    def with_dependencies(self, skill_id: str) -> Iterator[Skill]:
        """The skill, then all that it depends on, none twice."""
        waiting, seen = [skill_id], set()
        while waiting:
            skill = self.skills[waiting.pop(0)]
            if skill.id not in seen:
                seen.add(skill.id)
                waiting += skill.dependencies
                yield skill


def skill_folders(app: Path) -> list[Path]:
    """The folders under `skills/`, those apart that only tools or people need."""
    return sorted(path for path in app.glob("skills/*") if path.is_dir() and path.name[0] not in "._")


def read_skills(app: Path, scope: SkillScope) -> tuple[SkillSet, list[AppProblem]]:
    """The skills of the app in this folder."""
    found = {folder.name: read_skill(folder, scope) for folder in skill_folders(app)}
    told = {name: [*each.problems] for name, each in found.items()}
    for name, each in found.items():
        told[name] += _unknown(each, found)
    for circle in _circles(found):
        why = f"depends on itself: {' -> '.join((*circle, circle[0]))}"
        told[circle[0]].append(_problem(found[circle[0]], (*circle, circle[0])[1], why))
    broken = {name for name, problems in told.items() if has_mistakes(problems)}
    broken |= {name for circle in _circles(found) for name in circle}
    while needing := [name for name in found if name not in broken and _broken_one(found[name], broken)]:
        for name in needing:
            other = _broken_one(found[name], broken)
            told[name].append(_problem(found[name], other, f"depends on {other}, which has mistakes"))
        broken |= {*needing}
    skills = {name: each.skill for name, each in found.items() if each.skill is not None and name not in broken}
    return SkillSet(skills, frozenset(broken)), [problem for name in found for problem in told[name]]


def _unknown(skill: SkillFolder, found: Mapping[str, SkillFolder]) -> Iterator[AppProblem]:
    for name in dict.fromkeys(skill.dependencies):
        if name not in found:
            yield _problem(skill, name, f"unknown skill {name!r}: there is no skills/{name}{did_you_mean(name, found)}")


def _broken_one(skill: SkillFolder, broken: set[str]) -> str:
    """The first broken skill among those that it names; empty where there is none."""
    return next((name for name in skill.dependencies if name in broken), "")


def _circles(found: Mapping[str, SkillFolder]) -> list[tuple[str, ...]]:
    """For each skill that comes back to itself the shortest way round, each way once, from its first name on."""
    circles: dict[tuple[str, ...], None] = {}
    for name in found:
        if way := _way_round(name, found):
            first = way.index(min(way))
            circles[way[first:] + way[:first]] = None
    return list(circles)


def _way_round(start: str, found: Mapping[str, SkillFolder]) -> tuple[str, ...]:
    """The shortest way from a skill back to itself; empty where there is none."""
    waiting: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    while waiting:
        way = waiting.pop(0)
        for name in found[way[-1]].dependencies:
            if name == start:
                return way
            if name in found and name not in seen:
                seen.add(name)
                waiting.append((*way, name))
    return ()


def _problem(skill: SkillFolder, dependency: str, message: str) -> AppProblem:
    """A mistake at the line on which a skill names another."""
    if skill.front is None:
        return AppProblem(skill.folder / "SKILL.md", None, message)
    return skill.front.problem(("dependencies", skill.dependencies.index(dependency)), message)
