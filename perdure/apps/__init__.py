"""Loads app folders into agents, skills and tools. The engine accesses apps only through this package."""

from perdure.apps.agents import ALWAYS_OFFERED, Engine
from perdure.apps.code_blocks import (
    BlockCheck,
    BlockFault,
    ExampleRun,
    check_source,
    first_computed_line,
    schema_as_called,
)
from perdure.apps.files import AppProblem, has_mistakes
from perdure.apps.folder import SHIPPED, App, app_folders, find_apps, load_app, load_servers
from perdure.apps.publish import (
    assembled_tools,
    degraded_agents,
    publish,
    skipped_agents,
    tables_of,
    unloaded_agents,
    unsent_lines,
    with_model,
)

__all__ = [
    "ALWAYS_OFFERED",
    "SHIPPED",
    "App",
    "AppProblem",
    "BlockCheck",
    "BlockFault",
    "Engine",
    "ExampleRun",
    "app_folders",
    "assembled_tools",
    "check_source",
    "degraded_agents",
    "find_apps",
    "first_computed_line",
    "has_mistakes",
    "load_app",
    "load_servers",
    "publish",
    "schema_as_called",
    "skipped_agents",
    "tables_of",
    "unloaded_agents",
    "unsent_lines",
    "with_model",
]
