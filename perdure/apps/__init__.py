"""Loads app folders into agents, skills and tools. The engine accesses apps only through this package."""

from perdure.apps.agents import ALWAYS_OFFERED, Engine
from perdure.apps.code_blocks import BlockCheck, BlockFault, Tried, check_source, first_computed_line, schema_as_called
from perdure.apps.files import AppProblem, has_mistakes
from perdure.apps.folder import SHIPPED, App, app_folders, find_apps, load_app, load_servers
from perdure.apps.publish import assembled_tools, left_out, played_by, publish, tables_of, unloaded

__all__ = [
    "ALWAYS_OFFERED",
    "SHIPPED",
    "App",
    "AppProblem",
    "BlockCheck",
    "BlockFault",
    "Engine",
    "Tried",
    "app_folders",
    "assembled_tools",
    "check_source",
    "find_apps",
    "first_computed_line",
    "has_mistakes",
    "left_out",
    "load_app",
    "load_servers",
    "played_by",
    "publish",
    "schema_as_called",
    "tables_of",
    "unloaded",
]
