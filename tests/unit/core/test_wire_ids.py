"""The ids of tool calls on the wire, by the rules of the provider that is asked."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.agents.wire_ids import MAX_ID_CHARACTERS, id_rule, signature_for, stored_id, wire_ids

OPENAI, MISTRAL, CLAUDE = "openai/gpt-4o", "mistral/mistral-large-latest", "anthropic/claude-sonnet-4-5"
GEMINI, NOVA, KIMI = "gemini/gemini-3-pro", "bedrock/amazon.nova-pro-v1:0", "openai/kimi-k2"
MODELS = (OPENAI, MISTRAL, CLAUDE, GEMINI, NOVA, KIMI, "azure/any", "openrouter/mistralai/mixtral-8x7b", "scripted", "")
TOOLU, CALL, NINE = "toolu_01A09q90qw90lq917835lq9", "call_" + "a" * 24, "D681PevKs"


@pytest.mark.parametrize(("id_", "taken_by"), [
    (TOOLU, {OPENAI, CLAUDE, GEMINI, NOVA, KIMI}),
    (NINE, {OPENAI, MISTRAL, CLAUDE, GEMINI, NOVA, KIMI}),
    ("functions.look:0", {GEMINI, NOVA, KIMI}),
    ("c" * 41, {CLAUDE, GEMINI, NOVA, KIMI}),
    ("c" * 65, set()),
    ("", set()),
    ("an id\n", set()),
])  # fmt: skip
def test_an_id_goes_back_to_each_provider_that_takes_it(id_: str, taken_by: set[str]) -> None:
    models = (OPENAI, MISTRAL, CLAUDE, GEMINI, NOVA, KIMI)
    assert {model for model in models if wire_ids([("k", id_)], model)["k"] == id_} == taken_by


def test_the_first_call_keeps_a_repeated_id_and_a_signature_is_no_part_of_it() -> None:
    ids = wire_ids([("k1", CALL), ("k2", CALL), ("k3", f"{CALL}b__thought__c2ln")], OPENAI)
    assert (ids["k1"], ids["k3"]) == (CALL, f"{CALL}b") and re.fullmatch("[A-Za-z0-9]{9}", ids["k2"])


provider_ids = st.sampled_from([TOOLU, CALL, NINE, "", "call_0"]) | st.text(max_size=70)


@given(st.lists(provider_ids, max_size=8), st.sampled_from(MODELS), st.integers(0, 8))
def test_ids_are_valid_unique_and_stay_as_a_conversation_grows(given_ids: list[str], model: str, first: int) -> None:
    calls = [(f"turn.t1.{place}", id_) for place, id_ in enumerate(given_ids)]
    ids = wire_ids(calls, model)
    assert len(set(ids.values())) == len(calls)
    assert all(id_rule(model).fullmatch(id_) for id_ in ids.values())
    assert wire_ids(calls[:first], model).items() <= ids.items()


@pytest.mark.parametrize(("model", "signature"), [
    (GEMINI, "c2ln"), ("vertex_ai/gemini-3-pro", "c2ln"), ("litellm_proxy/gemini-3", "c2ln"), (OPENAI, ""),
])  # fmt: skip
def test_a_signature_goes_back_to_its_own_vendor_only_and_whole(model: str, signature: str) -> None:
    assert signature_for(model, "call_1__thought__c2ln") == signature
    assert signature_for(model, "call_1") == ""
    long = "call_1__thought__" + "c" * MAX_ID_CHARACTERS
    assert stored_id(long) == "call_1" and stored_id(long[:-17]) == long[:-17]
