"""Reads files of an app folder and reports their mistakes with the place."""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from perdure.core.bounded_schemas import draft_of
from perdure.core.json_schema import mistakes_in_schema
from perdure.core.text import is_clean

MAX_TEXT_BYTES = 65_536
"""Maximum size of one persona, template, artifact, skill or block. Each is sent to a model or a sandbox as a whole, and
is stored in every version of its agents."""
_MAX_NODES = 100_000
_YAML_DEPTH_LIMIT = 100
"""Deeper nesting is rejected at the event level: both composers recurse, and libyaml's crashes the process (measured).
"""
_FAST_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Uses libyaml if PyYAML was built with it: 40 ms instead of 250 for the files of a large app. If it fails, the other
loader reads the file again, because its messages are better."""
_VALUE_DEPTH_LIMIT = 64
_FENCE = "---"
_HEADING = re.compile(r"## +(?P<title>.*?)[ #]*\Z")
_CODE_FENCE = re.compile(r" {0,3}(```+|~~~+)")
READ_PARTS = ("app.yaml", "agents", "tools", "skills", "personas", "rules", "data", "scripts", "mcp")
"""The parts of the folder that are read; other files are not checked."""


@dataclass(frozen=True, slots=True)
class AppProblem:
    """One mistake."""

    file: Path
    line: int | None
    """Line number from 1; None if the mistake has no line, such as a missing file."""
    message: str
    warning: bool = False
    """True if the mistake is reported but the content is still loaded."""

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.line else f"{self.file}"
        return f"{location}: {'warning: ' if self.warning else ''}{self.message}"


def has_mistakes(problems: Iterable[AppProblem]) -> bool:
    """Returns whether any of these prevents loading; warnings do not."""
    return not all(problem.warning for problem in problems)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?`, or the choices if there are few, or an empty text."""
    choices = sorted(known)
    close = get_close_matches(name, choices, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(choices)}" if 0 < len(choices) <= 8 else ""


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str | AppProblem:
    """Returns the text at `path` with `\\n` line ends; a byte order mark is ignored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return AppProblem(path, None, f"cannot be read: {error.strerror}")
    if len(content) > max_bytes:
        return AppProblem(path, None, f"has {len(content):,} bytes; the limit is {max_bytes:,}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return AppProblem(path, content.count(b"\n", 0, error.start) + 1, "is not valid UTF-8 here")
    if "\x00" in text:
        return AppProblem(path, text.count("\n", 0, text.index("\x00")) + 1, "contains a NUL byte and cannot be stored")
    if not text.strip():
        return AppProblem(path, 1, "is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


Place = tuple[str | int, ...]
"""The path to a value: keys and list positions."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The values of a file, with their lines."""

    path: Path
    value: Any
    lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """Returns the line of the value at `place`, or of the nearest enclosing one."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                return self.lines[place[:length]]
        return 1

    def problem(self, place: Place, message: str) -> AppProblem:
        """Returns a mistake at `place`, with the file's path and the line of `place`."""
        return AppProblem(self.path, self.line(place), message)

    def warning(self, place: Place, message: str) -> AppProblem:
        """Returns a warning at `place`; the content is still loaded."""
        return AppProblem(self.path, self.line(place), message, warning=True)


