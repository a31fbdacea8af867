"""One running stack for all acceptance tests that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.running import RunningStack, running

BESIDE_OTHERS = {
    *("test_blocks.py", "test_cli.py", "test_evidence.py", "test_filings.py", "test_ops.py", "test_reviewing.py"),
    *("test_outage.py", "test_paused.py", "test_racing.py", "test_signals.py", "test_withdrawal.py"),
    *("test_api_killed.py", "test_valkey_lost.py", "test_worker_killed.py"),
    *("test_asked_apps.py", "test_charts.py", "test_demo.py", "test_first_steps.py", "test_ports.py"),
    "test_killed.py",
}
"""They use a running stack and bound no times: they hold on a machine that does other work too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The others measure a stack, or start one of their own as a newcomer would."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.path.name not in BESIDE_OTHERS:
            item.add_marker("alone")


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """`python -m perdure up --examples` in a data folder of its own; `stack.read()` is run.json as it is now."""
    with running(tmp_path_factory.mktemp("acceptance") / "home", "--examples") as started:
        yield started
