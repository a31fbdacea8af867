"""Vectors of a provider, through LiteLLM, where the setting names a model of it. It costs 200 MB and seconds to import,
so it is imported on the embedding thread, at its first use.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

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
    """LiteLLM, set before its import as activities/clients/litellm_provider.py does: no fetches, no reading of .env."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    litellm: Any = importlib.import_module("litellm")

    litellm.suppress_debug_info = True
    guard(litellm)
    litellm.DEFAULT_MAX_RETRIES = 0  # it takes the 0 above for nothing said (tried with 1.106); the relay comes again
    return litellm
