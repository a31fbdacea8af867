"""What happens to an answer, by its end, the agent's rule, and what the graph and the text allow."""

import pytest
from pydantic import JsonValue

from perdure.contracts.agents import AgentDefinition, OnLength
from perdure.core.calls.endings import Ending, FinishReason, continuation_note, ending_of, length_rule, output_limit

GOES_ON, TRUNCATE, FAIL = OnLength
W, C, T, F = Ending
"""The expected endings: a graph that may continue an answer with text and one without, then a graph that may not."""
LETTERS = dict(zip("WCTF", (W, C, T, F), strict=True))


@pytest.mark.parametrize(("reason", "rule", "expected"), [
    ("length", GOES_ON, "CCTF"),
    ("length", TRUNCATE, "TFTF"),
    ("length", FAIL, "FFFF"),
    ("pause_turn", GOES_ON, "CCTF"),
    ("pause_turn", TRUNCATE, "CCTF"),
    ("pause_turn", FAIL, "CCTF"),
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
