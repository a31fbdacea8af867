"""`TurnRun`: one segment of a turn, from its start, a pause or a renewal to the next of them or to its end.

Determinism: all input and output is in activities, the graph is pure, and sync handlers fill the mailbox. Between the
last read of the mailbox and a continue-as-new there is no await, so that no wake signal is lost.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.contracts.activities import (
    APPROVALS_OPEN,
    APPROVALS_READ,
    TURN_RUN,
    TURN_WAIT,
    TURNS_FINISH,
    WAKE,
    Opened,
    OpenRequest,
    VerdictsRequest,
)
from perdure.contracts.approvals import PauseKind, RequestRef
from perdure.contracts.errors import Problem
from perdure.contracts.ids import approval_id
from perdure.contracts.messages import MessageRef, Role
from perdure.contracts.turns import FinishRequest, TurnInput, TurnStatus
from perdure.core.approvals.gates import pause_kind
from perdure.core.calls.rounds import ranges_of
from perdure.graph.compile import CompiledTopology, topology
from perdure.graph.nodes.fields import error_of, messages_of, requests_of
from perdure.graph.ports import Ports
from perdure.graph.spec import FRESH, Outcome, State
from perdure.graph.step import RunRenewed
from perdure.workflows.activity_calls import is_outage
from perdure.workflows.mailbox import Mailbox, attributes
from perdure.workflows.ports import ports_of
from perdure.workflows.turn_segment import TurnSegment

OPEN_PATIENCE = timedelta(seconds=30)
"""The time for which the opening of an optional checkpoint is retried before the turn continues without it. A restarted
worker is back by then."""
READ_PATIENCE = timedelta(seconds=5)
"""The time after that for which a read is retried that finds out whether the checkpoint was opened after all."""
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

    @workflow.signal(name=WAKE)
    def wake(self, *arguments: Any) -> None:
        """Handles a wake signal: the run reads its records again, or checks for a stop."""
        self._mailbox.put(arguments)

    @workflow.run
    async def run(self, turn: TurnInput) -> str:
        """Returns the turn's final status. At a pause, the workflow continues as `TurnWait` instead."""
        spec = _compiled(turn).topology
        segment = TurnSegment(turn, self._mailbox, strict=spec.strict, folds=spec.renews)
        return await self._mailbox.uncancelled(self._run(segment))

    async def _run(self, segment: TurnSegment) -> str:
        turn = segment.turn
        compiled = _compiled(turn)
        workflow.set_current_details(f"agent {turn.agent_id}, entered by {turn.entry}")
        await self._mailbox.await_confirmation()
        if self._mailbox.stop:
            state: State = turn.carried.state if turn.carried and turn.carried.state else {}
            return await self._finish(segment, state, TurnStatus.STOPPED, None)
        ports = ports_of(segment)
        state = await self._take_steps(segment, _initial_state(turn), turn.entry, ports)
        outcome = compiled.topology.outcome(state)
        while outcome is Outcome.AWAITING and not self._mailbox.stop:
            kind = pause_kind(requests_of(state, "pending_requests"))
            opened = await self._open(segment, state)
            must_wait = opened is not None and not segment.continues
            if must_wait:
                await self._mailbox.close()
            if opened is not None and (opened.problem is not None or self._mailbox.stop):
                break
            if must_wait:
                self._continue_as_wait(segment, state, segment.awaited_requests(state), kind)
            segment.to_open, segment.continues = None, False
            state = await self._take_steps(segment, state, kind.value, ports)
            outcome = compiled.topology.outcome(state)
        if outcome is Outcome.AWAITING:
            return await self._finish(segment, state, TurnStatus.STOPPED, None)
        status = STATUS_OF[outcome]
        return await self._finish(segment, state, status, None if status is TurnStatus.STOPPED else error_of(state))

    async def _take_steps(self, segment: TurnSegment, state: State, entry: str, ports: Ports) -> State:
        """Runs the graph to its end or to a pause. If the run becomes long before, a new run continues there."""
        turn = segment.turn
        try:
            return await _compiled(turn).run(state, entry, ports)
        except RunRenewed as renewed:
            await self._mailbox.close()
            workflow.continue_as_new(
                args=[turn.model_copy(update={"entry": renewed.entry, "carried": segment.carry(renewed.state, ())})],
                search_attributes=attributes(turn, TurnStatus.RUNNING.value),
            )

    async def _open(self, segment: TurnSegment, state: State) -> Opened | None:
        """Opens the requests of the pause, and returns them or the fact that the turn was stopped.

        Returns None if a service was unavailable, no record exists, and each request is a checkpoint that the turn can
        skip. All other requests, and other failures, are retried until the requests are open or finally refused.
        """
        if segment.to_open is None:
            return Opened()  # The turn pauses again on requests that are already open.
        request = segment.to_open.model_copy(update={"events": segment.take_events(alone=True)})
        patience = OPEN_PATIENCE if _can_skip(request) else None
        summary = f"open {len(request.gated) + len(request.unknown) + len(request.questions)} requests"
        try:
            opened = await segment.calls.make(
                APPROVALS_OPEN, request, summary=summary, patience=patience, stoppable=False
            )
        except ActivityError as error:
            if patience is None:
                raise
            if is_outage(error) and not await self._are_open(segment, request):
                segment.skip_requests(request)
                return None
            opened = await segment.calls.make(APPROVALS_OPEN, request, summary=summary, stoppable=False)
        self._mailbox.wake_pending = self._mailbox.wake_pending or opened.decided
        segment.requests = opened.requests
        return opened

    async def _are_open(self, segment: TurnSegment, request: OpenRequest) -> bool:
        """Returns whether the records show that the requests were opened, although the activity failed.

        A reviewer may have decided by now. If the records cannot be read either, the next write refuses to continue
        past a decision (perdure/store/events/event_log.py).
        """
        address = request.address
        requests = tuple(
            RequestRef(
                request_id=approval_id(address.turn_id, gated.call_id),
                kind=gated.kind,
                call_id=gated.call_id,
                tool=gated.tool,
            )
            for gated in request.gated
        )
        verdicts_request = VerdictsRequest(address=address, requests=requests)
        try:
            verdicts = await segment.calls.make(
                APPROVALS_READ,
                verdicts_request,
                summary="look for what was opened",
                patience=READ_PATIENCE,
                stoppable=False,
            )
        except ActivityError:
            return False
        return any(not verdict.no_record for verdict in verdicts.verdicts)

    def _continue_as_wait(
        self, segment: TurnSegment, state: State, requests: tuple[RequestRef, ...], kind: PauseKind
    ) -> None:
        """Continues as `TurnWait`, which uses no memory of a worker."""
        turn = segment.turn
        paused = {"entry": kind.value, "carried": segment.carry(state, requests)}
        status = TurnStatus.AWAITING_APPROVAL if kind is PauseKind.APPROVAL else TurnStatus.AWAITING_ANSWER
        workflow.continue_as_new(
            args=[turn.model_copy(update=paused)],
            workflow=TURN_WAIT,
            task_queue=turn.routing.waits,
            search_attributes=attributes(turn, status.value),
        )

    async def _finish(self, segment: TurnSegment, state: State, status: TurnStatus, problem: Problem | None) -> str:
        await self._mailbox.close()
        messages = messages_of(state) if "messages" in state else []
        output, (answer, extends) = state.get("output"), _own_answer(messages)
        if status is TurnStatus.STOPPED:
            answer = extends = ""
        request = FinishRequest(
            address=segment.turn.address,
            status=status,
            problem=problem,
            transcript=tuple(message.id for message in messages if message.id),
            rounds=ranges_of(messages),
            answer=answer,
            extends=extends,
            output=output if isinstance(output, dict) else {},
            events=segment.take_events(alone=True),
        )
        finished = await segment.calls.make(TURNS_FINISH, request, summary=f"finish: {status.value}", stoppable=False)
        workflow.set_current_details(f"{finished.status.value}" + (f": {problem.message}" if problem else ""))
        return finished.status.value


