"""What a server's answer is for the model: bounded, storable, and without anything that is not text.

An answer has blocks of content and, often, the same once more as structured content, which is what code can use: where
it is there, it is the result. Images, audio and binary resources are described, never handed on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic import JsonValue

from contracts.digests import canonical_json
from policy.fitting import answer_fault
from policy.text import clean

MOST_CHARACTERS = 48 * 1024
"""Of one answer, below what a tool message may hold (activities/results.py), so that the cut is told where it is."""
MOST_ERROR_CHARACTERS = 2_000
MOST_BLOCKS = 100
_MOST_DEPTH = 64
_NAME_CHARACTERS = 300


def output_of(answer: CallToolResult) -> JsonValue:
    """The result that the model reads: structured content, else the text, else what the blocks are."""
    others = [each for each in answer.content if not isinstance(each, TextContent)]
    structured = answer.structured_content
    if structured is not None and not others and _fits(structured):
        return cast(JsonValue, dict(structured))
    if structured is None and len(answer.content) == 1 and not others:
        return _cut(_text(answer), MOST_CHARACTERS)
    share = max(1, MOST_CHARACTERS // max(1, min(len(answer.content), MOST_BLOCKS)))
    blocks: list[JsonValue] = [_block(each, share) for each in answer.content[:MOST_BLOCKS]]
    if len(answer.content) > MOST_BLOCKS:
        blocks.append(f"[cut: {len(answer.content)} blocks of content]")
    found: dict[str, JsonValue] = {"content": blocks}
    if structured is not None:
        found["structured"] = dict(structured) if _fits(structured) else "[cut: more than can be shown]"
    return found


async def misfit_of(answer: CallToolResult, schema: Mapping[str, JsonValue] | None) -> str | None:
    """How structured content breaks the output schema that its own server gave with the tool; None where it fits, where
    there is no such schema or no such content, or where it is cut anyway."""
    structured = answer.structured_content
    if schema is None or structured is None or not _fits(structured):
        return None
    return await asyncio.to_thread(answer_fault, structured, schema)  # a long one takes the validator seconds


def error_of(answer: CallToolResult) -> str:
    """What the tool says went wrong."""
    told = _cut(_text(answer).strip(), MOST_ERROR_CHARACTERS)
    return told or "the tool failed and did not say why"


def _text(answer: CallToolResult) -> str:
    return "\n".join(each.text for each in answer.content if isinstance(each, TextContent))


def _block(block: object, most: int) -> JsonValue:
    if isinstance(block, TextContent):
        return _cut(block.text, most)
    if isinstance(block, ImageContent | AudioContent):
        return _described(block.type, block.mime_type, block.data)
    if isinstance(block, ResourceLink):
        return {"type": "resource_link", "uri": _name(block.uri), "name": _name(block.name)}
    if isinstance(block, EmbeddedResource):
        inner = block.resource
        if isinstance(inner, BlobResourceContents):
            return {**_described("resource", inner.mime_type, inner.blob), "uri": _name(inner.uri)}
        return {"type": "resource", "uri": _name(inner.uri), "text": _cut(inner.text, most)}
    return {"type": _name(getattr(block, "type", "unknown"))}


def _described(kind: str, mime_type: str | None, base64: str) -> dict[str, JsonValue]:
    """What is known of binary content without looking into it; the bytes are counted from their base64 form."""
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    digest = sha256(base64.encode(errors="replace")).hexdigest()[:16]
    return {
        "type": kind,
        "mime_type": _name(mime_type or "unknown"),
        "bytes": max(size, 0),
        "sha256_of_base64": digest,
        "note": "binary content is not shown",
    }


def _name(value: object) -> str:
    return clean(str(value))[:_NAME_CHARACTERS]


def _cut(text: str, most: int) -> str:
    return clean(text if len(text) <= most else f"{text[:most]}… [cut: {len(text)} characters]")


def _fits(structured: Mapping[str, Any]) -> bool:
    """Whether it may be handed on whole: neither too large nor too deep to be read again."""
    if _deep(structured, 0):
        return False
    try:
        return len(canonical_json(structured)) <= MOST_CHARACTERS
    except ValueError:  # NaN, infinities: made storable where the result is recorded, but here not measurable
        return len(repr(structured)) <= MOST_CHARACTERS


def _deep(value: object, depth: int) -> bool:
    if depth > _MOST_DEPTH:
        return True
    if isinstance(value, Mapping):
        return any(_deep(each, depth + 1) for each in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(_deep(each, depth + 1) for each in value)
    return False
