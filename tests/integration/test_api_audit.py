"""The audit over HTTP: what is answered, and that a person is erased by a route."""

import json
from pathlib import Path

import pytest

from perdure.core.audit import signed_head
from perdure.store import audit
from perdure.store.audit import head_of
from perdure.store.database import new_id
from tests.conftest import KEYRING, Urls
from tests.integration.conftest import Api
from tests.integration.forger import exported_head, forging, written
from tests.integration.test_api_turns import refusal


async def test_the_verification_says_how_far_it_went_and_what_is_wrong(api: Api, urls: Urls) -> None:
    await written(api.services.db, "local", 700)
    async with api.client("reviewer") as client:
        report = (await client.get("/v1/audit/verify")).json()
        async with api.services.db.transaction("local") as tx:
            head = await head_of(tx)
        assert report["ok"] and report["faults"] == [] and report["rows"] == head.seq >= 700
        assert report["head"] == {"seq": head.seq, "hash": head.hash}
        ahead = signed_head(KEYRING, "local", head.seq + 5, "0" * 64, "t")
        answer = await client.post("/v1/audit/verify", json={"heads": [ahead.model_dump()]})
        assert answer.status_code == 200
        assert answer.json()["faults"] == [{"seq": head.seq + 5, "kind": "tail_cut", "audit_id": None, "subject": None}]
        async with forging(urls.owner) as forger:
            await forger.execute("UPDATE audit SET kind = 'x' WHERE kind = 'thing.done'")
        report = (await client.post("/v1/audit/verify", json={"heads": [ahead.model_dump()]})).json()
        assert (report["ok"], len(report["faults"])) == (False, 100)
        assert report["faults"][0]["kind"] == "tail_cut", "many faults of the rows do not hide it"
        assert (report["faults_by_kind"]["tail_cut"], report["faults_by_kind"]["row_changed"]) == (1, 700)
        assert report["faults_found"] >= 1_400
        async with forging(urls.owner) as forger:
            await forger.execute("UPDATE audit SET kind = 'thing.done' WHERE kind = 'x'")


@pytest.mark.parametrize(
    "body", [{}, {"heads": [{}]}, {"heads": "x"}, {"heads": [{"tenant": "local", "seq": -1}]}, {"heads": [], "more": 1}]
)
async def test_what_is_no_head_is_a_mistake_of_the_caller(api: Api, body: dict[str, object]) -> None:
    async with api.client("reviewer") as client:
        assert (await client.post("/v1/audit/verify", json=body)).status_code == 422


async def test_the_deployments_own_file_is_looked_at(api: Api) -> None:
    file: Path = api.services.audit_heads
    head = await exported_head(api.services.db, "local")
    audit.append_heads(file, [head])
    async with api.client("admin") as client:
        report = (await client.get("/v1/audit/verify")).json()
    assert (report["ok"], report["heads_checked"]) == (True, 1)


async def test_the_export_is_one_object_a_line_and_goes_on_where_it_was_left(api: Api) -> None:
    await written(api.services.db, "local", 500)
    async with api.client("admin") as client:
        answer = await client.get("/v1/audit/export")
        assert answer.headers["content-type"].startswith("application/jsonl")
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 500
        rest = await client.get("/v1/audit/export", params={"after": len(rows) - 10, "limit": 4})
        assert [json.loads(line)["seq"] for line in rest.text.splitlines()] == list(range(len(rows) - 9, len(rows) - 5))
        for turn in ("no-turn", new_id()):
            assert refusal(await client.get("/v1/audit/export", params={"turn": turn})) == (404, "turn_not_found")
        for bad in ({"after": -1}, {"limit": 0}, {"after": "x"}):
            assert (await client.get("/v1/audit/export", params=bad)).status_code == 422
    assert set(rows[-1]) >= {"at", "kind", "subject", "actor", "turn_id", "data", "salt", "body_digest", "hash", "prev"}


async def test_a_user_is_erased_by_an_administrator_alone(api: Api) -> None:
    async with api.client("admin") as admin, api.client("reviewer") as reviewer:
        added = (await admin.post("/v1/users", json={"name": "trillian", "display_name": "T"})).json()
        token = (await admin.post("/v1/users/trillian/tokens", json={})).json()["token"]
        theirs = {"Authorization": f"Bearer {token}"}
        assert (await admin.get("/v1/auth/me", headers=theirs)).status_code == 200
        assert (await reviewer.delete("/v1/users/trillian/data")).status_code == 403
        done = await admin.delete("/v1/users/trillian/data")
        assert done.status_code == 200 and done.json()["user_id"] == added["id"]
        assert (await admin.get("/v1/auth/me", headers=theirs)).status_code == 401
        assert (await admin.delete("/v1/users/trillian/data")).status_code == 404
        assert (await admin.delete("/v1/users/admin/data")).status_code == 409
        assert (await admin.get("/v1/audit/verify")).json()["ok"]
        exported = (await admin.get("/v1/audit/export")).text
        assert "trillian" not in exported and done.json()["name"] not in ("", "trillian")
