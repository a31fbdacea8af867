"""The compared stacks: the processes of each, and how a turn is started on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from bench.baselines import merged, steps
from bench.client import Begin, Client
from bench.processes import Processes, Program
from perdure.contracts.turns import Routing


@dataclass(frozen=True, slots=True)
class Stack:
    """One way to run the reference turn."""

    name: str
    title: str
    programs: tuple[Program, ...]
    on_temporal: bool = True

    def begin(self, client: Client, processes: Processes) -> Begin:
        """Starts a turn on it."""
        if self.name == "compact":
            return client.on_perdure(Routing.compact())
        if self.name == "spread":
            return client.on_perdure(Routing.spread())
        if self.on_temporal:
            workflow = merged.WORKFLOW if self.name == "merged" else steps.WORKFLOW
            return client.on_workflow(workflow, f"bench-{self.name}-turns")
        roles = cycle([program.role for program in self.programs])
        return client.on_graph(lambda line: processes.feed(next(roles), line))


def _perdure(*queues: str) -> tuple[Program, ...]:
    return tuple(Program(f"perdure-{queue}", ("-m", "perdure.worker", "--queues", queue)) for queue in queues)


def _by_hand(name: str) -> tuple[Program, ...]:
    return tuple(
        Program(f"{name}-{queue}", ("-m", "bench.baselines", name, "--queue", queue)) for queue in ("turns", "llm")
    )


COMPACT: Final = Stack("compact", "Perdure, compact", _perdure("turns", "llm"))
SPREAD: Final = Stack("spread", "Perdure, spread", _perdure("turns", "llm", "tools", "memory", "approvals"))
TUNED: Final = Stack("tuned", "Temporal by hand, an activity a step, tuned", _by_hand("tuned"))
STEPS: Final = Stack("steps", "Temporal by hand, an activity a step, SDK defaults", _by_hand("steps"))
MERGED: Final = Stack("merged", "Temporal by hand, merged and tuned", _by_hand("merged"))
GRAPH: Final = Stack(
    "graph",
    "plain LangGraph, Postgres saver, sync",
    tuple(Program(f"graph-{number}", ("-m", "bench.baselines", "graph"), fed=True) for number in (1, 2)),
    on_temporal=False,
)
ALL: Final[Mapping[str, Stack]] = {stack.name: stack for stack in (COMPACT, STEPS, TUNED, MERGED, SPREAD, GRAPH)}
