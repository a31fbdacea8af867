"""All that may touch one turn touches it at the same moment: nobody waits crosswise, and each thing is said once."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.model import ModelActivities
from perdure.contracts.activities import LoadAsk, VerdictsAsk
from perdure.contracts.calls import CallState, ToolOutcome
from perdure.contracts.errors import CallerError
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import FinishAsk, TurnAddress, TurnStatus
from perdure.core.approvals.decisions import Decider
from perdure.core.turns import OnBusy
from perdure.store.calls.effects import settle_by_person
from perdure.store.turns.finish import finish
from perdure.store.turns.start import request_stop
from tests.desk import Desk, effect_ref, gathered, until
from tests.doubles.spoken import Line
from tests.integration.test_ledger_interleavings import deadlocks
from tests.scale import sized

Call = tuple[str, dict[str, JsonValue]]
UNKNOWN: list[Call] = [("shout", {"mode": "wait"})] * 3
TO_RUN: list[Call] = [("book", {}), ("jot", {"text": "x"}), ("look", {}), ("pay", {})]
LOST = [f"t1.{index}" for index in range(len(UNKNOWN))]
OTHERS = [f"t1.{len(UNKNOWN) + index}" for index in range(len(TO_RUN))]
AGAIN = {"tool_unavailable", "settle_refused"}
"""What an attempt that lost its call ends in; a `store_conflict` would be a deadlock that Postgres had to break."""


@dataclass(frozen=True, slots=True)
class Hammered:
    """A turn with effects that a person must settle, while the workers that sent them may still come back."""

    address: TurnAddress
    frozen: Sequence[asyncio.Task[ToolOutcome]]

    @property
    def keys(self) -> list[str]:
        """Of those effects."""
        return [effect_key(self.address.turn_id, call_id) for call_id in LOST]


async def ready(desk: Desk) -> Hammered:
    """Such a turn, with calls that are still to run, and with a turn that waits behind it."""
    address = await desk.plan(*UNKNOWN, *TO_RUN)
    running = desk.world.running
    frozen = [asyncio.create_task(desk.run_tool(address, call_id)) for call_id in LOST]
    await until(lambda: desk.world.running == running + len(LOST))
    outcomes = await asyncio.gather(*(desk.run_tool(address, call_id, attempt=2) for call_id in LOST))
    assert {outcome.state for outcome in outcomes} == {CallState.OUTCOME_UNKNOWN}
    await desk.write("UPDATE tool_calls SET quiet_at = now() WHERE turn_id = $1", address.turn_id)
    (request,) = await desk.open(address, OTHERS[-1])
    await desk.decide(request.request_id)
    await desk.start(Line("next"), conversation_id=address.conversation_id, on_busy=OnBusy.QUEUE)
    return Hammered(address, frozen)


async def settle(desk: Desk, address: TurnAddress, call_id: str, outcome: str) -> str:
    """A reviewer says what became of an effect; its key, where this statement was the first."""
    reviewer, key = desk.people["reviewer"], effect_key(address.turn_id, call_id)
    async with desk.db.transaction("local") as tx:
        await settle_by_person(tx, key, Decider(reviewer.user_id, reviewer.roles, "reviewer"), outcome, "I looked")
    return key


async def end(desk: Desk, address: TurnAddress, status: TurnStatus) -> None:
    """A run, or the reconciler, ends the turn."""
    async with desk.db.transaction("local") as tx:
        await finish(tx, FinishAsk(address=address, status=status))


async def stop(desk: Desk, address: TurnAddress) -> None:
    """Its user stops the turn."""
    async with desk.db.transaction("local") as tx:
        await request_stop(tx, address.turn_id, desk.people["requester"].user_id)


async def everything(desk: Desk, turn: Hammered, chance: random.Random) -> list[Coroutine[Any, Any, Any]]:
    """All of it several times over, in a random order."""
    address = turn.address
    version = await desk.version()
    load = LoadAsk(address=address, agent_id="desk", agent_version=version)
    read = VerdictsAsk(address=address, requests=tuple(effect_ref(address, call, "shout") for call in LOST))
    model = await desk.model_call(address, 2)
    deps = desk.deps
    work: list[Coroutine[Any, Any, Any]] = []
    for number in range(4):
        run_id = f"run-{number + 2}"
        work += [settle(desk, address, call, chance.choice(["happened", "did_not_happen"])) for call in LOST]
        work += [desk.run_tool(address, call, run_id=run_id) for call in (*LOST, *OTHERS)]
        work += [
            desk.activity(MemoryActivities(deps).load, load, run_id=run_id),
            desk.activity(ApprovalActivities(deps).read, read, run_id=run_id),
            desk.activity(ModelActivities(deps).complete, model, run_id=run_id),
            end(desk, address, chance.choice([TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.STOPPED])),
        ]
    work.append(stop(desk, address))
    chance.shuffle(work)
    return work


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(sized(5, 1)))
async def test_settles_ends_and_claims_of_one_turn_at_once_never_deadlock(desk: Desk, seed: int) -> None:
    desk.world.go_on.clear()
    turns = [await ready(desk) for _ in range(3)]
    before = await deadlocks(desk)
    chance = random.Random(seed)
    work = [each for turn in turns for each in await everything(desk, turn, chance)]
    desk.world.go_on.set()
    answers = await gathered(*(task for turn in turns for task in turn.frozen), *work)
    refused = [each for each in answers if isinstance(each, CallerError)]
    again = [each for each in answers if isinstance(each, ApplicationError)]
    odd = [each for each in answers if isinstance(each, BaseException) and each not in (*refused, *again)]
    assert not odd, odd[:3]
    assert {each.type for each in again} <= AGAIN
    assert {each.code for each in refused} <= {"already_settled"}
    assert await deadlocks(desk) == before
    settled = Counter(each for each in answers if isinstance(each, str))
    for turn in turns:
        kinds = await desk.kinds(turn.address.turn_id)
        assert (kinds.count("done"), kinds[-1]) == (1, "done")
        rows = await desk.rows("SELECT * FROM tool_calls WHERE key = ANY($1)", turn.keys)
        for row in rows:
            # Its worker came back in time, or one of those who settled it was heard; never both.
            assert row["state"] in ("done", "failed")
            assert settled[row["key"]] == (row["settled_by"] is not None)
            assert row["settled_by"] is None or row["lost_settles"] == 1, "the worker was refused, and that is counted"
