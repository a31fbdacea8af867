"""The stages of a prompt template's version, and who may move one on (S0-84).

draft -> pre_production -> active -> archived. A draft is its author's: it speaks in the author's own turns. What is in
pre-production speaks to nobody; it is read and rendered until it is promoted. The active version speaks to everybody
else of the tenant, so somebody else than its author has to make it that. Any version that is not archived may be
archived at once.
"""

from collections.abc import Mapping, Set
from enum import StrEnum
from types import MappingProxyType

from contracts.errors import CallerError
from policy.templates import VARIABLES, unknown_marks

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
