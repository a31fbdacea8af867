"""Versions of tools: an approval is valid for one, and a worker compares it before it runs a call.

Rule 1 covered the whole card, so that a reworded docstring made every open approval outdated, and no line of the
function did. Rule 2 covers what a call does (docs/adr/0037): the tool's name, its parameters without titles and
descriptions, and its effect, risk, capability and key lifetime. It also covers the code, or the author's own version in
its place.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import JsonValue

from perdure.contracts.agents import ToolCard
from perdure.contracts.values import digest_of
from perdure.core.json_schema import without_keywords

RULE = 2
"""The rule of new versions."""
_WORDS = frozenset({"title", "description"})
_COVERED = ("effect", "risk", "capability", "key_ttl_seconds")
"""The fields of a card that a version covers as they are."""
_DIGEST_CHARACTERS = 16
_MAX_PLACES = 200
"""The maximum number of places that a card lists. The version covers all of them."""


def with_version(
    card: ToolCard, *, parameters: Mapping[str, JsonValue], code: Mapping[str, str], own: Mapping[str, Any], first: str
) -> ToolCard:
    """Returns the card with its version by rule 2.

    `parameters` is its schema in the same form in every process. `code` has the text of each covered place; it is empty
    for a tool whose code is covered by `own`, such as the author's own version. `first` is the version by rule 1.
    """
    parts = {**{name: value for name, value in own.items() if value}, **dict(sorted(code.items()))}
    digests = {place: digest_of(part)[:_DIGEST_CHARACTERS] for place, part in parts.items()}
    covered: dict[str, Any] = {
        "name": card.name,
        "parameters": without_words(parameters),
        **{name: getattr(card, name) for name in _COVERED},
        "code": {place: digest_of(text) for place, text in code.items()},
        **own,
    }
    update = {
        "version": digest_of(covered),
        "version_rule": RULE,
        "version_1": first,
        "code": dict([*digests.items()][:_MAX_PLACES]),
    }
    return card.model_copy(update=update)


class PublishedVersion(Protocol):
    """The version of a published tool, by each rule."""

    @property
    def version(self) -> str: ...
    @property
    def version_rule(self) -> int: ...
    @property
    def version_1(self) -> str: ...


def without_outlived_version(card: ToolCard, before: PublishedVersion | None) -> ToolCard:
    """Returns the card that an agent publishes after `before`, its card of the same tool. Rule 1 does not name the
    code, so a version by it ends permanently with the first change after a publication by rule 2. The approvals by it
    are then outdated. A tool that the agent's publication did not have may have had other code before that."""
    if before is not None and before.version_rule < RULE:
        return card
    if before is not None and before.version == card.version:
        return card.model_copy(update={"version_1": before.version_1})
    is_outlived = before is None or before.version_1 in ("", card.version_1)
    return card.model_copy(update={"version_1": ""}) if is_outlived else card


def without_words(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema, or a server's description of a tool, without titles and descriptions."""
    return {name: without_keywords(value, _WORDS) for name, value in listed.items() if name not in _WORDS}


def version_difference(before: ToolCard | None, after: ToolCard) -> dict[str, JsonValue]:
    """Returns what a newer version of a tool changes, for reviewers: each changed field with its values before and
    after, and the places whose code was added, changed or removed. Without `before`, all that is known is that it
    changed."""
    if before is None:
        return {}
    changed: dict[str, JsonValue] = {}
    for name in (*_COVERED, "parameters"):
        values = [card.model_dump(mode="json", include={name})[name] for card in (before, after)]
        words = [without_words(value) if isinstance(value, dict) else value for value in values]
        if words[0] != words[1]:
            changed[name] = {"before": values[0], "after": values[1]}
    changes: dict[str, set[str]] = {}
    for place in before.code | after.code:
        if before.code.get(place) != after.code.get(place):
            changes.setdefault(_without_import(place), set()).add(_change(place, before, after))
    code: list[JsonValue] = [
        {"place": place, "change": min(kinds) if len(kinds) == 1 else "changed"}
        for place, kinds in sorted(changes.items())
    ]
    if code and before.version_rule == after.version_rule:
        changed["code"] = code
    return changed


def _without_import(place: str) -> str:
    """Returns the place of an import by the name that it binds: `tools.prices:Decimal` for
    `tools.prices:from decimal import Decimal as Decimal`."""
    module, _, name = place.partition(":")
    return f"{module}:{name.rpartition(' as ')[2]}" if name.startswith(("import ", "from ")) else place


def _change(place: str, before: ToolCard, after: ToolCard) -> str:
    if place not in before.code:
        return "added"
    return "changed" if place in after.code else "removed"
