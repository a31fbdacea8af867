r"""The rules of a scripted model, as an app writes them in its agent's YAML under `script:`.

    tokens_per_second: 50          # 0: no delay
    rules:                         # the first rule that matches answers
      - name: refused              # required; errors name it
        note: 'rejected'           # regular expression on the newest system note of this turn
        say: 'I did not do it.'
      - name: book
        when: '^Book room (?P<room>\d+)'  # the same on the user's message
        offers: book               # or a list: only if offered
        call: {tool: book, args: {room: '{room:int}'}}   # or a list
      - name: booked as changed
        after: {tool: book, edited: true, contains: {ok: true}}   # the newest message is this tool's result
        say: 'A reviewer chose room {result.room}.'
      - name: booked
        after: {tool: book, contains: {ok: true}}        # without `edited`: edited or not
        say: 'Room {result.room} is yours.'
    fallback: 'I can book a room.'

A rule answers the newest message. For a tool's result it needs `after`, for a system note `note`; for a user message it
has neither. So a script cannot request the same call repeatedly because its result was not foreseen.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from perdure.activities.providers.failures import total_exceeded
from perdure.activities.providers.provider import (
    Chunk,
    Complete,
    DraftCall,
    ProviderRequest,
    TextDelta,
    max_input_tokens,
    tokens_of_request,
)
from perdure.contracts.calls import OutputForm
from perdure.contracts.errors import CallerError, InvariantBroken, PerdureError
from perdure.contracts.turns import Usage
from perdure.contracts.values import Frozen, canonical_json
from perdure.core.agents.prompts import PlainResult, unwrap_result
from perdure.core.budgets import RequestBound
from perdure.core.calls.endings import FinishReason
from perdure.core.text import estimated_tokens

_PIECE = re.compile(r"(\{\{|\}\})|\{([^{}]*)\}|([{}])")
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<path>(\.\w+)*)(:(?P<type>\w+))?")

_TYPES: dict[str, Callable[[str], JsonValue]] = {"str": str, "int": int, "float": float}
ECHO = "/echo "


class Missing(ValueError):
    """A placeholder has no value: the field does not exist, or its group took no part in the match."""


def placeholders(template: str) -> Iterator[tuple[str, bool]]:
    """Yields every name in `template`, and whether it has a path.

    Raises: ValueError if the template cannot be parsed.
    """
    for piece in _PIECE.finditer(template):
        if piece[3]:
            raise ValueError(f"a single {piece[3]} in {template!r}; double it to write the character itself")
        if piece[2] is not None:
            match = _NAME.fullmatch(piece[2])
            if match is None or (match["type"] or "str") not in _TYPES:
                raise ValueError(f"cannot parse {{{piece[2]}}} in {template!r}")
            yield match["name"], bool(match["path"])


def fill(template: str, values: Mapping[str, Any]) -> JsonValue:
    """Returns `template` with its placeholders filled. If it is a single placeholder, returns the value itself.

    A template has `{name}`, `{name:int}`, `{result.field}`, `{results.0.field}` and `{{`. Names are the named groups of
    the rule's patterns, `message` (the user's whole text) and `note` (the whole note). A text that is only one
    placeholder returns the value itself, so that arguments keep their types.

    Raises: ValueError (Missing) if a value is absent or cannot be converted to the requested type.
    """
    only = _PIECE.fullmatch(template)
    if only is not None and only[2] is not None:
        return _value(only[2], values)
    return _PIECE.sub(lambda piece: piece[1][0] if piece[1] else _as_text(_value(piece[2], values)), template)


def fill_text(template: str, values: Mapping[str, Any]) -> str:
    """Returns the filled `template` as text. An absent group becomes an empty text."""
    return _as_text(fill(template, values)) if template else ""


def fill_arguments(value: JsonValue, values: Mapping[str, Any]) -> JsonValue:
    """Returns `value` with every text in it filled. Omits an argument whose only placeholder is an absent group."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, list):
        return [fill_arguments(item, values) for item in value]
    if isinstance(value, dict):
        filled = {}
        for name, item in value.items():
            result = fill_arguments(item, values)
            if result is not None or item is None:
                filled[name] = result
        return filled
    return value


