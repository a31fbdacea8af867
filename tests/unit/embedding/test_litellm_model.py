"""A provider's embedding model through LiteLLM, over real HTTP: one request, vectors in order, no text in trouble."""

from collections.abc import Iterator

import pytest

from perdure.embedding.choice import embedder_of
from perdure.embedding.embedder import Embedder, EmbeddingUnavailable, query_vector
from tests.local_egress import guard_for_local
from tests.unit.apps.api_double import ApiDouble, Reply, reply

USAGE = {"prompt_tokens": 1, "total_tokens": 1}


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


TROUBLE = {"error": {"message": "you sent: secret words"}}


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
