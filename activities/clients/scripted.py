"""The scripted model: same input, same output, always. It reads the user's text, the results so far and the offers.

`/echo ` comes before every rule. A token is a word; what a call asks for counts four characters a token, and so does
the input. No random number, no clock but for the pace.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from activities.clients.provider import Chunk, Complete, DraftCall, FinishReason, ProviderRequest, TextDelta
from activities.clients.script import AfterTool, Rule, Script
from activities.clients.templates import Missing, field_at, fill_arguments, fill_text
from activities.clients.usage import most_input_tokens, tokens_of_request
from contracts.digests import canonical_json
from contracts.errors import InvariantBroken, PerdureError, UpstreamUnavailable
from contracts.model import OutputForm
from contracts.turns import Usage
from policy.day_budget import Bound
from policy.text import estimated_tokens
from policy.told_results import Told, inside

ECHO = "/echo "


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool message, its content parsed where it is JSON."""

    tool: str
    text: str
    """All that was told."""
    value: JsonValue
    """The tool's own result, whatever was said around it."""
    edited: bool = False
    """A reviewer changed the call before it ran."""


@dataclass(frozen=True, slots=True)
class Newest:
    """What a rule looks at."""

    user_text: str
    note: str | None
    """The newest system message of this turn."""
    results: tuple[ToolResult, ...]
    """Of the latest round, where nothing but notes came after it."""
    is_result: bool
    is_note: bool


class ScriptedProvider:
    """The provider behind `model: scripted`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def most(self, request: ProviderRequest) -> Bound:
        """What it will say is known; the input is bounded as for every model."""
        try:
            words, calls = _answer(self._script, request)
        except PerdureError:
            words, calls = [], ()  # it will fail before it says a word
        usage = self._usage(request, len(words), calls)
        spare = most_input_tokens(request) - usage.input_tokens
        price = self._script.price_per_million
        return Bound(usage.tokens + spare, usage.cost_microusd + (math.ceil(spare * price.input) if price else 0))

    def cost_microusd(self, model: str, usage: Usage) -> int:
        """By the script's own price."""
        price = self._script.price_per_million
        # Dollars a million tokens are micro-dollars a token.
        return math.ceil(usage.input_tokens * price.input + usage.output_tokens * price.output) if price else 0

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[Chunk, None]:
        """The words of the answer at the script's pace, then its calls."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        words, calls = _answer(self._script, request)
        pace = self._script.tokens_per_second
        for number, word in enumerate(words, start=1):
            if pace:
                until = min(number / pace, request.timeout_seconds)
                await asyncio.sleep(max(0.0, started + until - loop.time()))
            if loop.time() - started >= request.timeout_seconds:
                raise UpstreamUnavailable("model_timeout", "The model did not finish in time.")
            yield TextDelta(word)
        reason: FinishReason = "tool_calls" if calls else "stop"
        yield Complete(calls, self._usage(request, len(words), calls), reason, "scripted")

    def _usage(self, request: ProviderRequest, words: int, calls: Sequence[DraftCall]) -> Usage:
        asked = tokens_of_request(request)
        answered = words + sum(estimated_tokens(call.name + call.raw_arguments) for call in calls)
        usage = Usage(input_tokens=asked, output_tokens=answered)
        return usage.model_copy(update={"cost_microusd": self.cost_microusd(request.model, usage)})


def _answer(script: Script, request: ProviderRequest) -> tuple[list[str], tuple[DraftCall, ...]]:
    newest = newest_of(request.messages)
    wanted = request.output
    if newest.user_text.startswith(ECHO) and wanted is None:
        return split_words(newest.user_text[len(ECHO) :]), ()
    offered = {_name_of(tool) for tool in request.tools}
    for rule in script.rules:
        if rule.form != (wanted.name if wanted else ""):
            continue
        groups = matched(rule, newest, offered)
        if groups is not None and wanted is not None and wanted.form is OutputForm.FUNCTION:
            words, _ = _say_and_call(rule, groups, newest, "")
            return [], (DraftCall(f"call_{len(request.messages)}", wanted.name, "".join(words)),)
        if groups is not None:
            return _say_and_call(rule, groups, newest, f"call_{len(request.messages)}")
    return split_words(script.fallback), ()


def _say_and_call(
    rule: Rule, groups: Mapping[str, str | None], newest: Newest, id_prefix: str
) -> tuple[list[str], tuple[DraftCall, ...]]:
    results = [result.value for result in newest.results]
    values: dict[str, Any] = {**groups, "message": newest.user_text, "note": newest.note, "results": results}
    values["result"] = results[-1] if results else None
    try:
        words = split_words(fill_text(rule.say, values))
        calls = tuple(
            DraftCall(f"{id_prefix}_{place}", call.tool, canonical_json(fill_arguments(call.args, values)))
            for place, call in enumerate(rule.call)
        )
    except Missing as error:
        raise InvariantBroken("bad_script", f"rule {rule.name!r}: {error}") from error
    except ValueError as error:
        raise InvariantBroken("bad_script", f"rule {rule.name!r}: a value is not of the type asked for") from error
    return words, calls


def matched(rule: Rule, newest: Newest, offered: set[str]) -> dict[str, str | None] | None:
    """The named groups of `rule`'s patterns, or None where it does not answer what is newest."""
    if not offered.issuperset(rule.offers):
        return None
    if rule.after is not None:
        if not (newest.results and _looks_like(newest.results[-1], rule.after)):
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


def _looks_like(result: ToolResult, after: AfterTool) -> bool:
    if result.tool != after.tool or after.edited not in (None, result.edited):
        return False
    if after.status is not None and _field(result.value, "status") != after.status:
        return False
    if isinstance(after.contains, str):
        return after.contains in result.text
    return all(_field(result.value, path) == wanted for path, wanted in after.contains.items())


def _field(value: JsonValue, path: str) -> JsonValue:
    try:
        return field_at(value, path.split("."))
    except Missing:
        return None


def newest_of(messages: Sequence[Mapping[str, JsonValue]]) -> Newest:
    """What is new since the latest user message."""
    start = max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    turn = messages[start + 1 :]
    names = _call_names(messages)
    last = turn[-1].get("role") if turn else "user"
    results: list[ToolResult] = []
    for message in reversed(turn):
        if message.get("role") == "tool":
            results.append(_result(message, names))
        elif message.get("role") != "system":
            break
    return Newest(
        user_text=_text(messages[start]) if start >= 0 else "",
        note=next((_text(message) for message in reversed(turn) if message.get("role") == "system"), None),
        results=tuple(reversed(results)),
        is_result=last == "tool",
        is_note=last == "system",
    )


def _call_names(messages: Sequence[Mapping[str, JsonValue]]) -> dict[str, str]:
    """Tool names by call id; the latest message that has an id decides."""
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
        told = inside(json.loads(text))
    except (ValueError, RecursionError):
        told = Told(text)
    name = message.get("name") or names.get(str(message.get("tool_call_id")), "")
    return ToolResult(str(name), text, told.result, told.edited)


def _name_of(holder: Mapping[str, JsonValue]) -> str:
    """The function name in a tool schema or a tool call."""
    function = holder.get("function")
    return str(function.get("name")) if isinstance(function, dict) else ""


def _text(message: Mapping[str, JsonValue]) -> str:
    """The text of a message; of several parts, the text parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def split_words(text: str) -> list[str]:
    """`text` cut into as many pieces as it has words; joined they are the text again."""
    return re.findall(r"\A\s*\S+\s*|\S+\s*", text)
