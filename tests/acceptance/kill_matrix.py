"""kill -9 at three points of a turn, many turns at once; `python -m tests.acceptance.kill_matrix --turns 20`.

| point | killed while | who is killed |
|---|---|---|
| model | a model call streams | worker-llm |
| paused | the turn waits for its approval | every worker |
| effect | the target has committed, nobody has recorded it | worker-turns, which runs the tools |

Each turn must end `completed`, with exactly one effect in the target's own ledger (one for each refund asked for), one
transcript, and never more model attempts than claims. Times are from the new worker's readiness to the turn's end.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.running import RunningStack, running

WORDS = 120
"""At 50 tokens a second a model call of 2.4 s: long enough to be killed in the middle."""
WORKERS = ("worker-turns", "worker-llm", "worker-relay")


@dataclass(slots=True)
class Outcome:
    """What one point came to."""

    point: str
    turns: int
    seconds: list[float] = field(default_factory=list)
    """Per turn, new worker ready to done; negative where it had ended before."""
    faults: list[str] = field(default_factory=list)
    """What did not hold."""

    def quantile(self, share: float) -> float:
        """The `share` quantile of the times."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    def row(self) -> str:
        """One line of the table."""
        held = self.turns - len({fault.split(":")[0] for fault in self.faults})
        return (
            f"| {self.point} | {self.turns} | {held} | {self.quantile(0.5):.1f} | {self.quantile(0.95):.1f} "
            f"| {max(self.seconds, default=float('nan')):.1f} |"
        )


