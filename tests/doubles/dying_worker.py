"""A turns worker in a process of its own that says when it ends a turn and hangs there, to be killed."""

from perdure.contracts.turns import Kind
from tests.doubles.broken_inside import Breaks, broken_inside
from tests.doubles.killed_worker import say, serve
from tests.eventually import until


async def _ending() -> None:
    with broken_inside(Breaks.HANGS) as broken:
        print("serving", flush=True)
        await until(lambda: bool(broken), seconds=60)
        await say("ending")


if __name__ == "__main__":
    serve(Kind.TURNS, then=_ending)
