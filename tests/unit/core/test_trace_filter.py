"""What never reaches a tracer, however it is named, wherever it hides."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from perdure.core.events.traces import COUNTS, DENIED, MOST_CHARACTERS, NAMING, filtered, is_denied

CANARY = "canary-4711"
STYLES = (
    lambda words: "_".join(words),
    lambda words: "-".join(words),
    lambda words: ".".join(words),
    lambda words: words[0] + "".join(word.title() for word in words[1:]),
    lambda words: "_".join(words).upper(),
    lambda words: "_".join(words) + "s",
    lambda words: " ".join(words),
)
BESIDE = st.lists(st.sampled_from(("user", "raw", "final", "model", "last", "my", "data")), max_size=2)


@st.composite
def denied_names(draw: st.DrawFn) -> str:
    """A denied word among others, in any way of writing."""
    words = [*draw(BESIDE), draw(st.sampled_from(sorted(DENIED))), *draw(BESIDE)]
    return str(draw(st.sampled_from(STYLES))(words))


@st.composite
def hidden(draw: st.DrawFn) -> Any:
    """A structure in which the canary stands under a denied name, at some depth."""
    name, value = draw(denied_names()), draw(st.sampled_from((CANARY, [CANARY], {"deep": {"er": CANARY}})))
    entry = {draw(st.sampled_from(NAMING)): name, "value": value}
    inner: Any = draw(st.sampled_from(({name: value}, entry, {"parts": [entry]}, {"parts": [[name, value]]})))
    for _ in range(draw(st.integers(0, 12))):
        wrap = draw(st.integers(0, 3))
        if wrap == 0:
            inner = {"node": inner, "code": "x"}
        elif wrap == 1:
            inner = {"parts": [1, inner]}
        elif wrap == 2:
            inner = {"told": json.dumps(inner)}
        else:
            inner = {"told": "  " + json.dumps([inner])}
    return inner


@given(hidden())
def test_nothing_under_a_denied_name_leaves_at_any_depth(attributes: dict[str, JsonValue]) -> None:
    kept, removed = filtered(attributes)
    assert CANARY not in json.dumps(kept)
    assert removed, "and it is told"
    assert CANARY not in json.dumps(removed), "by the word alone"


@pytest.mark.parametrize(
    "name",
    [
        *("prompt", "prompts", "systemPrompt", "output", "final_output", "outputs", "input_preview", "query_preview"),
        *("raw_input", "rawinput", "memory_read_result", "embeddings", "api_key", "apiKey", "API-KEY", "PASSWORD"),
        *("memory_read_authorized", "authorization", "gen_ai.input.messages", "gen_ai.output.messages", "tool.result"),
        *(
            "cookies",
            "queries",
            "bodies",
            "args",
            "private_key",
            "access-keys",
            "state",
            "command",
            "facts",
            "episodes",
            "reasoning",
            "kwargs",
            "last_question",
            "gen_ai.system_instructions",
        ),
    ],
)
def test_names_that_are_denied(name: str) -> None:
    assert is_denied(name)
    assert filtered({name: CANARY})[0] == {}


@pytest.mark.parametrize(
    "name",
    [
        *("gen_ai.conversation.id", "gen_ai.request.model", "gen_ai.tool.name", "perdure.trace_id", "user.id", "node"),
        *("persona_key", "persona_source", "context_template_count", "user_identity_injected", "skills_loaded"),
        *("core_capability_count", "skill_exposed_tool_count", "total_tools_visible", "error_type", "duration_ms"),
    ],
)
def test_names_that_a_trace_lives_by(name: str) -> None:
    assert filtered({name: "x"}) == ({name: "x"}, ())


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts_pass_as_numbers_and_as_nothing_else(name: str) -> None:
    assert filtered({name: 7})[0] == {name: 7}
    kept, removed = filtered({name: CANARY})
    assert kept == {} and len(removed) == 1


def test_values_are_short_and_what_only_looks_like_json_is_left_out() -> None:
    kept, removed = filtered({"code": "x" * 1_000, "told": '{"prompt": "can', "deep": _deep(40)})
    assert kept["code"] == "x" * MOST_CHARACTERS and kept["told"] == ""
    assert set(removed) == {"json", "depth"} and CANARY not in json.dumps(kept)


@pytest.mark.parametrize(
    "value", [CANARY.encode(), {CANARY}, (CANARY,), object()], ids=["bytes", "set", "tuple", "object"]
)
def test_what_is_no_json_does_not_leave(value: Any) -> None:
    kept, removed = filtered({"node": value, "deep": {"er": [value]}})
    assert kept == {"node": None, "deep": {"er": [None]}} and len(removed) == 2


def test_the_name_of_a_field_alone_is_no_content() -> None:
    assert filtered({"context": {"field": "final_output"}}) == ({"context": {"field": "final_output"}}, ())


def _deep(levels: int) -> JsonValue:
    value: JsonValue = CANARY
    for _ in range(levels):
        value = {"in": value}
    return value