def _value(placeholder: str, values: Mapping[str, Any]) -> JsonValue:
    match = _NAME.fullmatch(placeholder)
    if match is None or match["name"] not in values:
        raise Missing(f"{{{placeholder}}} has no value")
    value = field_at(values[match["name"]], match["path"].split(".")[1:])
    if value is None or match["type"] is None:
        return value
    converted = _TYPES[match["type"]](str(value))
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError(f"{{{placeholder}}} is not a finite number")
    return converted


def field_at(value: Any, path: Sequence[str]) -> JsonValue:
    """Returns the field of a JSON value at `path`. A number is an index of a list.

    Raises: Missing if the field does not exist.
    """
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise Missing(f"it has no field {'.'.join(path)!r}")
    found: JsonValue = value
    return found


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _as_after_tool(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


class _Strict(Frozen):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AfterTool(_Strict):
    """A condition: the newest message is a result of `tool` with these properties."""

    tool: str
    status: JsonValue = None
    """The value that the result's field `status` must equal."""
    contains: str | dict[str, JsonValue] = ""
    """A text that the tool message must contain, or dotted fields of the result with their required values."""
    edited: bool | None = None
    """True if a reviewer must have edited the call before it ran, False if not, None for both. It does not change the
    result that is matched: the tool's own."""


class ScriptedCall(_Strict):
    """A call that the model requests."""

    tool: str
    args: dict[str, JsonValue] = {}
    """The arguments. All texts in them, at any depth, are templates."""


class Rule(_Strict):
    """Conditions, and the answer if they match."""

    name: str = Field(min_length=1)
    when: str | None = None
    note: str | None = None
    form: str = ""
    """The name of the requested output object, which `say` then writes as JSON; empty for plain text. With a form, a
    system note is matched only if `note` is set."""
    after: Annotated[AfterTool | None, BeforeValidator(_as_after_tool)] = None
    offers: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    call: Annotated[tuple[ScriptedCall, ...], BeforeValidator(_as_tuple)] = ()
    say: str = ""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.when is None and self.note is None and self.after is None and not self.form:
            raise ValueError("needs `when`, `note` or `after`")
        if not self.say and not self.call:
            raise ValueError("needs `say` or `call`")
        groups = list(self._groups())
        duplicates = [
            group for group, count in Counter([*groups, "message", "note", "result", "results"]).items() if count > 1
        ]
        if duplicates:
            raise ValueError(f"the name {duplicates[0]!r} is taken")
        known = {*groups, "message", *(("note",) if self.note else ()), *(("result", "results") if self.after else ())}
        for template in [self.say, *(text for call in self.call for text in _texts(call.args))]:
            for name, has_path in placeholders(template):
                if name not in known:
                    raise ValueError(
                        f"{{{name}}} is not a group of this rule; available groups: {', '.join(sorted(known))}"
                    )
                if has_path and name not in ("result", "results"):
                    raise ValueError(f"{{{name}}} is text and has no fields")
        return self

    def _groups(self) -> Iterator[str]:
        for pattern in (self.when, self.note):
            if pattern is not None:
                try:
                    yield from re.compile(pattern).groupindex
                except re.error as error:
                    raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from error


class Price(_Strict):
    """Dollars per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)


class Script(_Strict):
    """A scripted model."""

    rules: Annotated[tuple[Rule, ...], BeforeValidator(_as_tuple)] = ()
    fallback: str = Field(default="I have no rule for that.", min_length=1)
    """The answer if no rule matches. It is not a template."""
    tokens_per_second: float = Field(default=50.0, ge=0, allow_inf_nan=False)
    """The speed of the answer; 0 means no delay."""
    price_per_million: Price | None = None
    """The price of the model; None means free."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name, count in Counter(rule.name for rule in self.rules).items():
            if count > 1:
                raise ValueError(f"two rules have the name {name!r}")
        return self


def read_script(mapping: dict[str, JsonValue] | None) -> Script:
    """Parses the script in an agent's definition. Without one, the model still supports `/echo` and the fallback.

    Raises: CallerError (bad_script), which names the rule and the field.
    """
    try:
        return Script.model_validate(mapping or {})
    except ValidationError as error:
        raise CallerError("bad_script", "; ".join(_sentences(error, mapping or {}))) from error


def _sentences(error: ValidationError, mapping: dict[str, JsonValue]) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_context=False):
        location = list(problem["loc"])
        rules = mapping.get("rules")
        subject = "script"
        if len(location) > 1 and location[0] == "rules" and isinstance(location[1], int) and isinstance(rules, list):
            rule = rules[location[1]]
            name = rule.get("name") if isinstance(rule, dict) else None
            subject, location = f"rule {name or location[1] + 1!r}", location[2:]
        yield ": ".join(
            [
                subject,
                *([".".join(map(str, location))] if location else []),
                problem["msg"].removeprefix("Value error, "),
            ]
        )


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool message, with its content parsed if it is JSON."""

    tool: str
    text: str
    """The whole content of the message."""
    value: JsonValue
    """The tool's own result, without the text around it."""
    edited: bool = False
    """True if a reviewer edited the call before it ran."""


