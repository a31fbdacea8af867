"""One running stack for all acceptance tests that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.running import RunningStack, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these starts a whole stack, and some measure it."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("alone")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """`python -m cli up` in a data folder of its own; `stack.read()` is run.json as it is now."""
    with running(tmp_path_factory.mktemp("acceptance") / "home") as started:
        yield started
