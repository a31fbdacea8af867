"""What an app is checked against."""

from collections.abc import Collection
from dataclasses import dataclass

from pydantic import BaseModel

from contracts.approval_policy import EXPIRES_SECONDS
from perdure.apps.block_examples import Trial
from perdure.apps.block_source import BlockCheck, check_source

ALWAYS_OFFERED = ("entity_resolve", "context_assemble")
"""The core tools of every agent that does not say `core_tools: false` (S0-41)."""

MEMORY_TOOLS = (
    *("memory_search", "memory_read", "memory_list", "memory_history"),
    *("memory_remember", "memory_patch", "memory_propose_promotion"),
)
"""The tools of document memory; those that write are in the toolset `memory`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine that will run an app offers."""

    core_tools: Collection[str] = (*ALWAYS_OFFERED, "create_entity", *MEMORY_TOOLS)
    """Names that any agent may use and no app's tool or code block may take."""
    topologies: Collection[str] | None = None
    """Names of the registered topologies; None leaves them unchecked."""
    script: type[BaseModel] | None = None
    """The form of a scripted model's rules; None leaves it unchecked."""
    expires_seconds: int = EXPIRES_SECONDS
    """How long a request stays open where an agent's `approvals:` does not say it (S0-54)."""
    reserved: Collection[str] = ()
    """Names that are kept and never offered; an app adds its own by `reserved:` in app.yaml (S0-50)."""
    check_block: BlockCheck = check_source
    """What is wrong with a code block; a sandbox brings its type checker here."""
    try_block: Trial | None = None
    """Runs the examples of a block's card; None leaves them unrun."""
