"""One stack of real processes for all acceptance tests."""

from collections.abc import Iterator

import pytest

from tests.acceptance.running import RunningStack, running


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """What `make up` starts, in a data folder of its own."""
    with running(tmp_path_factory.mktemp("acceptance") / "home") as started:
        yield started
