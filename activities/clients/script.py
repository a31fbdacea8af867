r"""The rules of a scripted model, as an app writes them in its agent's YAML under `script:`.

    tokens_per_second: 50          # 0 means at once
    rules:                         # the first that matches answers
      - name: refused              # every rule has a name; errors say it
        note: 'rejected'           # regular expression on the newest system note of this turn
        say: 'I did not do it.'
      - name: book
        when: '^Book room (?P<room>\d+)'  # regular expression on the latest user message
        offers: book               # only where this tool (or all of a list) is offered
        call: {tool: book, args: {room: '{room:int}'}}   # one or a list
      - name: booked as changed
        after: {tool: book, edited: true, contains: {ok: true}}   # the newest message is this tool's result
        say: 'A reviewer chose room {result.room}.'
      - name: booked
        after: {tool: book, contains: {ok: true}}        # with `edited` left out, of either kind
        say: 'Room {result.room} is yours.'
    fallback: 'I can book a room.'

A rule answers what is newest: a tool's result needs a rule with `after`, a system note one with `note`, else the
rule has neither. So a script cannot ask for the same call again and again because its answer was not foreseen.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from activities.clients.templates import placeholders
from contracts.errors import CallerError
from contracts.frozen import Frozen


def _several(value: Any) -> Any:
    """One or many, as a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _after(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


class _Strict(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AfterTool(_Strict):
    """The newest message is a result of `tool`, and looks like this."""

    tool: str
    status: JsonValue = None
    """Equal to the result's field `status`."""
    contains: str | dict[str, JsonValue] = ""
    """A text that is somewhere in what was told, or fields (dotted) of the result with the values they must have."""
    edited: bool | None = None
    """Whether a reviewer changed the call before it ran; None for either. The result is the tool's own in any case."""


class ScriptedCall(_Strict):
    """A call to ask for."""

    tool: str
    args: dict[str, JsonValue] = {}
    """Texts in it, however deep, are templates."""


class Rule(_Strict):
    """When to answer, and what."""

    name: str = Field(min_length=1)
    when: str | None = None
    note: str | None = None
    form: str = ""
    """The name of the object that is asked for, which `say` then writes as JSON; empty for words. With a form a note of
    the system is matched only where `note` says so."""
    after: Annotated[AfterTool | None, BeforeValidator(_after)] = None
    offers: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    call: Annotated[tuple[ScriptedCall, ...], BeforeValidator(_several)] = ()
    say: str = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.when is None and self.note is None and self.after is None and not self.form:
            raise ValueError("needs `when`, `note` or `after`")
        if not self.say and not self.call:
            raise ValueError("needs `say` or `call`")
        groups = list(self._groups())
        twice = [
            group for group, count in Counter([*groups, "message", "note", "result", "results"]).items() if count > 1
        ]
        if twice:
            raise ValueError(f"the name {twice[0]!r} is taken")
        known = {*groups, "message", *(("note",) if self.note else ()), *(("result", "results") if self.after else ())}
        for template in [self.say, *(text for call in self.call for text in _texts(call.args))]:
            for name, has_path in placeholders(template):
                if name not in known:
                    raise ValueError(f"{{{name}}} is no group of this rule; known: {', '.join(sorted(known))}")
                if has_path and name not in ("result", "results"):
                    raise ValueError(f"{{{name}}} is a text and has no fields")
        return self

    def _groups(self) -> Iterator[str]:
        for pattern in (self.when, self.note):
            if pattern is not None:
                try:
                    yield from re.compile(pattern).groupindex
                except re.error as error:
                    raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


class Price(_Strict):
    """Dollars for a million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)


class Script(_Strict):
    """A scripted model."""

    rules: Annotated[tuple[Rule, ...], BeforeValidator(_several)] = ()
    fallback: str = Field(default="I have no rule for that.", min_length=1)
    """Said as it stands where no rule matches."""
    tokens_per_second: float = Field(default=50.0, ge=0, allow_inf_nan=False)
    """0 means at once."""
    price_per_million: Price | None = None
    """None: costs nothing."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for name, count in Counter(rule.name for rule in self.rules).items():
            if count > 1:
                raise ValueError(f"two rules are called {name!r}")
        return self


def read_script(mapping: dict[str, JsonValue] | None) -> Script:
    """The script in an agent's definition; none at all still echoes and has its fallback.

    Raises: CallerError (bad_script), which names the rule and the field.
    """
    try:
        return Script.model_validate(mapping or {})
    except ValidationError as error:
        raise CallerError("bad_script", "; ".join(_sentences(error, mapping or {}))) from error


def _sentences(error: ValidationError, mapping: dict[str, JsonValue]) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False):
        place = list(problem["loc"])
        rules = mapping.get("rules")
        where = "script"
        if len(place) > 1 and place[0] == "rules" and isinstance(place[1], int) and isinstance(rules, list):
            rule = rules[place[1]]
            name = rule.get("name") if isinstance(rule, dict) else None
            where, place = f"rule {name or place[1] + 1!r}", place[2:]
        yield ": ".join(
            [where, *([".".join(map(str, place))] if place else []), problem["msg"].removeprefix("Value error, ")]
        )


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
