"""What users of Perdure import: the tool decorator and what a tool is given; the client of the API."""

from perdure.client import ApiError, AsyncClient, Client
from perdure.context import Files, GivenFile, ToolContext, Transaction
from perdure.outcomes import Audited, MadeFile, ToolRefused, ToolResult, ToolUnavailable
from perdure.parameters import ToolDefinitionError
from perdure.previews import Preview
from perdure.tools import Tool, tool

__all__ = [
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
