"""A copy of an example, put anywhere, is the same app: nothing in it leads back to where it shipped."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.activities.providers.scripted import Script
from perdure.activities.toolbox.engine_tools import ENGINE_TOOLS
from perdure.apps import SHIPPED, Engine, app_folders, load_app, publish
from perdure.apps.registry import discover_cards, list_servers
from perdure.graph.registry import names
from perdure.local.ports import free_port
from perdure.local.programs import read_app_services
from tests.scale import sized
from tests.unit.examples.payments_process import wait_until_healthy

ENGINE = Engine(core_tools=tuple(ENGINE_TOOLS), topologies=names(), script=Script)
CORE = [tool.card for tool in ENGINE_TOOLS.values()]
NAMES = [folder.name for folder in app_folders((), examples=True)]
STARTED = [(name, service) for name in NAMES for service in read_app_services(SHIPPED / name)]
"""Each of `make soak`; the first of `make test`."""


def copied(name: str, to: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / name, to / "mine", ignore=shutil.ignore_patterns("__pycache__")))


async def versions(folder: Path, home: Path) -> dict[str, str]:
    """By agent, what a turn would pin."""
    app = load_app(folder, ENGINE)
    assert app.problems == ()
    offered = await discover_cards(app, [], lambda name: None, home)
    return {agent.definition.id: agent.version for agent in publish(app, CORE, offered.cards)}


@pytest.mark.parametrize("name", NAMES)
async def test_a_copy_is_published_under_the_same_versions(tmp_path: Path, name: str) -> None:
    found = await versions(copied(name, tmp_path), tmp_path)
    assert found and found == await versions(SHIPPED / name, tmp_path)


async def test_a_copied_server_is_started_from_its_own_folder_and_lists_what_is_locked(tmp_path: Path) -> None:
    app = load_app(copied("ops", tmp_path), ENGINE)
    listed = (await list_servers(app, lambda name: None, tmp_path))["cluster"]
    assert listed.lock == app.locks["cluster"], listed.problems


@pytest.mark.sized
@pytest.mark.parametrize(("name", "service"), STARTED[: sized(99, 1)])
def test_a_copied_service_starts_from_its_own_folder(tmp_path: Path, name: str, service: object) -> None:
    copy, port = copied(name, tmp_path), free_port()
    (declared,) = read_app_services(copy)
    assert declared == service and declared.command[0] == "python"
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ = {**given, declared.port_env: str(port), "PERDURE_COMPANION_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, *declared.command[1:]], cwd=copy, env=environ) as process:
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process, declared.ready_path)
        finally:
            process.kill()
