"""An embedder without a model: texts that share words are near each other, and it is away when told so."""

import hashlib
import math
from collections.abc import Sequence

from perdure.embedding.embedder import EmbeddingUnavailable

DIMENSIONS = 64


class Hashing:
    """An embedder whose vectors are the words of a text, each in its own direction; `down` for one that is away."""

    def __init__(self, name: str = "hashing") -> None:
        self.name = name
        self.down = False
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self.down:
            raise EmbeddingUnavailable("away")
        self.texts += texts
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        values = [0.0] * DIMENSIONS
        for word in text.lower().split():
            values[int(hashlib.sha256(f"{self.name} {word}".encode()).hexdigest(), 16) % DIMENSIONS] += 1.0
        length = math.sqrt(sum(value * value for value in values)) or 1.0
        return [value / length for value in values]