def read_yaml(path: Path) -> YamlFile | list[AppProblem]:
    """Returns the file at `path`, or why it is invalid: missing, not YAML, or a repeated key (YAML uses the last
    one)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [AppProblem(path, None, f"cannot be read: {error}")]
    return parse_yaml(path, text)


def parse_yaml(path: Path, text: str) -> YamlFile | list[AppProblem]:
    """Does the same for a text of the file at `path`; its line numbers are those of the file."""
    try:
        return _parse(path, text, _FAST_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return _parse_with_messages(path, text)


def _parse_with_messages(path: Path, text: str) -> YamlFile | list[AppProblem]:
    try:
        return _parse(path, text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "cannot be read"
        return [AppProblem(path, mark.line + 1 if mark else None, f"is not valid YAML here: {reason}")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return [AppProblem(path, None, f"is not valid YAML: {' '.join(str(error).split())}")]


def _parse(path: Path, text: str, loader_type: type[Any]) -> YamlFile | list[AppProblem]:
    """Parses the text.

    Raises: YAMLError, ValueError, RecursionError.
    """
    if (deep_line := _too_deep(text, loader_type)) is not None:
        return [AppProblem(path, deep_line, f"is nested deeper than {_YAML_DEPTH_LIMIT} levels")]
    loader = loader_type(text)
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


def _too_deep(text: str, loader_type: type[Any]) -> int | None:
    """Returns the line at which the nesting is too deep, or None.

    Raises: YAMLError.
    """
    depth = 0
    for event in yaml.parse(text, Loader=loader_type):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _YAML_DEPTH_LIMIT:
                return event.start_mark.line + 1 if event.start_mark else 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _walk(path: Path, node: yaml.Node, place: Place, lines: dict[Place, int], problems: list[AppProblem]) -> None:
    lines.setdefault(place, node.start_mark.line + 1)
    if len(lines) > _MAX_NODES:
        raise ValueError("the document has too many values")
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
                key.tag = "tag:yaml.org,2002:str"  # YAML 1.1 reads the key `on` as true, which no author intends
            if key.tag != "tag:yaml.org,2002:str":
                problems.append(AppProblem(path, line, f"the key {key.value!r} must be text; put it in quotes"))
                continue
            if key.value in seen:
                problems.append(AppProblem(path, line, f"the key {key.value!r} appears twice"))
            seen.add(key.value)
            lines[(*place, key.value)] = line
            _walk(path, value, (*place, key.value), lines, problems)


FormT = TypeVar("FormT", bound=BaseModel)


def read_form(
    model: type[FormT], value: object, file: YamlFile, place: Place = ()
) -> tuple[FormT | None, list[AppProblem]]:
    """Returns `value` as a `model` and the mistakes in it, each with its line in `file`; no model if a mistake prevents
    its use. `place` is the path of `value` in the file."""
    if not isinstance(value, dict):
        return None, [file.problem(place, "must be a mapping of fields")]
    unstorable_places = dict(unstorable(value, place))
    problems = [
        unstorable_problem(file, unstorable_place, reason) for unstorable_place, reason in unstorable_places.items()
    ]
    problems += unknown_fields(model, value, file, place)
    try:
        form = model.model_validate(value)
    except ValidationError as error:
        return None, problems + problems_of(error, file, place, unstorable_places)
    return (None, problems) if problems else (form, [])


def unknown_fields(
    model: type[BaseModel], value: Mapping[str, Any], file: YamlFile, place: Place = ()
) -> list[AppProblem]:
    """Returns the fields of `value`, at any depth, that `model` does not have, even if the model itself would ignore
    them."""
    problems = []
    for name, inner in value.items():
        if name not in model.model_fields:
            problems.append(
                file.problem((*place, name), f"unknown field {name!r}{did_you_mean(name, model.model_fields)}")
            )
            continue
        nested = _model_in(model.model_fields[name].annotation)
        if nested is None:
            continue
        items = enumerate(inner) if isinstance(inner, list) else [(None, inner)]
        for index, item in items:
            if isinstance(item, dict):
                item_place = (*place, name) if index is None else (*place, name, index)
                problems += unknown_fields(nested, item, file, item_place)
    return problems


def problems_of(
    error: ValidationError,
    file: YamlFile,
    place: Place,
    except_places: Collection[Place] = (),
    include_unknown: bool = False,
) -> list[AppProblem]:
    """Returns pydantic's errors with their lines, except at the places in `except_places`. Unknown fields are included
    only on request, since `unknown_fields` reports them better."""
    problems = []
    for detail in error.errors(include_url=False, include_input=False):
        location = (*place, *detail["loc"])
        if location not in except_places and (include_unknown or detail["type"] != "extra_forbidden"):
            name = ".".join(map(str, detail["loc"]))
            problems.append(file.problem(location, f"{name}: {detail['msg']}" if name else detail["msg"]))
    return problems


def unstorable_problem(file: YamlFile, place: Place, reason: str) -> AppProblem:
    """A value that cannot be stored."""
    return file.problem(place, f"{'.'.join(map(str, place)) or 'this'} {reason}")


def unstorable(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yields the places of values that jsonb cannot store, with the reasons."""
    if len(place) > _VALUE_DEPTH_LIMIT:
        yield place, f"is nested deeper than {_VALUE_DEPTH_LIMIT} levels"
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str) or not is_clean(name):
                yield (
                    place,
                    (f"has the name {name!r}, which contains a NUL character or a lone surrogate and cannot be stored"),
                )
            yield from unstorable(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unstorable(inner, (*place, index))
    elif isinstance(value, str):
        if not is_clean(value):
            yield place, "contains a NUL character or a lone surrogate and cannot be stored"
    elif isinstance(value, float):
        if not isfinite(value):
            yield place, "is not a finite number and cannot be stored"
    elif value is not None and not isinstance(value, bool | int):
        yield place, f"is a {type(value).__name__}, which JSON does not support; put it in quotes"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the model in an annotation: itself, or that of an optional value or of a tuple's items."""
    if get_origin(annotation) in (Union, UnionType, tuple):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


class _RepeatedName(ValueError):
    """A repeated name; JSON would use the last one."""


def parse_json(path: Path, text: str, value_name: str) -> Any | AppProblem:
    """Returns the value of `text`, the content of the file at `path`, or why it is invalid. `value_name` names the
    whole value. It is read strictly: no repeated name in one object, no NaN, and only values that jsonb can store."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_names, parse_constant=float)
    except json.JSONDecodeError as error:
        return AppProblem(path, error.lineno, f"is not valid JSON here: {error.msg}")
    except _RepeatedName as error:
        return AppProblem(path, None, str(error))
    except (ValueError, RecursionError) as error:
        return AppProblem(path, None, f"cannot be read: {error}")
    for place, reason in unstorable(value):
        return AppProblem(path, None, f"{'.'.join(map(str, place)) or value_name} {reason}")
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise _RepeatedName(f"the name {name!r} appears twice in one object")
        seen[name] = value
    return seen


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a body under a heading of the second level."""

    title: str
    line: int
    """The line of its heading in the file."""
    text: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The two parts of a file. The file starts with YAML between two lines of `---`. Each part keeps the line numbers
    of the file."""

    front: YamlFile
    body: str
    body_line: int
    """The line after the second fence."""

    def sections(self) -> Iterator[Section]:
        """Returns the sections of the body. Headings inside fenced code do not count."""
        title, start, lines, fence = "", 0, [], ""
        for number, line in enumerate(self.body.split("\n"), self.body_line):
            mark = _CODE_FENCE.match(line)
            if mark and (not fence or mark[1].startswith(fence)):
                fence = "" if fence else mark[1]
            heading = None if fence or mark else _HEADING.match(line)
            if heading is None:
                lines.append(line)
                continue
            if start:
                yield Section(title, start, "\n".join(lines))
            title, start, lines = heading["title"], number, []
        if start:
            yield Section(title, start, "\n".join(lines))


def read_front_matter(path: Path) -> FrontMatter | list[AppProblem]:
    """Returns the file at `path`, or why it is invalid."""
    text = read_text(path)
    if isinstance(text, AppProblem):
        return [text]
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return [AppProblem(path, 1, "must start with a line of --- followed by the skill's fields")]
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return [AppProblem(path, 1, "the fields that start here must be ended by a second line of ---")]
    front = parse_yaml(path, "\n" + "\n".join(lines[1:end]))  # an empty line for the fence keeps the line numbers
    if not isinstance(front, YamlFile):
        return front
    return FrontMatter(front, "\n".join(lines[end + 1 :]).strip("\n"), _first_line(lines, end + 1) + 1)


def _first_line(lines: list[str], start: int) -> int:
    """Returns the index of the first non-empty line from `start`."""
    return next((number for number in range(start, len(lines)) if lines[number]), start)


def schema_mistakes(schema: object, file: YamlFile, place: Place) -> Iterator[AppProblem]:
    """Returns why the value at `place` cannot be the schema of an object. Every mistake is found with its place, before
    any value is validated against the schema."""
    if not isinstance(schema, dict):
        return  # already reported as a wrong type
    mistakes = mistakes_in_schema(schema)
    for within, text in mistakes:
        location = (*place, *within)
        message = text if len(text) <= 200 else f"{text[:199]}…"
        yield file.problem(location, f"{'.'.join(map(str, location))} is not a valid JSON Schema: {message}")
    if mistakes:
        return
    if schema.get("type") != "object":
        yield file.problem((*place, "type"), f"{'.'.join(map(str, place))} must have `type: object`")
    missing = [
        (location, target) for location, target in _references(schema, place) if not _reference_exists(schema, target)
    ]
    for location, reference in missing:
        yield file.problem(location, f"the reference {reference!r} does not exist in the schema")
    if not missing:
        try:
            draft_of(schema)(schema).is_valid({})
        except RecursionError:
            yield file.problem(place, f"{'.'.join(map(str, place))} contains an endless reference to itself")


def _references(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "$ref" and isinstance(inner, str):
                yield (*place, name), inner
            else:
                yield from _references(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _references(inner, (*place, index))


def _reference_exists(schema: Mapping[str, Any], reference: str) -> bool:
    """Returns whether a JSON pointer within the schema finds a schema. Anchors and other documents are not
    supported."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    target: Any = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or name not in target:
            return False
        target = target[name]
    return isinstance(target, Mapping | bool)


def stray_links(folder: Path) -> Iterator[AppProblem]:
    """Returns each of them as a mistake. Links that stay inside the folder are allowed and followed. A link out of an
    app folder would include files that a reviewer of the folder never saw."""
    root = os.path.realpath(folder)
    pending = [folder / name for name in reversed(READ_PARTS)]
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        real_path = os.path.realpath(path)
        if os.path.commonpath((root, real_path)) != root:
            yield AppProblem(path, None, "is a link to a place outside the app folder; copy its target here")
        elif path.is_dir() and real_path not in seen:
            seen.add(real_path)
            with suppress(OSError):  # a folder that cannot be listed contains nothing that could be read
                pending += sorted(path.iterdir(), reverse=True)
