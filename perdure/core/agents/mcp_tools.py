"""The effect class, approval, risk and toolset of an MCP server's tool.

They follow from the app's settings and, if the app trusts the server, from the server's hints.
"""

import re
from dataclasses import dataclass

from perdure.contracts.calls import EffectClass
from perdure.contracts.mcp import McpServer, McpToolListing, McpToolSettings
from perdure.core.approvals.gates import tool_needs_approval

_DEFAULT_SETTINGS = McpToolSettings()

_TAG = re.compile(r"\w[\w .:/-]{0,63}")

"""Allowed tags. Models receive a tag as a toolset's name, and servers can send any text."""


@dataclass(frozen=True, slots=True)
class ToolTreatment:
    """The engine's treatment of a server's tool."""

    effect: EffectClass
    needs_approval: bool
    risk: str
    key_ttl_seconds: float | None = None
    """Seconds for which a `keyed` tool honors a key."""
    key_argument: str = ""
    """The argument of a `keyed` tool that receives the key; empty for `_meta`."""


def treatment_of(server: McpServer, tool: McpToolListing) -> ToolTreatment:
    """Returns how `tool` of `server` is treated, by the table below.

    | source                                      | declares        | effect | approval |
    |---------------------------------------------|-----------------|--------|----------|
    | the app's author, for this tool             | effect: x       | x      | unless x is read |
    | a trusted server                            | read-only       | read   | no       |
    | a trusted server                            | read-only and destructive | opaque | yes |
    | a trusted server, tool honors keys          | not read-only   | keyed  | yes      |
    | a trusted server                            | not read-only, or nothing | opaque | yes |
    | a server that is not trusted                | anything        | opaque | yes      |

    A hint can make a tool stricter or more open, but no hint lets a change run without an approval. A tool that can be
    repeated safely (`idempotentHint`) does not necessarily honor keys: the second call may undo a change made in
    between.
    """
    settings = server.tools.get(tool.name, _DEFAULT_SETTINGS)
    if settings.effect is not None:
        effect, ttl = settings.effect, settings.key_ttl_seconds
    elif not server.trust_annotations:
        effect, ttl = EffectClass.OPAQUE, None
    elif tool.hints.read_only and not tool.hints.destructive:
        effect, ttl = EffectClass.READ, None
    elif tool.key_ttl_seconds is not None and not tool.hints.read_only:
        effect, ttl = EffectClass.KEYED, tool.key_ttl_seconds
    else:
        effect, ttl = EffectClass.OPAQUE, None
    risk = settings.risk or _risk_of(server, tool, effect)
    return ToolTreatment(effect, tool_needs_approval(effect, None), risk, ttl, settings.key_argument)


def _risk_of(server: McpServer, tool: McpToolListing, effect: EffectClass) -> str:
    """Returns the risk that reviewers see. Without a trusted hint it is high, as the protocol assumes destructive
    tools."""
    if effect is EffectClass.READ:
        return "low"
    return "medium" if server.trust_annotations and tool.hints.destructive is False else "high"


def toolset_of(server: McpServer, tool: McpToolListing) -> str:
    """Returns the toolset of a tool; empty if the tool is not offered.

    It is the tool's first tag, or else the part of its name before the first `_`. A server without a list of toolsets
    offers all its tools.
    """
    tag = tool.tags[0] if tool.tags and _TAG.fullmatch(tool.tags[0]) else ""
    if not server.toolsets:
        return tag or server.name
    if tag:
        return tag if tag in server.toolsets else ""
    prefix = tool.name.partition("_")[0]
    return prefix if prefix in server.toolsets else ""
