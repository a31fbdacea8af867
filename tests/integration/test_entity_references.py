"""What a skill is told of entities: found by id, by name, by any attribute; of several the newest."""

from datetime import timedelta

from store import entities
from store.ids import new_id
from tests.desk import Desk


async def made(desk: Desk, name: str, **attributes: str | int) -> str:
    async with desk.db.transaction("local") as tx:
        return (await entities.create(tx, "thing", name, dict(attributes), None, None)).id


async def named(desk: Desk, *references: str, tenant: str = "local") -> dict[str, str]:
    """The first line of what each reference leads to."""
    async with desk.db.transaction(tenant) as tx:
        found = await entities.referred(tx, references)
    return {reference: told.splitlines()[0] for reference, told in found.items()}


async def test_each_reference_leads_to_its_own_in_one_look(desk: Desk) -> None:
    mark = new_id()
    first, second = await made(desk, f"A {mark}", code=mark), await made(desk, f"B {mark}", number=7, mark=mark)
    references = (f"id={first}", f"name=B {mark}", f"code={mark}", f"mark={mark}")
    a, b = f"thing: A {mark} ({first})", f"thing: B {mark} ({second})"
    assert await named(desk, *references) == dict(zip(references, (a, b, a, b), strict=True))
    assert await named(desk, *references, tenant="other") == {}


async def test_a_reference_is_exact_and_one_to_nothing_is_left_out(desk: Desk) -> None:
    mark = new_id()
    only = await made(desk, f"Only {mark}", note="a=b")
    wrong = (f"name=ONLY {mark}", f"id={only.upper()}", "id=", "id=no id", "name=", "nobody=x", "x", "", f"Only={mark}")
    assert await named(desk, *wrong) == {}
    assert list(await named(desk, "note=a=b")) == ["note=a=b"]


async def test_of_several_with_one_name_or_value_the_newest_counts(desk: Desk) -> None:
    mark = new_id()
    ids = [await made(desk, f"Twin {mark}", mark=mark) for _ in range(3)]
    for place, entity_id in enumerate(ids):
        sql = "UPDATE entities SET created_at = now() - $2::interval WHERE id = $1"
        async with desk.db.transaction("local") as tx:
            await tx.execute(sql, entity_id, timedelta(hours=abs(place - 1)))
    expected = f"thing: Twin {mark} ({ids[1]})"
    references = (f"name=Twin {mark}", f"mark={mark}")
    assert await named(desk, *references) == dict.fromkeys(references, expected)
