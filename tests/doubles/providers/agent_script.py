"""Answers of the provider double that are those of a scripted model: what the script says to the same request."""

from typing import Any

from perdure.activities.providers.provider import Complete, ProviderRequest, TextDelta
from perdure.activities.providers.scripted import Script, ScriptedProvider
from tests.doubles.providers.requests import Seen, openai_messages
from tests.doubles.providers.script import Call, Step
from tests.doubles.providers.server import Answers


def answers_of(script: Script) -> Answers:
    """An agent's own script, for requests in OpenAI's or Anthropic's form."""
    model = ScriptedProvider(script.model_copy(update={"tokens_per_second": 0.0}))

    async def answer(seen: Seen) -> Step:
        tools: list[dict[str, Any]] = [{"function": {"name": name, "parameters": {}}} for name in seen.tools]
        request = ProviderRequest(seen.model, tuple(openai_messages(seen.body)), tuple(tools))
        chunks = [chunk async for chunk in model.stream(request)]
        drafts = [draft for chunk in chunks if isinstance(chunk, Complete) for draft in chunk.tool_calls]
        calls = [Call(name=each.name, arguments=each.raw_arguments, id=each.provider_id) for each in drafts]
        text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
        return Step(text=text, calls=tuple(calls))

    return answer
