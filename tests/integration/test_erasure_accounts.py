"""Taking bodies away in the name of an erasure, by the program's own role and without the key: all of it is missed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.apps.bootstrap import bootstrap
from perdure.contracts.errors import CallerError
from perdure.contracts.turns import TurnAddress
from perdure.core.audit import FaultKind, Keyring, Report
from perdure.settings import Settings
from perdure.store import audit
from perdure.store.audit import verify_chain
from perdure.store.events.live import Appended
from perdure.store.identity import erasure, users
from perdure.store.identity.erasure import erase
from tests.conftest import KEYRING, Urls
from tests.doubles.spoken import Line
from tests.harness import Harness
from tests.integration.audit_tampering import exported_head
from tests.integration.test_erasure import end, person

TAKEN = "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = $1 WHERE data IS NOT NULL AND audit_id IN "


async def erased(harness: Harness, name: str) -> tuple[str, int]:
    """A person with a turn, erased: the id, and the row that accounts for it."""
    made = await person(harness, name)
    own = await harness.plan(("pay", {"amount": 5}), by=name)
    await harness.open(own, "t1.0")
    await end(harness, own)
    await erase(harness.db, "local", name, harness.people["admin"].user_id)
    begun = "SELECT id FROM audit WHERE kind = 'user.erasure_begun' AND subject = $1"
    return made.user_id, await harness.value(begun, made.user_id)


async def verified(harness: Harness) -> Report:
    return await verify_chain(harness.db, "local", KEYRING, [await exported_head(harness.db, "local")])


async def test_bodies_of_a_turn_that_was_given_to_an_erased_person_are_missed(harness: Harness) -> None:
    user_id, begun = await erased(harness, "victor")
    victim = await harness.plan(("pay", {"amount": 1_000_000}))
    (request,) = await harness.open(victim, "t1.0")
    await harness.decide(request.request_id, comment="I allow a million")
    await harness.run_tool(victim)
    await end(harness, victim)
    before = await verified(harness)
    assert before.ok and before.erased
    await harness.write("UPDATE turns SET user_id = $2 WHERE id = $1", victim.turn_id, user_id)
    taken = await harness.write(TAKEN + "(SELECT id FROM audit WHERE turn_id = $2)", begun, victim.turn_id)
    after = await verified(harness)
    assert {fault.kind for fault in after.faults} == {FaultKind.BODY_MISSING}
    assert f"UPDATE {after.faults_found}" == taken and after.erased == before.erased


async def test_rows_about_an_erasure_never_lose_their_bodies_and_it_accounts_for_nobody_else(harness: Harness) -> None:
    user_id, begun = await erased(harness, "walter")
    other = await person(harness, "yvonne")
    before = await verified(harness)
    await harness.write(TAKEN + "(SELECT id FROM audit WHERE subject = $2)", begun, other.user_id)
    assert (await verified(harness)).faults_found == before.faults_found + 2
    taken = await harness.write(TAKEN + "(SELECT id FROM audit WHERE subject = $2)", begun, user_id)
    after = await verified(harness)
    assert taken == "UPDATE 2", "that it began and that it was done"
    assert after.faults_found > before.faults_found + 4, "and all that went with the person"
    assert {fault.kind for fault in after.faults} == {fault.kind for fault in before.faults} | {FaultKind.BODY_MISSING}


async def test_a_verification_in_the_midst_of_erasures_finds_no_fault(harness: Harness) -> None:
    before = (await verified(harness)).faults_found
    names = [f"zoe{number}" for number in range(4)]
    done = asyncio.gather(*(erased(harness, name) for name in names))
    looked = 0
    while not done.done():
        assert (await verify_chain(harness.db, "local", KEYRING)).faults_found == before
        looked += 1
    await done
    assert looked > 1


async def test_a_turn_that_begins_and_ends_while_its_person_is_erased_is_accounted_for_too(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await verified(harness)).faults_found
    name = "ursula"
    made = await person(harness, name)
    last, late = erasure._end, list[TurnAddress]()

    async def ends(*given: Any) -> None:
        address, _ = await harness.start(Line("late"), by=name)
        await harness.write("UPDATE turns SET answer = 'late' WHERE id = $1", address.turn_id)
        async with harness.db.transaction("local") as tx:
            await audit.record(tx, "thing.done", address.turn_id, {"of": "it"}, actor=None, turn_id=address.turn_id)
        await end(harness, address)
        late.append(address)
        await last(*given)

    with monkeypatch.context() as patch:
        patch.setattr(erasure, "_end", ends)
        await erase(harness.db, "local", name, harness.people["admin"].user_id)
    (address,) = late
    told = await harness.rows("SELECT content FROM messages WHERE turn_id = $1", address.turn_id)
    assert {row["content"] for row in told} == {""}
    assert await harness.value("SELECT data FROM audit_trail WHERE subject = $1", address.turn_id) is None
    assert (await verified(harness)).faults_found == before
    begun = "SELECT count(*) FROM audit WHERE kind = 'user.erasure_begun' AND subject = $1"
    assert await harness.value(begun, made.user_id) == 2, "what came in between was announced, too"


async def test_what_was_said_live_in_the_conversations_of_an_erased_person_is_gone(harness: Harness) -> None:
    said, live = {}, harness.deps.live
    await person(harness, "quentin")
    for name in ("quentin", "requester"):
        address, _ = await harness.start(Line("hello"), by=name)
        assert await live.append(address, "m1", epoch=1, sequence=0, text=f"hello {name}") is Appended.ACCEPTED
        await end(harness, address)
        said[name] = address.conversation_id
    await erase(harness.db, "local", "quentin", harness.people["admin"].user_id, live)
    left = {name: (await live.tokens("local", said[name], "", "0-0")).entries for name in said}
    assert {name: [entry.text for entry in entries] for name, entries in left.items()} == {
        "quentin": [], "requester": ["hello requester"],
    }  # fmt: skip


@contextmanager
def name_erased() -> Iterator[None]:
    with pytest.raises(CallerError) as refused:
        yield
    assert (refused.value.code, refused.value.http) == ("name_erased", 409)


async def test_nobody_gets_the_name_of_an_erased_person_not_even_by_the_next_start(
    harness: Harness, urls: Urls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await erased(harness, "peter")
    actor = harness.people["admin"].user_id
    await erase(harness.db, "local", "reviewer", actor)
    given = {"DATABASE_OWNER_URL": urls.owner, "PERDURE_HOME": str(tmp_path), "PERDURE_LOCAL": "true"}
    settings = Settings(_env_file=None, **given)  # type: ignore[arg-type]
    owner = await asyncpg.connect(urls.owner, server_settings={"search_path": "perdure"})
    await owner.execute("SELECT set_config('perdure.tenant', 'local', false)")
    rotated = Keyring(Keyring.of("a newer key that is before the old one").keys + KEYRING.keys)
    for keyring in (KEYRING, rotated):
        with name_erased():
            async with owner.transaction():
                await users.ensure_user(owner, "local", "peter", ["reviewer"], "t", keyring)
    await owner.close()
    with name_erased():
        async with harness.db.transaction("local") as tx:
            await users.add_user(tx, "peter", "", ("reviewer",), actor)
    with name_erased():
        await bootstrap(settings, admin="peter")
    assert set((await bootstrap(settings)).tokens) == {"requester", "reviewer", "admin"}
    assert "reviewer" in capsys.readouterr().err
    async with harness.db.transaction("local") as tx:
        assert (await users.add_user(tx, "petra", "", ("reviewer",), actor)).name == "petra"
    names = {row["name"] for row in await harness.rows("SELECT name FROM users WHERE disabled_at IS NULL")}
    assert {"requester", "admin", "petra"} <= names and not {"reviewer", "peter"} & names
