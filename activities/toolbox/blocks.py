"""A code block as a tool: resolved in the version that its turn pinned, validated, run in the sandbox (S0-49).

A block's source comes with the published agent and its tables by their digests, so any worker with a sandbox runs any
version of it, and a deploy makes no call void.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from pydantic import JsonValue

from activities.sandbox import Block, Sandbox, SandboxUnavailable, run_block
from contracts.agents import PublishedAgent, ToolCard
from contracts.skills import CodeBlock
from perdure.tools import ToolContext, ToolRefused, ToolResult, ToolUnavailable
from store.app_tables import TableShelf
from store.database import Connection

MOST_PRINTED_CHARACTERS = 1_000
"""Of what a block printed, handed to the model beside its result."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockTool:
    """A block that its agent's model may call."""

    card: ToolCard
    block: CodeBlock = field(repr=False)
    tables: Mapping[str, JsonValue] = field(repr=False)
    """Those that it needs, whole, by name."""
    sandbox: Sandbox = field(repr=False)

    async def run(self, args: Mapping[str, JsonValue], context: ToolContext) -> ToolResult:
        """One run; its result in a wrapper of {status, message, result}, where the message is what it printed.

        Raises: ToolRefused for whatever is wrong with arguments, block or result; ToolUnavailable where this machine
        could not start an interpreter.
        """
        block = Block(self.block.source, self.block.input, self.block.output)
        given: dict[str, JsonValue] = {"data": {**self.tables}} if self.block.needs else {}
        try:
            ran = await run_block(self.sandbox, context.tenant_id, block, args, given=given)
        except SandboxUnavailable as error:
            raise ToolUnavailable(f"the sandbox cannot run it now: {error}") from error
        if ran.fault is not None:
            _log.info("code_block_fault", tool=self.card.name, kind=ran.fault.kind.value, line=ran.fault.line)
            raise ToolRefused(ran.fault.message)
        return ToolResult(
            {"status": "ok", "message": ran.output[:MOST_PRINTED_CHARACTERS].strip(), "result": ran.value}
        )


async def block_tool(
    tx: Connection, shelf: TableShelf, sandbox: Sandbox, agent: PublishedAgent, card: ToolCard
) -> BlockTool | None:
    """The block behind `card`, with its tables; None where the card is another tool's.

    Raises: CallerError 404 `app_table_not_found`.
    """
    for skill in agent.definition.skills:
        for block in skill.blocks:
            if block.name == card.name and block.llm_visible:
                tables = await shelf.at(tx, {name: agent.tables[name] for name in block.needs})
                return BlockTool(card, block, tables, sandbox)
    return None
