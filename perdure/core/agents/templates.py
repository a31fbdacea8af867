"""Context templates: texts with `{{variable}}` from a fixed list, and the stages of their versions.

Inserted values are not parsed as templates.
"""

import re
from collections.abc import Iterator, Mapping, Set
from enum import StrEnum
from types import MappingProxyType

from perdure.contracts.errors import CallerError

VARIABLES = ("user_name", "user_role", "agent_title", "skill_name")
_MARK = re.compile(r"\{\{(.*?)\}\}|\{\{")
PROMOTER_ROLES = frozenset({"reviewer", "admin"})
"""The roles that can promote, since a promoted version applies to all of a tenant's users; writing a draft needs no
role."""
_MAX_MARKS = 20


def unknown_marks(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of each mark that is not a variable; the name is empty if a mark is never closed."""
    for number, line in enumerate(text.split("\n"), 1):
        for mark in _MARK.finditer(line):
            name = (mark[1] or "").strip()
            if name not in VARIABLES:
                yield number, name


def fill_variables(text: str, values: Mapping[str, str]) -> str:
    """Returns `text` with its variables filled in. A variable without a value becomes empty; unknown marks are
    unchanged."""

    def value_of(mark: re.Match[str]) -> str:
        name = (mark[1] or "").strip()
        return values.get(name, "") if name in VARIABLES else mark[0]

    return _MARK.sub(value_of, text)


class Stage(StrEnum):
    """The stage of a version. The order is draft -> pre_production -> active -> archived. A draft applies only to its
    author's turns. A version in pre-production applies to no turns; it can be read and rendered until it is promoted.
    The active version applies to all other users of the tenant, so a user other than its author must activate it. Every
    version that is not archived can be archived at any time."""

    DRAFT = "draft"
    PRE_PRODUCTION = "pre_production"
    ACTIVE = "active"
    ARCHIVED = "archived"


PREVIOUS_STAGE: Mapping[Stage, Stage] = MappingProxyType(
    {Stage.PRE_PRODUCTION: Stage.DRAFT, Stage.ACTIVE: Stage.PRE_PRODUCTION}
)
"""The only stage from which a version can be promoted to each stage."""


def promotion_refusal(to: Stage, is_author: bool, roles: Set[str]) -> CallerError | None:
    """Returns why a user with these roles cannot promote a version to `to`, or None. Authors cannot activate their own
    version."""
    if not roles & PROMOTER_ROLES:
        needed = sorted(PROMOTER_ROLES)
        return CallerError(
            "role_required", "Promoting a version requires the role reviewer or admin", {"roles": needed}, status=403
        )
    if is_author and to is Stage.ACTIVE:
        message = "You wrote this version; another reviewer or admin must activate it"
        return CallerError("own_draft", message, status=403)
    return None


def archive_refusal(stage: Stage, is_author: bool, roles: Set[str]) -> CallerError | None:
    """Returns why a user with these roles cannot archive a version of `stage`, or None. Authors can archive their own
    draft."""
    if roles & PROMOTER_ROLES or (is_author and stage is Stage.DRAFT):
        return None
    needed = sorted(PROMOTER_ROLES)
    message = "Archiving a version requires the role reviewer or admin, except for your own draft"
    return CallerError("role_required", message, {"roles": needed}, status=403)


def text_refusal(text: str) -> CallerError | None:
    """Returns the error for a text with unknown marks, each with its line, or None."""
    marks = [{"line": line, "name": name} for line, name in unknown_marks(text)]
    if not marks:
        return None
    first = marks[0]
    problem = f"{{{{{first['name']}}}}} is not a known variable" if first["name"] else "a {{ does not begin a variable"
    details: dict[str, object] = {"unknown": marks[:_MAX_MARKS], "known": [*VARIABLES]}
    return CallerError("template_variable_unknown", f"line {first['line']}: {problem}", details, status=422)
