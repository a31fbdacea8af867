"""MiniLM by NumPy computes what the published model does, on a separate thread. Needs the extra `embeddings`."""

import math

import pytest

from perdure.embedding.choice import embedder_of
from perdure.embedding.embedder import Embedder, weights_folder

PUBLISHED = {
    "This is an example sentence": [0.0676569, 0.0634959, 0.0487131],
    "Each sentence is converted": [0.0864386, 0.1027627, 0.0053946],
}
"""The first numbers of the vectors on the model's own page."""


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    assert weights_folder() is not None, "install the extra `embeddings`"
    found = embedder_of("minilm")
    assert found is not None
    return found


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_vectors_are_those_of_the_published_model(minilm: Embedder) -> None:
    for vector, first in zip(await minilm.embed(list(PUBLISHED)), PUBLISHED.values(), strict=True):
        assert vector[:3] == pytest.approx(first, abs=1e-5)
        assert len(vector) == 384 and math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)


@pytest.mark.parametrize("text", ["", " ", "\ufffd", "é" * 3_000, "word " * 5_000, "🦩 \u202e\n"])
async def test_any_text_has_a_vector(minilm: Embedder, text: str) -> None:
    (vector,) = await minilm.embed([text])
    assert all(math.isfinite(value) for value in vector)
    assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-5)
