"""Names that resolve as a test says."""

import pytest

from tests.doubles.resolver import Names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)
