"""A model: its reasoning, structured answers, and what happens to an answer by its end."""

from typing import Any

import pytest
from pydantic import JsonValue

from perdure.activities.providers.registry import Models
from perdure.contracts.agents import AgentDefinition, AgentStage, FallbackModel, OnLength, PublishedAgent, Reasoning
from perdure.contracts.errors import Problem, UpstreamRejected
from perdure.contracts.messages import WindowPolicy
from perdure.core.agents.models import (
    MIN_CAP_TOKENS,
    ThinkingSetting,
    choose_thinking,
    default_past_tokens,
    has_other_key,
    is_ambiguous,
    params_of,
    round_start,
    with_stage,
    with_thinking,
)
from perdure.core.calls.endings import Ending, FinishReason, continuation_note, ending_of, length_rule, output_limit
from perdure.core.calls.retries import gives_up, is_permanent

CLAUDE, OPENAI, GEMINI = "anthropic/claude-sonnet-4-5", "openai/o3-mini", "gemini/gemini-2.5-pro"
SAID: list[dict[str, JsonValue]] = [{"role": "system", "content": "base"}, {"role": "user", "content": "hello"}]
CALLED: list[dict[str, JsonValue]] = [*SAID, {"role": "assistant", "content": "", "tool_calls": [{"id": "k"}]}]
CALLED += [{"role": "tool", "tool_call_id": "k", "content": "{}"}]
AUTO = Reasoning()
OWN = {"model_params": {"api_base": "http://h/v1", "api_key_secret": "own"}}
STAGED = {"stages": {"plan": AgentStage(model_params={"api_key_secret": "own"})}}


@pytest.mark.parametrize(("asked", "can_think", "counts"), [
    *((None, True, ThinkingSetting()), (AUTO, True, ThinkingSetting(effort="high")), (AUTO, False, ThinkingSetting())),
    (Reasoning(effort="low"), True, ThinkingSetting(effort="low")),
    (Reasoning(effort="low"), False, ThinkingSetting(effort="low")),
    (Reasoning(effort="none"), True, ThinkingSetting()),
    (Reasoning(budget_tokens=2_000), False, ThinkingSetting(budget_tokens=2_000)),
    (Reasoning(budget_tokens=2_000, effort="low"), True, ThinkingSetting(budget_tokens=2_000)),
])  # fmt: skip
def test_a_budget_overrides_an_effort_and_both_the_model(asked: Any, can_think: bool, counts: ThinkingSetting) -> None:
    assert choose_thinking(asked, can_think=can_think) == counts
    assert is_ambiguous(asked) == (asked == Reasoning(budget_tokens=2_000, effort="low"))


@pytest.mark.parametrize(("model", "asked", "sent"), [
    (CLAUDE, Reasoning(budget_tokens=4_000), ({"type": "enabled", "budget_tokens": 4_000}, None, MIN_CAP_TOKENS)),
    (CLAUDE, Reasoning(budget_tokens=9_000), ({"type": "enabled", "budget_tokens": 9_000}, None, 18_000)),
    (CLAUDE, Reasoning(effort="low"), (None, "low", None)),
    (GEMINI, Reasoning(budget_tokens=1_024), ({"type": "enabled", "budget_tokens": 1_024}, None, MIN_CAP_TOKENS)),
    (OPENAI, Reasoning(budget_tokens=2_048), (None, "low", MIN_CAP_TOKENS)),
    (OPENAI, Reasoning(budget_tokens=8_192), (None, "medium", MIN_CAP_TOKENS)),
    (OPENAI, Reasoning(budget_tokens=20_000), (None, "high", 40_000)),
    (OPENAI, AUTO, (None, "high", None)),
    (OPENAI, None, (None, None, None)),
])  # fmt: skip
def test_each_vendor_gets_its_own_parameters(model: str, asked: Reasoning | None, sent: tuple[Any, Any, Any]) -> None:
    found = with_thinking(model, {"temperature": 0.2}, SAID, asked, can_think=True)
    assert (found.get("thinking"), found.get("reasoning_effort"), found.get("max_tokens")) == sent
    assert found["temperature"] == 0.2


