"""Six vendors, each asked in its own format: rounds of calls, parallel calls, and each end of an answer."""

import json
from contextlib import aclosing
from itertools import product
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.activities.providers.provider import REFUSAL_TEXT, Complete, Provider, ProviderRequest, TextDelta
from perdure.activities.providers.refusals import refusal_of
from perdure.contracts.errors import UpstreamUnavailable
from perdure.contracts.messages import Role
from perdure.core.agents.prompts import PromptMessage, wire_messages, with_cache_breakpoint
from perdure.core.agents.tool_rules import function_of, sent_messages, sent_tools
from tests.doubles.listener import UNWARNED
from tests.doubles.provider_steps import Call, Step
from tests.doubles.vendor_wires import SIGNATURE, SKIPPED
from tests.doubles.vendors import VENDORS, VendorsDouble
from tests.ports.test_litellm_messages import answered_calls

pytestmark = UNWARNED
LOOK = function_of("look", "Look.", {"type": "object", "properties": {"key": {"type": "string"}}})
GO = PromptMessage(Role.USER, "look")
RESULT = '{"status":"ok"}'
IDS = {"anthropic": "toolu_01A09q90qw90lq917835lq{}", "mistral": "D681PevK{}", "gemini": "8f2b1a3{}"}


async def ask(provider: Provider, double: VendorsDouble, name: str, *said: PromptMessage) -> tuple[str, Complete]:
    """The text and the end of the answer to a request as the product builds it."""
    model = VENDORS[name].model
    messages = with_cache_breakpoint(wire_messages("Be brief.", "", said, model=model), model)
    tools = sent_tools([LOOK], model).tools
    request = ProviderRequest(model, sent_messages(messages, model), tools, double.where(name), 10)
    async with aclosing(provider.stream(request)) as chunks:
        *texts, last = [chunk async for chunk in chunks]
    assert isinstance(last, Complete)
    return "".join(chunk.text for chunk in texts if isinstance(chunk, TextDelta)), last


def calls_of(name: str, keys: str) -> tuple[Call, ...]:
    vendor_id = IDS.get(name, "call_0Zx1BpmWkQ8y3sVfTqLrNhJ{}")
    return tuple(Call(name="look", arguments={"key": key}, id=vendor_id.format(key)) for key in keys)


def replayed(name: str, ids: list[str], keys: str) -> list[Any]:
    """The messages of a round as its vendor must receive them."""
    pairs = list(zip(ids, [{"key": key} for key in keys], strict=True))
    if name == "anthropic":
        uses = [{"type": "tool_use", "id": id_, "name": "look", "input": given} for id_, given in pairs]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": RESULT} for id_ in ids]
        return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    if name == "gemini":
        parts: list[Any] = [{"function_call": {"id": id_, "name": "look", "args": given}} for id_, given in pairs]
        parts[0]["thoughtSignature"] = SIGNATURE
        answers = [{"function_response": {"id": id_, "name": "look", "response": json.loads(RESULT)}} for id_ in ids]
        return [{"role": "model", "parts": parts}, {"role": "user", "parts": answers}]
    if name == "ollama":
        asked = [{"function": {"name": "look", "arguments": given}} for _, given in pairs]
        told: Any = {"role": "tool", "content": RESULT, "images": [], "tool_name": "look"}
        return [{"role": "assistant", "content": "", "images": [], "tool_calls": asked}, *[told] * len(ids)]
    functions = [(id_, {"name": "look", "arguments": json.dumps(given)}) for id_, given in pairs]
    sent = [{"id": id_, "type": "function", "function": function} for id_, function in functions]
    told = [{"role": "tool", "tool_call_id": id_, "content": RESULT} for id_ in ids]
    return [{"role": "assistant", "tool_calls": sent}, *told]


