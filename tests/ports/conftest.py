"""What the suites of the model port share: the provider double, LiteLLM, and one who listens."""

from collections.abc import AsyncIterator, Iterator

import pytest

from activities.clients.provider import Provider
from tests.doubles.listener import Listener
from tests.doubles.provider import ProviderDouble


@pytest.fixture(scope="session")
def provider_double() -> Iterator[ProviderDouble]:
    with ProviderDouble() as running:
        yield running


@pytest.fixture(scope="session")
async def litellm_provider() -> AsyncIterator[Provider]:
    from activities.clients.litellm_provider import LiteLLMProvider  # 5 s: once, and only where it is asked for

    provider = LiteLLMProvider()
    yield provider
    await provider.aclose()


@pytest.fixture
def listener(litellm_provider: Provider, provider_double: ProviderDouble) -> Listener:
    return Listener(litellm_provider, provider_double)
