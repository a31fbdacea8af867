"""The recorder: takes turns through their shapes and writes down what Temporal kept. `record.py` runs it with pytest,
for the fixtures; pytest does not collect it."""

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
