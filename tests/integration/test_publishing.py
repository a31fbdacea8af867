"""`python -m perdure.apps.bootstrap` run by hand: it publishes what it is asked for, and says what is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

from perdure.store import agents
from perdure.store.database import Database
from tests.conftest import Person, Urls
from tests.integration.conftest import Api

SIX = {"care", "charts", "filings", "ops", "refunds", "skeleton"}
DESK = Path(__file__).parents[2] / "perdure" / "apps" / "template"


def prepare(urls: Urls, home: Path, **environ: str) -> tuple[list[str], list[str]]:
    """What one run leaves out, and what it says to the operator."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PERDURE_APP", "PERDURE_EXAMPLES")}
    given = {**kept, "DATABASE_OWNER_URL": urls.owner, "DATABASE_URL": urls.app, "PERDURE_HOME": str(home), **environ}
    command = [sys.executable, "-m", "perdure.apps.bootstrap"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])["left_out"], done.stderr.splitlines()


async def published(db: Database) -> set[str]:
    """The apps that have agents now."""
    async with db.transaction(agents.SHARED) as tx:
        return {app for app, _ in await agents.list_agents(tx)}


async def test_nothing_is_published_that_was_not_asked_for_and_what_was_before_is_told(
    urls: Urls, db: Database, tmp_path: Path
) -> None:
    assert await published(db) == SIX
    gone, said = prepare(urls, tmp_path)
    assert await published(db) == set()
    assert {line.split()[2] for line in gone} == SIX
    assert "the app refunds is not published any more (refunds): its conversations stay, and take no message" in gone
    assert "No agent is published: set PERDURE_APP to your app folders, here and for the workers." in said
    again, said = prepare(urls, tmp_path, PERDURE_APP=str(DESK))
    assert (await published(db), again) == ({"desk"}, [])
    assert not [line for line in said if "No agent" in line]
    gone, _ = prepare(urls, tmp_path, PERDURE_EXAMPLES="true")
    assert await published(db) == SIX
    assert [line.split(" (")[0] for line in gone] == ["the app desk is not published any more"]


async def test_a_conversation_whose_agent_is_gone_is_there_and_says_so_to_a_message(
    api: Api, urls: Urls, people: dict[str, Person], tmp_path: Path
) -> None:
    async with api.client() as client:
        turn = (await client.post("/v1/execute", json={"agent": "skeleton", "message": "hello"})).json()
        assert turn["status"] == "completed"
        prepare(urls, tmp_path)
        at = f"/v1/conversations/{turn['conversation_id']}"
        assert (await client.get(f"{at}/messages")).json()["items"], "what was said stays"
        refused = await client.post(f"{at}/turns", json={"message": "again"})
        assert (await client.get("/v1/agents")).json()["items"] == []
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "agent_not_found")
    assert refused.json()["error"]["message"] == "no agent of this name is published; see GET /v1/agents"
