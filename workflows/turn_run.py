"""TurnRun: one stretch of a turn, from its start or a pause to the next pause or its end.

Determinism: everything outside is an activity; the graph is pure; the mailbox is filled by sync handlers. Between the
last look at the mailbox and a continue-as-new there is no await, so no bell is lost there.
"""

from typing import Any

from temporalio import workflow

from contracts.activities import APPROVALS_OPEN, TURNS_FINISH
from contracts.errors import Problem
from contracts.people import PauseKind, RequestRef
from contracts.turns import Carried, FinishAsk, TurnInput, TurnStatus
from contracts.workflows import RING, TURN_RUN, TURN_WAIT
from graph.compiled import topology
from graph.nodes.reading import error_of, messages_of, requests_of
from graph.spec import FRESH, Outcome, State
from workflows.attributes import attributes
from workflows.mailbox import Mailbox
from workflows.ports import TurnPorts

STATUS_OF = {
    Outcome.COMPLETED: TurnStatus.COMPLETED,
    Outcome.FAILED: TurnStatus.FAILED,
    Outcome.LIMITED: TurnStatus.LIMITED,
    Outcome.STOPPED: TurnStatus.STOPPED,
}


@workflow.defn(name=TURN_RUN)
class TurnRun:
    """Runs the turn's graph."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._mailbox = Mailbox(turn.carried)

    @workflow.signal(name=RING)
    def ring(self, *heard: Any) -> None:
        """Look again, or stop."""
        self._mailbox.put(heard)

    @workflow.run
    async def run(self, turn: TurnInput) -> str:
        """The turn's final status; a pause continues as TurnWait instead."""
        ports = TurnPorts(turn, self._mailbox)
        compiled = topology(turn.topology)
        workflow.set_current_details(f"agent {turn.agent_id}, entered by {turn.entry}")
        if self._mailbox.stop:
            state: State = turn.carried.state if turn.carried and turn.carried.state else {}
            return await self._finish(turn, ports, state, TurnStatus.STOPPED, None)
        state = await compiled.run(_begin(turn), turn.entry, ports.as_ports())
        outcome = compiled.topology.outcome(state)
        if outcome is Outcome.AWAITING and not self._mailbox.stop:
            opened = await self._open(turn, ports, state)
            if opened is not None and not self._mailbox.stop:
                self._wait(turn, ports, state, opened)
        if outcome is Outcome.AWAITING:
            return await self._finish(turn, ports, state, TurnStatus.STOPPED, None)
        problem = error_of(state)
        status = STATUS_OF[outcome]
        return await self._finish(turn, ports, state, status, None if status is TurnStatus.STOPPED else problem)

    async def _open(self, turn: TurnInput, ports: TurnPorts, state: State) -> tuple[RequestRef, ...] | None:
        """The requests that the pause waits for; None where the turn was stopped meanwhile."""
        if ports.asked is None:
            # Paused again on what was open already: expiry dates are those carried.
            return turn.carried.requests if turn.carried else tuple(requests_of(state, "pending_requests"))
        ask = ports.asked.model_copy(update={"events": ports.take_events()})
        count = len(ask.gated) + len(ask.unknown)
        opened = await ports.calls.make(APPROVALS_OPEN, ask, summary=f"open {count} requests", stoppable=False)
        self._mailbox.rung = self._mailbox.rung or opened.decided
        return opened.requests if opened.problem is None else None

    def _wait(self, turn: TurnInput, ports: TurnPorts, state: State, requests: tuple[RequestRef, ...]) -> None:
        """Continue as TurnWait, which holds nothing in a worker."""
        carried = Carried(
            state=dict(state),
            requests=requests,
            rung=self._mailbox.rung,
            looks=turn.carried.looks + 1 if turn.carried is not None and ports.asked is None else 0,
            stop=self._mailbox.stop,
            step=ports.step,
            events=tuple(ports.events),
            events_made=ports.events_made,
        )
        workflow.continue_as_new(
            args=[turn.model_copy(update={"entry": PauseKind.APPROVAL.value, "carried": carried})],
            workflow=TURN_WAIT,
            task_queue=turn.routing.waits,
            search_attributes=attributes(turn, "awaiting_approval"),
        )

    async def _finish(
        self, turn: TurnInput, ports: TurnPorts, state: State, status: TurnStatus, problem: Problem | None
    ) -> str:
        transcript = tuple(message.id for message in messages_of(state) if message.id) if "messages" in state else ()
        ask = FinishAsk(
            address=turn.address,
            status=status,
            problem=problem,
            transcript=transcript,
            events=ports.take_events(),
        )
        finished = await ports.calls.make_here(TURNS_FINISH, ask, summary=f"finish: {status.value}")
        workflow.set_current_details(f"{finished.status.value}" + (f": {problem.message}" if problem else ""))
        return finished.status.value


def _begin(turn: TurnInput) -> State:
    """The state that a run starts from."""
    schema = topology(turn.topology).topology.state
    if turn.entry != FRESH and turn.carried is not None:
        return turn.carried.state
    identity = {
        "execution_id": turn.address.turn_id,
        "conversation_id": turn.address.conversation_id,
        "tenant_id": turn.address.tenant_id,
    }
    known = {field.name for field in schema.fields}
    return schema.initial(**{name: value for name, value in identity.items() if name in known})
