"""Courses of turns that are stopped, cancelled, or signaled as for a stop that was not requested."""

from perdure.contracts.turns import TurnAddress, WakeSignal
from tests.doubles.broken_inside import Breaks, Brief, broken_inside
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.replay.recording import run_of
from tests.served_turns import DONE, PAY, Served

ASKING = Line("asking", [PAY])
CONFIRM = "turns.read"


async def silent(served: Served, seconds: float = 60) -> TurnAddress:
    """A turn whose model has begun to speak and is silent for so long."""
    address = await served.begin(Line("thinking", seconds=seconds))
    await until(lambda: served.harness.model.requests[f"{address.turn_id}.m1"] == 1)
    return address


async def stopped_running(served: Served) -> TurnAddress:
    address = await silent(served)
    await served.stop(address)
    return address


async def stopped_paused(served: Served) -> TurnAddress:
    address = await served.paused(ASKING, DONE)
    await served.stop(address)
    return address


async def forged_running(served: Served) -> TurnAddress:
    """A signal as of a stop while the model is silent; no stop was requested."""
    address = await silent(served, 1.5)
    await served.wake(address, WakeSignal(kind="stop"))
    return address


async def forged_paused(served: Served) -> TurnAddress:
    """The same while it waits for its approval, which is given then."""
    address = await served.paused(ASKING, DONE)
    run_id = await served.waits(address)
    await served.wake(address, WakeSignal(kind="stop"))
    await served.waits_again(address, run_id)
    await served.decide(address)
    return address


async def forged_then_stopped(served: Served) -> TurnAddress:
    """A signal as of a stop, then a real request for one."""
    address = await silent(served)
    await served.wake(address, WakeSignal(kind="stop"))
    await until_called(served, address, CONFIRM)
    await served.stop(address)
    return address


async def stop_read_outside(served: Served) -> TurnAddress:
    """The look at the record fails inside the workflow task, and is made again as an ordinary activity."""
    with broken_inside(Breaks.FAILS, Brief.STOP):
        address = await stopped_running(served)
        await served.handle(address).result()
    return address


async def until_called(served: Served, address: TurnAddress, name: str) -> None:

    async def look() -> bool:
        return name in run_of(await served.history(address)).called

    await until(look)


async def cancelled_running(served: Served) -> TurnAddress:
    address = await silent(served)
    await served.handle(address).cancel()
    return address


async def cancelled_paused(served: Served) -> TurnAddress:
    address = await served.paused(ASKING, DONE)
    await served.handle(address).cancel()
    return address


async def in_a_call(served: Served, *lines: Line) -> TurnAddress:
    """A turn whose tool call ends when the target continues; then come these lines, or `DONE`."""
    served.harness.world.go_on.clear()
    address = await served.begin(Line("", [("shout", {"mode": "wait"})]), *(lines or (DONE,)))
    await until(lambda: served.effects(address, "/shout") == 1)
    return address
