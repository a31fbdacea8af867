"""One stack for the figures of the streams, with a Valkey that can be taken away from it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.client import AsyncClient
from tests.acceptance.running import RunningStack
from tests.acceptance.streams.speakers import speaking
from tests.acceptance.streams.valkey import OwnValkey

SLOW, BRISK, USUAL, AT_ONCE = "speaks_slowly", "speaks_briskly", "speaks_as_usual", "speaks_at_once"
PACES = {SLOW: 1.5, BRISK: 20.0, USUAL: 50.0, AT_ONCE: 0.0}
"""Tokens a second; 0 is all at once."""


@dataclass(frozen=True, slots=True)
class Speaking:
    """The stack, its Valkey, and the client that its users have."""

    stack: RunningStack
    valkey: OwnValkey
    client: AsyncClient


@pytest.fixture(scope="package")
def speaking_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningStack, OwnValkey]]:
    """`python -m perdure up` with `REDIS_URL`, in a data folder of its own."""
    folder: Path = tmp_path_factory.mktemp("streams")
    valkey = OwnValkey(folder)
    valkey.start()
    try:
        with speaking(folder, PACES, REDIS_URL=valkey.url) as stack:
            yield stack, valkey
    finally:
        valkey.kill()


@pytest.fixture
async def speakers(speaking_stack: tuple[RunningStack, OwnValkey]) -> AsyncIterator[Speaking]:
    stack, valkey = speaking_stack
    async with AsyncClient(stack.api, stack.token("requester"), patience_seconds=120) as client:
        yield Speaking(stack, valkey, client)
