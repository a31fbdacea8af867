"""The public names of Perdure: the tool decorator, the types that a tool receives, and the client of the API.

Each name is imported at its first use: every process of Perdure imports this package, and few need HTTP or schemas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.client import ApiError, AsyncClient, Client
    from perdure.egress import AnswerWithheld
    from perdure.sdk.context import Files, GivenFile, ToolContext, Transaction
    from perdure.sdk.outcomes import Audited, MadeFile, ToolRefused, ToolResult, ToolUnavailable
    from perdure.sdk.tools import Preview, Tool, ToolDefinitionError, tool

    __version__: str

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
    "__version__",
    "tool",
]
_MODULES = {
    "perdure.client": ("ApiError", "AsyncClient", "Client"),
    "perdure.egress": ("AnswerWithheld",),
    "perdure.sdk.context": ("Files", "GivenFile", "ToolContext", "Transaction"),
    "perdure.sdk.outcomes": ("Audited", "MadeFile", "ToolRefused", "ToolResult", "ToolUnavailable"),
    "perdure.sdk.tools": ("Preview", "Tool", "ToolDefinitionError", "tool"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def _version() -> str:
    """The version in pyproject.toml: read there in a checkout, which need not be installed, else from the package."""
    import tomllib
    from importlib.metadata import version
    from pathlib import Path

    written = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(written.read_text(encoding="utf-8")).get("project", {}) if written.is_file() else {}
    return str(project["version"]) if project.get("name") == "perdure" else version("perdure")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
