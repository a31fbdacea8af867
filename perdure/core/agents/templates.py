"""Context templates: text with `{{variable}}` of a closed list. What is filled in is never read again as a template."""

import json
import re
from collections.abc import Iterator, Mapping, Set
from enum import StrEnum
from types import MappingProxyType

from pydantic import JsonValue

from perdure.contracts.errors import CallerError

VARIABLES = ("user_name", "user_role", "agent_title", "skill_name")
_MARK = re.compile(r"\{\{(.*?)\}\}|\{\{")


def unknown_marks(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each mark that stands for no variable; the name is empty where a mark is never closed."""
    for number, line in enumerate(text.split("\n"), 1):
        for mark in _MARK.finditer(line):
            name = (mark[1] or "").strip()
            if name not in VARIABLES:
                yield number, name


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables; one without a value becomes empty, and what is no variable stays as it stands."""

    def value_of(mark: re.Match[str]) -> str:
        name = (mark[1] or "").strip()
        return values.get(name, "") if name in VARIABLES else mark[0]

    return _MARK.sub(value_of, text)


# --- The stages of a prompt template's version, and who may move one on (S0-84).
# draft -> pre_production -> active -> archived. A draft is its author's: it speaks in the author's own turns. What is
# in pre-production speaks to nobody; it is read and rendered until it is promoted. The active version speaks to
# everybody else of the tenant, so somebody else than its author has to make it that. Any version that is not archived
# may be archived at once.

PROMOTERS = frozenset({"reviewer", "admin"})
"""Who decides what a whole tenant's agents say; writing a draft needs no role."""
_MOST_MARKS = 20


class Stage(StrEnum):
    """Where a version stands."""

    DRAFT = "draft"
    PRE_PRODUCTION = "pre_production"
    ACTIVE = "active"
    ARCHIVED = "archived"


BEFORE: Mapping[Stage, Stage] = MappingProxyType(
    {Stage.PRE_PRODUCTION: Stage.DRAFT, Stage.ACTIVE: Stage.PRE_PRODUCTION}
)
"""The one stage from which a version is promoted to this one."""


def promotion_refusal(to: Stage, is_author: bool, roles: Set[str]) -> CallerError | None:
    """Why whoever has these roles may not promote a version to `to`, or None; nobody activates the own words alone."""
    if not roles & PROMOTERS:
        needed = sorted(PROMOTERS)
        return CallerError("role_required", "promoting needs the role reviewer or admin", {"roles": needed}, status=403)
    if is_author and to is Stage.ACTIVE:
        message = "you wrote this version; what speaks to everybody is activated by another reviewer or admin"
        return CallerError("own_draft", message, status=403)
    return None


def archive_refusal(stage: Stage, is_author: bool, roles: Set[str]) -> CallerError | None:
    """Why whoever has these roles may not archive a version of `stage`, or None; an author may drop the own draft."""
    if roles & PROMOTERS or (is_author and stage is Stage.DRAFT):
        return None
    needed = sorted(PROMOTERS)
    message = "archiving needs the role reviewer or admin, except for your own draft"
    return CallerError("role_required", message, {"roles": needed}, status=403)


def text_refusal(text: str) -> CallerError | None:
    """Why this text may not be saved: the marks in it that stand for no variable, each with its line; or None."""
    marks = [{"line": line, "name": name} for line, name in unknown_marks(text)]
    if not marks:
        return None
    first = marks[0]
    what = f"{{{{{first['name']}}}}} stands for no variable" if first["name"] else "a {{ stands for no variable"
    details: dict[str, object] = {"unknown": marks[:_MOST_MARKS], "known": [*VARIABLES]}
    return CallerError("template_variable_unknown", f"line {first['line']}: {what}", details, status=422)


# --- A tool's own sentence about one call: its author's template, filled from the exact arguments and from nothing
# else.
# Invariants:
# - No word of it is a model's, except inside a value; and values stand in quotes or are plain JSON, so none of them can
#   pose as the sentence.
# - What stands where there is no value is the author's own: `{amount|the whole price}`.
# - It says less than the arguments, never something else: a value that is long is cut and says how much is missing.

MOST_CHARACTERS = 300
"""Of a template."""
_VALUE_CHARACTERS = 80
_GLANCE_CHARACTERS = 160
_NOTHING = "(nothing)"
_PART = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?:\|([^{}]+))?\}|[{}]")


class BadTemplate(ValueError):
    """A template that no call could be described by; says why."""


def names_in(template: str) -> frozenset[str]:
    """The arguments that a template names.

    Raises: BadTemplate.
    """
    if len(template) > MOST_CHARACTERS:
        raise BadTemplate(f"it has more than {MOST_CHARACTERS} characters")
    if "\n" in template:
        raise BadTemplate("it is one line")
    found = set()
    for part in _PART.finditer(template):
        if part.group() in "{}":
            raise BadTemplate(f"a single {part.group()!r} at {part.start()}: write {{name}}, or {part.group() * 2}")
        if part[1]:
            found.add(part[1])
    return frozenset(found)


def described(template: str, args: Mapping[str, JsonValue]) -> str:
    """The sentence for these arguments; empty without a template."""
    return _PART.sub(lambda part: _filled(part, args) if part[1] else part.group()[:1], template)


def _filled(part: re.Match[str], args: Mapping[str, JsonValue]) -> str:
    value = args.get(part[1])
    return part[2] if part[2] and value in (None, "") else told(value)


def at_a_glance(args: Mapping[str, JsonValue]) -> str:
    """The arguments on one line, of the first of them as much as there is room for."""
    said, room = [], _GLANCE_CHARACTERS
    for name, value in args.items():
        said.append(f"{name}: {told(value)}")
        room -= len(said[-1])
        if room < 0:
            return ", ".join(said)[:_GLANCE_CHARACTERS] + "…"
    return ", ".join(said)


def told(value: JsonValue) -> str:
    """A value inside a sentence: JSON, so that a text is in quotes and a number is not."""
    if value is None:
        return _NOTHING
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _VALUE_CHARACTERS:
        return text
    return f"{text[:_VALUE_CHARACTERS]}… ({len(text) - _VALUE_CHARACTERS:,} more characters)"
