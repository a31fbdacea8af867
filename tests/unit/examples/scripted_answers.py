"""What a scripted model says to messages, and the calls that it asks for."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import ScriptedProvider, read_script


async def scripted_answer(
    script: Mapping[str, Any] | None, messages: Iterable[dict[str, Any]], offered: Sequence[str] = ()
) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls, each with its arguments."""
    at_once = read_script(dict(script or {})).model_copy(update={"tokens_per_second": 0.0})
    schemas: tuple[dict[str, Any], ...] = tuple({"type": "function", "function": {"name": name}} for name in offered)
    request = ProviderRequest(model="scripted", messages=tuple(messages), tools=schemas)
    text, calls = "", []
    async for chunk in ScriptedProvider(at_once).stream(request):
        if isinstance(chunk, TextDelta):
            text += chunk.text
        elif isinstance(chunk, Complete):
            calls = [(call.name, json.loads(call.raw_arguments)) for call in chunk.tool_calls]
    return text, calls
