"""perdure/apps/scaffold.py: what `perdure init` writes loads without a mistake and does what its README says."""

import os
import subprocess
import sys
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
from tests.unit.examples.payments_process import wait_until_healthy


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
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
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


def test_the_new_apps_service_opens_one_ticket_a_key_and_finds_it_by_its_words(desk_url: str) -> None:
    headers = {"Idempotency-Key": "k"}
    for _ in range(2):
        opened = httpx.post(f"{desk_url}/tickets", json={"title": "a"}, headers=headers)
        assert (opened.status_code, opened.json()["number"]) == (201, 1)
    found = [httpx.get(f"{desk_url}/tickets", params={"words": words}).json()["tickets"] for words in "az"]
    assert found == [[{"number": 1, "title": "a"}], []]
    assert httpx.post(f"{desk_url}/tickets", json={"title": "b"}, headers=headers).status_code == 422
    assert httpx.post(f"{desk_url}/tickets", json={"tilte": "b"}).status_code == 422
    assert [httpx.post(f"{desk_url}/tickets", json={"title": "c"}).json()["number"] for _ in range(2)] == [2, 3]


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
    named_files = {cell for cell in (tmp_path / "README.md").read_text().split("`") if cell in names}
    assert {"agents/desk.yaml", "scripts/desk.yaml", "tools/desk.py", "app.yaml", "desk_service.py"} <= named_files
    assert (tmp_path / ".gitignore").read_text().split() == ["__pycache__/", ".env"]
