"""What the suites share: the provider double and LiteLLM for the model's, both sides of a turn for the others."""

from collections.abc import AsyncIterator, Iterator

import pytest
from temporalio.client import Client

from perdure.activities.providers.provider import Provider
from tests.doubles.providers.client import RecordingClient
from tests.doubles.providers.server import ProviderDouble
from tests.harness import Harness
from tests.ports.contract import NewTurn
from tests.ports.sides import RealSide, double_turn, real_side
from tests.served_turns import Served


@pytest.fixture(scope="session")
def provider_double() -> Iterator[ProviderDouble]:
    with ProviderDouble() as running:
        yield running


@pytest.fixture(scope="session")
async def litellm_provider() -> AsyncIterator[Provider]:
    # 5 s: once, and only where it is asked for
    from perdure.activities.providers.litellm_provider import LiteLLMProvider

    provider = LiteLLMProvider()
    yield provider
    await provider.aclose()


@pytest.fixture
def client(litellm_provider: Provider, provider_double: ProviderDouble) -> RecordingClient:
    return RecordingClient(litellm_provider, provider_double)


@pytest.fixture(scope="module")
async def real_ports(harness: Harness, served: Served, temporal: Client) -> AsyncIterator[RealSide]:
    async with real_side(harness, temporal) as side:
        yield side


@pytest.fixture(params=["double", "real"])
def new_turn(request: pytest.FixtureRequest) -> NewTurn:
    if request.param == "double":
        return double_turn
    side: RealSide = request.getfixturevalue("real_ports")
    return side.turn