@pytest.mark.parametrize("keys", ["A", "AB"], ids=["one call", "parallel calls"])
@pytest.mark.parametrize("name", VENDORS)
async def test_a_round_of_calls_goes_back_and_is_answered(litellm_provider: Provider, name: str, keys: str) -> None:
    with VendorsDouble() as double:
        calls = calls_of(name, keys)
        double.script(Step(text="I look.", calls=calls), Step(text="Done."))
        text, first = await ask(litellm_provider, double, name, GO)
        assert (text, first.finish_reason, first.truncated) == ("I look.", "tool_calls", False)
        assert [json.loads(call.raw_arguments) for call in first.tool_calls] == [{"key": key} for key in keys]
        text, second = await ask(litellm_provider, double, name, GO, *answered_calls(first))
        assert (text, second.finish_reason, second.tool_calls) == ("Done.", "stop", ())
        assert len(double.requests) == 2, "and nothing is looked up at the server"
        body: Any = double.requests[-1].body
    ids = [call.provider_id.partition("__thought__")[0] for call in first.tool_calls]
    assert name == "ollama" or ids == [call.id for call in calls], "Ollama gives none"
    expected = replayed(name, ids, keys)
    assert (body.get("messages") or body["contents"])[-len(expected) :] == expected


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("before", ["openai", "ollama"])
async def test_rounds_of_another_model_with_what_was_said_after_them_are_accepted(
    litellm_provider: Provider, name: str, before: str
) -> None:
    note, stop = PromptMessage(Role.SYSTEM, "Ann approved it."), PromptMessage(Role.ASSISTANT, "It is")
    with VendorsDouble() as double:
        double.script(
            Step(calls=calls_of(before, "AB")), Step(calls=calls_of(before, "CD")), Step(text="Yes.", times=9)
        )
        said = [GO, *answered_calls((await ask(litellm_provider, double, before, GO))[1]), note]
        said += answered_calls((await ask(litellm_provider, double, before, GO))[1], "m2")
        for ends in ([], [GO], [note], [note, GO], [stop], [stop, note], [stop, GO], [GO, note]):
            assert (await ask(litellm_provider, double, name, *said, *ends))[0] == "Yes."
        body = json.dumps(double.requests[-2].body)
    assert body.count("Ann approved it.") == 1 and (SKIPPED in body) == (name == "gemini")


@pytest.mark.parametrize(
    ("names", "ends", "reason", "truncated"),
    [
        ("openai azure mistral ollama", "stop", "stop", False),
        ("gemini", "STOP", "stop", False),
        ("anthropic", "end_turn stop_sequence", "stop", False),
        ("openai azure mistral ollama", "length", "length", True),
        ("anthropic", "max_tokens model_context_window_exceeded", "length", True),
        ("mistral", "model_length", "length", True),
        ("gemini", "MAX_TOKENS", "length", True),
        ("openai azure", "content_filter", "content_filter", True),
        ("gemini", "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII", "content_filter", True),
        ("anthropic", "refusal", "refusal", True),
        ("anthropic", "pause_turn", "pause_turn", True),
    ],
)
async def test_each_end_of_an_answer_has_its_reason(
    litellm_provider: Provider, names: str, ends: str, reason: str, truncated: bool
) -> None:
    with VendorsDouble() as double:
        for name, end in product(names.split(), ends.split()):
            # Ollama sends no half calls, and Anthropic's pause is not a cut.
            with_calls = truncated and name != "ollama" and end != "pause_turn"
            for calls in [(), calls_of(name, "A")] if with_calls else [()]:
                double.script(Step(text="And then", calls=calls, finish_reason=end))
                text, last = await ask(litellm_provider, double, name, GO)
                assert (text, last.finish_reason, last.truncated) == ("And then", reason, truncated), (name, end)
                assert not last.tool_calls


