"""Both sides of the port suites: the workflow's ports, real activities, Postgres, Valkey and a target; the double of
tests/doubles/ports.py, with tools that fail like tests/doubles/target.py."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import JsonValue
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities.approvals import ApprovalActivities
from perdure.activities.facts import FactsActivities
from perdure.activities.memory import MemoryActivities
from perdure.activities.turns import TurnActivities
from perdure.contracts.activities import Verdicts
from perdure.contracts.agents import PlanCard
from perdure.contracts.approvals import VerdictState
from perdure.contracts.calls import ModelCallRequest, ModelReply
from perdure.contracts.errors import Problem
from perdure.contracts.ids import approval_id, effect_key
from perdure.contracts.memory import FactScope
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import Carried, TurnAddress, TurnInput, Usage, WakeSignal
from perdure.core.approvals.decisions import Decision
from perdure.store.approvals import requests as questions
from perdure.store.database import new_id
from perdure.store.delivery.outbox import workflow_input
from perdure.store.memory import working_memory
from perdure.workflows.turn_segment import Steps
from tests.doubles.desk_variants import KEEPER
from tests.doubles.fake_turn import TURN_ID, Ambiguous, Behaviour, FakeTurn, Refused, Says
from tests.doubles.message_script import Line
from tests.doubles.ports import FakeRun
from tests.doubles.target import app_agents
from tests.harness import Harness
from tests.ports.contract import Args, Run, T
from tests.ports.ports_workflow import Calls, PortsRun
from tests.served_turns import MANY

DECISIONS = {
    VerdictState.APPROVED: Decision.APPROVE,
    VerdictState.EDITED: Decision.EDIT,
    VerdictState.REJECTED: Decision.REJECT,
    VerdictState.RESPONDED: Decision.RESPOND,
}
GONE = Problem(code="agent_version_not_found", message="the version that this turn began with is gone")


@dataclass(frozen=True, slots=True)
class RealRun(Run):
    """A run's ports, reached by updates of the workflow that holds them."""

    handle: WorkflowHandle[Any, Any]
    user_message: MessageRef
    turn: "RealTurn"

    async def do(self, call: Callable[..., Awaitable[T]], *given: object) -> T:
        update: Any = call
        return cast(T, await self.handle.execute_update(update, args=given))

    async def complete(self, ask: ModelCallRequest) -> ModelReply:
        return await Run.complete(self, ask.model_copy(update={"messages": (self.user_message, *ask.messages)}))

    async def pause(self) -> None:
        await self.handle.execute_update(PortsRun.pause)

    async def wake(self) -> None:
        await self.handle.signal(PortsRun.wake, WakeSignal(kind="request"))

    async def wake_stop(self) -> None:
        """Send a stop's signal. Its record is removed once it is confirmed: the rest depends on the signal."""
        flag = "UPDATE turns SET stop_requested_at = $2::timestamptz WHERE id = $1"
        harness, turn_id = self.turn.side.harness, self.turn.address.turn_id
        await harness.write(flag, turn_id, datetime.now(UTC))
        await self.handle.signal(PortsRun.wake, WakeSignal(kind="stop"))
        await self.handle.execute_update(PortsRun.heard_stop)
        await harness.write(flag, turn_id, None)


