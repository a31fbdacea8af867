"""One running stack for all acceptance tests that do not need one of their own. Their files are in TOGETHER."""

from collections.abc import Iterator

import pytest

from tests.acceptance.command import Command
from tests.acceptance.running import RunningStack, running
from tests.code_blocks import CODE_BLOCK_APP


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """The examples and slow code blocks in a data folder of their own."""
    home = tmp_path_factory.mktemp("acceptance") / "home"
    with running(home, "--examples", "--app", str(CODE_BLOCK_APP), PERDURE_SANDBOX_SECONDS="20") as started:
        yield started


@pytest.fixture(scope="package")
def perdure(stack: RunningStack) -> Command:
    return Command(stack.home)
