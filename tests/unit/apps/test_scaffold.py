"""perdure/apps/scaffold.py: what `perdure init` writes loads without a mistake and does what its README says."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from perdure.activities.providers.scripted import Script
from perdure.apps import App, Engine, load_app
from perdure.apps.scaffold import scaffold
from perdure.contracts.errors import CallerError
from perdure.local.ports import free_port
from perdure.local.programs import read_app_services
from tests.local_egress import new_client
from tests.unit.apps.tool_contexts import context


@pytest.fixture
def scaffolded_app(tmp_path: Path) -> App:
    scaffold(tmp_path / "new" / "desk")
    return load_app(tmp_path / "new" / "desk", Engine(topologies=("skill_pipeline",), script=Script))


@pytest.fixture
def desk_url(scaffolded_app: App, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "desk_service.py"],
        cwd=scaffolded_app.folder,
        env={"PATH": os.environ["PATH"], "DESK_PORT": str(port), "PERDURE_COMPANION_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            assert process.poll() is None and time.monotonic() < deadline
            try:
                if httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_new_app_loads_and_its_companion_is_where_its_tools_look_for_it(scaffolded_app: App) -> None:
    assert scaffolded_app.problems == ()
    assert [(agent.id, agent.tools) for agent in scaffolded_app.agents] == [("desk", ("find_tickets", "open_ticket"))]
    cards = {name: tool.card for name, tool in scaffolded_app.tools.items()}
    assert not cards["find_tickets"].needs_approval and cards["open_ticket"].needs_approval
    (companion,) = read_app_services(scaffolded_app.folder)
    assert companion.url_env == "PERDURE_SECRET_DESK_URL"
    assert all(card.secrets == ("desk_url",) for card in cards.values())


async def test_a_new_apps_tools_reach_its_service_and_open_one_ticket(scaffolded_app: App, desk_url: str) -> None:
    opening, finding = scaffolded_app.tools["open_ticket"], scaffolded_app.tools["find_tickets"]
    async with new_client() as http:
        given = {"http": http, "secrets": {"desk_url": desk_url}}
        for _ in range(2):
            opened = await opening.run({"title": "The printer burns"}, context(opening.card, **given))  # type: ignore[arg-type]
            assert opened.output == {"status": "open", "number": 1, "title": "The printer burns"}
        found = await finding.run({"words": "printer"}, context(finding.card, **given))  # type: ignore[arg-type]
        none = await finding.run({"words": "scanner"}, context(finding.card, **given))  # type: ignore[arg-type]
    assert isinstance(found.output, dict) and "1: The printer burns" in str(found.output["message"])
    assert isinstance(none.output, dict) and "printer" not in str(none.output)


def test_the_new_apps_service_refuses_a_key_with_another_title(desk_url: str) -> None:
    headers = {"Idempotency-Key": "k"}
    assert httpx.post(f"{desk_url}/tickets", json={"title": "a"}, headers=headers).status_code == 201
    assert httpx.post(f"{desk_url}/tickets", json={"title": "b"}, headers=headers).status_code == 422
    assert httpx.post(f"{desk_url}/tickets", json={"tilte": "b"}).status_code == 422
    assert [httpx.post(f"{desk_url}/tickets", json={"title": "c"}).json()["number"] for _ in range(2)] == [2, 3]


def test_the_readmes_first_line_puts_the_command_on_the_path(tmp_path: Path) -> None:
    scaffold(tmp_path)
    (export,) = [line for line in (tmp_path / "README.md").read_text().splitlines() if line.startswith("export ")]
    script = f"{export}\nperdure up --help"
    shell = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert shell.returncode == 0 and "--app" in shell.stdout, shell.stderr


def test_a_folder_that_is_not_empty_or_not_writable_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for place, code in ((tmp_path, "folder_not_empty"), (mine, "not_a_folder"), (mine / "below", "cannot_write")):
        with pytest.raises(CallerError) as refused:
            scaffold(place)
        assert refused.value.code == code
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_files_written_exist_and_are_named_in_the_readme(tmp_path: Path) -> None:
    written = scaffold(tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = {str(path.relative_to(tmp_path)) for path in written}
    told = {cell for cell in (tmp_path / "README.md").read_text().split("`") if cell in names}
    assert {"agents/desk.yaml", "scripts/desk.yaml", "tools/desk.py", "app.yaml", "desk_service.py"} <= told
    assert (tmp_path / ".gitignore").read_text().split() == ["__pycache__/", ".env"]
