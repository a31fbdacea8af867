"""Secrets as an operator writes them: one, or several while one follows another, each long enough to be random."""

import hashlib

SHORTEST_SECRET = 32
"""In characters: 128 bits where they are hexadecimal."""
ADVICE = f"has {SHORTEST_SECRET} characters at least: `openssl rand -hex 32`"
"""What a secret that is refused is told."""


def secrets_in(text: str) -> tuple[str, ...]:
    """The secrets in `text`, separated by commas or line ends; none where one of them is too short."""
    parts = tuple(part.strip() for part in text.replace(",", "\n").splitlines() if part.strip())
    return parts if all(len(part) >= SHORTEST_SECRET for part in parts) else ()


def key_id(purpose: str, secret: bytes) -> str:
    """What tells a secret apart from others of its purpose, and tells nothing of it: 8 hexadecimal characters."""
    return hashlib.sha256(f"perdure {purpose} key id\n".encode() + secret).hexdigest()[:8]
