"""kill -9 at four points of a turn, many turns together; `python -m tests.acceptance.kill_matrix --turns 20`.

| point | killed while | who is killed |
|---|---|---|
| model | the model speaks | worker-llm |
| paused | the turn waits for its approval | every worker |
| keyed | the target has committed, it is not recorded | worker-turns, which runs the tools |
| opaque | the same at a target that knows no keys | worker-turns; then a person settles it |

The agent's model is reached through LiteLLM over HTTP at the provider double, so requests are counted by who got them.
Every turn must be in flight after the kill and before the restart, and end with the promises that are checked at
provider and target; the functions `of_` return their faults. Times are from the new workers' readiness (opaque: from
the settling) to the turn's end, by its own `ended_at`.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.counted_model import COUNTED, counted_stack, spoken, tool_steps
from tests.acceptance.machine import quantile
from tests.acceptance.running import WORKERS, RunningStack
from tests.acceptance.turns import Happened, Turns
from tests.doubles.providers.requests import Seen
from tests.doubles.providers.script import Step
from tests.doubles.providers.server import ProviderDouble
from tests.eventually import until

TABLE_HEAD = """\
| killed while | turns | right | model requests in attempts | workers back s | p50 s | p95 s | max s |
|---|---|---|---|---|---|---|---|"""
TEXT = " ".join(f"word{number}" for number in range(40))
WORD_SECONDS = 0.05
"""The call that is made again takes 2 s of the times."""
SLOW_WORD_SECONDS = 2.0
"""The killed call would take 80 s, so that it still streams on a busy machine."""
TOOL_TURN = ("user", "assistant", "tool", "assistant")
SPOKEN_TURN = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Wanted:
    message: str
    answer: str
    kind: str = ""
    """The effect's kind in the target's ledger: `refund`, `note`, or empty for a turn without one."""
    order: str = ""

    @property
    def path(self) -> str:
        return f"/{self.kind}s"


@dataclass(frozen=True, slots=True)
class Target:
    """The payments service's own ledger, and the requests that reached it."""

    effects: Sequence[dict[str, Any]]
    requests: Sequence[dict[str, Any]]


def of_provider(turn: dict[str, Any], events: Sequence[Happened], requests: Sequence[Seen]) -> Iterator[str]:
    """Checks that there are at most as many requests as attempts, none after the settle, and one settle per call."""
    of_turn = [seen for seen in requests if seen.idempotency_key.startswith(turn["turn_id"] + ".")]
    begun = Counter(event.call_id for event in events if event.kind == "generation.start")
    settled = Counter(event.call_id for event in events if event.kind == "generation.complete")
    if not of_turn:
        yield "its model was never asked"
    if len(of_turn) > turn["attempts"]:
        yield f"{len(of_turn)} requests to the provider in {turn['attempts']} attempts"
    if begun.total() != turn["attempts"]:
        yield f"{begun.total()} model calls begun in {turn['attempts']} attempts"
    if set(settled) != set(begun) or settled.total() != len(settled):
        yield f"model calls begun {dict(begun)}, settled {dict(settled)}"
    settled_at = {event.call_id: event.at.timestamp() for event in events if event.kind == "generation.complete"}
    for seen in of_turn:
        call_id = seen.idempotency_key.partition(".")[2]
        if call_id not in begun:
            yield f"the provider was asked for the call {call_id}, which was never begun"
        elif seen.received_at > settled_at.get(call_id, seen.received_at):
            yield f"the provider was asked for {call_id} again after it was settled"
        if seen.outcome == "no_step":
            yield f"the provider was asked for {call_id} once more than it should"


def of_target(wanted: Wanted, events: Sequence[Happened], target: Target) -> Iterator[str]:
    """Checks that there is one effect, at most as many requests as attempts, and always the same idempotency key."""
    made = [each for each in target.effects if (each["kind"], str(each["order"])) == (wanted.kind, wanted.order)]
    if len(made) != 1:
        yield f"{len(made)} effects of the kind {wanted.kind} for order {wanted.order}"
        return
    key = made[0]["key"]
    if wanted.kind == "refund" and key is None:
        yield "its effect has no key"
    if key is not None:
        sent = sum(request["key"] == key for request in target.requests)
        tried = sum(event.kind == "tool.executing" for event in events)
        if not 1 <= sent <= tried:
            yield f"the target got {sent} requests in {tried} attempts"


def of_requests_without_key(wanted: Sequence[Wanted], target: Target) -> Iterator[str]:
    """A target that knows no keys got as many requests as there are effects: nothing was sent twice."""
    for path in {each.path for each in wanted if each.kind}:
        sent = sum(request["path"] == path and request["key"] is None for request in target.requests)
        made = sum(f"/{each['kind']}s" == path and each["key"] is None for each in target.effects)
        if sent != made:
            yield f"{sent} requests without a key to {path} for {made} effects"


