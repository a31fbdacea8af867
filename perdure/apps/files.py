"""What is wrong with an app folder, told so that its author finds the place."""

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
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import BaseModel, ValidationError

from perdure.core.text import is_clean


@dataclass(frozen=True, slots=True)
class AppProblem:
    """One mistake."""

    file: Path
    line: int | None
    """From 1; None where the mistake has no line, such as a file that is missing."""
    message: str
    warning: bool = False
    """True for what is told and loaded all the same."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else f"{self.file}"
        return f"{where}: {'warning: ' if self.warning else ''}{self.message}"


def has_mistakes(problems: Iterable[AppProblem]) -> bool:
    """Whether these keep what they are about from being loaded."""
    return not all(problem.warning for problem in problems)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the choices where there are few, or nothing."""
    choices = sorted(known)
    close = get_close_matches(wrong, choices, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(choices)}" if 0 < len(choices) <= 8 else ""


# --- A file of plain text, or why it cannot be taken.

MOST_TEXT_BYTES = 65_536
"""Of one persona, template, artifact, skill or block: each is sent to a model or a sandbox whole, and kept by every
version of its agents."""


def read_text(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> str | AppProblem:
    """The text at `path`, lines ended by `\\n`; a byte order mark is passed over."""
    try:
        content = path.read_bytes()
    except OSError as error:
        return AppProblem(path, None, f"cannot be read: {error.strerror}")
    if len(content) > most_bytes:
        return AppProblem(path, None, f"has {len(content):,} bytes, more than the {most_bytes:,} that it may have")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return AppProblem(path, content.count(b"\n", 0, error.start) + 1, "is not UTF-8 text here")
    if "\x00" in text:
        return AppProblem(path, text.count("\n", 0, text.index("\x00")) + 1, "holds a NUL, which cannot be stored")
    if not text.strip():
        return AppProblem(path, 1, "is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- A YAML file together with the line of each of its values.

Place = tuple[str | int, ...]
"""The way to a value: keys and list positions."""

_MOST_NODES = 100_000
_YAML_DEPTH_LIMIT = 100
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
        return [AppProblem(path, deep, f"is nested deeper than {_YAML_DEPTH_LIMIT} levels")]
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
            if depth > _YAML_DEPTH_LIMIT:
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


# --- A value of a YAML file against the form that it must have: every mistake with its line, not only the first.

Form = TypeVar("Form", bound=BaseModel)
_VALUE_DEPTH_LIMIT = 64


def read_form(
    model: type[Form], value: object, file: YamlFile, place: Place = ()
) -> tuple[Form | None, list[AppProblem]]:
    """`value`, which stands at `place` of `file`, as a `model`; None where anything is wrong with it."""
    if not isinstance(value, dict):
        return None, [file.problem(place, "must be a list of fields with their values")]
    unfit = dict(unstorable(value, place))
    problems = [unfit_problem(file, each, why) for each, why in unfit.items()]
    problems += unknown_fields(model, value, file, place)
    try:
        read = model.model_validate(value)
    except ValidationError as error:
        return None, problems + told(error, file, place, unfit)
    return (None, problems) if problems else (read, [])


def unknown_fields(
    model: type[BaseModel], value: Mapping[str, Any], file: YamlFile, place: Place = ()
) -> list[AppProblem]:
    """Fields of `value`, at any depth, that `model` has not: also where the model itself would let them pass."""
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
        several = enumerate(inner) if isinstance(inner, list) else [(None, inner)]
        for index, each in several:
            if isinstance(each, dict):
                here = (*place, name) if index is None else (*place, name, index)
                problems += unknown_fields(nested, each, file, here)
    return problems


def told(
    error: ValidationError, file: YamlFile, place: Place, but: Collection[Place] = (), unknown: bool = False
) -> list[AppProblem]:
    """What pydantic found, each with its line, except at the places in `but`; unknown fields, which `unknown_fields`
    tells better, only where asked for."""
    problems = []
    for each in error.errors(include_url=False, include_input=False):
        where = (*place, *each["loc"])
        if where not in but and (unknown or each["type"] != "extra_forbidden"):
            name = ".".join(map(str, each["loc"]))
            problems.append(file.problem(where, f"{name}: {each['msg']}" if name else each["msg"]))
    return problems


def unfit_problem(file: YamlFile, place: Place, why: str) -> AppProblem:
    """A value that cannot be stored."""
    return file.problem(place, f"{'.'.join(map(str, place)) or 'this'} {why}")


def unstorable(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """The places of what jsonb cannot hold, and why."""
    if len(place) > _VALUE_DEPTH_LIMIT:
        yield place, f"is nested deeper than {_VALUE_DEPTH_LIMIT} levels"
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str) or not is_clean(name):
                yield place, f"has the name {name!r}, which holds a NUL or half a character and cannot be stored"
            yield from unstorable(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unstorable(inner, (*place, index))
    elif isinstance(value, str):
        if not is_clean(value):
            yield place, "holds a NUL or half a character, which cannot be stored"
    elif isinstance(value, float):
        if not isfinite(value):
            yield place, "is a number that is not finite, which cannot be stored"
    elif value is not None and not isinstance(value, bool | int):
        yield place, f"is a {type(value).__name__}, which JSON does not have; put it in quotes"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation: itself, or that of an optional value or of a tuple's items."""
    if get_origin(annotation) in (Union, UnionType, tuple):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


# --- A JSON file as JSON means it: no name twice in one object, no NaN, nothing that jsonb cannot hold.


class _Twice(ValueError):
    """A name that is given twice, of which JSON would keep the last."""


def parse_json(path: Path, text: str, called: str) -> Any | AppProblem:
    """The value of `text`, which the file at `path` holds, or why it cannot be taken; `called` is the whole of it."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=float)
    except json.JSONDecodeError as error:
        return AppProblem(path, error.lineno, f"is not JSON here: {error.msg}")
    except _Twice as error:
        return AppProblem(path, None, str(error))
    except (ValueError, RecursionError) as error:
        return AppProblem(path, None, f"cannot be read: {error}")
    for place, why in unstorable(value):
        return AppProblem(path, None, f"{'.'.join(map(str, place)) or called} {why}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise _Twice(f"the name {name!r} is given twice in one object")
        seen[name] = value
    return seen


# --- A Markdown file that begins with YAML between two lines of `---`, each part with the lines of the whole file.

_FENCE = "---"
_HEADING = re.compile(r"## +(?P<title>.*?)[ #]*\Z")
_CODE_FENCE = re.compile(r" {0,3}(```+|~~~+)")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a body under a heading of the second level."""

    title: str
    line: int
    """Of its heading, in the file."""
    text: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The two parts of a file."""

    front: YamlFile
    body: str
    body_line: int
    """The line after the second fence."""

    def sections(self) -> Iterator[Section]:
        """The sections of the body; a heading inside fenced code is none."""
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
    """The file at `path`, or why it cannot be taken."""
    text = read_text(path)
    if isinstance(text, AppProblem):
        return [text]
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return [AppProblem(path, 1, "must begin with a line of --- and the fields of the skill under it")]
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return [AppProblem(path, 1, "the fields that begin here are never ended by a second line of ---")]
    front = parse_yaml(path, "\n" + "\n".join(lines[1:end]))  # an empty line for the fence keeps the numbers
    if not isinstance(front, YamlFile):
        return front
    return FrontMatter(front, "\n".join(lines[end + 1 :]).strip("\n"), _first_line(lines, end + 1) + 1)


def _first_line(lines: list[str], start: int) -> int:
    """The index of the first line from `start` that is not empty."""
    return next((number for number in range(start, len(lines)) if lines[number]), start)


# --- JSON Schemas that authors write: every mistake with its place, before any value is checked against one.


def schema_mistakes(schema: object, file: YamlFile, place: Place) -> Iterator[AppProblem]:
    """What keeps the value at `place` from being the schema of an object."""
    if not isinstance(schema, dict):
        return  # told as a wrong type already
    try:
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        where = (*place, *error.absolute_path)
        told = error.message if len(error.message) <= 200 else f"{error.message[:199]}…"
        yield file.problem(where, f"{'.'.join(map(str, where))} is no JSON Schema: {told}")
        return
    if schema.get("type") != "object":
        yield file.problem((*place, "type"), f"{'.'.join(map(str, place))} must be of type: object")
    lost = [(where, to) for where, to in _references(schema, place) if not _leads_somewhere(schema, to)]
    for where, reference in lost:
        yield file.problem(where, f"the reference {reference!r} leads nowhere within the schema")
    if not lost:
        try:
            Draft202012Validator(schema).is_valid({})
        except RecursionError:
            yield file.problem(place, f"{'.'.join(map(str, place))} refers to itself without end")


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


def _leads_somewhere(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a JSON pointer into the schema finds a schema; anchors and other documents are not read."""
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    found: Any = schema
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return False
        found = found[name]
    return isinstance(found, Mapping | bool)


# --- Links in an app folder that lead out of it: they would bring in what whoever reads the folder never saw.

READ = ("app.yaml", "agents", "tools", "skills", "personas", "rules", "data", "scripts", "mcp")
"""What of the folder is read; whatever else lies there is its author's own affair."""


def stray_links(folder: Path) -> Iterator[AppProblem]:
    """Each of them as a mistake; links that stay inside the folder are followed and are none."""
    root = os.path.realpath(folder)
    waiting = [folder / name for name in reversed(READ)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        if os.path.commonpath((root, real)) != root:
            yield AppProblem(path, None, "is a link that leads out of the app folder; put here what it leads to")
        elif path.is_dir() and real not in seen:
            seen.add(real)
            with suppress(OSError):  # a folder that cannot be listed has nothing that could be read
                waiting += sorted(path.iterdir(), reverse=True)
