"""Canonical JSON and its digest: equal values give equal bytes, whatever the key order or spacing."""

import hashlib
import json
from collections.abc import Mapping


def canonical_json(value: object) -> str:
    """`value` as JSON with sorted keys, no spaces, UTF-8 text.

    Raises: ValueError for NaN, infinities and anything that is not JSON.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"not JSON: {error}") from error


def sha256_hex(text: str) -> str:
    """The SHA-256 of `text` in UTF-8, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_sha256_hex(content: bytes) -> str:
    """The SHA-256 of bytes, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_of(value: object) -> str:
    """The digest of a JSON value, by its canonical form."""
    return sha256_hex(canonical_json(value))


def frozen_call_digest(
    *, tenant_id: str, turn_id: str, call_id: str, tool: str, tool_version: str, args: Mapping[str, object], nonce: str
) -> str:
    """What a reviewer decides on: the exact call, its owner and a nonce, as one digest (design section 5)."""
    return digest_of(
        {
            "tenant": tenant_id,
            "turn": turn_id,
            "call": call_id,
            "tool": tool,
            "version": tool_version,
            "args": args,
            "nonce": nonce,
        }
    )
