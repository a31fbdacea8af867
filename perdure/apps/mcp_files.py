"""The MCP servers of an app: one file `mcp/<server>.yaml` each.

```yaml
command: [python, -m, cluster]      # started in the app's folder; or:
# url: https://tools.example/mcp
# headers: {Authorization: 'Bearer {secret:tools_token}'}
trust_annotations: true             # its hints are believed; without it each of its tools waits for an approval
toolsets: [k8s, helm]               # what is offered of it, by tag
tools:
  helm_upgrade: {timeout_seconds: 300}
```
Its tools are named `<server>_<tool>`. An agent names them in its `tools:` one by one, or all of them as `<server>_*`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from contracts.mcp import SERVER_NAME_PATTERN, McpServer, McpToolSettings
from perdure.apps.form import read_form
from perdure.apps.problems import AppProblem
from perdure.apps.yaml_file import YamlFile, read_yaml


def read_servers(folder: Path, taken: Collection[str]) -> tuple[dict[str, McpServer], list[AppProblem]]:
    """The servers of the app in `folder` by name; `taken` are the names of its tools and of the engine's own."""
    servers: dict[str, McpServer] = {}
    problems: list[AppProblem] = []
    for path in sorted(path for path in folder.glob("mcp/*") if path.suffix in (".yaml", ".yml")):
        server, found = _read_server(path)
        problems += found
        if server is None:
            continue
        beginning = next((name for name in sorted(taken) if name.startswith(server.prefix)), None)
        near = next((other for other in servers.values() if _overlap(other, server)), None)
        if beginning is not None:
            why = f"names its tools {server.prefix}..., and there is a tool {beginning} already; choose another name"
            problems.append(AppProblem(path, None, why))
        elif near is not None:
            problems.append(AppProblem(path, None, f"the names of its tools begin as those of {near.name}"))
        else:
            servers[server.name] = server
    return servers, problems


def server_of(name: str, servers: Mapping[str, McpServer]) -> McpServer | None:
    """The server that a name in an agent's `tools:` speaks of."""
    return next((server for server in servers.values() if name.startswith(server.prefix)), None)


def _overlap(one: McpServer, other: McpServer) -> bool:
    return one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)


def _read_server(path: Path) -> tuple[McpServer | None, list[AppProblem]]:
    if not re.match(SERVER_NAME_PATTERN, path.stem):
        why = "a server's name has lower-case letters, digits and _, starts with a letter and has 24 at most"
        return None, [AppProblem(path, None, why)]
    file = read_yaml(path)
    if not isinstance(file, YamlFile):
        return None, file
    value = file.value
    if isinstance(value, dict) and "name" in value:
        return None, [file.problem(("name",), "unknown field 'name': a server has the name of its file")]
    if not isinstance(value, dict):
        return read_form(McpServer, value, file)
    given, tools = {**value, "name": path.stem}, value.get("tools")
    problems: list[AppProblem] = []
    if isinstance(tools, dict):  # one by one: a form does not look for unknown fields in the values of a mapping
        given["tools"] = {}
        for name, said in tools.items():
            settings, found = read_form(McpToolSettings, said, file, ("tools", name))
            problems += found
            if settings is not None:
                given["tools"][name] = settings.model_dump(exclude_unset=True)
    server, found = read_form(McpServer, given, file)
    problems += found
    return (None if problems else server), problems
