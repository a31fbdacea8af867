"""Which setting decides how much a model may think, and what is sent for it."""

from typing import Any

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import Reasoning
from perdure.core.agents.models import LEAST_CAP_TOKENS, Thinking, decided, is_ambiguous, with_thinking

CLAUDE, OPENAI = "anthropic/claude-sonnet-4-5", "openai/o3-mini"
SAID: list[dict[str, JsonValue]] = [{"role": "system", "content": "base"}, {"role": "user", "content": "hello"}]
CALLED: list[dict[str, JsonValue]] = [
    *SAID,
    {"role": "assistant", "content": "", "tool_calls": [{"id": "k"}]},
    {"role": "tool", "tool_call_id": "k", "content": "{}"},
]
AUTO = Reasoning()


@pytest.mark.parametrize(
    ("asked", "can_think", "counts"),
    [
        (None, True, Thinking()),
        (AUTO, True, Thinking(effort="high")),
        (AUTO, False, Thinking()),
        (Reasoning(effort="low"), True, Thinking(effort="low")),
        (Reasoning(effort="low"), False, Thinking(effort="low")),
        (Reasoning(effort="none"), True, Thinking()),
        (Reasoning(budget_tokens=2_000), False, Thinking(budget_tokens=2_000)),
        (Reasoning(budget_tokens=2_000, effort="low"), True, Thinking(budget_tokens=2_000)),
    ],
)
def test_a_budget_comes_before_an_effort_and_both_before_what_the_model_can(
    asked: Reasoning | None, can_think: bool, counts: Thinking
) -> None:
    assert decided(asked, can_think=can_think) == counts
    assert is_ambiguous(asked) == (asked == Reasoning(budget_tokens=2_000, effort="low"))


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        (CLAUDE, Reasoning(budget_tokens=4_000), ({"type": "enabled", "budget_tokens": 4_000}, None, LEAST_CAP_TOKENS)),
        (CLAUDE, Reasoning(budget_tokens=9_000), ({"type": "enabled", "budget_tokens": 9_000}, None, 18_000)),
        (CLAUDE, Reasoning(effort="low"), (None, "low", None)),
        (
            "gemini/gemini-2.5-pro",
            Reasoning(budget_tokens=1_024),
            ({"type": "enabled", "budget_tokens": 1_024}, None, LEAST_CAP_TOKENS),
        ),
        (OPENAI, Reasoning(budget_tokens=2_048), (None, "low", LEAST_CAP_TOKENS)),
        (OPENAI, Reasoning(budget_tokens=8_192), (None, "medium", LEAST_CAP_TOKENS)),
        (OPENAI, Reasoning(budget_tokens=20_000), (None, "high", 40_000)),
        (OPENAI, AUTO, (None, "high", None)),
        (OPENAI, None, (None, None, None)),
    ],
)
def test_each_vendor_is_told_in_its_own_terms(model: str, asked: Reasoning | None, sent: tuple[Any, Any, Any]) -> None:
    found = with_thinking(model, {"temperature": 0.2}, SAID, asked, can_think=True)
    assert (found.get("thinking"), found.get("reasoning_effort"), found.get("max_tokens")) == sent
    assert found["temperature"] == 0.2


def test_the_agents_own_parameters_stand() -> None:
    params: dict[str, JsonValue] = {"max_tokens": 500, "reasoning_effort": "minimal"}
    assert with_thinking(OPENAI, params, SAID, Reasoning(budget_tokens=20_000), can_think=True) == params


def test_within_a_round_of_calls_only_models_that_need_no_signature_think() -> None:
    assert with_thinking(CLAUDE, {}, CALLED, AUTO, can_think=True) == {}
    assert with_thinking(OPENAI, {}, CALLED, AUTO, can_think=True) == {"reasoning_effort": "high"}
    later: list[dict[str, JsonValue]] = [
        *CALLED,
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "and now?"},
    ]
    assert with_thinking(CLAUDE, {}, later, AUTO, can_think=True) == {"reasoning_effort": "high"}
