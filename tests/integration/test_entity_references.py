"""What a skill is told of entities: found by id, by name, by any attribute; of several the newest."""

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from perdure.store.database import new_id
from perdure.store.memory import facts
from tests.conftest import Urls
from tests.harness import Harness

MANY = 50_000
MOST_MS = 2.0
FILL = f"""
INSERT INTO entities (id, tenant_id, kind, name, attributes)
SELECT gen_random_uuid(), 'local', 'thing', 'Many ' || n,
  jsonb_build_object('serial', 's' || n, 'colour', 'grey', 'size', n % 100)
FROM generate_series(1, {MANY}) n
"""


async def made(harness: Harness, name: str, **attributes: object) -> str:
    async with harness.db.transaction("local") as tx:
        return (await facts.create_entity(tx, "thing", name, {**attributes}, None, None)).id  # type: ignore[dict-item]


async def named(harness: Harness, *references: str, tenant: str = "local") -> dict[str, str]:
    """The first line of what each reference leads to."""
    async with harness.db.transaction(tenant) as tx:
        found = await facts.referred_entities(tx, references)
    return {reference: told.splitlines()[0] for reference, told in found.items()}


async def test_each_reference_leads_to_its_own_in_one_look(harness: Harness) -> None:
    mark = new_id()
    first, second = await made(harness, f"A {mark}", code=mark), await made(harness, f"B {mark}", number=7, mark=mark)
    references = (f"id={first}", f"name=B {mark}", f"code={mark}", f"mark={mark}")
    a, b = f"thing: A {mark} ({first})", f"thing: B {mark} ({second})"
    assert await named(harness, *references) == dict(zip(references, (a, b, a, b), strict=True))
    assert await named(harness, *references, tenant="other") == {}


async def test_a_reference_is_exact_and_one_to_nothing_is_left_out(harness: Harness) -> None:
    mark = new_id()
    only = await made(harness, f"Only {mark}", note="a=b", **{f"{mark}=a": "b"})
    wrong = (f"name=ONLY {mark}", f"id={only.upper()}", "id=", "id=no id", "name=", "nobody=x", "x", "", f"Only={mark}")
    assert await named(harness, *wrong, f"{mark}=a=b") == {}, "what a name with an equals sign has is mistaken for none"
    assert list(await named(harness, "note=a=b")) == ["note=a=b"]
    async with harness.db.transaction("local") as tx:
        assert [each.id for each in await facts.find_entities(tx, f" ONLY  {mark[:30]}")] == [only]
        assert await facts.find_entities(tx, " \t ") == [] == await facts.find_entities(tx, "")


async def test_of_several_with_one_name_or_value_the_newest_counts(harness: Harness) -> None:
    mark = new_id()
    ids = [await made(harness, f"Twin {mark}", mark=mark) for _ in range(3)]
    for place, entity_id in enumerate(ids):
        sql = "UPDATE entities SET created_at = now() - $2::interval WHERE id = $1"
        await harness.write(sql, entity_id, timedelta(hours=abs(place - 1)))
    references = (f"name=Twin {mark}", f"mark={mark}")
    assert await named(harness, *references) == dict.fromkeys(references, f"thing: Twin {mark} ({ids[1]})")


async def test_a_value_of_any_kind_is_found_as_its_text(harness: Harness) -> None:
    mark = new_id()
    values = {
        "n": 7,
        "f": 7.5,
        "e": 1e2,
        "yes": True,
        "none": None,
        "list": [1, "a"],
        "of": {"a": 1},
        "é": "ü",
        "": "x",
    }
    entity_id = await made(harness, f"Any {mark}", **{f"{mark}{name}": value for name, value in values.items()})
    only = f"thing: Any {mark} ({entity_id})"
    told = {"n": "7", "f": "7.5", "e": "100.0", "yes": "true", "list": '[1, "a"]', "of": '{"a": 1}', "é": "ü", "": "x"}
    found = {f"{mark}{name}={value}": only for name, value in told.items()}
    assert await named(harness, *found, f"{mark}none=", f"{mark}none=null", f"{mark}n=7.0") == found


async def test_an_entity_that_changes_is_found_by_what_it_has_now(harness: Harness) -> None:
    mark = new_id()
    entity_id = await made(harness, f"New {mark}", mark=mark, old=mark)
    fresh = "UPDATE entities SET attributes = attributes - 'old' || jsonb_build_object('fresh', $2::text) WHERE id = $1"
    await harness.write(fresh, entity_id, mark)
    references, found = (f"mark={mark}", f"fresh={mark}"), f"thing: New {mark} ({entity_id})"
    assert await named(harness, f"old={mark}", *references) == dict.fromkeys(references, found)


@pytest.fixture(scope="module")
async def many(harness: Harness, urls: Urls) -> None:
    """So many entities of the tenant, half of whose attributes they share."""
    admin = await asyncpg.connect(urls.admin.rpartition("/")[0] + "/" + urls.app.rpartition("/")[2])
    try:
        await admin.execute("SET search_path = perdure")
        await admin.execute(FILL)
        await admin.execute("ANALYZE entities, entity_attributes")
    finally:
        await admin.close()


@pytest.mark.soak
@pytest.mark.parametrize(
    "reference", ["serial=s31234", "colour=grey", "size=17", "serial=nothing", "colour=green", "name=Many 31234"]
)
async def test_among_fifty_thousand_a_look_takes_less_than_two_milliseconds(
    harness: Harness, many: None, reference: str
) -> None:
    if reference.startswith("name="):  # made behind the program's back, which writes names
        await made(harness, reference.partition("=")[2])
    took = []
    async with harness.db.transaction("local") as tx:
        for _ in range(30):
            began = time.perf_counter()
            found = await facts.referred_entities(tx, [reference])
            took.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(0)
    assert bool(found) is (reference not in ("serial=nothing", "colour=green"))
    median = sorted(took)[len(took) // 2]
    print(f"\n{reference} among {MANY}: {median:.2f} ms")
    assert median < MOST_MS
