"""What the agents of an app are made of, as it was read before them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.mcp import McpServer
from contracts.pipeline import PipelineToolConfig
from perdure.apps.skill_set import SkillSet
from perdure.tools import Tool


@dataclass(frozen=True, slots=True)
class Content:
    """The tools, skills and personas of one app."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    skills: SkillSet = field(default_factory=SkillSet)
    personas: Mapping[str, str | None] = field(default_factory=dict)
    """Texts by key; None for one with mistakes."""
    reserved: frozenset[str] = frozenset()
    """Names that are never offered."""
    fenced: frozenset[str] = frozenset()
    """Tools for agents without skills only."""
    lost: Mapping[str, Path] = field(default_factory=dict)
    """Tools whose file does not load, with that file."""
    pipelines: Mapping[str, tuple[PipelineToolConfig, ...] | None] = field(default_factory=dict)
    """Registries by name; None for one with mistakes."""
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """MCP servers by name; which tools they have is known when the app is published."""
