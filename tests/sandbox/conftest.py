"""A sandbox in its jail, as a worker process has it. Where there is no jail these tests fail and say what to do."""

from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.activities.sandbox import Limits, SandboxConfig, open_sandbox
from perdure.activities.sandbox.pool import MontySandbox
from tests.sandbox.host import Host, host

LIMITS = Limits(wall_seconds=0.5)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Secrets, laid out before any worker starts."""
    with host(tmp_path_factory.mktemp("host")) as laid_out:
        yield laid_out


@pytest.fixture(scope="module")
async def sandbox(machine: Host) -> AsyncIterator[MontySandbox]:
    """Two blocks at a time, half a second each."""
    opened = await open_sandbox(SandboxConfig(ceiling=LIMITS, at_once=2))
    assert opened.jailed
    yield opened
    await opened.close()
