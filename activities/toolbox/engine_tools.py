"""The tools that come with the engine: an agent names those it wants, and two are always offered (entities.py)."""

from activities.toolbox.entities import CORE_BY_NAME
from activities.toolbox.memory_tools import MEMORY_BY_NAME

ENGINE_TOOLS = {**CORE_BY_NAME, **MEMORY_BY_NAME}
"""By name."""