def test_the_agents_own_parameters_override_its_reasoning_settings() -> None:
    params: dict[str, JsonValue] = {"max_tokens": 500, "reasoning_effort": "minimal"}
    assert with_thinking(OPENAI, params, SAID, Reasoning(budget_tokens=20_000), can_think=True) == params
    assert with_thinking(CLAUDE, {}, CALLED, AUTO, can_think=True) == {}
    assert with_thinking(OPENAI, {}, CALLED, AUTO, can_think=True) == {"reasoning_effort": "high"}
    later: list[Any] = [*CALLED, {"role": "assistant", "content": "done"}, {"role": "user", "content": "and now?"}]
    assert with_thinking(CLAUDE, {}, later, AUTO, can_think=True) == {"reasoning_effort": "high"}


@pytest.mark.parametrize(("roles", "start"), [
    ("", 0), ("su", 2), ("sua", 2), ("suat", 2), ("suatu", 2), ("suatsuu", 2), ("suau", 4), ("suatau", 6), ("at", 0),
])  # fmt: skip
def test_a_round_begins_after_the_users_message_that_follows_no_result(roles: str, start: int) -> None:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    assert round_start([names[each] for each in roles]) == start


def test_only_permanent_errors_are_not_retried() -> None:
    codes = ("model_auth", "model_not_found", "stopped", "model_timeout", "other")
    assert [code for code in codes if is_permanent(Problem(code=code, message="no"))] == [*codes[:3]]
    assert is_permanent(Problem(code="model_timeout", message="no", details={"still_answering": True}))
    for retryable, errors, falls_back in ((False, 1, True), (True, 1, False), (True, 4, True)):
        assert gives_up("model_timeout", retryable=retryable, errors=errors, other_key=False) is falls_back


STAGES = {
    "base": AgentStage(model_params={"temperature": 0, "seed": 1}),
    "own": AgentStage(like="base", model_params={"seed": None, "top_p": 0.5}),
    "round": AgentStage(like="trip", model_params={"a": 1}),
    "trip": AgentStage(like="round", model_params={"a": 2, "b": 3}),
}


def test_a_default_window_is_half_of_the_models_context_unless_a_window_sets_tokens() -> None:
    count, tokens = WindowPolicy(max_messages=3), WindowPolicy(max_tokens=5)
    for own, of_stage, setting, context_tokens, most in (
        *((count, None, 100, None, 100), (count, count, 100, 150, 75), (count, count, 100, 300, 100)),
        *((tokens, count, 100, 150, 75), (count, tokens, 100, 150, None), (tokens, None, 100, 150, None)),
        (count, None, 0, 150, None),
    ):
        agent = AgentDefinition(id="a", title="", topology="t", window=own, stages={"s": AgentStage(window=of_stage)})
        assert default_past_tokens(agent, "s", setting, context_tokens) == most


def test_parameters_override_each_other_and_null_removes_one() -> None:
    plain: dict[str, Any] = {"temperature": 1, "max_tokens": 9}
    assert with_stage(plain, STAGES, "") == with_stage(plain, STAGES, "unknown") == plain
    assert with_stage(plain, STAGES, "base") == {"temperature": 0, "seed": 1, "max_tokens": 9}
    assert with_stage(plain, STAGES, "own") == {"temperature": 0, "top_p": 0.5, "max_tokens": 9}
    assert with_stage(plain, STAGES, "round") == {**plain, "a": 1, "b": 3}


LOCAL: dict[str, Any] = {"api_base": "http://h/v1", "api_key_secret": "own", "temperature": 1, "stop": "."}
SHARED = {**LOCAL, "top_p": 0.5, "api_version": "1"}
SAFE = {"temperature": 1, "stop": ".", "top_p": 0.5}
OTHER = FallbackModel(model="anthropic/b", params={"top_p": None, "stop": "!", "timeout_ms": 3}, credential="theirs")


