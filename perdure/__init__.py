"""What users of Perdure import: the tool decorator and what a tool is given; the client of the API."""

from typing import TYPE_CHECKING, Any

from egress import AnswerWithheld
from perdure.context import Files, GivenFile, ToolContext, Transaction
from perdure.outcomes import Audited, MadeFile, ToolRefused, ToolResult, ToolUnavailable
from perdure.parameters import ToolDefinitionError
from perdure.previews import Preview
from perdure.tools import Tool, tool

if TYPE_CHECKING:
    from perdure.client import ApiError, AsyncClient, Client

__all__ = [
    "AnswerWithheld",
    "ApiError",
    "AsyncClient",
    "Audited",
    "Client",
    "Files",
    "GivenFile",
    "MadeFile",
    "Preview",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "ToolRefused",
    "ToolResult",
    "ToolUnavailable",
    "Transaction",
    "tool",
]


def __getattr__(name: str) -> Any:
    """The client is imported at its first use: it costs a fifth of a second of CPU, which no worker need spend."""
    if name in ("ApiError", "AsyncClient", "Client"):
        from perdure import client

        return getattr(client, name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")
