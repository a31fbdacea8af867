"""Runs untrusted code blocks in isolation. See README.md.

Modules that need the extra `sandbox` are imported when a sandbox is opened, not here.
"""

from perdure.activities.sandbox.protocol import (
    Block,
    BlockResult,
    ClosedSandbox,
    Fault,
    FaultKind,
    Flaw,
    Limits,
    Sandbox,
    SandboxUnavailable,
    run_block,
)
from perdure.activities.sandbox.selection import LazySandbox, SandboxConfig, open_for_checks, open_sandbox

__all__ = [
    "Block",
    "BlockResult",
    "ClosedSandbox",
    "Fault",
    "FaultKind",
    "Flaw",
    "LazySandbox",
    "Limits",
    "Sandbox",
    "SandboxConfig",
    "SandboxUnavailable",
    "open_for_checks",
    "open_sandbox",
    "run_block",
]
