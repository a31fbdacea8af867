"""What LiteLLM makes of earlier messages and calls for each vendor: the doubles reject what the vendor would."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.scripted import Script
from perdure.contracts.ids import effect_key
from perdure.contracts.messages import Role
from perdure.core.agents.prompts import PromptMessage, wire_messages
from tests.doubles.listener import UNWARNED
from tests.doubles.playing import PlayingDouble

pytestmark = UNWARNED

SIGNATURE = "QUJD" * 500
CALLS: list[dict[str, Any]] = [
    {"call_id": "t1.0", "arguments": '{"key":"A"}', "provider_id": "call_0"},
    {"call_id": "t2.0", "arguments": "{}", "sent_arguments": '{"ky":"B"}', "provider_id": "call_0"},
    {"call_id": "t3.0", "arguments": "{}", "provider_id": f"functions.look:0__thought__{SIGNATURE}"},
]


def conversation(calls: Sequence[dict[str, Any]] = CALLS, model: str = "") -> tuple[dict[str, Any], ...]:
    """A conversation in which each call is a round without words."""
    said = [PromptMessage(Role.USER, "look"), PromptMessage(Role.ASSISTANT, "\n\n"), PromptMessage(Role.USER, "well?")]
    for text, call in zip(["", "\n\n", "So."], calls, strict=False):
        key = effect_key("0197f000-0000-7000-8000-000000000001", call["call_id"])
        said += [
            PromptMessage(Role.ASSISTANT, text, [{**call, "key": key, "tool": "look"}]),
            PromptMessage(Role.TOOL, '{"status":"ok"}', (), key),
        ]
    return tuple(wire_messages("base", "", said, model=model))


class VendorDouble(PlayingDouble):
    """Answers on Gemini's route too, with a signed call."""

    def __init__(self) -> None:
        super().__init__(Script(fallback="Yes."))
        self.app.router.routes.append(Route("/models/{model}", self._gemini, methods=["POST"]))

    async def _gemini(self, request: Request) -> Response:
        await self._arrived(request)
        parts = [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": SIGNATURE}]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro"}
        return Response(f"data: {json.dumps(answer)}\n\n", media_type="text/event-stream")


async def sent(provider: Provider, double: VendorDouble, model: str) -> tuple[Any, Complete]:
    """The messages as they arrive at the vendor, and the end of its answer."""
    base = double.api_base if model.startswith("openai/") else double.root
    asked = ProviderRequest(model, conversation(model=model), (), {"api_base": base, "api_key": "k"}, 10)
    async with aclosing(provider.stream(asked)) as chunks:
        *_, last = [chunk async for chunk in chunks]
    assert isinstance(last, Complete)
    body = double.requests[-1].body
    return body.get("messages") or body["contents"], last


@pytest.mark.parametrize(
    ("model", "own_ids"),
    [
        ("openai/gpt-4o-mini", ["call_0"]),
        ("openai/mistral-large", []),
        ("anthropic/claude-sonnet-4-5", ["call_0"]),
    ],
)
async def test_earlier_calls_are_sent_as_they_were_within_the_vendors_rules(
    litellm_provider: Provider, model: str, own_ids: list[str]
) -> None:
    with VendorDouble() as double:
        messages, last = await sent(litellm_provider, double, model)
    assert last.finish_reason == "stop", "the strict double takes it"
    text = json.dumps(messages)
    assert SIGNATURE not in text and "call_id" not in text.replace("tool_call_id", "")
    assert [name for name in ("call_0", "functions.look:0") if f'"{name}"' in text] == own_ids
    assert '{\\"ky\\":\\"B\\"}' in text or '{"ky": "B"}' in text, "the model's own arguments"


async def test_geminis_signature_goes_back_with_its_call(litellm_provider: Provider) -> None:
    with VendorDouble() as double:
        contents, last = await sent(litellm_provider, double, "gemini/gemini-3-pro-preview")
    assert last.tool_calls[0].provider_id.endswith(f"__thought__{SIGNATURE}")
    parts = [part for content in contents for part in content["parts"] if "function_call" in part]
    assert [part["function_call"]["id"] for part in parts][::2] == ["call_0", "functions.look:0"]
    assert parts[2]["thoughtSignature"] == SIGNATURE and SIGNATURE not in json.dumps(parts[:2])
