"""What an MCP server listed when the app's author looked at it: `mcp/<server>.lock.json`, beside the server's YAML.

Where it is there, the server's tools are published from it and the server is not asked. What it lists when a tool of it
is called must be what stands here, or the call is refused: the lock pins what was reviewed. `perdure mcp lock` writes
it; tools stand in the server's order, which decides between two whose names become one, everything else is sorted.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.digests import canonical_json
from contracts.mcp import McpLock, McpToolListing
from perdure.apps.form import read_form
from perdure.apps.json_file import parse_json
from perdure.apps.problems import AppProblem
from perdure.apps.text_file import read_text
from perdure.apps.yaml_file import YamlFile, parse_yaml

LOCK_ENDING = ".lock.json"
MOST_LOCK_BYTES = 4 * 1_048_576


@dataclass(frozen=True, slots=True)
class Difference:
    """What another list has other than a lock, by the server's own names of its tools."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The fields of each that changed."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def lock_path(folder: Path, server: str) -> Path:
    """Where the lock of this server of the app in `folder` is, or would be."""
    return folder / "mcp" / f"{server}{LOCK_ENDING}"


def read_locks(folder: Path, servers: Iterable[str]) -> tuple[dict[str, McpLock | None], list[AppProblem]]:
    """The locks of these servers by name; None for one with mistakes. One that is no server's is told."""
    locks: dict[str, McpLock | None] = {}
    problems: list[AppProblem] = []
    known = {*servers}
    for path in sorted(folder.glob(f"mcp/*{LOCK_ENDING}")):
        name = path.name.removesuffix(LOCK_ENDING)
        if name in known:
            locks[name], found = read_lock(path)
            problems += found
        elif not any(path.with_name(name + suffix).exists() for suffix in (".yaml", ".yml")):
            why = f"locks no server: there is no mcp/{name}.yaml"
            problems.append(AppProblem(path, None, why, warning=True))
    return locks, problems


def read_lock(path: Path) -> tuple[McpLock | None, list[AppProblem]]:
    """The lock at `path`, or None and why."""
    text = read_text(path, MOST_LOCK_BYTES)
    return (None, [text]) if isinstance(text, AppProblem) else _parsed(path, text)


def write_lock(path: Path, lock: McpLock) -> list[AppProblem]:
    """Put it there, whole or not at all; why not, where it could not be read again.

    Raises: OSError.
    """
    # Without what is not said: a list of no hints and no tags is read more easily.
    shown = lock.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(shown, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode("utf-8", "surrogatepass")) > MOST_LOCK_BYTES:
        return [AppProblem(path, None, f"would have more than {MOST_LOCK_BYTES:,} bytes")]
    again, problems = _parsed(path, text)
    if again is None:
        return problems
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return []


def difference(before: McpLock | None, now: McpLock) -> Difference:
    """What `now` lists other than `before`. Another order alone is none."""
    old, new = _by_name(before.tools if before else ()), _by_name(now.tools)
    changed = {name: fields for name in new if name in old and (fields := _changed(old[name], new[name]))}
    return Difference(
        tuple(name for name in new if name not in old), tuple(name for name in old if name not in new), changed
    )


def _parsed(path: Path, text: str) -> tuple[McpLock | None, list[AppProblem]]:
    value = parse_json(path, text, "the lock")
    if isinstance(value, AppProblem):
        return None, [value]
    lock, problems = read_form(McpLock, value, YamlFile(path, value))
    if problems and isinstance(placed := parse_yaml(path, text), YamlFile):  # JSON says no lines; YAML reads it too
        return read_form(McpLock, value, YamlFile(path, value, placed.lines))
    return lock, problems


def _by_name(tools: Iterable[McpToolListing]) -> dict[str, McpToolListing]:
    """The first of each name: the others are not offered."""
    found: dict[str, McpToolListing] = {}
    for tool in tools:
        found.setdefault(tool.name, tool)
    return found


def _changed(old: McpToolListing, new: McpToolListing) -> tuple[str, ...]:
    """Fields by their canonical JSON, as versions are: to Python, 1 and true are equal."""
    one, other = old.model_dump(mode="json"), new.model_dump(mode="json")
    return tuple(name for name in one if canonical_json(one[name]) != canonical_json(other[name]))