def _own_answer(messages: Sequence[MessageRef]) -> tuple[str, str]:
    """Returns the last message's text if the graph wrote it, and the id of the model's answer that it ends. Calls of
    that answer never ran: otherwise their results would be between the two."""
    last = messages[-1] if messages else None
    if last is None or last.id or last.role is not Role.ASSISTANT:
        return "", ""
    before = messages[-2] if len(messages) > 1 else last
    return last.text, before.id if before.role is Role.ASSISTANT else ""


def _compiled(turn: TurnInput) -> CompiledTopology:
    return topology(turn.topology, turn.topology_version)


def _can_skip(request: OpenRequest) -> bool:
    """Returns whether all requests of the pause can be skipped if they cannot be opened."""
    return (
        not request.unknown and not request.questions and all(gated.go_on_when_unavailable for gated in request.gated)
    )


def _initial_state(turn: TurnInput) -> State:
    """Returns the initial state of a run."""
    schema = _compiled(turn).topology.state
    if turn.entry != FRESH and turn.carried is not None:
        return turn.carried.state
    identity = {
        "execution_id": turn.address.turn_id,
        "conversation_id": turn.address.conversation_id,
        "tenant_id": turn.address.tenant_id,
    }
    known = {field.name for field in schema.fields}
    return schema.initial(**{name: value for name, value in identity.items() if name in known})
