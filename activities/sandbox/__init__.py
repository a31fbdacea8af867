"""Code blocks that nobody vouches for, run where they can harm nothing. See README.md.

What needs the extra `sandbox` is imported when a sandbox is opened, not here.
"""

from activities.sandbox.blocks import Block, run_block
from activities.sandbox.limits import Limits
from activities.sandbox.opening import SandboxConfig, open_for_checks, open_sandbox
from activities.sandbox.protocol import ClosedSandbox, Flaw, Sandbox, SandboxUnavailable
from activities.sandbox.ran import Fault, FaultKind, Ran
from activities.sandbox.standby import StandbySandbox

__all__ = [
    "Block",
    "ClosedSandbox",
    "Fault",
    "FaultKind",
    "Flaw",
    "Limits",
    "Ran",
    "Sandbox",
    "SandboxConfig",
    "SandboxUnavailable",
    "StandbySandbox",
    "open_for_checks",
    "open_sandbox",
    "run_block",
]