AZURE_FILTER: JsonValue = {
    "error": {
        "message": "The response was filtered.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"hate": {"filtered": True}}},
    }
}
BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("openai", Step(refusal="I will not."), ("I will not.", "refusal")),
        ("azure", Step(refusal="I will not."), ("I will not.", "refusal")),
        ("azure", Step(status=400, body=AZURE_FILTER), (REFUSAL_TEXT, "content_filter")),
        ("azure", Step(finish_reason="content_filter"), (REFUSAL_TEXT, "content_filter")),
        ("anthropic", Step(finish_reason="refusal"), (REFUSAL_TEXT, "refusal")),
        (
            "gemini",
            Step(body=f"data: {json.dumps(BLOCKED)}\n\n", media="text/event-stream"),
            (REFUSAL_TEXT, "content_filter"),
        ),
        ("mistral", Step(text="And", finish_reason="error"), "model_unreadable"),
        *[
            ("gemini", Step(text=text, finish_reason=end), "model_unreadable")
            for end in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS")
            for text in ("", "And")
        ],
    ],
)
async def test_refusals_are_answers_and_failed_answers_are_not(
    litellm_provider: Provider, name: str, step: Step, expected: tuple[str, str] | str
) -> None:
    with VendorsDouble() as double:
        double.script(step)
        if isinstance(expected, str):
            with pytest.raises(UpstreamUnavailable) as raised:
                await ask(litellm_provider, double, name, GO)
            assert raised.value.code == expected
        else:
            text, last = await ask(litellm_provider, double, name, GO)
            assert (text, last.finish_reason, last.truncated) == (*expected, False)


def openai_call(id_: str, arguments: JsonValue = "{}") -> list[JsonValue]:
    call: JsonValue = {"id": id_, "type": "function", "function": {"name": "look", "arguments": arguments}}
    asked: JsonValue = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [{"role": "user", "content": "look"}, asked, {"role": "tool", "tool_call_id": id_, "content": "1"}]


USE: JsonValue = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
CALL: JsonValue = {"function_call": {"name": "look", "args": {}}}
TOLD: JsonValue = {"role": "user", "parts": [{"function_response": {"name": "look", "response": {}}}]}
ASKED: JsonValue = {"role": "user", "parts": [{"text": "look"}]}
SAY: JsonValue = {"role": "user", "content": "well?"}
CHAT, DEPLOYED = "/v1/chat/completions", "/openai/deployments/our-gpt-4o/chat/completions"
STREAMED = "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("url", "messages", "status", "code"),
    [
        (f"openai{CHAT}", openai_call("x" * 41), 400, "invalid_request_error"),
        (f"azure{DEPLOYED}?api-version=2024-10-21", [*openai_call("x")[:2], SAY], 400, "invalid_request_error"),
        (f"azure{DEPLOYED}", [SAY], 404, "404"),
        (f"azure{CHAT}?api-version=2024-10-21", [SAY], 404, "404"),
        ("anthropic/v1/messages", [SAY, {"role": "assistant", "content": [USE]}, SAY], 400, "invalid_request_error"),
        (f"mistral{CHAT}", openai_call("call_1"), 400, "3280"),
        (f"mistral{CHAT}", [*openai_call("D681PevKs"), SAY], 400, "3230"),
        (f"mistral{CHAT}", [SAY, {"role": "assistant", "content": "Hi"}], 400, "3230"),
        (f"gemini{STREAMED}", [ASKED, {"role": "model", "parts": [CALL]}, TOLD], 400, "INVALID_ARGUMENT"),
        (f"gemini{STREAMED}", [ASKED, {"role": "model", "parts": [CALL, CALL]}, TOLD], 400, "INVALID_ARGUMENT"),
        ("ollama/api/chat", openai_call("x"), 400, ""),
        ("ollama/api/chat", [{"role": "user", "content": [{"type": "text", "text": "look"}]}], 400, ""),
    ],
)
async def test_the_vendors_reject_what_they_document_in_their_own_form(
    url: str, messages: list[JsonValue], status: int, code: str
) -> None:
    keys = {vendor.header: "k" for vendor in VENDORS.values() if vendor.header}
    body = {"model": url.partition("/")[0], "system": [], "messages": messages}
    if not url.startswith("anthropic"):
        del body["system"]
    if url.startswith("gemini"):
        body = {"contents": messages}
    with VendorsDouble() as double:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{double.port}") as client:
            response = await client.post(f"/{url}", json=body, headers=keys)
            assert response.status_code == status
            assert next((code for code in refusal_of(response.json()).codes if code != "400"), "") == code
            unsigned = await client.post(f"/{url}", json=body)
            assert unsigned.status_code in ((401, 403) if status == 400 and "ollama" not in url else (status,))
