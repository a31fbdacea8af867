"""Answer sets by clingo in a separate process, so that a limit can end it: grounding cannot be interrupted, but a
process can be killed. No outcome is an exception."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ._child import run_child

CHILD = Path(__file__).with_name("_solver_child.py")
LIMIT_SECONDS = 60.0
MEMORY_MEGABYTES = 1_024

Outcome = Literal["solved", "unsatisfiable", "timed_out", "failed"]


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of a program."""

    outcome: Outcome
    atoms: tuple[str, ...] = ()
    """Atoms of the best model."""


async def solve(program: str, seconds: float = LIMIT_SECONDS) -> Solution:
    """Returns the best model of a program that is found within `seconds`. No process remains, even after an error."""
    try:
        answer = await run_child(CHILD, MEMORY_MEGABYTES, int(seconds) + 2, stdin_text=program, seconds=seconds)
    except TimeoutError:
        return Solution("timed_out")
    if answer is None:  # killed by its limit of memory
        return Solution("failed")
    return Solution(answer["outcome"], tuple(answer["atoms"]))
