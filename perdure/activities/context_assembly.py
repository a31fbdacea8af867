"""The activity `tools.assemble`: runs one tool of a context assembly, with the retries that its registry declares.
perdure/core/calls/context_assembly.py decides about retries; Temporal waits. These tools only read, so no reservation
is needed: a repeated attempt returns the settled outcome."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import structlog
from pydantic import JsonValue
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.author_code import Raised, run_author_code
from perdure.activities.dependencies import Deps
from perdure.activities.guard import activity_guard, cancelled_by_stop
from perdure.activities.tool_execution import need_current_tool
from perdure.activities.tool_failures import FailureReport
from perdure.contracts.calls import EffectClass
from perdure.contracts.context_assembly import AssembleCall, Assembled, Bundle, PipelineToolConfig
from perdure.contracts.errors import Problem
from perdure.contracts.ids import effect_key
from perdure.contracts.values import digest_of
from perdure.core.calls.context_assembly import (
    AttemptFault,
    completeness_of,
    given_by,
    merge_arguments,
    merge_outputs,
    should_retry,
    wait_seconds,
)
from perdure.core.calls.failures import class_name
from perdure.core.calls.ledger import STOPPED, STOPPED_OR_ENDED
from perdure.egress import AnswerWithheld, EgressRefused
from perdure.sdk.outcomes import ToolRefused, ToolUnavailable
from perdure.sdk.tools import Tool, ToolContext
from perdure.store.calls import context_assembly as bundles
from perdure.store.calls.context_assembly import StartedTool

BUNDLE_FAILED = "bundle_failed"
"""The code of a tool without output."""
USER_MESSAGES_ARGUMENT = "said"
"""The argument that receives the user's messages, for tools that declare `hears`."""
_log = structlog.get_logger(__name__)