@dataclass(frozen=True, slots=True)
class NewestMessages:
    """The newest messages, which rules are matched against."""

    user_text: str
    note: str | None
    """The newest system message of this turn."""
    results: tuple[ToolResult, ...]
    """The results of the latest round, if only notes followed them."""
    is_result: bool
    is_note: bool


class ScriptedProvider:
    """The provider behind `model: scripted`. The same input always gives the same output. It reads the user's text, the
    results so far and the offered tools. `/echo ` takes precedence over every rule. A token of the answer is a word.
    Arguments of calls and the input count four characters a token. It uses no random numbers, and the clock only for
    the speed."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def upper_bound(self, request: ProviderRequest) -> RequestBound:
        """Returns the most that the request can use. The output is known; the input is bounded as for every model."""
        try:
            words, calls = _answer(self._script, request)
        except PerdureError:
            words, calls = [], ()  # the request will fail before the first word
        usage = self._usage(request, len(words), calls)
        headroom = max_input_tokens(request) - usage.input_tokens
        price = self._script.price_per_million
        return RequestBound(
            usage.tokens + headroom, usage.cost_microusd + (math.ceil(headroom * price.input) if price else 0)
        )

    def context_tokens(self, model: str) -> int | None:
        """Returns None: a script has no limit."""
        return None

    def cost_microusd(self, model: str, usage: Usage) -> int:
        """Returns the cost by the script's own price."""
        price = self._script.price_per_million
        # Dollars per million tokens are micro-dollars per token.
        return math.ceil(usage.input_tokens * price.input + usage.output_tokens * price.output) if price else 0

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        """Yields the words of the answer at the script's speed, then its calls.

        Raises: UpstreamUnavailable `model_timeout` after `request.timeout_seconds`.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        words, calls = _answer(self._script, request)
        pace = self._script.tokens_per_second
        for number, word in enumerate(words, start=1):
            if pace:
                until = min(number / pace, request.timeout_seconds)
                await asyncio.sleep(max(0.0, started + until - loop.time()))
            if loop.time() - started >= request.timeout_seconds:
                raise total_exceeded(request.timeout_seconds, 0.0)
            yield TextDelta(word)
        reason: FinishReason = "tool_calls" if calls else "stop"
        yield Complete(calls, self._usage(request, len(words), calls), reason, "scripted")

    def _usage(self, request: ProviderRequest, words: int, calls: Sequence[DraftCall]) -> Usage:
        input_tokens = tokens_of_request(request)
        output_tokens = words + sum(estimated_tokens(call.name + call.raw_arguments) for call in calls)
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        return usage.model_copy(update={"cost_microusd": self.cost_microusd(request.model, usage)})


def _answer(script: Script, request: ProviderRequest) -> tuple[list[str], tuple[DraftCall, ...]]:
    newest = newest_of(request.messages)
    output = request.output
    if newest.user_text.startswith(ECHO) and output is None:
        return split_words(newest.user_text[len(ECHO) :]), ()
    offered = {_name_of(tool) for tool in request.tools}
    for rule in script.rules:
        if rule.form != (output.name if output else ""):
            continue
        groups = match_rule(rule, newest, offered)
        if groups is not None and output is not None and output.form is OutputForm.FUNCTION:
            words, _ = _fill_rule(rule, groups, newest, "")
            return [], (DraftCall(f"call_{len(request.messages)}", output.name, "".join(words)),)
        if groups is not None:
            return _fill_rule(rule, groups, newest, f"call_{len(request.messages)}")
    return split_words(script.fallback), ()


def _fill_rule(
    rule: Rule, groups: Mapping[str, str | None], newest: NewestMessages, id_prefix: str
) -> tuple[list[str], tuple[DraftCall, ...]]:
    results = [result.value for result in newest.results]
    values: dict[str, Any] = {**groups, "message": newest.user_text, "note": newest.note, "results": results}
    values["result"] = results[-1] if results else None
    try:
        words = split_words(fill_text(rule.say, values))
        calls = tuple(
            DraftCall(f"{id_prefix}_{position}", call.tool, canonical_json(fill_arguments(call.args, values)))
            for position, call in enumerate(rule.call)
        )
    except Missing as error:
        raise InvariantBroken("bad_script", f"rule {rule.name!r}: {error}") from error
    except ValueError as error:
        raise InvariantBroken("bad_script", f"rule {rule.name!r}: a value does not have the requested type") from error
    return words, calls


def match_rule(rule: Rule, newest: NewestMessages, offered: set[str]) -> dict[str, str | None] | None:
    """Returns the named groups of `rule`'s patterns, or None if the rule does not match the newest messages."""
    if not offered.issuperset(rule.offers):
        return None
    if rule.after is not None:
        if not (newest.results and _result_matches(newest.results[-1], rule.after)):
            return None
    elif rule.form:
        if rule.note is not None and newest.note is None:
            return None
    elif newest.is_result or (rule.note is not None) != newest.is_note:
        return None
    groups: dict[str, str | None] = {}
    for pattern, text in ((rule.when, newest.user_text), (rule.note, newest.note)):
        if pattern is not None:
            match = re.search(pattern, text) if text is not None else None
            if match is None:
                return None
            groups |= match.groupdict()
    return groups


