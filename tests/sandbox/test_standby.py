"""A sandbox that opens beside the rest of a start: once, loudly where it cannot, and again after a while."""

import asyncio

import pytest
from structlog.testing import capture_logs

from perdure.activities.sandbox import (
    FaultKind,
    LazySandbox,
    SandboxConfig,
    SandboxUnavailable,
    open_sandbox,
    selection,
)
from perdure.activities.sandbox.protocol import Sandbox

ONE = "def run():\n    return 1"


async def test_blocks_wait_for_one_opening_and_its_close_ends_it() -> None:
    with capture_logs() as logs:
        sandbox = LazySandbox(SandboxConfig())
        sandbox.open_soon()
        ran = await asyncio.gather(*(sandbox.run("t", ONE, {}) for _ in range(5)))
    assert [each.value for each in ran] == [1] * 5
    assert [each["event"] for each in logs] == ["sandbox.jailed"]
    assert await sandbox.check(ONE, {"type": "object"}, {"type": "integer"}) == ()
    await sandbox.close()
    with pytest.raises(SandboxUnavailable):
        await sandbox.run("t", ONE, {})


async def test_the_first_block_opens_it_where_nobody_asked_for_it_before() -> None:
    sandbox = LazySandbox(SandboxConfig())
    assert (await sandbox.run("t", ONE, {})).value == 1
    await sandbox.close()


async def test_one_that_was_never_opened_is_closed_at_once() -> None:
    await LazySandbox(SandboxConfig()).close()


async def test_a_caller_who_gives_up_waiting_does_not_stop_the_opening() -> None:
    sandbox = LazySandbox(SandboxConfig())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.run("t", ONE, {}), 0.01)
    assert (await sandbox.run("t", ONE, {})).value == 1
    await sandbox.close()


@pytest.mark.parametrize(
    ("error", "why"),
    [(SandboxUnavailable("bwrap is not installed"), "bwrap is not installed"), (OSError("secret path"), "OSError")],
)
async def test_where_it_cannot_be_opened_blocks_are_told_why_and_a_later_one_finds_it_open(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    tries: list[int] = []

    async def opening(config: SandboxConfig) -> Sandbox:
        tries.append(1)
        if len(tries) == 1:
            raise error
        return await open_sandbox(config)

    monkeypatch.setattr(selection, "open_sandbox", opening)
    sandbox = LazySandbox(SandboxConfig())
    with capture_logs() as logs:
        for _ in range(2):
            ran = await sandbox.run("t", ONE, {})
            assert ran.fault is not None and ran.fault.kind is FaultKind.CLOSED and why in ran.fault.message
            assert "secret" not in ran.fault.message
    assert [(each["event"], each["log_level"]) for each in logs] == [("sandbox.closed", "error")]
    monkeypatch.setattr(selection, "AGAIN_SECONDS", 0.0)
    sandbox = LazySandbox(SandboxConfig())
    tries.clear()
    assert (await sandbox.run("t", ONE, {})).fault is not None
    assert (await sandbox.run("t", ONE, {})).value == 1
    assert len(tries) == 2
    await sandbox.close()