@pytest.mark.parametrize(("model", "changed", "params"), [
    ("openai/a", {"fallback_model": "openai/b"}, SHARED), ("gpt-4o", {"fallback_model": "openai/b"}, SHARED),
    ("openai/a", {"fallback_model": "anthropic/b"}, SAFE), ("openai/a", {"fallback_model": "claude-b"}, SAFE),
    ("strange", {"fallback_model": "stranger"}, SAFE),
    ("openai/a", {"fallback": OTHER}, {"stop": "!", "timeout_ms": 3, "api_key_secret": "theirs"}),
    ("openai/a", {"fallback": FallbackModel(model="openai/b")}, {"top_p": 0.5}),
])  # fmt: skip
def test_another_providers_model_gets_no_address_or_key(
    model: str, changed: dict[str, Any], params: dict[str, Any]
) -> None:
    stages = {"plan": AgentStage(model_params={"top_p": 0.5, "api_version": "1"})}
    fields: dict[str, Any] = {"id": "a", "title": "A", "topology": "tool_loop", "model_params": LOCAL, "stages": stages}
    agent = AgentDefinition(model=model, **fields, **changed)
    assert params_of(agent, "plan", on_fallback=False) == SHARED
    assert params_of(agent, "plan", on_fallback=True) == params
    assert has_other_key(agent, "plan") is (params != SHARED)


@pytest.mark.parametrize(("fields", "on_fallback", "missing"), [
    (OWN, False, "own"), (STAGED, False, "own"), ({**OWN, "fallback_model": "openai/b"}, True, "own"),
    ({"model_params": {"api_key_secret": ""}}, False, ""), ({"model_params": {"api_key_secret": 5}}, False, "5"),
    ({"fallback": OTHER}, True, "theirs"),
])  # fmt: skip
def test_a_named_secret_must_exist_and_no_other_key_takes_its_place(
    fields: dict[str, Any], on_fallback: bool, missing: str
) -> None:
    definition = AgentDefinition(id="a", title="A", topology="t", model="openai/a", **fields)
    agent = PublishedAgent(definition=definition, cards=(), version="1")
    if missing.isalpha():
        assert Models({missing: "k"}.get).params(agent, "plan", on_fallback=on_fallback)["api_key"] == "k"
    without: tuple[dict[str, str], ...] = ({}, {missing: ""})
    for secrets in without:
        with pytest.raises(UpstreamRejected, match=f"secret {missing} of .* is not set") as raised:
            Models(secrets.get).params(agent, "plan", on_fallback=on_fallback)
        assert raised.value.code == "model_setup"
    assert "fallback" not in definition.model_copy(update={"fallback": None}).model_dump(mode="json")


GOES_ON, TRUNCATE, FAIL = OnLength
W, C, T, F = Ending
"""The expected endings: a graph that may continue an answer with text and one without, then a graph that may not."""
LETTERS = dict(zip("WCTF", (W, C, T, F), strict=True))


@pytest.mark.parametrize(("reason", "rule", "expected"), [
    ("length", GOES_ON, "CCTF"), ("length", TRUNCATE, "TFTF"), ("length", FAIL, "FFFF"),
    ("pause_turn", GOES_ON, "CCTF"), ("pause_turn", TRUNCATE, "CCTF"), ("pause_turn", FAIL, "CCTF"),
    *((reason, rule, "WWWW") for reason in ("stop", "tool_calls", "content_filter", "refusal") for rule in OnLength),
])  # fmt: skip
def test_only_a_cut_answer_follows_the_agents_rule(reason: FinishReason, rule: OnLength, expected: str) -> None:
    ways = [(may, text) for may in (True, False) for text in (True, False)]
    got = [ending_of(reason, rule, may_continue=may, has_text=text) for may, text in ways]
    assert got == [LETTERS[letter] for letter in expected]


def test_parts_in_a_response_format_are_never_joined() -> None:
    formatted: dict[str, JsonValue] = {"response_format": {"type": "json_object"}}
    assert [length_rule(rule, formatted) for rule in OnLength] == [FAIL, TRUNCATE, FAIL]
    assert [length_rule(rule, {"response_format": None}) for rule in OnLength] == [*OnLength]
    assert "on_length" not in AgentDefinition(id="a", title="A", topology="tool_loop").model_dump(mode="json")
    cut: list[tuple[OnLength, dict[str, JsonValue], bool]]
    cut = [(FAIL, {}, True), (GOES_ON, formatted, True), (GOES_ON, {}, False)]
    advice = [output_limit(rule, params, has_text=text, thought=True).message for rule, params, text in cut]
    assert ["`on_length: continue` has the model" in each for each in advice] == [True, False, False]
    assert ["truncate" in each for each in advice] == [True, True, False] and "reasoning" in advice[2]
    assert continuation_note("message") != continuation_note("")