@dataclass(frozen=True, slots=True)
class RealTurn:
    side: "RealSide"
    address: TurnAddress

    async def run(self, *, step: int = 0, gone: bool = False) -> RealRun:
        """Starts a separate workflow, as TurnRun would."""
        harness = self.side.harness
        async with harness.db.transaction(self.address.tenant_id) as tx:
            given = await workflow_input(tx, self.address.turn_id) or self.side.inputs[self.address.turn_id]
        self.side.inputs[self.address.turn_id] = given
        message_id = await harness.value("SELECT message_id FROM turns WHERE id = $1", self.address.turn_id)
        own = {
            "carried": Carried(state={}, requests=(), step=step) if step else given.carried,
            "agent_version": "gone" if gone else given.agent_version,
            # The turns queue is the workflow's own, whose worker serves no activities.
            "routing": given.routing.model_copy(update={"turns": self.side.queue}),
        }
        queue, name = self.side.queue, f"ports-{new_id()}"
        handle = await self.side.client.start_workflow(
            PortsRun.run, given.model_copy(update=own), id=name, task_queue=queue
        )
        self.side.handles.append(handle)
        return RealRun(handle, MessageRef(id=str(message_id), role=Role.USER), self)

    async def decide(self, call_id: str, state: VerdictState, comment: str = "", args: Args | None = None) -> None:
        approval = approval_id(self.address.turn_id, call_id)
        if state in DECISIONS:
            given: dict[str, Any] = {"comment": comment or "because"} | ({"args": args} if args is not None else {})
            await self.side.harness.decide(approval, DECISIONS[state], **given)
        elif state is VerdictState.EXPIRED:
            await self._write(call_id, "expires_at = now() - interval '1 second'")
        elif state is VerdictState.CANCELLED:
            await self.side.harness.finish(self.address)
        else:
            await self._write(call_id, "status = $3", state.value)

    async def answer(self, call_id: str, answer: Args) -> None:
        person = self.side.harness.people["requester"]
        request_id = approval_id(self.address.turn_id, call_id)
        async with self.side.harness.db.transaction(self.address.tenant_id) as tx:
            kind = await tx.fetchval("SELECT kind FROM questions WHERE id = $1", request_id)
            await questions.answer_question(tx, self.address.turn_id, request_id, person.user_id, kind, answer)

    async def forge(self, call_id: str) -> None:
        """Changes the record, so that the digest no longer matches."""
        await self._write(call_id, "args = $3", {"amount": 1_000_000})

    async def garble(self, call_id: str) -> None:
        """Approved, by a decision of another type than any that was ever written."""
        await self._write(call_id, "status = 'approved', decision = $3", "yes, do it")

    async def _write(self, call_id: str, what: str, *values: object) -> None:
        sql = f"UPDATE approvals SET {what} WHERE turn_id = $1 AND call_id = $2"
        assert await self.side.harness.write(sql, self.address.turn_id, call_id, *values) == "UPDATE 1"

    async def settle(self, call_id: str, *, happened: bool) -> None:
        """The reviewer settles it, long after the reservation."""
        quiet = "UPDATE tool_calls SET quiet_at = now() WHERE key = $1"
        await self.side.harness.write(quiet, effect_key(self.address.turn_id, call_id))
        await self.side.harness.settle(self.address, call_id, "happened" if happened else "did_not_happen")

    async def stop(self) -> None:
        await self.side.harness.stop(self.address.turn_id)

    async def remember(self, fields: Args) -> None:
        async with self.side.harness.db.transaction(self.address.tenant_id) as tx:
            await working_memory.merge(tx, self.address.tenant_id, self.address.conversation_id, fields)

    async def dispatched(self, call_id: str) -> int:
        requests = self.side.harness.world.requests
        return requests[effect_key(self.address.turn_id, call_id)] + requests[f"{self.address.turn_id}/{call_id}"]


@dataclass(slots=True)
class RealSide:
    harness: Harness
    client: Client
    queue: str
    handles: list[WorkflowHandle[Any, Any]] = field(default_factory=list)
    inputs: dict[str, TurnInput] = field(default_factory=dict)
    """The input of the first run of each turn, for runs of a turn that has ended meanwhile."""

    async def turn(self, *lines: Line, metadata: Args | None = None, agent_id: str = "desk") -> RealTurn:
        """A turn whose wake-up is not delivered: no workflow but those of this side touches it."""
        address, _ = await self.harness.start(*lines, agent_id=agent_id, caps=MANY)
        if metadata:
            await self.harness.write("UPDATE turns SET metadata = $2 WHERE id = $1", address.turn_id, metadata)
        return RealTurn(self, address)


@asynccontextmanager
async def real_side(harness: Harness, client: Client) -> AsyncIterator[RealSide]:
    """The side, with a worker for its workflow; other workers serve the activities."""
    side = RealSide(harness, client, f"ports-{new_id()[-8:]}")
    deps = harness.deps
    # Brief calls run inside the workflow task where the turns queue serves their kind (ADR 7).
    brief: list[Callable[..., Any]] = [
        MemoryActivities(deps).load,
        FactsActivities(deps).facts,
        ApprovalActivities(deps).read,
    ]
    worker = Worker(
        client,
        task_queue=side.queue,
        workflows=[PortsRun],
        activities=[*brief, TurnActivities(deps).read],
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_failure_exception_types=[Exception],  # a port that raises fails its update, and so its test
    )
    async with worker:
        yield side
        for handle in side.handles:
            await handle.signal(PortsRun.end)
            await handle.result()


