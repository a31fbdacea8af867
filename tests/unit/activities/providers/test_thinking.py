"""The signed thinking of a stream, joined from its pieces or dropped as a whole."""

from types import SimpleNamespace as Chunk
from typing import Any

import pytest

from perdure.activities.providers.thinking import MAX_SIGNED_CHARACTERS, SignedThinking, ThinkingReader

CLAUDE = "anthropic/claude-sonnet-4-5"
WHERE, THERE, SIGNED = {"thinking": "Where? "}, {"thinking": "There."}, {"signature": "s1"}
HIDDEN = {"type": "redacted_thinking", "data": "d1"}
BLOCK = {"type": "thinking", "thinking": "Where? There.", "signature": "s1"}
EMPTY = {"type": "thinking", "thinking": "", "signature": "s1"}


@pytest.mark.parametrize(("pieces", "blocks"), [
    ([WHERE, THERE, SIGNED], [BLOCK]),
    ([WHERE, THERE, SIGNED, WHERE, THERE, SIGNED], [BLOCK, BLOCK]),
    ([HIDDEN, WHERE, THERE, SIGNED, HIDDEN], [HIDDEN, BLOCK, HIDDEN]),
    ([SIGNED], [EMPTY]),
    ([], None),
    ([WHERE], None),
    ([WHERE, HIDDEN], None),
    ([{"thinking": "a \ud83d"}, SIGNED], None),
    ([{"thinking": "\ud83d"}, {"thinking": "\ude00"}, SIGNED], [{**EMPTY, "thinking": "\U0001f600"}]),
        ([{"thinking": 1}, SIGNED], None),
    (["x", SIGNED], None),
    ([{"thinking": "x" * MAX_SIGNED_CHARACTERS}, SIGNED], None),
])  # fmt: skip
def test_thinking_is_kept_whole_with_its_signature_or_not_at_all(pieces: list[Any], blocks: Any) -> None:
    found = {}
    for model in (CLAUDE, "gemini/gemini-3-pro"):
        reader = ThinkingReader(model)
        for empty in (Chunk(), Chunk(choices=[]), Chunk(choices=[Chunk(delta=None)])):
            reader.add(empty)
        for piece in pieces:
            reader.add(Chunk(choices=[Chunk(delta=Chunk(thinking_blocks=[piece]))]))
        found[model] = reader.result()
    assert [*found.values()] == [SignedThinking(CLAUDE, tuple(blocks)) if blocks else None, None]
