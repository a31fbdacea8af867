"""What turns texts into vectors, and the one way in which callers ask for them.

A model of our own runs on one thread beside the event loop, a few texts at a time, and a caller that comes while many
wait is told so: whoever serves turns goes on serving them. Without a vector a search goes by words, and says so.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

AT_ONCE = 8
"""Texts in one go: the thread lets others on after each (measured in docs/figures.md)."""
MOST_WAITING = 32
"""Calls that may wait for the thread; one more is refused."""
QUERY_SECONDS = 0.7
"""A search that has no vector by then goes by words: its turn is waiting."""
SHORTEST, LONGEST = 1e-12, 1e12
"""Lengths of a vector whose square fits single precision, in which pgvector computes; a model's is near 1."""
_log = structlog.get_logger(__name__)


class EmbeddingUnavailable(Exception):
    """No vectors now; what is searched or kept goes on without."""


class VectorRefused(EmbeddingUnavailable):
    """The model made something of one of these texts that cannot be compared; others may go well without it."""


class Embedder(Protocol):
    """A model that embeds texts."""

    @property
    def name(self) -> str:
        """Stored beside each vector: those of two models cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text.

        Raises: EmbeddingUnavailable; VectorRefused where it is about these texts.
        """
        ...


class Model(Protocol):
    """A model that is called and waited for."""

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each of a few texts; it may raise anything."""
        ...


class Threaded:
    """A model on a thread of its own, made there at its first use."""

    def __init__(self, name: str, make: Callable[[], Model]) -> None:
        self.name = name
        self._make = make
        self._model: Model | None = None
        self._dimensions = 0
        self._thread = ThreadPoolExecutor(1, "embedding")
        self._waiting = 0

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, `AT_ONCE` at a time, so that a short call gets in between.

        Raises: EmbeddingUnavailable; VectorRefused where a vector is of another dimension, or has no length.
        """
        if self._waiting >= MOST_WAITING:
            raise EmbeddingUnavailable("many wait for the model")
        self._waiting += 1
        try:
            loop, found = asyncio.get_running_loop(), list[list[float]]()
            for start in range(0, len(texts), AT_ONCE):
                few = texts[start : start + AT_ONCE]
                found += await loop.run_in_executor(self._thread, self._vectors, few)
            return found
        finally:
            self._waiting -= 1

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        try:
            if self._model is None:
                self._model = self._make()
            found = self._model.vectors(texts)
        except Exception as error:  # a provider has a class for each trouble, and its text may quote what was sent
            raise EmbeddingUnavailable(type(error).__name__) from None
        if len(found) != len(texts):
            raise EmbeddingUnavailable("not as many vectors as texts")
        for vector in found:
            self._check(vector)
        return found

    def _check(self, vector: list[float]) -> None:
        """Refuse what pgvector would not store, or what would have no similarity to anything."""
        if not SHORTEST < math.hypot(*vector) < LONGEST:  # nor is NaN between them
            raise VectorRefused("a vector without a direction")
        self._dimensions = self._dimensions or len(vector)
        if len(vector) != self._dimensions:
            raise VectorRefused("a vector of another dimension than those before")


async def query_vector(embedder: Embedder | None, text: str) -> tuple[str, list[float]] | None:
    """(model, vector) of a text that is searched for; None where there is none in time."""
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            (vector,) = await embedder.embed([text])
    except (EmbeddingUnavailable, TimeoutError) as error:
        _log.warning("searching_by_words", embedder=embedder.name, error=type(error).__name__)
        return None
    return embedder.name, vector
