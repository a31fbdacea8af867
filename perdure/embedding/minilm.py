"""The model all-MiniLM-L6-v2 in NumPy, without torch and without a download: 384 numbers per text, of length 1.

The weights are mapped into memory, so that processes share their pages. The results equal the published model's
(tests/unit/embedding). Import this module on the embedding thread at the first use, because NumPy is not needed before.
"""

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Set before NumPy is first imported: its matrix products would use every core, and turns need one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tokenizers import Tokenizer

from perdure.embedding.embedder import TOKENIZER, WEIGHTS

DIMENSIONS = 384
HEADS = 12
LAYERS = 6
MAX_PIECES = 256
"""Maximum number of word pieces of a text; the rest is cut, as the model's authors do."""
EPSILON = 1e-12
Array = Any
"""A float32 array. NumPy's own types would make mypy need NumPy."""


class MiniLM:
    """The model, ready to embed. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.enable_truncation(MAX_PIECES)
        self._tokenizer.no_padding()
        self._weights = read_safetensors(folder / WEIGHTS)

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Returns a vector for each text. Texts are embedded one by one, so that short texts are not padded to long
        ones."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        mean = self._layers(np.array(self._tokenizer.encode(text).ids)).mean(axis=0)
        unit: list[float] = (mean / max(float(np.linalg.norm(mean)), EPSILON)).tolist()
        return unit

    def _layers(self, ids: Array) -> Array:
        """Returns the last layer's states, one row for each word piece."""
        words, positions = self._weights["embeddings.word_embeddings.weight"], "embeddings.position_embeddings.weight"
        states = words[ids] + self._weights[positions][: len(ids)]
        token_type = self._weights["embeddings.token_type_embeddings.weight"][0]
        states = self._normalize(states + token_type, "embeddings.LayerNorm")
        for number in range(LAYERS):
            layer = f"encoder.layer.{number}"
            mixed = self._attention(states, f"{layer}.attention.self")
            attended = self._linear(mixed, f"{layer}.attention.output.dense")
            states = self._normalize(states + attended, f"{layer}.attention.output.LayerNorm")
            expanded = gelu(self._linear(states, f"{layer}.intermediate.dense"))
            states = self._normalize(
                states + self._linear(expanded, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
            )
        return states

    def _attention(self, states: Array, name: str) -> Array:
        query, key, value = (
            self._linear(states, f"{name}.{part}").reshape(len(states), HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / np.float32(np.sqrt(DIMENSIONS / HEADS))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return (scores @ value).swapaxes(0, 1).reshape(len(states), DIMENSIONS)

    def _linear(self, states: Array, name: str) -> Array:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalize(self, states: Array, name: str) -> Array:
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


_ERF = tuple(np.float32(each) for each in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


def gelu(x: Array) -> Array:
    """Returns x times the normal distribution's integral up to x. erf follows Abramowitz and Stegun 7.1.26, error below
    2e-7."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for factor in _ERF:
        series = (series + factor) * t
    return np.float32(0.5) * x * (1 + np.sign(x) * (1 - series * np.exp(-z * z)))


def read_safetensors(path: Path) -> Mapping[str, Array]:
    """Returns the float32 tensors of a file, mapped into memory.

    Format: 8 bytes little-endian with the length of a JSON header, the header, the numbers.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data_start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:data_start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            tensors[name] = np.frombuffer(data, np.float32, (last - first) // 4, data_start + first).reshape(
                entry["shape"]
            )
    return tensors
