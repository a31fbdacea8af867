"""A stack with an app whose five assembly tools take a tenth of a second each."""

from collections.abc import Iterator

import pytest

from perdure.client import Client
from tests.acceptance.running import ROOT, RunningStack, running


@pytest.fixture(scope="package")
def five_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    home = tmp_path_factory.mktemp("gathering") / "home"
    with running(home, "--app", str(ROOT / "tests" / "apps" / "gather")) as stack:
        yield stack


@pytest.fixture
def client(five_tools: RunningStack) -> Iterator[Client]:
    with Client(five_tools.api, five_tools.token("requester")) as made:
        yield made
