"""Loading app folders: content goes in, agents, skills and tools come out. The engine knows an app only through this
door.
"""

from perdure.apps.block_source import BlockCheck, BlockFault, check_source, schema_as_called
from perdure.apps.engine import ALWAYS_OFFERED, Engine
from perdure.apps.folder import SHIPPED, App, find_apps, load_app
from perdure.apps.problems import AppProblem, has_mistakes
from perdure.apps.publish import publish, tables_of

__all__ = [
    "ALWAYS_OFFERED",
    "SHIPPED",
    "App",
    "AppProblem",
    "BlockCheck",
    "BlockFault",
    "Engine",
    "check_source",
    "find_apps",
    "has_mistakes",
    "load_app",
    "publish",
    "schema_as_called",
    "tables_of",
]
