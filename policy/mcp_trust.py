"""How far the word of an MCP server goes: from a tool's hints to its effect class, its approval and its risk (S2-34).

| who speaks                                  | says            | effect | approval |
|---------------------------------------------|-----------------|--------|----------|
| the app's author, for this tool             | effect: x       | x      | unless x is read |
| a trusted server                            | read-only       | read   | no       |
| a trusted server                            | read-only and destructive | opaque | yes |
| a trusted server, tool honours keys         | not read-only   | keyed  | yes      |
| a trusted server                            | not read-only, or nothing | opaque | yes |
| a server that is not trusted                | anything        | opaque | yes      |

A hint can make a tool stricter or more open, but none makes a change run without an approval. That repeating a call is
harmless (`idempotentHint`) is not the same as honouring a key: the second call may undo what came in between.
"""

import re
from dataclasses import dataclass

from contracts.agents import EffectClass
from contracts.mcp import McpServer, McpToolListing, McpToolSettings
from policy.gate import tool_needs_approval

_NOTHING_SAID = McpToolSettings()
_TAG = re.compile(r"\w[\w .:/-]{0,63}")
"""What counts as a tag: models are told it as a toolset's name, and anything may stand there."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the engine takes a server's tool for."""

    effect: EffectClass
    needs_approval: bool
    risk: str
    key_ttl_seconds: float | None = None
    """`keyed` only."""
    key_argument: str = ""
    """`keyed` only: the argument for the key; empty: `_meta`."""


def standing(server: McpServer, tool: McpToolListing) -> Standing:
    """What `tool` of `server` counts as, by the table above."""
    said = server.tools.get(tool.name, _NOTHING_SAID)
    if said.effect is not None:
        effect, ttl = said.effect, said.key_ttl_seconds
    elif not server.trust_annotations:
        effect, ttl = EffectClass.OPAQUE, None
    elif tool.hints.read_only and not tool.hints.destructive:
        effect, ttl = EffectClass.READ, None
    elif tool.key_ttl_seconds is not None and not tool.hints.read_only:
        effect, ttl = EffectClass.KEYED, tool.key_ttl_seconds
    else:
        effect, ttl = EffectClass.OPAQUE, None
    risk = said.risk or _risk(server, tool, effect)
    return Standing(effect, tool_needs_approval(effect, None), risk, ttl, said.key_argument)


def _risk(server: McpServer, tool: McpToolListing, effect: EffectClass) -> str:
    """Shown to the reviewer; what nobody vouches for is high, as the protocol's own default is (destructive)."""
    if effect is EffectClass.READ:
        return "low"
    return "medium" if server.trust_annotations and tool.hints.destructive is False else "high"


def toolset_of(server: McpServer, tool: McpToolListing) -> str:
    """The toolset that a tool belongs to; empty where it is not offered (S2-33).

    By its first tag, else by the part of its name before the first `_`. A server that names no toolsets offers all.
    """
    tag = tool.tags[0] if tool.tags and _TAG.fullmatch(tool.tags[0]) else ""
    if not server.toolsets:
        return tag or server.name
    if tag:
        return tag if tag in server.toolsets else ""
    prefix = tool.name.partition("_")[0]
    return prefix if prefix in server.toolsets else ""