class AttemptFailed(Exception):
    """An attempt without output: the fault, the HTTP status, and a message for a person."""

    def __init__(self, fault: AttemptFault, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.fault, self.message, self.status = fault, message, status


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool with everything that its agent declares about it."""

    tool: Tool
    config: PipelineToolConfig
    message_count: int
    """The number of the user's newest messages that the tool receives."""
    arguments: dict[str, JsonValue]
    """The agent's own arguments for the tool."""
    injected_keys: frozenset[str]
    """Output keys that any tool of the registry has injected."""


class AssemblyActivities:
    """The assembly tools of one worker."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @activity.defn(name="tools.assemble")
    async def assemble(self, call: AssembleCall) -> Assembled:
        """Runs one tool of a phase.

        Effects: those of its reads; the output becomes a row of `bundles`. Retry: safe, as the tool's registry
        declares. Failed attempts are counted in the row; a worker's death is not.
        """
        async with activity_guard():
            return await self._assemble(call)

    async def _assemble(self, call: AssembleCall) -> Assembled:
        declared, address = await self._declared_tool(call), call.address
        turn_to_lock = address.turn_id if call.events else None
        async with self._deps.db.transaction(address.tenant_id, turn_to_lock) as tx:
            started = await bundles.begin(tx, call, declared.message_count if declared else 0)
        if started is None or (started.outcome is None and (started.ended or started.stopped)):
            return Assembled(tool=call.ask.tool, problem=STOPPED if started and started.stopped else STOPPED_OR_ENDED)
        if started.outcome is not None:
            return started.outcome
        if declared is None:
            problem = Problem(
                code=BUNDLE_FAILED, message=f"{call.ask.tool}: the tool has changed since the turn started"
            )
            return await self._settle(call, Assembled(tool=call.ask.tool, problem=problem), None)
        try:
            output, completeness = await self._attempt(call, declared, started)
        except AttemptFailed as failure:
            return await self._retry_or_settle(call, declared.config, started.failed + 1, failure)
        bundle = Bundle(
            tool=call.ask.tool,
            turn_id=address.turn_id,
            completeness=completeness,
            slice_hash=call.ask.slice_hash,
            upstream=call.ask.upstream,
            digest=digest_of(output),
            gives=given_by(output, declared.injected_keys),
        )
        return await self._settle(
            call, Assembled(tool=call.ask.tool, bundle=bundle, attempts=started.failed + 1), output
        )

    async def _declared_tool(self, call: AssembleCall) -> DeclaredTool | None:
        """Returns the declarations of the turn's version and this worker's function; None if it has no such read. After
        a deploy, running turns call the new function.

        Raises: UpstreamUnavailable `tool_not_here` if another worker may have the tool.
        """
        agent = self._deps.agent_cache.cached(call.agent_version)
        if agent is None:
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                agent = await self._deps.agent_cache.read_pinned(tx, call.agent_id, call.agent_version)
        assembly, card = agent.definition.assembly, agent.card(call.ask.tool)
        config = assembly.config(call.ask.tool) if assembly else None
        if assembly is None or config is None or card is None or card.effect is not EffectClass.READ:
            return None
        tool = self._deps.toolbox.find(call.agent_id, call.ask.tool, card)
        if not isinstance(tool, Tool) or not tool.card.is_version(card.version):
            async with self._deps.db.transaction(call.address.tenant_id) as tx:
                await need_current_tool(self._deps, tx, call.agent_id, call.ask.tool, card.version)
        if isinstance(tool, Tool) and tool.card.effect is EffectClass.READ:
            message_count = assembly.slice_messages if config.hears else 0
            injected_keys = frozenset(key for tool_config in assembly.registry for key in tool_config.inject_inputs)
            return DeclaredTool(
                tool, config, message_count, assembly.tool_entry(call.ask.tool).arguments, injected_keys
            )
        return None

    async def _attempt(
        self, call: AssembleCall, declared: DeclaredTool, started: StartedTool
    ) -> tuple[dict[str, JsonValue], float]:
        """Makes one attempt within the tool's time limit.

        Raises: AttemptFailed; CancelledError when this worker drains.
        """
        context, config = self._context(call, declared, started), declared.config
        inputs: dict[str, JsonValue] = {USER_MESSAGES_ARGUMENT: [*started.user_messages]} if config.hears else {}
        explicit = {**inputs, **declared.arguments}
        arguments = merge_arguments(config.defaults, config.inject_inputs, merge_outputs(started.outputs), explicit)
        try:
            result = await run_author_code(declared.tool.run(arguments, context), config.timeout)
        except asyncio.CancelledError:
            if cancelled_by_stop():
                raise AttemptFailed(AttemptFault.REFUSED, "the turn was stopped") from None
            raise
        if isinstance(result, Raised):
            report = FailureReport.of(self._deps, declared.tool, context.card, context.turn_id, context.call_id)
            failed = _classify(result.answer or result.error, config.timeout if result.timed_out else None, report)
            if failed.fault in (AttemptFault.UNCLASSIFIED, AttemptFault.TIMEOUT):
                report.log("tool_call_failed", result.error)
            raise failed
        try:
            completeness = completeness_of(result.output)
        except ValueError as error:
            raise AttemptFailed(AttemptFault.REFUSED, str(error)) from None
        return {**result.output} if isinstance(result.output, dict) else {}, completeness

    async def _retry_or_settle(
        self, call: AssembleCall, config: PipelineToolConfig, attempts: int, failure: AttemptFailed
    ) -> Assembled:
        """Requests another attempt, or ends this tool."""
        name = call.ask.tool
        _log.warning(
            "assembly_tool_failed", tool=name, fault=failure.fault.value, status=failure.status, failed=attempts
        )
        if not should_retry(failure.fault, failure.status, failed=attempts, max_retries=config.max_retries):
            problem = Problem(code=BUNDLE_FAILED, message=f"{name}: {failure.message}")
            return await self._settle(call, Assembled(tool=name, attempts=attempts, problem=problem), None)
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            await bundles.count_failed(tx, call, attempts - 1)
        # The tool's message stays here: it may quote its target, and Temporal would store it.
        message = f"the tool {name} returned no output ({failure.fault.value}); it is retried"
        delay = timedelta(seconds=max(wait_seconds(config.retry_backoff, attempts), 0.001))
        raise ApplicationError(message, type=BUNDLE_FAILED, next_retry_delay=delay)

    async def _settle(self, call: AssembleCall, outcome: Assembled, output: dict[str, JsonValue] | None) -> Assembled:
        async with self._deps.db.transaction(call.address.tenant_id) as tx:
            return await bundles.settle(tx, call, outcome, output)

    def _context(self, call: AssembleCall, declared: DeclaredTool, started: StartedTool) -> ToolContext:
        card = declared.tool.card
        return ToolContext(
            card=card,
            tenant_id=call.address.tenant_id,
            turn_id=call.address.turn_id,
            conversation_id=call.address.conversation_id,
            call_id=call.ask.tool,
            user_id=started.user_id,
            idempotency_key=effect_key(call.address.turn_id, call.ask.tool),
            deadline=datetime.now(UTC) + timedelta(seconds=declared.config.timeout),
            http=self._deps.toolbox.http_for(call.agent_id),
            secrets=self._deps.toolbox.secrets_for(card),
        )


def _classify(error: Exception, limit_seconds: float | None, report: FailureReport) -> AttemptFailed:
    """Classifies an error. Only messages of the tools themselves are passed on; for other errors, the message names
    just the kind. `limit_seconds` is the time limit of the attempt if it passed."""
    if isinstance(error, ToolUnavailable):
        fault = AttemptFault.CONNECT if error.status is None else AttemptFault.STATUS
        return AttemptFailed(fault, report.own_message(error), error.status or 0)
    if isinstance(error, httpx.HTTPStatusError):
        return AttemptFailed(
            AttemptFault.STATUS,
            f"the target answered with status {error.response.status_code}",
            error.response.status_code,
        )
    if isinstance(error, ToolRefused):
        return AttemptFailed(AttemptFault.REFUSED, report.own_message(error))
    if isinstance(error, AnswerWithheld | EgressRefused):
        return AttemptFailed(AttemptFault.REFUSED, report.own_message(error))
    if isinstance(error, TimeoutError):
        own = "a time limit of the tool's own passed"
        return AttemptFailed(AttemptFault.TIMEOUT, f"no output within {limit_seconds:g} s" if limit_seconds else own)
    if isinstance(error, httpx.ReadTimeout):
        return AttemptFailed(AttemptFault.READ_TIMEOUT, "the target did not respond in time")
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return AttemptFailed(AttemptFault.CONNECT, "the target is unreachable")
    return AttemptFailed(AttemptFault.UNCLASSIFIED, f"the tool failed ({class_name(error)})")
