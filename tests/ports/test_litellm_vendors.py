"""Six vendors, each asked in its own format: rounds of calls, tools, thinking, and each end of an answer."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from perdure.activities.model_answer import StreamAccumulator, plan_calls, reply_of
from perdure.activities.providers.provider import REFUSAL_TEXT, Complete
from perdure.activities.providers.refusals import refusal_of
from perdure.activities.providers.tool_refusals import refused_tools
from perdure.contracts.agents import AgentDefinition, PublishedAgent, Reasoning
from perdure.contracts.calls import ModelCall, ModelCallRequest, OutputAsk, OutputForm
from perdure.contracts.ids import effect_key
from perdure.contracts.messages import Role
from perdure.contracts.turns import TurnAddress, Usage
from perdure.core.agents.models import MIN_CAP_TOKENS
from perdure.core.agents.prompts import PromptMessage, wire_messages, with_cache_breakpoint
from perdure.core.agents.tool_rules import function_of, sent_messages, sent_output, sent_tools
from perdure.core.agents.vendors import PROVIDERS
from tests.doubles.providers.client import UNWARNED, RecordingClient
from tests.doubles.providers.script import CONTENT_POLICY, Call, Step
from tests.doubles.providers.server import ProviderDouble
from tests.doubles.providers.vendors import VENDORS
from tests.doubles.providers.wires import SIGNATURE, SKIPPED, signature_of
from tests.unit.core.test_toolsets import SCHEMAS

pytestmark = UNWARNED
TURN = "0197f000-0000-7000-8000-000000000001"
ADDRESS = TurnAddress(tenant_id="t", conversation_id="c", turn_id=TURN)
MODEL_CALL = ModelCall(
    address=ADDRESS, call_id="m1", agent_id="a", agent_version="v", ask=ModelCallRequest(messages=(), tools=())
)
AGENT = PublishedAgent(definition=AgentDefinition(id="a", title="A", topology="tool_loop"), cards=(), version="v")
LOOK = function_of("look", "Look.", {"type": "object", "properties": {"key": {"type": "string"}}})
GO, NOTE = PromptMessage(Role.USER, "look"), PromptMessage(Role.SYSTEM, "Ann approved it.")
RESULT = '{"status":"ok"}'
IDS = {"anthropic": "toolu_01A09q90qw90lq917835lq{}", "mistral": "D681PevK{}", "gemini": "8f2b1a3{}"}
CLAUDE = "anthropic/claude-sonnet-4-5"
vendors = pytest.mark.parametrize("name", VENDORS)
TOOLS = [function_of(f"tool_{number}", "Look.", schema) for number, schema in enumerate(SCHEMAS.values())]
OBJECT: dict[str, JsonValue] = {"type": "object", "properties": {}}


async def ask(client: RecordingClient, model: str, *said: PromptMessage, **more: Any) -> tuple[str, Complete]:
    """The text and the end of the answer to a request as the product builds it."""
    messages = with_cache_breakpoint(wire_messages("Be brief.", "", said, model=model), model)
    tools = sent_tools([LOOK], model).tools
    await client.ask(model=model, messages=sent_messages(messages, model), tools=tools, **more)
    return client.text, client.complete


def answered_calls(first: Complete, call_id: str = "m1") -> list[PromptMessage]:
    """The calls of an answer as they are stored, and a result of each."""
    asked = MODEL_CALL.model_copy(update={"call_id": call_id})
    plans = plan_calls(asked, AGENT, first.tool_calls, asked.ask.tools)
    _, (message, *results) = reply_of(asked, StreamAccumulator(complete=first), None, plans.calls)
    assert len(results) == len(first.tool_calls)
    said = [PromptMessage(Role.ASSISTANT, "", json.loads(json.dumps(message.calls)))]
    return said + [PromptMessage(Role.TOOL, RESULT, (), plan.row.key) for plan in plans.calls]


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
@vendors
async def test_a_round_of_calls_goes_back_and_is_answered(client: RecordingClient, name: str, keys: str) -> None:
    calls, model = calls_of(name, keys), VENDORS[name].model
    client.double.script(Step(text="I look.", calls=calls), Step(text="Done."))
    text, first = await ask(client, model, GO)
    assert (text, first.finish_reason, first.truncated) == ("I look.", "tool_calls", False)
    assert [json.loads(call.raw_arguments) for call in first.tool_calls] == [{"key": key} for key in keys]
    text, second = await ask(client, model, GO, *answered_calls(first))
    assert (text, second.finish_reason, second.tool_calls) == ("Done.", "stop", ())
    assert len(client.double.requests) == 2, "and nothing is looked up at the server"
    ids = [call.provider_id.partition("__thought__")[0] for call in first.tool_calls]
    assert name == "ollama" or ids == [call.id for call in calls], "Ollama gives none"
    expected = replayed(name, ids, keys)
    assert (client.body.get("messages") or client.body["contents"])[-len(expected) :] == expected


@vendors
@pytest.mark.parametrize("before", ["openai", "ollama"])
async def test_rounds_of_another_model_with_what_was_said_after_them_are_accepted(
    client: RecordingClient, name: str, before: str
) -> None:
    model, stop = VENDORS[name].model, PromptMessage(Role.ASSISTANT, "It is \n")
    asked = [Step(calls=calls_of(before, keys)) for keys in ("AB", "CD")]
    client.double.script(*asked, Step(text="Yes.", times=None))
    rounds = [answered_calls((await ask(client, VENDORS[before].model, GO))[1], call_id) for call_id in ("m1", "m2")]
    said = [*rounds[0], NOTE, *rounds[1]]
    for ends in ([], [GO], [NOTE], [NOTE, GO], [stop], [stop, NOTE], [stop, GO], [GO, NOTE]):
        assert (await ask(client, model, GO, *said, *ends))[0] == "Yes."
    body = json.dumps(client.double.requests[-2].body)
    assert body.count("Ann approved it.") == 1 and (SKIPPED in body) == (name == "gemini")
    for began in (said, [stop, *said], [stop, GO], [NOTE, stop, GO]):  # what a window can leave of a transcript
        assert (await ask(client, model, *began))[0] == "Yes."


THOUGHT = f"functions.look:0__thought__{SIGNATURE}"
CALLS: list[dict[str, Any]] = [
    {"call_id": "t1.0", "arguments": '{"key":"A"}', "provider_id": "call_0"},
    {"call_id": "t2.0", "arguments": "{}", "sent_arguments": '{"ky":"B"}', "provider_id": "call_0"},
    {"call_id": "t3.0", "arguments": "{}", "provider_id": THOUGHT},
]


def odd_calls() -> Iterator[PromptMessage]:
    """A conversation in which calls have no words, two have one id, and a stopped answer says nothing."""
    yield from (GO, PromptMessage(Role.ASSISTANT, "\n\n"), PromptMessage(Role.USER, "well?"))
    for text, call in zip(["", "\n\n", "So."], CALLS, strict=True):
        key = effect_key(TURN, call["call_id"])
        yield PromptMessage(Role.ASSISTANT, text, [{**call, "key": key, "tool": "look"}])
        yield PromptMessage(Role.TOOL, RESULT, (), key)


@pytest.mark.parametrize(("model", "own_ids"), [
    *(("openai/gpt-4o-mini", ["call_0"]), ("azure/our-gpt-4o", ["call_0"]), (CLAUDE, ["call_0"])),
    *(("openai/mistral-large", []), ("mistral/mistral-large-latest", []), ("ollama_chat/qwen3:8b", [])),
    ("gemini/gemini-3-pro-preview", ["call_0", "functions.look:0"]),
])  # fmt: skip
async def test_odd_calls_are_sent_as_they_were_within_the_vendors_rules(
    client: RecordingClient, model: str, own_ids: list[str]
) -> None:
    client.double.script(Step(text="Yes."))
    await ask(client, model, *odd_calls())
    text = json.dumps(client.body)
    assert text.count(SIGNATURE) == model.startswith("gemini/"), "a signature goes back with its call"
    assert "call_id" not in text.replace("tool_call_id", "")
    assert [name for name in ("call_0", "functions.look:0") if f'"id": "{name}"' in text] == own_ids
    assert '{\\"ky\\":\\"B\\"}' in text or '{"ky": "B"}' in text, "the model's own arguments"


@pytest.mark.parametrize(("asked_model", "thinks"), [(CLAUDE, True), (f"{CLAUDE}-20250929", False)])
async def test_a_claude_model_thinks_within_a_round_that_its_own_thinking_began(
    client: RecordingClient, asked_model: str, thinks: bool
) -> None:
    reasoning = Reasoning(budget_tokens=1024)
    client.double.script(Step(thinking="Where? There.", calls=calls_of("anthropic", "AB")), Step(text="Yes."))
    _, first = await ask(client, CLAUDE, GO, reasoning=reasoning)
    said = [GO, *answered_calls(first), PromptMessage(Role.USER, "and mind the gap")]
    await ask(client, asked_model, *said, reasoning=reasoning)
    content = client.body["messages"][1]["content"]
    thought = {"type": "thinking", "thinking": "Where? There.", "signature": signature_of("Where? There.")}
    assert ("thinking" in client.body) == thinks
    assert [part for part in content if part["type"] == "thinking"] == ([thought] if thinks else [])
    assert [part["id"] for part in content if part["type"] == "tool_use"] == [
        call.id for call in calls_of("anthropic", "AB")
    ]


async def test_a_thinking_budget_and_an_effort_reach_each_vendor_in_its_parameters(client: RecordingClient) -> None:
    async def body(model: str, reasoning: Reasoning | None) -> Any:
        await client.ask(Step(text="Yes."), model=model, reasoning=reasoning)
        return client.body

    budget = await body(CLAUDE, Reasoning(budget_tokens=4_000))
    assert budget["thinking"] == {"type": "enabled", "budget_tokens": 4_000}
    assert budget["max_tokens"] == MIN_CAP_TOKENS
    thinking = (await body(CLAUDE, Reasoning(effort="low")))["thinking"]
    assert thinking["type"] == "enabled" and thinking["budget_tokens"] >= 1_024
    reasons = "openai/o3-mini"
    assert (await body(reasons, Reasoning()))["reasoning_effort"] == "high", "where nothing is said"
    assert "reasoning_effort" not in await body(reasons, None)
    assert "reasoning_effort" not in await body("openai/gpt-4o-mini", Reasoning()), "it cannot think"
    asked = await body(reasons, Reasoning(budget_tokens=4_000))
    assert asked["reasoning_effort"] == "medium", "the vendor counts no thinking"
    assert MIN_CAP_TOKENS in (asked.get("max_tokens"), asked.get("max_completion_tokens"))


@vendors
async def test_each_vendor_answers_with_mended_tools_and_requested_objects(client: RecordingClient, name: str) -> None:
    model = VENDORS[name].model
    await client.ask(Step(text="Yes.", times=None), model=model, tools=sent_tools(TOOLS, model).tools)
    for schema, form in product(SCHEMAS.values(), OutputForm):
        output = sent_output(OutputAsk(name="to answer", fits=schema, form=form), model)
        assert output is not None
        tools = [function_of(output.name, "", output.fits)] if form is OutputForm.FUNCTION else []
        await client.ask(model=model, tools=tools, output=output)
        if name == "openai":
            chosen, formatted = (client.body.get(each) for each in ("tool_choice", "response_format"))
            asked, other = (chosen["function"], formatted) if tools else (formatted["json_schema"], chosen)
            assert asked["name"] == output.name and other is None


async def test_a_gemini_model_is_sent_the_possible_values_of_a_property(client: RecordingClient) -> None:
    properties: JsonValue = {
        "kind": {"const": "file"},
        "like": {"anyOf": [{"const": "file"}, {"type": "string", "const": "link"}]},
        "size": {"enum": ["low", "high"]},
    }
    model = VENDORS["gemini"].model
    tool = function_of("look", "", {"type": "object", "properties": properties})
    await client.ask(Step(text="Yes."), model=model, tools=sent_tools([tool], model).tools)
    (declared,) = client.body["tools"][0]["function_declarations"]
    file, link = ({"type": "string", "enum": [value]} for value in ("file", "link"))
    size = {"type": "string", "enum": ["low", "high"]}
    assert declared["parameters"]["properties"] == {"kind": file, "like": {"anyOf": [file, link]}, "size": size}


@pytest.mark.parametrize(
    ("name", "tools", "found"),
    [
        ("openai", TOOLS[1:], {"tools": ["tool_1"]}),
        ("anthropic", TOOLS[11:], {"tools": ["tool_11"]}),  # LiteLLM itself drops what is at the top
        ("openai", [function_of("long", "d" * 2_000, OBJECT)], {"tools": ["long"]}),
        ("azure", TOOLS * 20, {"tool_count": 20 * len(TOOLS)}),
        ("gemini", [function_of("1st", "", OBJECT)], {"tools": ["1st"]}),
        ("gemini", [function_of(f"t{number}", "", OBJECT) for number in range(513)], {"tool_count": 513}),
        ("mistral", [function_of("a.b", "", OBJECT)], {"status": 400}),
        ("mistral", [function_of("odd", "", {"type": "objekt"})], {"status": 400}),
        ("anthropic", [function_of("odd", "", {**OBJECT, "required": "key"})], {"tools": ["odd"]}),
    ],
)  # fmt: skip
async def test_a_refused_tool_is_named(
    client: RecordingClient, name: str, tools: list[Any], found: dict[str, object]
) -> None:
    error = await client.fail(Step(text="Yes."), model=VENDORS[name].model, tools=tools)
    assert error.code == "model_bad_request" and found.items() <= error.details.items()


@pytest.mark.parametrize(("text", "named"), [
    ("Invalid schema for function 'b': In context=('properties', 'a'), array schema missing items.", ["b"]),
    ("Invalid 'tools[2].function.name': string too long.", ["c"]),
    ("tools.1.custom.input_schema.properties: Property keys should match pattern", ["b"]),
    ("* GenerateContentRequest.tools[0].function_declarations[2].parameters.properties[a]: missing", ["c"]),
    ("Function name was b but must be a-z, A-Z, 0-9", ["b"]),
    ("tools.9.custom: no such tool; a function that is not there; a", []),
])  # fmt: skip
def test_the_tools_in_a_providers_text_are_found(text: str, named: list[str]) -> None:
    assert refused_tools(text, ["a", "b", "c"]) == named


@pytest.mark.parametrize(("names", "ends", "reason", "truncated"), [
    ("openai azure mistral ollama", "stop", "stop", False), ("gemini", "STOP", "stop", False),
    ("anthropic", "end_turn stop_sequence", "stop", False), ("openai azure mistral ollama", "length", "length", True),
    ("anthropic", "max_tokens model_context_window_exceeded", "length", True),
    ("mistral", "model_length", "length", True), ("gemini", "MAX_TOKENS", "length", True),
    ("openai azure", "content_filter", "content_filter", True),
    ("gemini", "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII", "content_filter", True),
    ("anthropic", "refusal", "refusal", True), ("anthropic", "pause_turn", "pause_turn", True),
])  # fmt: skip
async def test_each_end_of_an_answer_has_its_reason(
    client: RecordingClient, names: str, ends: str, reason: str, truncated: bool
) -> None:
    for name, end in product(names.split(), ends.split()):
        # Ollama sends no half calls, and Anthropic's pause is not a cut.
        with_calls = truncated and name != "ollama" and end != "pause_turn"
        for calls in [(), calls_of(name, "A")] if with_calls else [()]:
            client.double.script(Step(text="And then", calls=calls, finish_reason=end))
            text, last = await ask(client, VENDORS[name].model, GO)
            assert (text, last.finish_reason, last.truncated) == ("And then", reason, truncated), (name, end)
            assert not last.tool_calls


AZURE_FILTER: JsonValue = {
    "error": {
        "message": "The response was filtered.", "type": None, "param": "prompt",
        "code": "content_filter", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"hate": {"filtered": True}}},
    }
}  # fmt: skip
BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}


@pytest.mark.parametrize(("name", "step", "expected"), [
    ("openai", CONTENT_POLICY, (REFUSAL_TEXT, "content_filter")),
    ("openai", Step(calls=(Call(name="pay"),), finish_reason="content_filter"), (REFUSAL_TEXT, "content_filter")),
    ("openai", Step(refusal="I will not."), ("I will not.", "refusal")),
    ("azure", Step(refusal="I will not."), ("I will not.", "refusal")),
    ("azure", Step(status=400, body=AZURE_FILTER), (REFUSAL_TEXT, "content_filter")),
    ("azure", Step(finish_reason="content_filter"), (REFUSAL_TEXT, "content_filter")),
    ("anthropic", Step(finish_reason="refusal"), (REFUSAL_TEXT, "refusal")),
    ("gemini", Step(body=f"data: {json.dumps(BLOCKED)}\n\n", media="text/event-stream"),
     (REFUSAL_TEXT, "content_filter")),
    ("mistral", Step(text="And", finish_reason="error"), "model_unreadable"),
    *[
        ("gemini", Step(text=text, finish_reason=end), "model_unreadable")
        for end in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "OTHER")
        for text in ("", "And")
    ],
])  # fmt: skip
async def test_refusals_are_answers_and_failed_answers_are_not(
    client: RecordingClient, name: str, step: Step, expected: tuple[str, str] | str
) -> None:
    if isinstance(expected, str):
        assert (await client.fail(step, model=VENDORS[name].model)).code == expected
    else:
        await client.ask(step, model=VENDORS[name].model)
        last = client.complete
        assert (client.text, last.finish_reason, last.truncated, last.tool_calls) == (*expected, False, ())
        assert step.status == 200 or last.usage == Usage(), "an error status costs nothing"


def openai_call(id_: str, arguments: JsonValue = "{}") -> list[JsonValue]:
    call: JsonValue = {"id": id_, "type": "function", "function": {"name": "look", "arguments": arguments}}
    asked: JsonValue = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [{"role": "user", "content": "look"}, asked, {"role": "tool", "tool_call_id": id_, "content": "1"}]


USE: JsonValue = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
CALL: JsonValue = {"function_call": {"name": "look", "args": {}}}
TOLD: JsonValue = {"role": "user", "parts": [{"function_response": {"name": "look", "response": {}}}]}
ASKED: JsonValue = {"role": "user", "parts": [{"text": "look"}]}
SAY: JsonValue = {"role": "user", "content": "well?"}
SAID: JsonValue = {"role": "assistant", "content": "Hi "}
CHAT, DEPLOYED = "/v1/chat/completions", "/openai/deployments/our-gpt-4o/chat/completions"
STREAMED = "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse"
INVALID = "invalid_request_error"


@pytest.mark.parametrize(("url", "messages", "status", "code"), [
    (f"openai{CHAT}", openai_call("x" * 41), 400, INVALID),
    (f"azure{DEPLOYED}?api-version=2024-10-21", [*openai_call("x")[:2], SAY], 400, INVALID),
    (f"azure{DEPLOYED}", [SAY], 404, "404"), (f"azure{CHAT}?api-version=2024-10-21", [SAY], 404, "404"),
    ("anthropic/v1/messages", [SAY, {"role": "assistant", "content": [USE]}, SAY], 400, INVALID),
    ("anthropic/v1/messages", [SAID, SAY], 400, INVALID), ("anthropic/v1/messages", [SAY, SAY], 400, INVALID),
    ("anthropic/v1/messages", [SAY, SAID], 400, INVALID), (f"mistral{CHAT}", openai_call("call_1"), 400, "3280"),
    (f"mistral{CHAT}", [*openai_call("D681PevKs"), SAY], 400, "3230"), (f"mistral{CHAT}", [SAY, SAID], 400, "3230"),
    (f"gemini{STREAMED}", [ASKED, {"role": "model", "parts": [CALL]}, TOLD], 400, "INVALID_ARGUMENT"),
    (f"gemini{STREAMED}", [ASKED, {"role": "model", "parts": [CALL, CALL]}, TOLD], 400, "INVALID_ARGUMENT"),
    ("ollama/api/chat", openai_call("x"), 400, ""),
    ("ollama/api/chat", [{"role": "user", "content": [{"type": "text", "text": "look"}]}], 400, ""),
])  # fmt: skip
async def test_the_vendors_reject_what_they_document_in_their_own_form(
    provider_double: ProviderDouble, url: str, messages: list[JsonValue], status: int, code: str
) -> None:
    keys = {vendor.header: "k" for vendor in VENDORS.values() if vendor.header}
    body: JsonValue = {"model": url.partition("/")[0], "messages": messages}
    if url.startswith("gemini"):
        body = {"contents": messages}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{provider_double.port}") as http:
        response = await http.post(f"/{url}", json=body, headers=keys)
        assert response.status_code == status
        assert next((code for code in refusal_of(response.json()).codes if code != "400"), "") == code
        unsigned = await http.post(f"/{url}", json=body)
        assert unsigned.status_code in ((401, 403) if status == 400 and "ollama" not in url else (status,))


@pytest.mark.parametrize(("schema", "status"), [
    ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}, 418),
    ({"type": "object", "$ref": "#"}, 400), ({"type": "object", "additionalProperties": False}, 400),
    ({"type": "object", "properties": {"a": {}}}, 400),
    ({"type": "object", "properties": {"a": {"type": "array"}}}, 400),
    ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, 400),
    ({"type": "object", "properties": {"a": {"type": "integer", "enum": ["1"]}}}, 400),
    ({"type": "object", "required": ["a"]}, 400), ({"type": "string"}, 400),
])  # fmt: skip
async def test_google_takes_only_its_subset_of_a_schema(
    provider_double: ProviderDouble, schema: JsonValue, status: int
) -> None:
    """418 is the double's own, as its script is empty."""
    provider_double.script()
    declared: JsonValue = [{"function_declarations": [{"name": "look", "parameters": schema}]}]
    async with httpx.AsyncClient(headers={"x-goog-api-key": "k"}) as http:
        url = f"http://127.0.0.1:{provider_double.port}/gemini{STREAMED}"
        assert (await http.post(url, json={"contents": [ASKED], "tools": declared})).status_code == status


@vendors
async def test_an_answer_is_the_same_streamed_and_whole(client: RecordingClient, name: str) -> None:
    steps = [Step(text="I look.", calls=calls_of(name, "AB"), whole=whole) for whole in (False, True)]
    client.double.script(*steps)
    (streamed, first), (whole, second) = [await ask(client, VENDORS[name].model, GO) for _ in steps]
    assert streamed == whole == "I look."
    assert (first.finish_reason, first.usage) == (second.finish_reason, second.usage)
    assert [(call.name, json.loads(call.raw_arguments)) for call in second.tool_calls] == [
        (call.name, json.loads(call.raw_arguments)) for call in first.tool_calls
    ]


def test_an_agents_file_is_checked_against_the_providers_of_litellm() -> None:
    from perdure.activities.providers import litellm_provider  # on top, every process of a run would import LiteLLM

    assert {str(getattr(each, "value", each)) for each in vars(litellm_provider)["litellm"].provider_list} == PROVIDERS