class Matrix:
    """The three points over one running stack."""

    def __init__(self, stack: RunningStack, turns: int) -> None:
        self.stack = stack
        self.turns = turns
        self.api = httpx.AsyncClient(base_url=stack.api, timeout=30)
        self.payments = httpx.AsyncClient(
            base_url=stack.read()["companions"]["payments"],
            headers={"Authorization": f"Bearer {stack.companion_token('payments')}"},
            timeout=30,
        )
        self._orders = iter(range(2_000, 90_000))

    async def close(self) -> None:
        """Give the connections back."""
        await self.api.aclose()
        await self.payments.aclose()

    def _as(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.stack.token(name)}"}

    async def begin(self, message: str) -> str:
        """A turn in a conversation of its own."""
        made = await self.api.post("/v1/conversations", json={"agent": "refunds"}, headers=self._as("requester"))
        made.raise_for_status()
        started = await self.api.post(
            f"/v1/conversations/{made.json()['id']}/turns", json={"message": message}, headers=self._as("requester")
        )
        started.raise_for_status()
        return str(started.json()["turn_id"])

    async def turn(self, turn_id: str) -> dict[str, Any]:
        """The turn as its requester sees it."""
        answer = await self.api.get(f"/v1/turns/{turn_id}", headers=self._as("requester"))
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def until(self, ids: Sequence[str], status: str, seconds: float = 90.0) -> dict[str, float]:
        """When each turn was first seen in `status`, by the monotonic clock; those missing never were."""
        seen: dict[str, float] = {}
        deadline = time.monotonic() + seconds
        while len(seen) < len(ids) and time.monotonic() < deadline:
            for turn_id in ids:
                if turn_id not in seen and (await self.turn(turn_id))["status"] == status:
                    seen[turn_id] = time.monotonic()
            await asyncio.sleep(0.05)
        return seen

    async def approve(self, turn_id: str) -> None:
        """Approve what the turn waits for, as the reviewer, on the digest that is shown."""
        for approval_id in (await self.turn(turn_id))["waiting_for"]["ids"]:
            shown = await self.api.get(f"/v1/approvals/{approval_id}", headers=self._as("reviewer"))
            answer = await self.api.post(
                f"/v1/approvals/{approval_id}/decision",
                json={"decision": "approve", "digest": shown.json()["digest"]},
                headers=self._as("reviewer"),
            )
            answer.raise_for_status()

    async def check(self, outcome: Outcome, ids: Sequence[str], orders: Sequence[int], texts: Sequence[str]) -> None:
        """Every claim about every turn, from the API and from the target's own ledger."""
        ledger = (await self.payments.get("/ledger")).json()
        for place, turn_id in enumerate(ids):
            turn = await self.turn(turn_id)
            if turn["status"] != "completed":
                outcome.faults.append(f"{turn_id}: ended {turn['status']} {turn['error']}")
                continue
            if texts and turn["answer"] != texts[place]:
                outcome.faults.append(f"{turn_id}: its answer is not the one text")
            messages = await self.api.get(
                f"/v1/conversations/{turn['conversation_id']}/messages", headers=self._as("requester")
            )
            roles = [message["role"] for message in messages.json()["items"]]
            expected = ["user", "assistant", "tool", "assistant"] if orders else ["user", "assistant"]
            if roles != expected:
                outcome.faults.append(f"{turn_id}: its transcript is {roles}")
            if orders:
                effects = [
                    each
                    for each in ledger["effects"]
                    if each["kind"] == "refund" and str(each["order"]) == str(orders[place])
                ]
                if len(effects) != 1:
                    outcome.faults.append(f"{turn_id}: {len(effects)} refunds of order {orders[place]}")

    async def model(self) -> Outcome:
        """Kill the model worker while every turn's answer streams."""
        outcome = Outcome("model call running", self.turns)
        text = " ".join(["word"] * WORDS)
        ids = [await self.begin(f"/echo {text}") for _ in range(self.turns)]
        await self.until(ids, "running")
        ready = await self._kill_and_wait(("worker-llm",))
        await self._times(outcome, ids, ready)
        await self.check(outcome, ids, [], [text] * self.turns)
        return outcome

    async def paused(self) -> Outcome:
        """Kill every worker while every turn waits, then approve."""
        outcome = Outcome("paused", self.turns)
        orders = [next(self._orders) for _ in range(self.turns)]
        ids = [await self.begin(f"Refund order {order}") for order in orders]
        await self.until(ids, "awaiting_approval")
        killed = self.stack.kill(*WORKERS)
        await asyncio.gather(*(self.approve(turn_id) for turn_id in ids))
        ready = await asyncio.to_thread(self.stack.wait_restarted, killed)
        await self._times(outcome, ids, ready)
        await self.check(outcome, ids, orders, [])
        return outcome

    async def effect(self) -> Outcome:
        """Kill the tools' worker after the target has committed and before it has answered."""
        outcome = Outcome("effect committed, not reported", self.turns)
        orders = [next(self._orders) for _ in range(self.turns)]
        ids = [await self.begin(f"Refund order {order}") for order in orders]
        await self.until(ids, "awaiting_approval")
        fault = {"point": "after_commit", "delay_seconds": 60, "times": self.turns, "kind": "refund"}
        (await self.payments.post("/faults", json=fault)).raise_for_status()
        await asyncio.gather(*(self.approve(turn_id) for turn_id in ids))
        await self._until_committed(orders)
        ready = await self._kill_and_wait(("worker-turns",))
        await self.payments.delete("/faults")
        await self._times(outcome, ids, ready)
        await self.check(outcome, ids, orders, [])
        return outcome

    async def _until_committed(self, orders: Sequence[int], seconds: float = 30.0) -> None:
        wanted = {str(order) for order in orders}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ledger = (await self.payments.get("/ledger")).json()
            if wanted <= {str(each["order"]) for each in ledger["effects"]}:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the target did not commit every refund before the kill")

    async def _kill_and_wait(self, roles: tuple[str, ...]) -> float:
        killed = self.stack.kill(*roles)
        return await asyncio.to_thread(self.stack.wait_restarted, killed)

    async def _times(self, outcome: Outcome, ids: Sequence[str], ready: float) -> None:
        ended = await self.until(ids, "completed")
        outcome.seconds = [at - ready for at in ended.values()]


async def run(stack: RunningStack, turns: int, say: Callable[[str], None] = lambda _: None) -> list[Outcome]:
    """All three points, one after another."""
    matrix = Matrix(stack, turns)
    try:
        points: list[Callable[[], Awaitable[Outcome]]] = [matrix.model, matrix.paused, matrix.effect]
        outcomes = []
        for point in points:
            outcomes.append(await point())
            say(outcomes[-1].row())
        return outcomes
    finally:
        await matrix.close()


def main() -> int:
    """Print the table; 0 only if every turn of every point is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "home") as stack:
        print("| killed while | turns | right | p50 s | p95 s | max s |\n|---|---|---|---|---|---|", flush=True)
        outcomes = asyncio.run(run(stack, asked.turns, print))
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    print("\n".join(faults) or "\nEvery turn ended once, with one effect and one transcript.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
