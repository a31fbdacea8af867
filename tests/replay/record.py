"""Records the shapes of a turn: `python -m tests.replay.record`, or only some: `... record gate_approved limited`. It
runs on the embedded parts, with the workers of tests/served_turns.py, in under a minute. README.md explains when to use
it. It is run with pytest, for the fixtures; pytest does not collect it by itself."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.replay.recording import run_of, write
from tests.replay.replaying import Replaying
from tests.replay.sandbox import runner
from tests.replay.shapes import SHAPES
from tests.served_turns import Served


@pytest.mark.parametrize("name", SHAPES)
async def test_a_turn_runs_and_is_recorded(served: Served, name: str) -> None:
    shape = SHAPES[name]
    address = await shape.play(served)
    assert await served.handle(address).result() == shape.status.value
    runs = [run_of(history) for history in await served.runs(address)]
    assert [run.called for run in runs] == [*shape.runs], "it took another course; see tests/replay/shapes.py"
    replaying = Replaying(runner())
    recorded = []
    for number, run in enumerate(runs, 1):
        heard, failure = await replaying.heard(run)
        assert failure is None, f"the code that made this run cannot replay it: {failure}"
        recorded.append(replace(run, inside=tuple(heard.inside)))
        assert await replaying.fault(name, number, recorded[-1]) is None
    write(name, recorded)


if __name__ == "__main__":
    names = [f"{__file__}::{test_a_turn_runs_and_is_recorded.__name__}[{name}]" for name in sys.argv[1:]]
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", *(names or [__file__])]))
