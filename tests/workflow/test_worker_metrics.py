"""What a worker's own port says of its work, and the Temporal SDK's port beside it."""

import socket
from contextlib import suppress

import httpx
import pytest

from perdure.contracts.turns import Kind
from perdure.telemetry.metrics import ROLES, metrics_addresses, serve_metrics
from perdure.temporal.client import runtime
from tests.doubles.spoken import Line
from tests.eventually import eventually
from tests.served import Served


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def read(port: int) -> str:
    """What somebody says there, as Prometheus expects it; nothing where nobody does."""
    with suppress(httpx.TransportError):
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status().text + "\n"
    return ""


def value(text: str, name: str) -> float:
    """A sample by its whole name; 0 where there is none yet."""
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


async def test_a_worker_counts_activities_ends_and_tokens(served: Served) -> None:
    port = free_port()
    serve_metrics(("127.0.0.1", port))
    names = (
        'perdure_activity_seconds_count{activity="model.complete",outcome="done"}',
        'perdure_activity_seconds_count{activity="turns.finish",outcome="done"}',
        'perdure_turns_ended_total{status="completed"}',
    )
    before = await read(port)
    await served.ended(Line("well"))

    async def counted() -> bool:  # when it is over, a moment after what it wrote is there to see
        text = await read(port)
        return all(value(text, name) > value(before, name) for name in names)

    await eventually(counted)
    after = await read(port)
    assert [value(after, name) - value(before, name) for name in names] == [1.0, 1.0, 1.0]
    tokens = 'perdure_tokens_total{kind="output"}'
    assert value(after, tokens) > value(before, tokens)


async def test_the_sdk_serves_its_own_metrics_where_it_is_told() -> None:
    port = free_port()
    serving = runtime(("127.0.0.1", port))
    assert serving is not None
    assert await eventually(lambda: read(port))
    assert runtime(None) is None


@pytest.mark.parametrize("taken_by", ["ours", "the SDK"])
async def test_a_port_that_is_taken_is_no_reason_not_to_work(taken_by: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = ("127.0.0.1", int(taken.getsockname()[1]))
        if taken_by == "ours":
            serve_metrics(address)
        else:
            assert runtime(address) is None


def test_every_role_has_two_ports_of_its_own() -> None:
    assert {kind.value for kind in Kind} | {"relay", "api"} == set(ROLES)
    found = [address for role in ROLES for address in metrics_addresses(9_100, "127.0.0.1", role)]
    assert len(set(found)) == 2 * len(ROLES) and None not in found
    assert metrics_addresses(0, "127.0.0.1", "turns") == (None, None)