def of_transcript(turn: dict[str, Any], wanted: Wanted, messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Completed with this answer, and each message is there once."""
    if turn["status"] != "completed":
        yield f"ended {turn['status']} {turn['error']}"
    if turn["answer"] != wanted.answer:
        yield f"its answer is {turn['answer']!r}"
    roles = tuple(message["role"] for message in messages)
    if roles != (TOOL_TURN if wanted.kind else SPOKEN_TURN):
        yield f"its transcript is {roles}"
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    if answers[-1:] != [wanted.answer] or answers.count(wanted.answer) != 1:
        yield "its transcript does not have the answer once, at its end"


@dataclass(slots=True)
class Outcome:
    point: str
    turns: int
    requests: int = 0
    """The requests that the provider got."""
    attempts: int = 0
    killed_at: float = 0.0
    """The time of the wall clock."""
    back_seconds: float = 0.0
    """Seconds from the kill until new workers were ready: the times of the turns start there."""
    seconds: list[float] = field(default_factory=list)
    """Per turn that ended."""
    faults: list[str] = field(default_factory=list)
    """The broken promises, each with its turn before the colon."""

    def row(self) -> str:
        held = self.turns - len({fault.split(":")[0] for fault in self.faults})
        cells = [self.point, self.turns, held, f"{self.requests} in {self.attempts}"]
        times = [self.back_seconds, *(quantile(self.seconds, share) for share in (0.5, 0.95, 1.0))]
        return f"| {' | '.join(map(str, cells))} | {' | '.join(f'{seconds:.1f}' for seconds in times)} |"


class Matrix:
    """The points over one running stack."""

    def __init__(
        self, stack: RunningStack, double: ProviderDouble, turns: Turns, payments: httpx.AsyncClient, count: int
    ) -> None:
        self._stack = stack
        self._double = double
        self._turns = turns
        self._payments = payments
        self._count = count
        self._orders = itertools.count(2_000)

    async def model(self) -> Outcome:
        """Kill the model worker while every turn's answer streams."""
        outcome = Outcome("model call running", self._count)
        wanted = [Wanted(f"Say it, number {next(self._orders)}", TEXT) for _ in range(self._count)]
        steps = [spoken(each.message, SLOW_WORD_SECONDS, each.answer, WORD_SECONDS) for each in wanted]
        self._next(itertools.chain.from_iterable(steps))
        ids = await self._turns.begin_all([each.message for each in wanted])
        await until(lambda: len(self._requests_of(ids)) >= len(ids), seconds=60)
        killed = await self._kill(outcome, ids, ("worker-llm",), "running")
        outcome.faults += [
            f"{seen.idempotency_key.partition('.')[0]}: its model call had ended before the kill"
            for seen in self._requests_of(ids)
            if seen.outcome == "answered"
        ]
        ready = await self._ready(outcome, killed)
        return await self._close(outcome, ids, wanted, ready)

    async def paused(self) -> Outcome:
        """Kill every worker while every turn waits, then approve."""
        outcome = Outcome("paused", self._count)
        wanted, ids = await self._waiting("refund")
        killed = await self._kill(outcome, ids, WORKERS, "awaiting_approval")
        await asyncio.gather(*(self._turns.approve(turn_id) for turn_id in ids))
        ready = await self._ready(outcome, killed)
        return await self._close(outcome, ids, wanted, ready)

    async def keyed(self) -> Outcome:
        """Kill the tools' worker after the target has committed and before it has answered."""
        outcome = Outcome("effect committed, not reported", self._count)
        wanted, ids = await self._waiting("refund")
        ready = await self._killed_after_commit(outcome, wanted, ids)
        return await self._close(outcome, ids, wanted, ready)

    async def opaque(self) -> Outcome:
        """The same at a target without idempotency keys: the turn waits until a person settles it."""
        outcome = Outcome("the same, target without keys", self._count)
        wanted, ids = await self._waiting("note")
        await self._killed_after_commit(outcome, wanted, ids)

        async def known() -> dict[str, str]:
            unknown = await self._turns.unknown_effects()
            return unknown if set(ids) <= unknown.keys() else {}

        unknown = await until(known, 60)
        settled = time.time()
        await asyncio.gather(*(self._turns.settle(unknown[turn_id], "it is in the ledger") for turn_id in ids))
        return await self._close(outcome, ids, wanted, settled)

    async def _waiting(self, kind: str) -> tuple[list[Wanted], list[str]]:
        """Turns that wait for the approval of an effect of this kind."""
        wanted: list[Wanted] = []
        steps: list[Step] = []
        for order in map(str, itertools.islice(self._orders, self._count)):
            message = f"Please do the {kind} for order {order}"
            wanted.append(Wanted(message, f"Done for order {order}.", kind, order))
            arguments = {"order": order} if kind == "refund" else {"order": order, "text": "We are sorry."}
            steps += tool_steps(message, kind if kind == "refund" else f"send_{kind}", arguments, wanted[-1].answer)
        self._next(steps)
        ids = await self._turns.begin_all([each.message for each in wanted])
        if missing := await self._turns.until(ids, "awaiting_approval"):
            raise AssertionError(f"not waiting for approval: {missing}")
        return wanted, ids

    async def _killed_after_commit(self, outcome: Outcome, wanted: Sequence[Wanted], ids: Sequence[str]) -> float:
        fault = {"point": "after_commit", "delay_seconds": 60, "times": self._count, "kind": wanted[0].kind}
        (await self._payments.post("/faults", json=fault)).raise_for_status()
        await asyncio.gather(*(self._turns.approve(turn_id) for turn_id in ids))
        orders = {each.order for each in wanted}

        async def committed() -> bool:
            return orders <= {str(each["order"]) for each in (await self._target()).effects}

        await until(committed)
        killed = await self._kill(outcome, ids, ("worker-turns",), "running")
        ready = await self._ready(outcome, killed)
        (await self._payments.delete("/faults")).raise_for_status()
        return ready

    async def _kill(self, outcome: Outcome, ids: Sequence[str], roles: tuple[str, ...], status: str) -> dict[str, int]:
        """SIGKILL, then look, before anyone is back, whether every turn was still in flight."""
        outcome.killed_at = time.time()
        with self._stack.alone():
            killed = self._stack.kill(*roles)
            turns = await self._turns.read_all(ids)
        outcome.faults += [
            f"{turn['turn_id']}: it was {turn['status']}, not {status}, when the workers were killed"
            for turn in turns
            if turn["status"] != status or turn["ended_at"] is not None
        ]
        return killed

    async def _ready(self, outcome: Outcome, killed: dict[str, int]) -> float:
        """When all of the killed run again, by the wall clock, which `ended_at` is on too."""
        await asyncio.to_thread(self._stack.wait_restarted, killed)
        ready = time.time()
        outcome.back_seconds = ready - outcome.killed_at
        return ready

    def _next(self, steps: Iterable[Step]) -> None:
        """Sets the provider's next steps; earlier requests stay in its log."""
        self._double.steps = [*steps]
        self._double.used.clear()

    def _requests_of(self, ids: Sequence[str]) -> list[Seen]:
        return [seen for seen in self._double.requests if seen.idempotency_key.partition(".")[0] in ids]

    async def _target(self) -> Target:
        ledger, requests = await asyncio.gather(self._payments.get("/ledger"), self._payments.get("/requests"))
        return Target(ledger.json()["effects"], requests.json()["requests"])

    async def _close(self, outcome: Outcome, ids: list[str], wanted: list[Wanted], ready: float) -> Outcome:
        """Wait for the turns' end, then everything that must hold of every one of them."""
        await self._turns.until(ids, "completed")
        target, requests = await self._target(), self._double.requests
        for turn, want in zip(await self._turns.read_all(ids), wanted, strict=True):
            faults = list(of_transcript(turn, want, await self._turns.messages(turn)))
            if turn["ended_at"] is not None:
                outcome.seconds.append(datetime.fromisoformat(turn["ended_at"]).timestamp() - ready)
                if outcome.seconds[-1] < 0:
                    faults.append(f"it ended {-outcome.seconds[-1]:.2f} s before the killed were back")
                events = await self._turns.events(turn["turn_id"])
                faults += of_provider(turn, events, requests)
                if want.kind:
                    faults += of_target(want, events, target)
            outcome.attempts += turn["attempts"]
            outcome.faults += [f"{turn['turn_id']}: {fault}" for fault in faults]
        outcome.requests = len(self._requests_of(ids))
        outcome.faults += [f"all: {fault}" for fault in of_requests_without_key(wanted, target)]
        return outcome


async def run(
    stack: RunningStack, double: ProviderDouble, count: int, say: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    bearer = {"Authorization": f"Bearer {stack.companion_token('payments')}"}
    address = stack.read()["companions"]["payments"]
    async with (
        Turns(stack, COUNTED) as turns,
        httpx.AsyncClient(base_url=address, headers=bearer, timeout=30) as payments,
    ):
        matrix = Matrix(stack, double, turns, payments, count)
        points: list[Callable[[], Awaitable[Outcome]]] = [matrix.model, matrix.paused, matrix.keyed, matrix.opaque]
        outcomes = []
        for point in points:
            outcomes.append(await point())
            say(outcomes[-1].row())
        counted = sum(outcome.requests for outcome in outcomes)
        if counted != len(double.requests):
            outcomes[-1].faults.append(f"all: the provider got {len(double.requests)} requests, {counted} of the turns")
    return outcomes


def main() -> int:
    """Print the table; 0 only if every turn of every point is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, counted_stack(Path(folder)) as (stack, double):
        print(TABLE_HEAD, flush=True)
        outcomes = asyncio.run(run(stack, double, options.turns, lambda row: print(row, flush=True)))
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    print("\n".join(faults) or "\nEvery turn ended once, with one effect and one transcript.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
