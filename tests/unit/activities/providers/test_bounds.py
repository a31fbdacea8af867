"""The most that a request can use: never less than what it does use, and nothing if it is unknown."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from perdure.activities.providers import provider as bounds
from perdure.activities.providers.registry import Models
from perdure.activities.providers.scripted import ScriptedProvider, read_script
from perdure.contracts.agents import AgentDefinition, DayLimits, PublishedAgent
from perdure.contracts.calls import OutputAsk, OutputForm
from perdure.core.budgets import RequestBound

if TYPE_CHECKING:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider


def request(model: str, text: str = "hello", **params: Any) -> bounds.ProviderRequest:
    return bounds.ProviderRequest(model=model, messages=({"role": "user", "content": text},), params=params)


@pytest.fixture(scope="module")
def litellm() -> "LiteLLMProvider":
    # 5 s, which only who runs these tests spends
    from perdure.activities.providers.litellm_provider import LiteLLMProvider

    return LiteLLMProvider()


def test_a_models_name_downloads_no_tokenizer(litellm: "LiteLLMProvider", monkeypatch: pytest.MonkeyPatch) -> None:
    from litellm import utils

    monkeypatch.setattr(utils, "_return_huggingface_tokenizer", downloads := Mock(return_value=None))
    assert utils.select_tokenizer("groq/llama-3-70b")["type"] == "openai_tokenizer" and not downloads.called


def bytes_of(asked: bounds.ProviderRequest) -> int:
    return len(json.dumps(list(asked.messages), ensure_ascii=False).encode())


def test_a_priced_model_is_bounded_by_bytes_by_the_agents_limit_and_by_the_table(litellm: "LiteLLMProvider") -> None:
    asked = request("openai/gpt-4o-mini", "a" * 1_000, max_tokens=200)
    # 0.15 dollars a million in, 0.60 out.
    cost = -(-(bytes_of(asked) * 15 + 200 * 60) // 100)
    assert litellm.upper_bound(asked) == RequestBound(bytes_of(asked) + 200, cost)
    asked = request("openai/gpt-4o-mini")
    assert litellm.upper_bound(asked).tokens == bytes_of(asked) + 16_384, "the model's own limit"
    asked = request("anthropic/claude-haiku-4-5", "a" * 100_000, max_tokens=1)
    # 1 dollar a million in, 1.25 where it is written to the cache, 5 out.
    assert litellm.upper_bound(asked).cost_microusd == pytest.approx(bytes_of(asked) * 1.25 + 5, abs=1)


def test_an_unpriced_model_is_bounded_only_by_the_agents_own_limit(litellm: "LiteLLMProvider") -> None:
    assert litellm.upper_bound(request("openai/nobody-knows-this")) == RequestBound(None, None)
    asked = request("openai/nobody-knows-this", max_tokens=50)
    assert litellm.upper_bound(asked) == RequestBound(bytes_of(asked) + 50, None)
    assert litellm.upper_bound(request("no-such-vendor/x", max_tokens=50)).cost_microusd is None
    # The context of a model is in the same table.
    names = ("openai/gpt-4", "anthropic/claude-haiku-4-5", "openai/nobody-knows-this", "no-such-vendor/x")
    assert [litellm.context_tokens(name) for name in names] == [8_192, 200_000, None, None]


@pytest.mark.parametrize(("params", "of_model", "most"), [
    *(({}, None, None), ({}, 100, 100), ({"max_tokens": "7"}, 100, 100), ({"max_tokens": True}, 100, 100)),
    *(({"max_tokens": 7}, 100, 7), ({"max_completion_tokens": 9, "max_tokens": 7}, 100, 9)),
    ({"max_tokens": 7, "n": 3}, None, 21),
])  # fmt: skip
def test_an_answers_bound_is_the_agents_limit_or_else_the_models(params: Any, of_model: Any, most: Any) -> None:
    assert bounds.max_output_tokens(params, of_model) == most


@given(st.text(max_size=300))
def test_the_bound_of_an_input_is_never_below_its_estimate(text: str) -> None:
    assert bounds.max_input_tokens(request("m", text)) >= bounds.tokens_of_request(request("m", text))


def test_tools_and_the_output_schema_count_in_a_requests_bound() -> None:
    plain, fits = request("m"), {"type": "object", "properties": {"a" * 400: {"type": "string"}}}
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": fits}}
    for more in (replace(plain, tools=(tool,)), replace(plain, output=OutputAsk(name="f", fits=fits))):
        assert bounds.tokens_of_request(more) >= bounds.tokens_of_request(plain) + 100
        assert bounds.max_input_tokens(more) >= bounds.max_input_tokens(plain) + 400
    by_function = replace(plain, output=OutputAsk(name="f", fits=fits, form=OutputForm.FUNCTION))
    assert bounds.tokens_of_request(by_function) == bounds.tokens_of_request(plain), "its schema is that of the tool"


@pytest.mark.parametrize("text", ["/echo one two three", "book 7", "what else", "broken"])
async def test_the_scripted_model_uses_no_more_than_its_bound(text: str) -> None:
    script: dict[str, Any] = {
        "tokens_per_second": 0,
        "price_per_million": {"input": 3, "output": 15},
        "rules": [
            {"name": "book", "when": r"^book (?P<room>\d+)", "call": {"tool": "book", "args": {"room": "{room:int}"}}},
            {"name": "broken", "when": "^broken (?P<x>.)?|^broken", "say": "{x}"},
        ],
    }
    provider, asked = ScriptedProvider(read_script(script)), request("scripted", text)
    most = provider.upper_bound(asked)
    assert most.tokens is not None and most.cost_microusd is not None
    try:
        ends = [chunk async for chunk in provider.stream(asked) if isinstance(chunk, bounds.Complete)]
    except Exception:
        assert text == "broken"
        return
    assert ends[0].usage.tokens <= most.tokens and ends[0].usage.cost_microusd <= most.cost_microusd


async def test_a_starting_worker_reports_missing_secrets_and_open_limits(litellm: "LiteLLMProvider") -> None:
    def agent(name: str, limits: DayLimits | None, **given: Any) -> PublishedAgent:
        definition = AgentDefinition(id=name, title="", topology="t", day_limits=limits, **given)
        return PublishedAgent(definition=definition, cards=(), version=name)

    money, strange = DayLimits(max_cost_microusd=5), "openai/nobody-knows-this"
    agents = [
        agent("priced", money, model="openai/gpt-4o"),
        agent("unpriced", money, model=strange, model_params={"max_tokens": 9}),
        agent("unbounded", money, model="openai/gpt-4o", fallback_model=strange),
        agent("free", None, model=strange, model_params={"api_key_secret": "nosuchkey"}),
    ]
    with capture_logs() as logs:
        await Models(lambda name: None).preload(agents)
    told = [(log["agent"], log["code"]) for log in logs if log["event"] == "day_limit_cannot_hold"]
    secrets = [(log["agent"], "nosuchkey" in log["problem"]) for log in logs if log["event"] == "model_secret_not_set"]
    assert secrets == [("free", True)]
    assert told == [("unpriced", "price_unknown"), ("unbounded", "output_unbounded")]


def test_an_error_of_a_call_repeats_none_of_its_secret_headers(litellm: "LiteLLMProvider") -> None:
    from perdure.activities.providers.litellm_provider import _secrets

    headers = {"Cookie": "sid=zebra; a", "X-Api-Key": "quagga", "Authorization": "Bearer okapi", "X-Team": "blue"}
    assert {"sid=zebra; a", "quagga", "okapi"} <= {*_secrets(request("openai/gpt-4o", extra_headers=headers))}
    assert "blue" not in _secrets(request("openai/gpt-4o", extra_headers=headers))
