"""Tools and requested objects through LiteLLM to strict providers: accepted as sent, and named if they are refused."""

from contextlib import aclosing
from typing import Any

import pytest

from perdure.activities.providers.provider import Complete, Provider, ProviderRequest
from perdure.activities.providers.scripted import Script
from perdure.activities.providers.tool_refusals import refused_tools
from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.contracts.errors import UpstreamRejected
from perdure.core.agents.tool_rules import function_of, sent_output, sent_tools
from tests.doubles.listener import UNWARNED
from tests.doubles.playing import PlayingDouble
from tests.unit.core.test_tool_rules import SCHEMAS

pytestmark = UNWARNED
CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/gpt-4o-mini"
TOOLS = [function_of(f"tool_{number}", "Look.", schema) for number, schema in enumerate(SCHEMAS.values())]


async def answered(provider: Provider, model: str, tools: Any, output: OutputAsk | None = None) -> bool:
    with PlayingDouble(Script(fallback="Yes.")) as double:
        where = {"api_base": double.root if model == CLAUDE else double.api_base, "api_key": "k"}
        hello: Any = ({"role": "user", "content": "hello"},)
        request = ProviderRequest(model, hello, tuple(tools), where, 10, output=output)
        async with aclosing(provider.stream(request)) as chunks:
            *_, last = [chunk async for chunk in chunks]
    return isinstance(last, Complete)


@pytest.mark.parametrize("model", [CLAUDE, OPENAI])
async def test_strict_providers_answer_with_mended_tools(litellm_provider: Provider, model: str) -> None:
    assert await answered(litellm_provider, model, sent_tools(TOOLS, model).tools)
    for schema in SCHEMAS.values():
        for form in OutputForm:
            output = sent_output(OutputAsk(name="to answer", fits=schema, form=form), model)
            assert output is not None
            tools = [function_of(output.name, "", output.fits)] if form is OutputForm.FUNCTION else []
            assert await answered(litellm_provider, model, tools, output)


@pytest.mark.parametrize(
    ("model", "tools", "found"),
    [
        (OPENAI, TOOLS[1:], {"tools": ["tool_1"]}),
        (CLAUDE, TOOLS[2:], {"tools": ["tool_11"]}),  # LiteLLM itself drops what is at the top
        (OPENAI, [function_of("long", "d" * 2_000, {"type": "object", "properties": {}})], {"tools": ["long"]}),
        (OPENAI, TOOLS * 20, {"tool_count": 20 * len(TOOLS)}),
    ],
)
async def test_a_refused_tool_is_named(
    litellm_provider: Provider, model: str, tools: list[Any], found: dict[str, object]
) -> None:
    with pytest.raises(UpstreamRejected) as raised:
        await answered(litellm_provider, model, tools)
    assert raised.value.code == "model_bad_request" and found.items() <= raised.value.details.items()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Invalid schema for function 'b': In context=('properties', 'a'), array schema missing items.", ["b"]),
        ("Invalid 'tools[2].function.name': string too long.", ["c"]),
        ("tools.1.custom.input_schema.properties: Property keys should match pattern", ["b"]),
        ("* GenerateContentRequest.tools[0].function_declarations[2].parameters.properties[a]: missing", ["c"]),
        ("Function name was b but must be a-z, A-Z, 0-9", ["b"]),
        ("tools.9.custom: no such tool; a function that is not there; a", []),
    ],
)
def test_the_tools_in_a_providers_text_are_found(text: str, named: list[str]) -> None:
    assert refused_tools(text, ["a", "b", "c"]) == named