def _result_matches(result: ToolResult, after: AfterTool) -> bool:
    if result.tool != after.tool or after.edited not in (None, result.edited):
        return False
    if after.status is not None and _field(result.value, "status") != after.status:
        return False
    if isinstance(after.contains, str):
        return after.contains in result.text
    return all(_field(result.value, path) == expected for path, expected in after.contains.items())


def _field(value: JsonValue, path: str) -> JsonValue:
    try:
        return field_at(value, path.split("."))
    except Missing:
        return None


def newest_of(messages: Sequence[Mapping[str, JsonValue]]) -> NewestMessages:
    """Returns the messages since the latest user message, in the form that rules need."""
    start = max((position for position, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    turn = messages[start + 1 :]
    names = _call_names(messages)
    last = turn[-1].get("role") if turn else "user"
    results: list[ToolResult] = []
    for message in reversed(turn):
        if message.get("role") == "tool":
            results.append(_result(message, names))
        elif message.get("role") != "system":
            break
    return NewestMessages(
        user_text=_text(messages[start]) if start >= 0 else "",
        note=next((_text(message) for message in reversed(turn) if message.get("role") == "system"), None),
        results=tuple(reversed(results)),
        is_result=last == "tool",
        is_note=last == "system",
    )


def _call_names(messages: Sequence[Mapping[str, JsonValue]]) -> dict[str, str]:
    """Returns tool names by call id. If an id occurs more than once, the latest message counts."""
    names: dict[str, str] = {}
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                names[str(call.get("id"))] = _name_of(call)
    return names


def _result(message: Mapping[str, JsonValue], names: Mapping[str, str]) -> ToolResult:
    text = _text(message)
    try:
        parsed = unwrap_result(json.loads(text))
    except (ValueError, RecursionError):
        parsed = PlainResult(text)
    name = message.get("name") or names.get(str(message.get("tool_call_id")), "")
    return ToolResult(str(name), text, parsed.result, parsed.edited)


def _name_of(holder: Mapping[str, JsonValue]) -> str:
    function = holder.get("function")
    return str(function.get("name")) if isinstance(function, dict) else ""


def _text(message: Mapping[str, JsonValue]) -> str:
    """Returns the text of a message; several text parts are joined."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def split_words(text: str) -> list[str]:
    """Splits `text` into one piece per word. The pieces joined are the original text."""
    return re.findall(r"\A\s*\S+\s*|\S+\s*", text)
