"""Replaying a recorded run against today's workflows, strictly.

The SDK's replayer compares commands by type, id and activity name. It ignores the arguments of activities and the
state of a pause. So an interceptor records the commands of today's code during a replay, and compares them with those
of the recorded code.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from temporalio import workflow
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
    WorkflowRunner,
)

from perdure.temporal.client import DATA_CONVERTER
from perdure.workflows.turn_run import TurnRun
from perdure.workflows.turn_wait import TurnWait
from tests.replay.recording import Call, Run

COMMANDS_DIFFER = """
{where}: today's workflow does not take the course that this turn was recorded on.
A turn that is under way when this is deployed would stand still at this point, with its task failing again and again.
  - If a node, a route or the state of a topology is meant to change: make it a new version of the topology and keep the
    one before in perdure/graph/registry.py. Keep this recording as {shape}--version-N.json, N being the version before.
  - If the new course is meant: put it behind `if workflow.patched("what-has-changed"):`, so that a turn which began
    before goes on as it began. Then keep this recording, under the name {shape}--before-what-has-changed.json, and
    record the new course beside it: `python -m tests.replay.record {shape}`.
  - If it is not meant: something in perdure/workflows/ or perdure/graph/ now depends on a clock, on chance or on order.
  - Record anew without a patch only where no turn of the old code can be under way, and say so in the changelog.
What Temporal says: {said}"""

VALUES_DIFFER = """
{where}: {name} is asked for as recorded, but with other values: {difference}.
Temporal would not notice. A turn under way would go on with the new values from here.
  - If only the form has changed (a field added that has a default, a summary): record anew,
    `python -m tests.replay.record {shape}`, and look at what else the recording changes.
  - If the state that a pause carries has changed: make it a new version of the topology, as for a changed node.
  - If ids, steps or order have changed: a turn that began before would now ask for
    something else than it has been answered. Put the change behind `workflow.patched(...)`, keep this recording
    under the name {shape}--before-what-has-changed.json, and record the new course beside it."""

CALLS_DIFFER = """
{where}: recorded were {recorded}, today's workflow makes {now}.
The same holds as for commands that differ: `workflow.patched(...)`, or a new recording of {shape} where no turn of the
old code can be under way."""


class Fault(NamedTuple):
    kind: Literal["commands", "calls", "values"]
    """The difference."""
    advice: str
    name: str = ""
    """The activity or the end of the run whose values differ."""
    difference: str = ""


@dataclass(slots=True)
class Heard:
    scheduled: list[Call] = field(default_factory=list)
    inside: list[Call] = field(default_factory=list)
    end: Call = ("nothing", [])


class Replaying:
    """Replays recorded runs on one kind of workflow runner."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._listener = Listener()
        self._replayer = Replayer(
            workflows=[TurnRun, TurnWait],
            workflow_runner=runner,
            data_converter=DATA_CONVERTER,
            interceptors=[self._listener],
        )

    async def heard(self, run: Run) -> tuple[Heard, Exception | None]:
        heard = self._listener.heard = Heard()
        return heard, (await self._replayer.replay_workflow(run.history, raise_on_replay_failure=False)).replay_failure

    async def fault(self, shape: str, number: int, run: Run) -> Fault | None:
        """The difference between the run's recording and today's code, with advice; None if they agree."""
        now, failure = await self.heard(run)
        where = f"{shape}, run {number} ({run.workflow})"
        if failure is not None:
            return Fault("commands", COMMANDS_DIFFER.format(where=where, shape=shape, said=failure))
        for recorded, made in ((run.scheduled, now.scheduled), (run.inside, now.inside), ((run.end,), (now.end,))):
            names, made_names = [name for name, _ in recorded], [name for name, _ in made]
            if names != made_names:
                advice = CALLS_DIFFER.format(where=where, recorded=names, now=made_names, shape=shape)
                return Fault("calls", advice)
            for (name, before), (_, given) in zip(recorded, made, strict=True):
                difference = first_difference(before, given)
                if difference is not None:
                    advice = VALUES_DIFFER.format(where=where, name=name, difference=difference, shape=shape)
                    return Fault("values", advice, name, difference)
        return None


def first_difference(before: Any, now: Any, at: str = "") -> str | None:
    """The first difference of two JSON values, with both; None if they are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(each for each in now if each not in before)]:
            missing = "(absent)"
            found = first_difference(before.get(name, missing), now.get(name, missing), f"{at}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return next((found for n, (a, b) in pairs if (found := first_difference(a, b, f"{at}[{n}]"))), None)
    same = before == now and type(before) is type(now)
    return None if same else f"at {at.lstrip('.') or 'its top'} recorded {before!r}, now {now!r}"


class Listener(Interceptor):
    def __init__(self) -> None:
        self.heard = Heard()

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        listener = self

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, listener.heard))

            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                result = await super().execute_workflow(input)
                listener.heard.end = ("result", _values([result]))
                return result

        return Inbound


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, heard: Heard) -> None:
        super().__init__(next)
        self._heard = heard

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        self._heard.scheduled.append((input.activity, _values(input.args)))
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        self._heard.inside.append((input.activity, _values(input.args)))
        return super().start_local_activity(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self._heard.end = (f"continue as {input.workflow}", _values(input.args))
        super().continue_as_new(input)


def _values(given: Sequence[Any]) -> list[Any]:
    """Values as they would cross to Temporal, at this moment."""
    return [json.loads(payload.data) for payload in workflow.payload_converter().to_payloads(given)]
