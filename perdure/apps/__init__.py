"""Loading app folders: content goes in, agents and tools come out. The engine knows an app only through this door."""

from perdure.apps.engine import ALWAYS_OFFERED, Engine
from perdure.apps.folder import SHIPPED, App, find_apps, load_app
from perdure.apps.problems import AppProblem
from perdure.apps.publish import publish

__all__ = ["ALWAYS_OFFERED", "SHIPPED", "App", "AppProblem", "Engine", "find_apps", "load_app", "publish"]
