"""A running payments service for each test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.apps.payments_process import PaymentsProcess


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[PaymentsProcess]:
    """The payments service, fresh and empty."""
    process = PaymentsProcess(tmp_path)
    try:
        process.start()
        yield process
    finally:
        process.close()
