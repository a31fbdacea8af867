"""Base class of every value that crosses a process boundary.

Their validators are built at first use (`defer_build`): a process needs only some of them, and building all takes a
quarter of a second of CPU at its start. The body of a request is a `perdure.api.request_bodies.Body`, which is built at
once, as FastAPI requires.
"""

import hashlib
import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value. Unknown fields are rejected, so that a renamed field fails loudly."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", ser_json_inf_nan="null")


class Tolerant(BaseModel):
    """An immutable value that may stay in a history across releases. Older readers ignore fields added later."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")


def canonical_json(value: object) -> str:
    """`value` as JSON with sorted keys, no spaces, UTF-8 text.

    Equal values give equal bytes, whatever the key order or spacing.

    Raises: ValueError for NaN, infinities and anything that is not JSON.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error


def sha256_hex(text: str) -> str:
    """Returns the SHA-256 of `text` in UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_sha256_hex(content: bytes) -> str:
    """Returns the SHA-256 of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_of(value: object) -> str:
    """Returns the digest of a JSON value, computed from its canonical form."""
    return sha256_hex(canonical_json(value))


def frozen_call_digest(
    *, tenant_id: str, turn_id: str, call_id: str, tool: str, tool_version: str, args: Mapping[str, object], nonce: str
) -> str:
    """Returns the digest that a reviewer decides on: the exact call, its owner and a nonce."""
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
