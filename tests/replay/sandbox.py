"""The SDK's sandbox around our own code, for replays: a use of clock, chance or system fails.
Workers run without it (ADR 6): it costs a fifth of their CPU and, with our packages passed through, sees nothing."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = ("langgraph", "langchain_core", "langsmith")
"""LangGraph imports parts of these while it runs; imported anew in the sandbox, they fail."""


def runner() -> SandboxedWorkflowRunner:
    """A runner that imports our packages anew for each run, inside the sandbox."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))
