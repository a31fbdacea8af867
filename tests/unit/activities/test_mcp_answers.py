"""A server's answer for the model: whatever is in it, bounded, storable and told for what it is."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from perdure.activities.toolbox.mcp.session import MOST_CHARACTERS, MOST_ERROR_CHARACTERS, error_of, output_of
from perdure.contracts.values import canonical_json
from perdure.sdk.outcomes import result_of

DATA = base64.b64encode(b"x" * 1_000).decode()


def text(said: str) -> TextContent:
    return TextContent(type="text", text=said)


def answer(*content: Any, structured: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult(content=list(content), structured_content=structured)


def test_structured_content_is_the_result_and_a_lone_text_else() -> None:
    assert output_of(answer(text('{"a": 1}'), structured={"a": 1})) == {"a": 1}
    assert output_of(answer(text("three pods"))) == "three pods"
    assert output_of(answer()) == {"content": []}
    assert output_of(answer(text("a"), text("b"))) == {"content": ["a", "b"]}


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (ImageContent(type="image", data=DATA, mime_type="image/png"), {"type": "image", "bytes": 1_000}),
        (AudioContent(type="audio", data=DATA, mime_type="audio/wav"), {"type": "audio", "mime_type": "audio/wav"}),
        (
            ResourceLink(type="resource_link", uri="file:///a", name="a"),
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
        ),
        (
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="inside")),
            {"type": "resource", "text": "inside"},
        ),
        (
            EmbeddedResource(type="resource", resource=BlobResourceContents(uri="file:///a", blob=DATA)),
            {"type": "resource", "bytes": 1_000, "uri": "file:///a"},
        ),
    ],
)
def test_what_is_not_text_is_described(block: Any, told: dict[str, Any]) -> None:
    output = output_of(answer(block, structured={"kept": True}))
    assert isinstance(output, dict) and output["structured"] == {"kept": True}
    assert isinstance(output["content"], list)
    shown = output["content"][0]
    assert isinstance(shown, dict) and told.items() <= shown.items()
    assert DATA[:40] not in json.dumps(output)


@pytest.mark.parametrize(
    "given_",
    [
        answer(text("x" * 1_000_000)),
        answer(*(text("y" * 10_000) for _ in range(500))),
        answer(structured={"rows": ["z" * 100] * 10_000}),
        answer(text("t"), structured={"rows": ["z" * 100] * 10_000}),
        answer(*(ImageContent(type="image", data=DATA, mime_type="m" * 9_000) for _ in range(300))),
    ],
)
def test_however_large_an_answer_is_the_result_is_small_and_says_that_it_was_cut(given_: CallToolResult) -> None:
    whole = canonical_json(result_of(output_of(given_)).output)
    assert len(whole) < 64 * 1024 and "[cut: " in whole


def test_an_answer_too_deep_to_be_read_again_is_not_handed_on() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    output = output_of(answer(text("deep"), structured=deep))
    assert isinstance(output, dict) and output["content"] == ["deep"] and isinstance(output["structured"], str)


def test_what_cannot_be_stored_is_made_storable() -> None:
    output = result_of(output_of(answer(text("a\x00b\ud800c"), structured=None))).output
    assert output == "a\ufffdb\ufffdc"
    odd = {"nan": float("nan"), "text": "a\x00b"}
    assert result_of(output_of(answer(structured=odd))).output == {"nan": None, "text": "a\ufffdb"}


@given(st.lists(st.text(max_size=50), max_size=5), st.none() | st.dictionaries(st.text(max_size=5), st.integers()))
def test_any_answer_becomes_a_result_that_json_can_carry(texts: list[str], structured: dict[str, Any] | None) -> None:
    output = result_of(output_of(answer(*map(text, texts), structured=structured))).output
    assert json.loads(canonical_json(output)) == output


def test_an_error_is_told_in_the_tools_words_and_no_longer_than_a_paragraph() -> None:
    assert error_of(answer(text("  no such pod \n"))) == "no such pod"
    assert error_of(answer())
    assert len(error_of(answer(text("e" * 100_000)))) < MOST_ERROR_CHARACTERS + 50
    assert MOST_CHARACTERS < 64 * 1024
