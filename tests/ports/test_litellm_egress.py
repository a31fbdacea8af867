"""LiteLLM's requests go out under the rules of perdure/egress/, whichever vendor's client carries them."""

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import psutil
import pytest

from perdure.activities.providers.provider import ProviderRequest
from perdure.contracts.errors import PerdureError, UpstreamRejected, UpstreamUnavailable
from tests.doubles.hostile_target import MEBI, Talk, bomb, floods, says, threaded
from tests.doubles.providers.client import UNWARNED
from tests.doubles.resolver import Names

if TYPE_CHECKING:
    from perdure.activities.providers.litellm_provider import LiteLLMProvider  # takes seconds: the fixture imports it
pytestmark = UNWARNED
HOSTS = {
    "openai/gpt-4o-mini": "api.openai.com",
    "anthropic/claude-sonnet-4-5": "api.anthropic.com",
    "mistral/mistral-small-latest": "api.mistral.ai",
    "gemini/gemini-2.5-flash": "generativelanguage.googleapis.com",
}
VENDORS = tuple(HOSTS)
two_vendors = pytest.mark.parametrize(
    "model", [*VENDORS[:2], *(pytest.param(each, marks=pytest.mark.soak) for each in VENDORS[2:])]
)
"""In `make soak` all of them."""
SSE, JSON = "content-type: text/event-stream", "content-type: application/json"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
def provider(litellm_provider: "LiteLLMProvider") -> "LiteLLMProvider":
    """Under rules that name nothing."""
    return litellm_provider


async def fail(provider: "LiteLLMProvider", model: str, api_base: str = "", seconds: float = 20.0) -> PerdureError:
    where = {"api_base": api_base} if api_base else {}
    request = ProviderRequest(
        model, ({"role": "user", "content": "hello"},), (), {**where, "api_key": "k"}, seconds, "turn-1.m1"
    )
    with pytest.raises(PerdureError) as raised:
        async with aclosing(provider.stream(request)) as stream:
            async for _ in stream:
                pass
    return raised.value


HOSTILE: dict[str, Talk] = {
    "a huge body": floods(200, b"x" * MEBI, JSON),
    "a huge body, announced": floods(200, b"x" * MEBI, JSON, announced=True),
    "a bomb": says(200, bomb(), JSON, "content-encoding: gzip"),
    "a bomb of events": says(200, bomb(), SSE, "content-encoding: gzip"),
    "an endless line": floods(200, b"data: " + b"x" * MEBI, SSE),
    "an endless event": floods(200, b"data: x\n", SSE),
    "brotli": says(200, b"x", SSE, "content-encoding: br"),
}


@two_vendors
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_success_whose_body_is_too_large_is_refused(provider: "LiteLLMProvider", model: str, kind: str) -> None:
    process = psutil.Process()
    with threaded(HOSTILE[kind]) as made:
        before = process.memory_info().rss
        error = await fail(provider, model, made.url)
        grown = (process.memory_info().rss - before) // MEBI
    assert (type(error), error.code) == (
        UpstreamRejected,
        "answer_encoding" if kind == "brotli" else "answer_too_large",
    )
    assert len(made.heads) == 1 and grown < 150


@pytest.mark.parametrize("model", VENDORS)
async def test_no_redirect_to_another_host_or_to_metadata_is_followed(provider: "LiteLLMProvider", model: str) -> None:
    with threaded(says()) as other:
        with threaded(says(307, b"", f"location: {other.url}/v1/chat/completions")) as made:
            redirected = await fail(provider, model, made.url)
    metadata = await fail(provider, model, "http://169.254.169.254/v1")
    for error in (redirected, metadata):
        assert (type(error), error.code, error.retryable) == (UpstreamRejected, "egress_refused", False)
    assert other.heads == []


@two_vendors
async def test_a_lost_connection_is_one_request(provider: "LiteLLMProvider", model: str) -> None:
    with threaded(lambda *_: asyncio.sleep(0)) as made:
        error = await fail(provider, model, made.url)
    assert (type(error), error.code, len(made.heads)) == (UpstreamUnavailable, "model_unavailable", 1)


@two_vendors
async def test_a_redirect_on_the_same_host_is_followed_until_it_is_a_loop(
    provider: "LiteLLMProvider", model: str
) -> None:
    answers = [says(307, b"", "location: /moved", "connection: close"), says(401, b"{}", JSON, "connection: close")]
    with threaded(lambda *streams: answers[min(len(made.heads), 2) - 1](*streams)) as made:
        followed = await fail(provider, model, made.url)
    assert (followed.code, [head.split(" ")[1] for head in made.heads][1:]) == ("model_auth", ["/moved"])
    with threaded(answers[0]) as made:
        looped = await fail(provider, model, made.url)
    assert (type(looped), looped.code) == (UpstreamRejected, "model_setup")
    assert looped.message.startswith(f"The redirects of 127.0.0.1:{made.port} do not end")


@pytest.mark.parametrize("model", VENDORS)
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254"])
async def test_no_private_address_is_used(provider: "LiteLLMProvider", names: Names, model: str, address: str) -> None:
    asked = names(HOSTS[model], [address])
    error = await fail(provider, model)
    assert (type(error), error.code) == (UpstreamRejected, "egress_refused")
    assert set(asked) == {HOSTS[model]} and address not in error.message


@pytest.mark.parametrize("model", VENDORS)
async def test_no_proxy_is_inherited(provider: "LiteLLMProvider", model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with threaded(says()) as proxy, threaded(says(401, b"{}", JSON)) as made:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await provider.aclose()
        error = await fail(provider, model, made.url)
        await provider.aclose()
    assert error.code == "model_auth" and proxy.heads == [] and len(made.heads) == 1


async def test_a_vendor_that_bypasses_the_transport_is_refused(provider: "LiteLLMProvider") -> None:
    error = await fail(provider, "aiohttp_openai/gpt-4o", "http://127.0.0.1:9/v1")
    assert (type(error), error.code) == (UpstreamRejected, "model_setup")


async def test_other_calls_continue_while_an_answer_floods(provider: "LiteLLMProvider") -> None:
    waits = list[float]()

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            waits.append(time.monotonic() - began)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.1)
    with threaded(HOSTILE["an endless event"]) as made:
        await fail(provider, "openai/gpt-4o-mini", made.url)
    beating.cancel()
    assert max(waits) < 2
