"""How a model is asked: on one thread, a few texts at a time, refused where many wait, in time or not at all."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from perdure.contracts.turns import Kind
from perdure.embedding import embedder
from perdure.embedding import embedder as embedding
from perdure.embedding.choice import embedder_of
from perdure.embedding.embedder import Embedder, EmbeddingUnavailable, query_vector, weights_folder
from perdure.worker.queues import loads_memory
from tests.local_egress import guard_for_local
from tests.unit.apps.api_double import ApiDouble, Reply, reply

USAGE = {"prompt_tokens": 1, "total_tokens": 1}
TROUBLE = {"error": {"message": "you sent: secret words"}}


class Slow:
    """A model that counts letters, and holds its thread for a while."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[tuple[int, str]] = []

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked += [(len(texts), threading.current_thread().name)]
        time.sleep(self.seconds)
        return [[float(len(text))] for text in texts]


async def test_texts_are_embedded_in_order_a_few_at_a_time_on_one_thread_of_its_own() -> None:
    model = Slow()
    threaded = embedding.ThreadedEmbedder("slow", lambda: model)
    texts = ["x" * number for number in range(1, 21)]
    assert await threaded.embed(texts) == [[float(number)] for number in range(1, 21)]
    assert [count for count, _ in model.asked] == [embedding.BATCH_TEXTS, embedding.BATCH_TEXTS, 4]
    assert {thread for _, thread in model.asked} == {"embedding_0"}
    assert await threaded.embed([]) == []


async def test_a_short_call_runs_between_the_parts_of_a_long_one() -> None:
    threaded = embedding.ThreadedEmbedder("slow", lambda: Slow(0.1))
    long = asyncio.create_task(threaded.embed(["x"] * embedding.BATCH_TEXTS * 10))
    await asyncio.sleep(0.01)
    await threaded.embed(["short"])
    assert not long.done()
    await long


async def test_a_full_queue_refuses_a_caller_immediately() -> None:
    threaded = embedding.ThreadedEmbedder("slow", lambda: Slow(0.005))
    waiting = [asyncio.create_task(threaded.embed(["x"])) for _ in range(embedding.MAX_WAITING_CALLS)]
    await asyncio.sleep(0)
    with pytest.raises(embedding.EmbeddingUnavailable):
        await threaded.embed(["one too many"])
    assert await embedding.query_vector(threaded, "one too many") is None
    await asyncio.gather(*waiting)
    assert await threaded.embed(["free"]) == [[4.0]]


async def test_a_search_gets_its_vector_in_time_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder, "QUERY_SECONDS", 0.05)
    assert await embedding.query_vector(embedding.ThreadedEmbedder("slow", Slow), "four") == ("slow", [4.0])
    assert await embedding.query_vector(embedding.ThreadedEmbedder("slow", lambda: Slow(0.3)), "four") is None
    assert await embedding.query_vector(None, "four") is None


def test_the_setting_names_none_or_a_providers_model() -> None:
    with pytest.raises(SystemExit, match="PERDURE_EMBEDDINGS"):
        embedder_of("word2vec")
    assert embedder_of("none") is None
    assert embedder_of("openai/text-embedding-3-small", remote=False) is None
    chosen = embedder_of("openai/text-embedding-3-small", "http://127.0.0.1:9", "key")
    assert chosen is not None and chosen.name == "openai/text-embedding-3-small"


@pytest.mark.parametrize("kind", list(Kind))
def test_only_workers_that_load_memory_import_the_model(kind: Kind) -> None:
    assert loads_memory([kind]) is (kind in (Kind.MEMORY, Kind.TURNS))
    assert loads_memory([kind, Kind.MEMORY])


class Broken:
    """A model that answers with what it was told to, a vector for each text."""

    def __init__(self, *vectors: list[float]) -> None:
        self.answers = list(vectors)

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.answers.pop(0) for _ in texts]


@pytest.mark.parametrize("vector", [
    [], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1e39, 1.0], [1e-30, 0.0], [1.0], [1.0, 0.0, 0.0],
], ids=str)  # fmt: skip
async def test_a_vector_without_a_direction_is_refused(vector: list[float]) -> None:
    threaded = embedding.ThreadedEmbedder("broken", lambda: Broken([1.0, 0.0], [0.6, 0.8], vector, [0.0, -1.0]))
    assert await threaded.embed(["one"]) == [[1.0, 0.0]]
    with pytest.raises(embedding.VectorRejected):
        await threaded.embed(["two", "three"])
    assert await embedding.query_vector(threaded, "four") == ("broken", [0.0, -1.0])
    zeros = embedding.ThreadedEmbedder("broken", lambda: Broken([0.0, 0.0]))
    assert await embedding.query_vector(zeros, "nothing") is None


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


@pytest.fixture
def provider_server() -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        yield double


@pytest.fixture
def litellm_embedder(provider_server: ApiDouble) -> Embedder:
    made = embedder_of("openai/text-embedding-3-small", provider_server.url, "k-1", guard=guard_for_local)
    assert made is not None
    return made


def answer(*vectors: tuple[int, list[float]]) -> dict[str, object]:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in vectors]
    return {"object": "list", "data": data, "model": "text-embedding-3-small", "usage": USAGE}


async def test_a_batch_is_one_request_in_the_texts_order(
    provider_server: ApiDouble, litellm_embedder: Embedder
) -> None:
    provider_server.will(reply(answer((1, [0.0, 1.0]), (0, [1.0, 0.0]))))
    assert await litellm_embedder.embed(["a", "b"]) == [[1.0, 0.0], [0.0, 1.0]]
    (request,) = provider_server.asked
    assert request.path == "/embeddings" and request.headers["authorization"] == "Bearer k-1"
    assert request.body["input"] == ["a", "b"] and request.body["model"] == "text-embedding-3-small"


@pytest.mark.parametrize("trouble", [
    *(reply(TROUBLE, status) for status in (401, 429, 500)), reply(answer((0, [1.0]))),
], ids=["401", "429", "500", "fewer vectors than texts"])  # fmt: skip
async def test_a_fault_is_raised_once_and_never_quoted(
    provider_server: ApiDouble, litellm_embedder: Embedder, trouble: Reply
) -> None:
    provider_server.will(trouble)
    with pytest.raises(EmbeddingUnavailable) as raised:
        await litellm_embedder.embed(["secret words", "b"])
    assert "secret" not in str(raised.value) and len(provider_server.asked) == 1
    assert await query_vector(litellm_embedder, "secret words") is None
