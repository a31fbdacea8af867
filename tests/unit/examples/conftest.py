"""Running payments services: one that tests share, each with an order and a key of its own, and one to be killed."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.examples.payments_process import PaymentsProcess

_NUMBERS = itertools.count(1_000)


@pytest.fixture(scope="session")
def shared_payments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaymentsProcess]:
    """The service that tests share: starting one takes a second."""
    yield from _running(tmp_path_factory.mktemp("payments"))


@pytest.fixture
def payments(shared_payments: PaymentsProcess) -> PaymentsProcess:
    """The shared service, with no fault left from an earlier test."""
    shared_payments.http.delete("/faults")
    return shared_payments


@pytest.fixture
def own_payments(tmp_path: Path) -> Iterator[PaymentsProcess]:
    yield from _running(tmp_path)


@pytest.fixture
def order() -> str:
    """The number of an order that no other test uses."""
    return str(next(_NUMBERS))


@pytest.fixture
def key(order: str) -> str:
    """An idempotency key that no other test uses."""
    return f"key-of-{order}"


def _running(folder: Path) -> Iterator[PaymentsProcess]:
    process = PaymentsProcess(folder)
    try:
        process.start()
        yield process
    finally:
        process.close()
