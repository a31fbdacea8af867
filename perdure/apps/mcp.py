"""Reads the MCP servers of an app: one file `mcp/<server>.yaml` each.

```yaml
command: [python, -m, cluster]   # started in the app's folder; or:
# url: https://tools.example/mcp
# headers: {Authorization: 'Bearer {secret:tools_token}'}
trust_annotations: true          # its hints are trusted; without it each of its tools needs an approval
toolsets: [k8s, helm]            # what is offered of it, by tag
tools:
    helm_upgrade: {timeout_seconds: 300}
```

Its tools are named `<server>_<tool>`. An agent names them in its `tools:` one by one, or all of them as `<server>_*`.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perdure.apps.files import AppProblem, YamlFile, parse_json, parse_yaml, read_form, read_text, read_yaml
from perdure.contracts.mcp import SERVER_NAME_PATTERN, McpLock, McpServer, McpToolListing, McpToolSettings
from perdure.contracts.values import canonical_json

LOCK_ENDING = ".lock.json"
MAX_LOCK_BYTES = 4 * 1_048_576


def read_servers(folder: Path, taken: Collection[str]) -> tuple[dict[str, McpServer], list[AppProblem]]:
    """Returns the servers of the app in `folder` by name; `taken` are the names of its tools and of the engine's
    own."""
    servers: dict[str, McpServer] = {}
    problems: list[AppProblem] = []
    for path in sorted(path for path in folder.glob("mcp/*") if path.suffix in (".yaml", ".yml")):
        server, mistakes = _read_server(path)
        problems += mistakes
        if server is None:
            continue
        beginning = next((name for name in sorted(taken) if name.startswith(server.prefix)), None)
        overlapping = next((existing for existing in servers.values() if _overlap(existing, server)), None)
        if beginning is not None:
            message = (
                f"prefixes its tools with {server.prefix}, and the tool {beginning} already exists; choose another name"
            )
            problems.append(AppProblem(path, None, message))
        elif overlapping is not None:
            problems.append(
                AppProblem(path, None, f"its tool names have the same prefix as those of {overlapping.name}")
            )
        else:
            servers[server.name] = server
    return servers, problems


def _overlap(first: McpServer, second: McpServer) -> bool:
    return first.prefix.startswith(second.prefix) or second.prefix.startswith(first.prefix)


def _read_server(path: Path) -> tuple[McpServer | None, list[AppProblem]]:
    if not re.match(SERVER_NAME_PATTERN, path.stem):
        message = "a server name must have at most 24 lower-case letters, digits and _, and start with a letter"
        return None, [AppProblem(path, None, message)]
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return None, file
    value = file.value
    if isinstance(value, dict) and "name" in value:
        return None, [file.problem(("name",), "unknown field 'name'; the server's name is its file name")]
    if not isinstance(value, dict):
        return read_form(McpServer, value, file)
    server_fields, tools = {**value, "name": path.stem}, value.get("tools")
    problems: list[AppProblem] = []
    # one by one, because a model does not check for unknown fields in the values of a mapping
    if isinstance(tools, dict):
        server_fields["tools"] = {}
        for name, fields in tools.items():
            settings, mistakes = read_form(McpToolSettings, fields, file, ("tools", name))
            problems += mistakes
            if settings is not None:
                server_fields["tools"][name] = settings.model_dump(exclude_unset=True)
    server, mistakes = read_form(McpServer, server_fields, file)
    problems += mistakes
    return (None if problems else server), problems


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of a list from a lock, by the server's own names of its tools."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The changed fields of each tool."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def lock_path(folder: Path, server: str) -> Path:
    """Returns the path of this server's lock in the app's `folder`."""
    return folder / "mcp" / f"{server}{LOCK_ENDING}"


def read_locks(folder: Path, servers: Iterable[str]) -> tuple[dict[str, McpLock | None], list[AppProblem]]:
    """Returns the locks of these servers by name, None for an invalid one. A lock without a server is reported.

    A lock has the tools of an MCP server when the app's author reviewed it, in `mcp/<server>.lock.json` next to its
    YAML. If a lock exists, the server's tools are published from it and the server is not contacted. When one of its
    tools is called, the server's list must match the lock, or the call is rejected: the lock pins what was reviewed.
    `perdure mcp lock` writes it.
    """
    locks: dict[str, McpLock | None] = {}
    problems: list[AppProblem] = []
    known = {*servers}
    for path in sorted(folder.glob(f"mcp/*{LOCK_ENDING}")):
        name = path.name.removesuffix(LOCK_ENDING)
        if name in known:
            locks[name], mistakes = read_lock(path)
            problems += mistakes
        elif not any(path.with_name(name + suffix).exists() for suffix in (".yaml", ".yml")):
            message = f"is a lock for an unknown server: mcp/{name}.yaml does not exist"
            problems.append(AppProblem(path, None, message, warning=True))
    return locks, problems


def read_lock(path: Path) -> tuple[McpLock | None, list[AppProblem]]:
    """Returns the lock at `path` and the mistakes in it; no lock if the file cannot be read or is invalid."""
    text = read_text(path, MAX_LOCK_BYTES)
    return (None, [text]) if isinstance(text, AppProblem) else _parsed(path, text)


def write_lock(path: Path, lock: McpLock) -> list[AppProblem]:
    """Writes the lock completely or not at all. Returns the reason if it could not be read again.

    Tools keep the server's order, which decides between two with the same resulting name; everything else is sorted.

    Raises: OSError.
    """
    # Without empty values: a list without empty hints and tags is easier to read.
    shown = lock.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(shown, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode("utf-8", "surrogatepass")) > MAX_LOCK_BYTES:
        return [AppProblem(path, None, f"exceeds {MAX_LOCK_BYTES:,} bytes")]
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
    """Returns the differences of `now` from `before`; a different order alone does not count."""
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
    # JSON has no line numbers; YAML can read the file too
    if problems and isinstance(placed := parse_yaml(path, text), YamlFile):
        return read_form(McpLock, value, YamlFile(path, value, placed.lines))
    return lock, problems


def _by_name(tools: Iterable[McpToolListing]) -> dict[str, McpToolListing]:
    """Returns the first tool of each name; the others are not offered."""
    by_name: dict[str, McpToolListing] = {}
    for tool in tools:
        by_name.setdefault(tool.name, tool)
    return by_name


def _changed(old: McpToolListing, new: McpToolListing) -> tuple[str, ...]:
    """Returns fields by their canonical JSON, as in versions: in Python, 1 and true are equal."""
    old_fields, new_fields = old.model_dump(mode="json"), new.model_dump(mode="json")
    return tuple(name for name in old_fields if canonical_json(old_fields[name]) != canonical_json(new_fields[name]))
