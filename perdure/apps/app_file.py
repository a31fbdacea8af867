"""`app.yaml`: the app's name, the names that its agents may not use freely, and the hosts that its tools may reach.

The companions are read by local/companions.py; here only the variables that hold their addresses are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import CallerError
from perdure.apps.problems import AppProblem, did_you_mean
from perdure.apps.yaml_file import YamlFile, read_yaml
from policy.egress import Named, named_host

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_FIELDS = ("name", "title", "companions", "egress", "reserved", "fenced")
_ENGINE = "platform"
"""The engine's own name in the ids of rules."""


@dataclass(frozen=True, slots=True)
class AppFile:
    """What an app says of itself."""

    name: str
    title: str
    reserved: tuple[str, ...] = ()
    """Names that are kept and never offered, neither as a tool nor as a code block (S0-50)."""
    fenced: tuple[str, ...] = ()
    """Tools that may share a name with a code block; only an agent without skills may name them (S0-42)."""
    egress: tuple[Named, ...] = ()
    """Hosts that its tools may reach although their addresses are not public."""
    services: tuple[str, ...] = ()
    """The variables that hold the addresses of its companions."""


def read_app_file(folder: Path) -> tuple[AppFile, list[AppProblem]]:
    """What the app in `folder` says; without the file, or where it has mistakes, what the folder's name says."""
    fallback = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-")
    fallback = fallback if fallback not in ("", _ENGINE) else "app"
    path = folder / "app.yaml"
    if not path.is_file():
        return AppFile(fallback, fallback), []
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return AppFile(fallback, fallback), file
    if not isinstance(file.value, dict):
        return AppFile(fallback, fallback), [file.problem((), "must be a list of fields with their values")]
    problems = [
        file.problem((key,), f"unknown field {key!r}{did_you_mean(key, _FIELDS)}")
        for key in file.value
        if key not in _FIELDS
    ]
    name = file.value.get("name", fallback)
    if not isinstance(name, str) or not _NAME.match(name):
        problems.append(file.problem(("name",), "name: lower-case letters, digits, - and _, starting with a letter"))
        name = fallback
    elif name == _ENGINE:
        problems.append(file.problem(("name",), f"name: {_ENGINE} is the engine's own; choose another"))
        name = fallback
    title = file.value.get("title", name)
    if not isinstance(title, str):
        problems.append(file.problem(("title",), "title: must be text"))
        title = name
    reserved, fenced = (_names(file.value, field, file, problems) for field in ("reserved", "fenced"))
    return AppFile(name, title, reserved, fenced, _egress(file, problems), _services(file.value)), problems


def _egress(file: YamlFile, problems: list[AppProblem]) -> tuple[Named, ...]:
    named = []
    for entry in _names(file.value, "egress", file, problems):
        try:
            named.append(named_host(entry, by_operator=False))
        except CallerError as error:
            problems.append(file.problem(("egress",), f"egress: {error.message}"))
    return tuple(named)


def _services(value: Mapping[str, Any]) -> tuple[str, ...]:
    companions = value.get("companions")
    listed = companions if isinstance(companions, list) else []
    found = [each.get("url_env") for each in listed if isinstance(each, dict)]
    return tuple(name for name in found if isinstance(name, str))


def _names(value: Mapping[str, Any], field: str, file: YamlFile, problems: list[AppProblem]) -> tuple[str, ...]:
    listed = value.get(field, [])
    if not isinstance(listed, list):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
        return ()
    names = tuple(each for each in listed if isinstance(each, str))
    if len(names) < len(listed):
        problems.append(file.problem((field,), f"{field}: must be a list of names"))
    return names
