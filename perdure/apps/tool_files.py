"""The tools of an app folder: every `tools/*.py`, imported by path under a package name of its own.

Two apps may both have a `tools/payments.py`. A file whose name starts with `_` is only for the others to import
(`from . import _client`). A file that fails takes only its own tools with it.
"""

import importlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path

from contracts.digests import sha256_hex
from perdure.apps.problems import AppProblem
from perdure.parameters import ToolDefinitionError
from perdure.tools import Tool

_TOOL = re.compile(r"^@(?:\w+\.)?tool\b.*?^(?:async\s+)?def\s+(\w+)", re.MULTILINE | re.DOTALL)
"""A tool as its file writes it, read where the file cannot be imported."""


def read_tools(folder: Path, taken: Collection[str]) -> tuple[dict[str, Tool], list[AppProblem], dict[str, Path]]:
    """The tools of the app in `folder` by name, what is wrong, and the tools that a broken file takes with it, by name
    with that file; `taken` are the core tools' names, which no app may reuse (S0-50)."""
    tools: dict[str, Tool] = {}
    origins: dict[str, Path] = {}
    problems: list[AppProblem] = []
    lost: dict[str, Path] = {}
    place = folder / "tools"
    if not place.is_dir():
        return tools, problems, lost
    package = _fresh_package(place)
    for path in sorted(place.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        found = _tools_in(f"{package}.{path.stem}", path)
        if isinstance(found, AppProblem):
            problems.append(found)
            lost |= dict.fromkeys(_TOOL.findall(path.read_text(encoding="utf-8", errors="replace")), path)
            continue
        for tool in found:
            name, line = tool.card.name, _line_of(tool)
            if name in taken:
                problems.append(AppProblem(path, line, f"{name} is the name of a core tool; choose another"))
            elif name in tools:
                problems.append(AppProblem(path, line, f"the tool {name} is in {origins[name].name} already"))
            else:
                tools[name], origins[name] = tool, path
    return tools, problems, {name: path for name, path in lost.items() if name not in tools and name not in taken}


def _fresh_package(place: Path) -> str:
    """A package that holds the files in `place`; what an earlier call imported from there is forgotten."""
    name = f"perdure_app_{sha256_hex(str(place.resolve()))[:12]}"
    for module in [module for module in list(sys.modules) if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(place)]
    sys.modules[name] = importlib.util.module_from_spec(spec)
    return name


def _tools_in(module_name: str, path: Path) -> list[Tool] | AppProblem:
    if not path.stem.isidentifier():
        return AppProblem(path, None, f"the file name must be a Python name, such as {path.stem.replace('-', '_')}.py")
    try:
        module = importlib.import_module(module_name)
    except SyntaxError as error:
        return AppProblem(Path(error.filename or path), error.lineno, f"is not Python: {error.msg}")
    except ToolDefinitionError as error:
        return AppProblem(path, _line_in(path, error), str(error))
    except (Exception, SystemExit) as error:  # an app's module runs at import and may raise anything
        return AppProblem(path, _line_in(path, error), f"cannot be imported: {type(error).__name__}: {error}")
    own = [value for value in vars(module).values() if isinstance(value, Tool)]
    return [tool for tool in own if tool.function.__module__ == module_name]


def _line_in(path: Path, error: BaseException) -> int | None:
    """The last line of `path` that was running when `error` was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return frames[-1].lineno if frames else None


def _line_of(tool: Tool) -> int | None:
    code = getattr(tool.function, "__code__", None)
    return code.co_firstlineno if code else None
