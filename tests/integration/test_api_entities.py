"""The entity store over HTTP."""

import pytest

from perdure.store.database import new_id
from perdure.store.memory import facts
from tests.integration.conftest import Api


async def made(api: Api, name: str, **attributes: object) -> str:
    """Register an entity as `create_entity` does."""
    async with api.services.db.transaction("local") as tx:
        return (await facts.create_entity(tx, "well", name, {**attributes}, None, None)).id  # type: ignore[dict-item]


async def test_an_entity_is_found_by_its_name_an_alias_or_a_part_of_it_and_read_by_its_id(api: Api) -> None:
    mark = new_id()
    one = await made(api, f"Alder {mark} 1", aliases=[f"Old {mark}"], county="Reeves")
    two = await made(api, f"Alder {mark} 2")
    whole = {"id": one, "kind": "well", "name": f"Alder {mark} 1"}
    async with api.client() as client:
        for name, ids in ((f"ALDER  {mark} 1", {one}), (f"old {mark}", {one}), (mark, {one, two}), (new_id(), set())):
            found = (await client.get("/v1/entities", params={"name": name})).json()
            assert {each["id"] for each in found["items"]} == ids and found["next"] is None, name
        assert len((await client.get("/v1/entities", params={"name": mark, "limit": 1})).json()["items"]) == 1
        read = (await client.get(f"/v1/entities/{one}")).json()
    assert read == {**whole, "attributes": {"aliases": [f"Old {mark}"], "county": "Reeves"}}


@pytest.mark.parametrize(
    ("path", "status"), [("", 422), ("?name=", 422), ("?name=" + "a" * 201, 422), ("?name=a&limit=0", 422), ("/x", 404)]
)
async def test_a_question_that_makes_no_sense_is_refused(api: Api, path: str, status: int) -> None:
    async with api.client() as client:
        assert (await client.get(f"/v1/entities{path}")).status_code == status
