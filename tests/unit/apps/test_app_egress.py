"""Which hosts an app may name, and that no other app's tools may reach them."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure.apps import App, Engine, load_app
from perdure.core.egress import Named, Outbound
from perdure.egress import EgressRefused, new_client
from perdure.worker import queues as serving
from tests.doubles.hostile_target import says, target
from tests.unit.apps.problems import told
from tests.unit.apps.test_app_folders import AGENT, write

TOOL = '''
from perdure import ToolContext, tool

@tool(effect="read", secrets=("desk_url", "desk_token"))
async def look(context: ToolContext, name: str) -> str:
    """Look."""
    return name
'''
COMPANIONS = """
companions:
  - {name: desk, command: [python, x.py], port_env: DESK_PORT, url_env: DESK_ADDRESS}
"""


def app(folder: Path, own: str = "", agent: str = "helper") -> App:
    """One that loads."""
    write(
        folder,
        app_yaml=f"name: {folder.name}\n{own}",
        agents__helper_yaml=AGENT.replace("id: helper", f"id: {agent}") + "tools: [look]\n",
        tools__desk_py=TOOL,
    )
    return load_app(folder, Engine(topologies=("skill_pipeline",)))


def named(found: App, values: Mapping[str, str] | None = None) -> set[Named]:
    return set(found.outbound(Outbound(), (values or {}).get).named)


def test_an_app_names_hosts_in_its_file(tmp_path: Path) -> None:
    found = app(tmp_path / "shop", "egress: [intranet, 'db.corp.test:5000', '*.corp.test', '127.0.0.1:9000']\n")
    assert not found.problems
    assert named(found) == {
        Named("intranet"),
        Named("db.corp.test", 5000),
        Named("corp.test", below=True),
        Named("127.0.0.1", 9000),
    }


@pytest.mark.parametrize(
    "entry", ["10.0.0.0/8", "169.254.169.254", "localhost", "'*'", "'*.com'", "2130706433", "'0x7f.1:80'"]
)
def test_what_an_app_may_not_name_is_told_with_its_line(tmp_path: Path, entry: str) -> None:
    found = app(tmp_path / "shop", f"egress: [{entry}]\n")
    (problem,) = told(found)
    assert problem.startswith("app.yaml:2: ")
    assert named(found) == set()


def test_companions_and_addresses_among_credentials_count_as_named(tmp_path: Path) -> None:
    values = {
        "DESK_ADDRESS": "http://127.0.0.1:4711",
        "PERDURE_SECRET_DESK_URL": "http://desk:8080/v1",
        "PERDURE_SECRET_DESK_TOKEN": "127.0.0.1:5432",
        "PERDURE_SECRET_OTHER_URL": "http://10.0.0.7",
    }
    found = app(tmp_path / "shop", COMPANIONS)
    assert named(found, values) == {Named("127.0.0.1", 4711), Named("desk", 8080)}
    assert named(found) == set()


async def test_what_one_app_names_another_apps_tools_do_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(target(says()))
        monkeypatch.setenv("DESK_ADDRESS", made.url)
        with_desk = app(tmp_path / "shop", COMPANIONS, "shop_helper")
        without = app(tmp_path / "other", "", "other_helper")
        clients = await serving._clients([with_desk, without], Outbound(), stack)
        assert (await clients["shop_helper"].get(made.url)).status_code == 200
        assert set(clients) == {"shop_helper"}
        plain = await stack.enter_async_context(new_client(Outbound()))
        with pytest.raises(EgressRefused):
            await plain.get(made.url)
