"""What LiteLLM makes of earlier messages and calls for each vendor: the doubles reject what the vendor would."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.activities.model_answer import StreamAccumulator, plan_calls, reply_of
from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.scripted import Script
from perdure.contracts.agents import AgentDefinition, PublishedAgent, Reasoning
from perdure.contracts.calls import ModelCall, ModelCallRequest
from perdure.contracts.ids import effect_key
from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress
from perdure.core.agents.prompts import PromptMessage, wire_messages
from tests.doubles.anthropic_wire import signature
from tests.doubles.listener import UNWARNED
from tests.doubles.playing import PlayingDouble
from tests.doubles.provider import Seen
from tests.doubles.provider_steps import Call, Step

pytestmark = UNWARNED

CLAUDE = "anthropic/claude-sonnet-4-5"
TURN = "0197f000-0000-7000-8000-000000000001"
ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id=TURN)
MODEL_CALL = ModelCall(
    address=ADDRESS, call_id="m1", agent_id="a", agent_version="v", ask=ModelCallRequest(messages=(), tools=())
)
AGENT = PublishedAgent(definition=AgentDefinition(id="a", title="A", topology="tool_loop"), cards=(), version="v")
SIGNATURE = "QUJD" * 500
CALLS: list[dict[str, Any]] = [
    {"call_id": "t1.0", "arguments": '{"key":"A"}', "provider_id": "call_0"},
    {"call_id": "t2.0", "arguments": "{}", "sent_arguments": '{"ky":"B"}', "provider_id": "call_0"},
    {"call_id": "t3.0", "arguments": "{}", "provider_id": f"functions.look:0__thought__{SIGNATURE}"},
]


def conversation() -> list[PromptMessage]:
    """A conversation in which calls have no words and a stopped answer has none."""
    said = [PromptMessage(Role.USER, "go"), PromptMessage(Role.ASSISTANT, "\n\n"), PromptMessage(Role.USER, "well?")]
    for text, call in zip(["", "\n\n", "So."], CALLS, strict=True):
        key = effect_key(TURN, call["call_id"])
        said += [
            PromptMessage(Role.ASSISTANT, text, [{**call, "key": key, "tool": "look"}]),
            PromptMessage(Role.TOOL, '{"status":"ok"}', (), key),
        ]
    return said


class VendorDouble(PlayingDouble):
    """Thinks before it calls, and answers on Gemini's route too, with a signed call."""

    def __init__(self) -> None:
        super().__init__(Script(fallback="Yes."))
        self.app.router.routes.insert(0, Route("/models/{model}", self._gemini, methods=["POST"]))

    async def _step(self, seen: Seen) -> Step:
        calls = (Call(name="look", id="toolu_1"), Call(name="look", id="toolu_2"))
        step = Step(thinking="Where? There.", calls=calls)
        return step if '"look"' in seen.user_text else await super()._step(seen)

    async def _gemini(self, request: Request) -> Response:
        await self._arrived(request)
        parts = [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": SIGNATURE}]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro"}
        return Response(f"data: {json.dumps(answer)}\n\n", media_type="text/event-stream")


async def sent(
    provider: Provider, double: VendorDouble, model: str, said: Sequence[PromptMessage] = ()
) -> tuple[Any, Complete]:
    """The messages as they arrive at the vendor, and the end of its answer."""
    where = {"api_base": double.api_base if model.startswith("openai/") else double.root, "api_key": "k"}
    messages = tuple(wire_messages("base", "", said or conversation(), model=model))
    asked = ProviderRequest(model, messages, (), where, 10, reasoning=Reasoning(budget_tokens=1024) if said else None)
    async with aclosing(provider.stream(asked)) as chunks:
        *_, last = [chunk async for chunk in chunks]
    assert isinstance(last, Complete)
    body = double.requests[-1].body
    return body.get("messages") or body["contents"], last


def answered_calls(first: Complete, call_id: str = "m1") -> list[PromptMessage]:
    """The calls of an answer as they are stored, and a result of each."""
    asked = MODEL_CALL.model_copy(update={"call_id": call_id})
    plans = plan_calls(asked, AGENT, first.tool_calls)
    _, (message, *results) = reply_of(asked, StreamAccumulator(complete=first), None, plans.calls)
    assert len(results) == len(first.tool_calls)
    said = [PromptMessage(Role.ASSISTANT, "", json.loads(json.dumps(message.calls)))]
    return said + [PromptMessage(Role.TOOL, '{"status":"ok"}', (), plan.row.key) for plan in plans.calls]


@pytest.mark.parametrize(
    ("model", "own_ids"),
    [
        ("openai/gpt-4o-mini", ["call_0"]),
        ("openai/mistral-large", []),
        (CLAUDE, ["call_0"]),
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


THOUGHT = [{"type": "thinking", "thinking": "Where? There.", "signature": signature("Where? There.")}]


@pytest.mark.parametrize(("asked_model", "thinks"), [(CLAUDE, True), (f"{CLAUDE}-20250929", False)])
async def test_a_claude_model_thinks_within_a_round_that_its_own_thinking_began(
    litellm_provider: Provider, asked_model: str, thinks: bool
) -> None:
    with VendorDouble() as double:
        _, first = await sent(litellm_provider, double, CLAUDE, (PromptMessage(Role.USER, "look"),))
        said = [PromptMessage(Role.USER, "look"), *answered_calls(first)]
        said += [PromptMessage(Role.USER, "and mind the gap")]
        messages, _ = await sent(litellm_provider, double, asked_model, said)
        body = double.requests[-1].body
    assert ("thinking" in body) == thinks
    assert [part for part in messages[1]["content"] if part["type"] == "thinking"] == (THOUGHT if thinks else [])
    assert [part["id"] for part in messages[1]["content"] if part["type"] == "tool_use"] == ["toolu_1", "toolu_2"]
