"""A YAML file together with the line of each of its values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perdure.apps.problems import AppProblem

Place = tuple[str | int, ...]
"""The way to a value: keys and list positions."""

_MOST_NODES = 100_000
_MOST_DEPTH = 100
"""What is nested deeper is refused by its events: both composers recurse, and libyaml's ends the process (measured)."""
_FAST: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""By libyaml where PyYAML was built with it: the files of a large app in 40 ms instead of 250. What it stumbles over is
read again by the other one, which says better what is wrong."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """What a file says, and where it says it."""

    path: Path
    value: Any
    lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """The line of the value at `place`, or of the nearest one around it."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                return self.lines[place[:length]]
        return 1

    def problem(self, place: Place, message: str) -> AppProblem:
        """A mistake at `place`."""
        return AppProblem(self.path, self.line(place), message)

    def warning(self, place: Place, message: str) -> AppProblem:
        """Something at `place` that is told and loaded all the same."""
        return AppProblem(self.path, self.line(place), message, warning=True)


def read_yaml(path: Path) -> YamlFile | list[AppProblem]:
    """The file at `path`, or why it cannot be taken: not there, not YAML, a key given twice (YAML keeps the last)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [AppProblem(path, None, f"cannot be read: {error}")]
    return parse_yaml(path, text)


def parse_yaml(path: Path, text: str) -> YamlFile | list[AppProblem]:
    """The same for a text of the file at `path`, whose lines are the file's own from the first."""
    try:
        return _parsed(path, text, _FAST)
    except (yaml.YAMLError, ValueError, RecursionError):
        return _explained(path, text)


def _explained(path: Path, text: str) -> YamlFile | list[AppProblem]:
    try:
        return _parsed(path, text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "cannot be read"
        return [AppProblem(path, mark.line + 1 if mark else None, f"is not YAML here: {reason}")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return [AppProblem(path, None, f"is not YAML: {' '.join(str(error).split())}")]


def _parsed(path: Path, text: str, kind: type[Any]) -> YamlFile | list[AppProblem]:
    """Raises: YAMLError, ValueError, RecursionError."""
    if (deep := _too_deep(text, kind)) is not None:
        return [AppProblem(path, deep, f"is nested deeper than {_MOST_DEPTH} levels")]
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return [AppProblem(path, 1, "is empty")]
        lines: dict[Place, int] = {}
        problems: list[AppProblem] = []
        _walk(path, node, (), lines, problems)
        if problems:
            return problems
        return YamlFile(path, loader.construct_document(node), lines)
    finally:
        loader.dispose()


def _too_deep(text: str, kind: type[Any]) -> int | None:
    """The line where it gets too deep; None where it does not.

    Raises: YAMLError.
    """
    depth = 0
    for event in yaml.parse(text, Loader=kind):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_DEPTH:
                return event.start_mark.line + 1 if event.start_mark else 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _walk(path: Path, node: yaml.Node, place: Place, lines: dict[Place, int], problems: list[AppProblem]) -> None:
    lines.setdefault(place, node.start_mark.line + 1)
    if len(lines) > _MOST_NODES:
        raise ValueError("it has too many values")
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(path, item, (*place, index), lines, problems)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag == "tag:yaml.org,2002:bool" and key.value.lower() not in ("true", "false"):
                key.tag = "tag:yaml.org,2002:str"  # YAML 1.1 reads the key `on` as true, which nobody means
            if key.tag != "tag:yaml.org,2002:str":
                problems.append(AppProblem(path, line, f"the key {key.value!r} must be text; put it in quotes"))
                continue
            if key.value in seen:
                problems.append(AppProblem(path, line, f"the key {key.value!r} is given twice"))
            seen.add(key.value)
            lines[(*place, key.value)] = line
            _walk(path, value, (*place, key.value), lines, problems)
