"""`python -m perdure.apps.bootstrap` run by hand: it publishes the requested apps and reports withdrawn agents."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from perdure.apps import SHIPPED, find_apps
from perdure.apps.bootstrap import bootstrap
from perdure.settings import Settings
from perdure.store import agents
from perdure.store.database import Database
from perdure.worker.queues import _log_missing_agents
from tests.conftest import KEYRING, Person, Template, Urls
from tests.integration.audit_tampering import write_audit_rows
from tests.integration.conftest import Caller

SIX = {"care", "charts", "filings", "ops", "refunds", "skeleton"}
DESK = Path(__file__).parents[2] / "perdure" / "apps" / "template"


def prepare(urls: Urls, home: Path, *arguments: str, **environ: str) -> tuple[list[str], list[str]]:
    """The agents that a run by hand leaves out, and its output, whatever apps `.env` names."""
    where = {"DATABASE_OWNER_URL": urls.owner, "DATABASE_URL": urls.app, "PERDURE_HOME": str(home)}
    given = {**os.environ, **where, "PERDURE_APP": "", "PERDURE_EXAMPLES": "false", **environ}
    command = [sys.executable, "-m", "perdure.apps.bootstrap", *arguments]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])["left_out"], done.stderr.splitlines()


async def republish(urls: Urls, home: Path, **settings: str) -> tuple[str, ...]:
    """The same in this process, for what is published and not for what is said: the agents that it leaves out."""
    given = {"DATABASE_OWNER_URL": urls.owner, "DATABASE_URL": urls.app, "PERDURE_HOME": str(home), **settings}
    return (await bootstrap(Settings(_env_file=None, **given))).skipped  # type: ignore[arg-type]


async def published(db: Database) -> set[str]:
    async with db.transaction(agents.SHARED) as tx:
        return {app for app, _ in await agents.list_agents(tx)}


@pytest.mark.parametrize("arguments", [(), ("--admin", "root")])
async def test_no_app_withdraws_no_agent(urls: Urls, db: Database, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    gone, said = prepare(urls, tmp_path, *arguments)
    assert (gone, await published(db)) == ([], SIX)
    assert any(all(f"{each} (" in line for each in SIX) for line in said)


async def test_a_mistake_shown_at_the_starts_end_is_in_the_log_alone(urls: Urls, db: Database, tmp_path: Path) -> None:
    app = tmp_path / "desk"
    shutil.copytree(DESK, app)
    (agent,) = (app / "agents").glob("*.yaml")
    agent.write_text(agent.read_text() + "\nno_such_field: 1\n")
    left, by_hand = prepare(urls, tmp_path / "home", PERDURE_APP=str(app))
    await write_audit_rows(db, "local", 1)
    signed_with, key_file = KEYRING.keys[0].id, tmp_path / "home" / "audit.key"
    keys = {"PERDURE_AUDIT_KEY": "", "JWT_SECRET": "", "PERDURE_LOCAL": "1", "PERDURE_APP": str(app)}
    for other in ({}, {"PERDURE_AUDIT_KEY": "another key " * 3}):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            prepare(urls, tmp_path / "home", **keys | other)
        assert f"PERDURE_AUDIT_KEYS_LOST={signed_with}" in refused.value.stderr and not key_file.exists()
    keys |= {"PERDURE_AUDIT_KEYS_LOST": signed_with}
    same, of_the_stack = prepare(urls, tmp_path / "home", **keys)
    assert key_file.exists()
    (mistake,) = [line.strip() for line in left if "no_such_field" in line]
    assert by_hand.count(mistake) == 1 and f"INFO {mistake}" not in by_hand
    assert f"INFO {mistake}" in of_the_stack and mistake not in of_the_stack, "what begins so is not shown"
    assert mistake in [line.strip() for line in same], "the last block shows it"
    prepare(urls, tmp_path, PERDURE_EXAMPLES="true")
    assert await published(db) == SIX


async def test_another_app_withdraws_the_rest_and_counts_the_approvals_that_it_makes_outdated(
    requester: Caller, urls: Urls, db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = (await requester.post("/v1/execute", json={"agent": "refunds", "message": "Refund order 1042"})).json()
    app = Path(shutil.copytree(SHIPPED / "refunds", tmp_path / "refunds"))
    (tools,) = (app / "tools").glob("*.py")
    tools.write_text(tools.read_text().replace('effect="keyed"', 'effect="keyed", version="2"'))
    for counted in (True, False):
        gone = await republish(urls, tmp_path / "home", PERDURE_APP=str(app))
        assert await published(db) == {"refunds"}
        assert not counted or all(each in str(gone) for each in SIX - {"refunds"})
        assert ("refund (1)" in capsys.readouterr().err) is counted, "each once"
    await requester.post(f"/v1/turns/{turn['turn_id']}/stop")
    await republish(urls, tmp_path, PERDURE_EXAMPLES="true")


async def test_a_worker_names_published_agents_that_it_lacks_and_serves_on(template: Template, db: Database) -> None:
    """As before the first migration: the database is there, its tables are not."""
    url = urlunsplit(urlsplit(template.urls.app)._replace(path="/postgres"))
    elsewhere = await Database.connect(url, max_connections=2)
    try:
        async with elsewhere.transaction(agents.SHARED) as tx:
            with pytest.raises(asyncpg.UndefinedTableError):
                await agents.agent_ids(tx)
        with capture_logs() as logged:
            await _log_missing_agents(elsewhere, [])
    finally:
        await elsewhere.close()
    assert [(each["event"], each["log_level"]) for each in logged] == [("agents_not_read", "warning")]
    with capture_logs() as logged:
        await _log_missing_agents(db, find_apps([SHIPPED / "refunds", SHIPPED / "filings"]))
    assert logged[0]["event"] == "agents_missing"
    assert logged[0]["agents"] == ["care_navigator", "chart_builder", "ops", "skeleton"]


async def test_a_conversation_whose_agent_is_gone_remains_and_refuses_a_message(
    requester: Caller, urls: Urls, people: dict[str, Person], tmp_path: Path
) -> None:
    turn = (await requester.post("/v1/execute", json={"agent": "skeleton", "message": "hello"})).json()
    assert turn["status"] == "completed"
    prepare(urls, tmp_path, "--withdraw")
    at = f"/v1/conversations/{turn['conversation_id']}"
    assert (await requester.get(f"{at}/messages")).json()["items"], "what was said stays"
    refused = await requester.post(f"{at}/turns", json={"message": "again"})
    assert (await requester.get("/v1/agents")).json()["items"] == []
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "agent_not_found")