def _target(path: str) -> Behaviour:
    """A tool with the modes of tests/doubles/target.py that the suites use."""

    def act(args: Args) -> JsonValue:
        if args.get("mode") == "refuse":
            raise Refused("the desk says no")
        if args.get("mode") == "break":
            raise Ambiguous
        return {"done": path, "number": 0}

    return act


def _too_slow(args: Args) -> JsonValue:
    raise Refused("no answer within 0.3 s")


def _resolve(args: Args) -> tuple[JsonValue, Args]:
    """Finds nothing, and would write a field that its card does not name."""
    return {"status": "not_found", "candidates": []}, {"consecutive_failed_resolves": 1, "status": "completed"}


TOOLS: dict[str, Behaviour] = {
    **{name: _target(f"/{name}") for name in ("look", "pay", "book", "post", "shout")},
    "slow_look": _too_slow,
    "entity_resolve": _resolve,
}


def _cards() -> dict[str, PlanCard]:
    """The cards of the agent `desk`, cut down as a plan has them."""
    harness = next(agent for _, agent in app_agents()[0] if agent.definition.id == "desk")
    names = PlanCard.model_fields
    return {card.name: PlanCard.model_validate(card.model_dump(include=set(names))) for card in harness.cards}


@dataclass(frozen=True, slots=True)
class DoubleRun(Run):
    fake: FakeRun

    async def do(self, call: Callable[..., Awaitable[T]], *given: object) -> T:
        return await call(Calls(self.fake.as_ports()), *given)

    async def pause(self) -> None:
        self.fake.open()

    async def wake(self) -> None:
        self.fake.turn.wake_pending = True

    async def wake_stop(self) -> None:
        self.fake.stopped = True


@dataclass(frozen=True, slots=True)
class DoubleTurn:
    fake: FakeTurn

    async def run(self, *, step: int = 0, gone: bool = False) -> DoubleRun:
        return DoubleRun(FakeRun(self.fake, Steps(step), problem=GONE if gone else None))

    async def decide(self, call_id: str, state: VerdictState, comment: str = "", args: Args | None = None) -> None:
        self.fake.decide(call_id, state, comment, args)

    async def answer(self, call_id: str, answer: Args) -> None:
        self.fake.decide(call_id, VerdictState.ANSWERED, args=answer)

    async def forge(self, call_id: str) -> None:
        """The double has no digests: it returns what reading one would."""
        self.fake.book[approval_id(TURN_ID, call_id)].state = VerdictState.UNREADABLE

    async def garble(self, call_id: str) -> None:
        """A read that comes upon this record breaks off."""

        async def broken(read: Verdicts) -> Verdicts:
            met = any(verdict.call_id == call_id for verdict in read.verdicts)
            return Verdicts(problem=Problem(code="unexpected_error", message="unreadable")) if met else read

        self.fake.reading = broken

    async def settle(self, call_id: str, *, happened: bool) -> None:
        self.fake.settle(call_id, happened)

    async def stop(self) -> None:
        self.fake.stopped = True

    async def remember(self, fields: Args) -> None:
        """Sets a field of working memory; None removes it."""
        kept = {**self.fake.working, **fields}
        self.fake.working = {name: value for name, value in kept.items() if value is not None}

    async def dispatched(self, call_id: str) -> int:
        return sum(1 for ran, _ in self.fake.ran if ran == call_id)


async def double_turn(*lines: Line, metadata: Args | None = None, agent_id: str = "desk") -> DoubleTurn:
    says = [Says(line.text, line.calls, Usage(input_tokens=9, output_tokens=1, cost_microusd=10)) for line in lines]
    facts = tuple(FactScope) if agent_id == KEEPER else ()
    return DoubleTurn(FakeTurn(_cards(), TOOLS, says, skill_ids=("plan",), metadata=metadata or {}, facts=facts))
