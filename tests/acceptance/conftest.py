"""One running stack for all acceptance tests that do not need one of their own."""

from collections.abc import Iterator

import pytest

from tests.acceptance.command import Command
from tests.acceptance.running import RunningStack, running


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """`python -m perdure up --examples` in a data folder of its own; `stack.read()` is run.json as it is now."""
    with running(tmp_path_factory.mktemp("acceptance") / "home", "--examples") as started:
        yield started


@pytest.fixture(scope="package")
def perdure(stack: RunningStack) -> Command:
    return Command(stack.home)
