"""The SDK's sandbox around our own code, for replays: what asks a clock, chance or the system there fails.

Workers run without it (ADR 6): it costs them a fifth of their CPU and, with our packages passed through, sees nothing.
"""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = ("langgraph", "langchain_core", "langsmith")
"""LangGraph imports parts of these while it runs; imported anew in the sandbox, they fail."""


def runner() -> SandboxedWorkflowRunner:
    """A runner that imports our packages anew for each run, inside the sandbox."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))
