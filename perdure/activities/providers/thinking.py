"""The signed thinking of a Claude answer, which Anthropic requires back with the results of the answer's calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from perdure.core.agents.models import is_claude
from perdure.core.text import clean

MAX_SIGNED_CHARACTERS: Final = 65_536
"""Longer thinking is not stored; then the following requests of the round do not ask for thinking."""


@dataclass(frozen=True, slots=True)
class SignedThinking:
    """The thinking blocks of one answer, unchanged, in LiteLLM's form."""

    model: str
    """The model that was asked; no other model receives them."""
    blocks: tuple[dict[str, JsonValue], ...]


@dataclass(slots=True)
class ThinkingReader:
    """Collects the thinking blocks of a stream from their pieces, if the model is Claude."""

    model: str = ""
    _blocks: list[dict[str, JsonValue]] = field(default_factory=list)
    _characters: int = 0
    _unfit: bool = False

    def add(self, chunk: Any) -> None:
        """Adds the pieces of one chunk in LiteLLM's format."""
        choices = getattr(chunk, "choices", None) or ()
        pieces = getattr(getattr(choices[0], "delta", None), "thinking_blocks", None) if choices else None
        if not pieces or not is_claude(self.model):
            return
        for piece in pieces if isinstance(pieces, Sequence) else [None]:
            if isinstance(piece, Mapping):
                self._add_piece(*(piece.get(name) or "" for name in ("thinking", "signature", "data")))
            else:
                self._unfit = True

    def _add_piece(self, thinking: object, signature: object, data: object) -> None:
        if not (isinstance(thinking, str) and isinstance(signature, str) and isinstance(data, str)):
            self._unfit = True
            return
        self._characters += len(thinking) + len(signature) + len(data)
        if data:
            self._blocks.append({"type": "redacted_thinking", "data": data})
            return
        # The signature is the last piece of a block.
        if not self._blocks or self._blocks[-1].get("signature") or "data" in self._blocks[-1]:
            self._blocks.append({"type": "thinking", "thinking": "", "signature": ""})
        block = self._blocks[-1]
        block |= {"thinking": f"{block['thinking']}{thinking}", "signature": signature}

    def result(self) -> SignedThinking | None:
        """Returns the blocks; None if there are none, or if they cannot be sent back unchanged."""
        texts = [{name: clean(str(value)) for name, value in block.items()} for block in self._blocks]
        complete = all(block.get("signature") or block.get("data") for block in texts)
        lossy = any("\ufffd" in text for block in texts for text in block.values())
        blocks: tuple[dict[str, JsonValue], ...] = tuple({**block} for block in texts)
        if not blocks or self._unfit or lossy or not complete or self._characters > MAX_SIGNED_CHARACTERS:
            return None
        return SignedThinking(self.model, blocks)
