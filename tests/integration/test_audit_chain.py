"""The audit: the chain as the database makes it, for ever, and what its trail answers."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import JsonValue
from structlog.testing import capture_logs

from perdure.contracts.errors import InvariantBroken
from perdure.contracts.ids import effect_key
from perdure.contracts.turns import TurnAddress
from perdure.contracts.values import digest_of
from perdure.core.approvals.decisions import Decider, Decision
from perdure.core.audit import ChainFault, ExportedHead, FaultKind, Report
from perdure.store import audit
from perdure.store.approvals import views
from perdure.store.approvals.assignments import withdraw
from perdure.store.audit import verify_chain
from perdure.store.database import Connection, Database
from perdure.worker import audit_heads as heads_module
from perdure.worker.audit_heads import HeadExport
from tests.conftest import KEYRING, Urls, as_owner
from tests.doubles.message_script import Line
from tests.eventually import until
from tests.harness import Harness, gathered
from tests.integration.audit_tampering import TABLES, as_table_owner, chained_anew, new_tenant, write_audit_rows
from tests.integration.conftest import in_transaction
from tests.scale import sized

RACERS, ROUNDS = 16, 12


@pytest.fixture(scope="module")
async def owner(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    async with as_owner(urls.owner, "local") as connection:
        yield connection


async def note(tx: Connection, subject: str) -> int:
    return await audit.record(tx, "thing.done", subject, {"said": 'ü\u2028"\\/\t'}, actor=None, turn_id=None)


async def test_a_row_is_in_the_chain_once_its_transaction_has_committed(db: Database, urls: Urls) -> None:
    tenant = await new_tenant(urls.owner, "at-commit")
    async with db.transaction(tenant) as tx:
        first = await note(tx, "one")
        assert await tx.fetchval("SELECT count(*) FROM audit_chain") == 0
        second = await note(tx, "two")
    with pytest.raises(ZeroDivisionError):
        async with db.transaction(tenant) as tx:
            await note(tx, "taken back")
            raise ZeroDivisionError
    async with db.transaction(tenant) as tx:
        rows = await tx.fetch("SELECT seq, audit_id, prev, hash FROM audit_chain ORDER BY seq")
        head = await tx.fetchrow("SELECT seq, hash FROM audit_heads")
    assert [(row["seq"], row["audit_id"]) for row in rows] == [(1, first), (2, second)]
    assert rows[0]["prev"] == "0" * 64 and rows[1]["prev"] == rows[0]["hash"]
    assert head is not None and tuple(head) == (2, rows[1]["hash"])
    assert (await verify_chain(db, tenant, KEYRING)).ok


async def race(db: Database, turns: list[str]) -> list[BaseException | None]:
    """Transactions that lock a turn's row before or after they audit something, all at the same time."""
    chance = random.Random(7)

    async def one(number: int) -> None:
        for _ in range(ROUNDS):
            turn, first = chance.choice(turns), chance.random() < 0.5
            async with db.transaction("local") as tx:
                for step in ("audit", "lock") if first else ("lock", "audit"):
                    if step == "audit":
                        await note(tx, f"racer {number}")
                    else:
                        await tx.execute("SELECT FROM turns WHERE id = $1 FOR UPDATE", turn)
                    await asyncio.sleep(chance.uniform(0, 0.002))

    return await gathered(*map(one, range(RACERS)))


async def test_transactions_that_lock_in_different_orders_never_deadlock(harness: Harness) -> None:
    turns = [(await harness.start(Line("hi")))[0].turn_id for _ in range(2)]
    before = await harness.value("SELECT coalesce(max(seq), 0) FROM audit_chain")
    assert await race(harness.db, turns) == [None] * RACERS
    after = await harness.rows("SELECT seq FROM audit_chain WHERE seq > $1 ORDER BY seq", before)
    assert [row["seq"] for row in after] == list(range(before + 1, before + 1 + RACERS * ROUNDS))
    assert (await verify_chain(harness.db, "local", KEYRING)).ok


async def test_nothing_is_audited_without_a_key(urls: Urls) -> None:
    keyless = await Database.connect(urls.app, max_connections=1)
    with pytest.raises(InvariantBroken) as refused:
        await in_transaction(keyless, note, "x")
    await keyless.close()
    assert refused.value.code == "audit_key_missing"


CHANGES = [
    *(f"UPDATE {table} SET tenant_id = tenant_id" for table in TABLES), *(f"DELETE FROM {table}" for table in TABLES),
    *(f"TRUNCATE {table} CASCADE" for table in TABLES), "UPDATE audit SET kind = 'x'",
    "UPDATE audit_chain SET hash = 'x'", "UPDATE audit_bodies SET data = '{}'", "UPDATE audit_bodies SET salt = 'x'",
    "UPDATE audit_bodies SET erased_by = audit_id",
]  # fmt: skip
APP_ONLY = [
    "INSERT INTO audit_chain (tenant_id, seq, audit_id, prev, hash) VALUES ('local', 99, 99, '', '')",
    "INSERT INTO audit_heads (tenant_id, seq, prev, hash) VALUES ('local', 99, '', '')",
    "UPDATE audit_heads SET seq = 0",
    "ALTER TABLE audit DISABLE TRIGGER ALL",
    "SELECT audit_link()",
]


async def test_no_role_can_change_audit_rows(harness: Harness, relay: Database, owner: asyncpg.Connection) -> None:
    await write_audit_rows(harness.db, "local", 1)
    for statement in [*CHANGES, *APP_ONLY]:
        for database in (harness.db, relay):
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.RaiseError)):
                async with database.transaction("local") as tx:
                    await tx.execute(statement)
    for statement in CHANGES:
        if not statement.startswith("UPDATE audit_heads"):
            with pytest.raises(asyncpg.RaiseError):
                await owner.execute(statement)


def lines(path: Path, tenant: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["tenant"] == tenant]


async def test_a_grown_chain_exports_its_head(db: Database, relay: Database, urls: Urls, tmp_path: Path) -> None:
    one, two = await new_tenant(urls.owner, "one"), await new_tenant(urls.owner, "two")
    path = tmp_path / "outside" / "heads.jsonl"
    export = HeadExport(relay, path, KEYRING)
    await write_audit_rows(db, one, 3)
    assert {head.tenant for head in await export.once()} >= {one}
    assert await export.once() == []
    await write_audit_rows(db, two, 2)
    await write_audit_rows(db, one, 1)
    assert [(head.tenant, head.seq) for head in await export.once()] == [(one, 4), (two, 2)]
    assert [line["seq"] for line in lines(path, one)] == [3, 4]
    for head in audit.exported_heads(path, one):
        assert head.is_signed_by(KEYRING)
    assert await HeadExport(relay, path, KEYRING).once() == [], "as after a restart"
    report = await verify_chain(db, one, KEYRING, audit.exported_heads(path, one))
    assert (report.ok, report.heads_checked) == (True, 2)


async def test_a_head_that_went_back_is_not_exported(db: Database, relay: Database, urls: Urls, tmp_path: Path) -> None:
    tenant, path = await new_tenant(urls.owner, "cut-back"), tmp_path / "heads.jsonl"
    await write_audit_rows(db, tenant, 10)
    export = HeadExport(relay, path, KEYRING)
    await export.once()
    async with as_table_owner(urls.owner) as table_owner:
        await table_owner.execute("DELETE FROM audit_chain WHERE seq > 6 AND tenant_id = $1", tenant)
        linked = "EXISTS (SELECT FROM audit_chain WHERE audit_id = a.id)"
        await table_owner.execute(f"DELETE FROM audit a WHERE tenant_id = $1 AND NOT {linked}", tenant)
        await chained_anew(table_owner, tenant)
    assert await export.once() == []
    assert [line["seq"] for line in lines(path, tenant)] == [10]
    report = await verify_chain(db, tenant, KEYRING, audit.exported_heads(path, tenant))
    assert [(fault.seq, fault.kind) for fault in report.faults] == [(10, FaultKind.TAIL_CUT)]


async def test_a_line_that_a_power_cut_left_unfinished_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    first = ExportedHead(tenant="a", seq=1, hash="0" * 64, at="t", key="k", hmac="h")
    second, third = first.model_copy(update={"seq": 2}), first.model_copy(update={"seq": 3})
    audit.append_heads(path, [first])
    whole, line = path.read_bytes(), second.line().encode()
    for cut in range(1, len(line) + 1, 7):
        path.write_bytes(whole + line[:cut])
        read = [first, second] if cut >= len(line) - 1 else [first]
        assert audit.exported_heads(path, "a") == read
        audit.append_heads(path, [third])
        assert audit.exported_heads(path, "a") == [*read, third]
    assert audit.newest_heads(path) == {"a": third}
    assert audit.exported_heads(tmp_path / "none", "a") == []
    with pytest.raises(OSError):
        audit.append_heads(tmp_path, [])


async def test_heads_are_exported_at_start_at_stop_and_after_a_fault(
    db: Database, relay: Database, urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, stop = await new_tenant(urls.owner, "kept"), asyncio.Event()
    monkeypatch.setattr(heads_module, "OUTAGE_SECONDS", 0.02)
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    path = folder / "heads.jsonl"
    await write_audit_rows(db, tenant, 1)
    running = asyncio.create_task(HeadExport(relay, path, KEYRING).run(stop))
    with capture_logs() as said:
        await until(lambda: bool(said))
    assert (said[0]["event"], said[0]["subject"]) == ("audit_heads_not_exported", str(path))
    folder.unlink()
    await until(path.exists)
    await write_audit_rows(db, tenant, 1)
    stop.set()
    await running
    assert [line["seq"] for line in lines(path, tenant)] == [1, 2]


REFUND = {"amount": 70, "mode": ""}
EDITED = {"amount": 60, "mode": ""}
GIVE = "UPDATE approvals SET status = 'approved' WHERE id = $1"


async def exported(harness: Harness, turn_id: str) -> list[dict[str, Any]]:
    rows = [row async for row in audit.exported_rows(harness.db, "local", 0, turn_id, None)]
    return list(json.loads(json.dumps(rows, default=str)))


async def test_the_export_answers_who_asked_what_which_rule_who_decided_when_and_what_ran(harness: Harness) -> None:
    address, request = await harness.request_approval(**REFUND)
    await harness.decide(request.request_id, Decision.EDIT, args=EDITED, comment="seventy was too much")
    await harness.run_tool(address)
    rows = await exported(harness, address.turn_id)
    by_kind = {row["kind"]: row for row in rows}
    opened, decided, ran = (by_kind[kind]["data"] for kind in ("approval.opened", "approval.decided", "call.settled"))
    assert by_kind["approval.opened"]["actor"] == "requester", "who asked"
    assert by_kind["approval.opened"]["actor_id"] == harness.people["requester"].user_id
    assert (opened["tool"], opened["args"]) == ("pay", REFUND), "what was planned"
    assert opened["args_digest"] == digest_of(REFUND)
    assert opened["rule"] == "test", "which rule fired"
    assert (by_kind["approval.decided"]["actor"], decided["type"]) == ("reviewer", "edit"), "who decided"
    assert decided["comment"] == "seventy was too much" and decided["args"] == EDITED
    assert str(by_kind["approval.opened"]["at"]) < str(by_kind["approval.decided"]["at"]), "when"
    assert (ran["tool"], ran["args"], ran["state"]) == ("pay", EDITED, "done"), "what ran with which arguments"
    assert ran["args_digest"] == digest_of(EDITED)
    assert "/pay" in str(ran["result"]), "and its result"
    assert {row["subject"] for row in rows} == {request.request_id}
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)


async def test_the_export_covers_failed_calls_and_calls_without_an_approval(harness: Harness) -> None:
    address = await harness.plan(("pay", {"mode": "refuse"}), ("book", {"what": "a table"}))
    (request,) = await harness.open(address, "t1.0")
    await harness.decide(request.request_id)
    await harness.run_tool(address, "t1.0")
    await harness.run_tool(address, "t1.1")
    rows = [row for row in await exported(harness, address.turn_id) if str(row["kind"]).startswith("call.")]
    assert [(row["kind"], row["subject"], row["actor"]) for row in rows] == [
        ("call.settled", request.request_id, None),
        ("call.ran", effect_key(address.turn_id, "t1.1"), "requester"),
    ]
    failed, free = (row["data"] for row in rows)
    assert (failed["call_id"], failed["state"]) == ("t1.0", "failed")
    assert (free["tool"], free["args"], free["state"]) == ("book", {"what": "a table", "mode": ""}, "done")
    assert "/book" in free["result"]
    assert (await verify_chain(harness.db, "local", KEYRING)).ok, "it needed no approval"


async def stopped(harness: Harness, address: TurnAddress, kind: str) -> str:
    """The audit rows of a call that ran when its turn was stopped."""
    await harness.write("UPDATE tool_calls SET state = 'reserved', epoch = 1 WHERE turn_id = $1", address.turn_id)
    await harness.finish(address)
    (row,) = [row for row in await exported(harness, address.turn_id) if row["kind"] == kind]
    return str(row["data"]["state"])


async def test_a_call_that_is_under_way_as_its_turn_ends_is_on_record(harness: Harness) -> None:
    free = await harness.plan(("book", {"mode": "break"}))
    assert await stopped(harness, free, "call.ran") == "outcome_unknown"
    of_our_own_rows = await harness.approved(("jot", {"text": "never"}))
    await harness.write("UPDATE approvals SET status = 'reserved' WHERE turn_id = $1", of_our_own_rows.turn_id)
    assert await stopped(harness, of_our_own_rows, "call.settled") == "failed"
    assert (await harness.approval_row(of_our_own_rows))["status"] == "failed"


async def test_an_approvals_rows_are_its_own_and_those_of_the_call_that_it_covers(harness: Harness) -> None:
    address = await harness.plan(("pay", {}), ("post", {}))
    first, second = await harness.open(address, "t1.0", "t1.1")
    await harness.decide(first.request_id)
    await harness.decide(second.request_id, Decision.REJECT, comment="no")
    await harness.run_tool(address)
    async with harness.db.transaction("local") as tx:
        told, following = await audit.rows_of_approval(tx, first.request_id, None, 2, None)
        rest, end = await audit.rows_of_approval(tx, first.request_id, None, 2, following)
    told += rest
    assert (len(rest), end) == (1, None)
    assert [row["kind"] for row in told] == ["approval.opened", "approval.decided", "call.settled"]
    assert [row["actor"] for row in told][:2] == ["requester", "reviewer"]


async def test_a_long_history_is_shown_by_its_latest_rows(harness: Harness) -> None:
    address, asked = await harness.request_approval()
    async with harness.db.transaction("local") as tx:
        for number in range(views.MAX_HISTORY_ENTRIES):
            told: dict[str, JsonValue] = {"number": number}
            await audit.record(tx, "approval.claimed", asked.request_id, told, actor=None, turn_id=address.turn_id)
        history = (await views.get_approval(tx, asked.request_id, None))["history"]
    assert isinstance(history, list)
    assert [entry["data"]["number"] for entry in history] == [*range(views.MAX_HISTORY_ENTRIES)]


async def doubted(harness: Harness) -> set[str | None]:
    """The approvals without which a call has run, each told once and at its first row."""
    faults = (await verify_chain(harness.db, "local", KEYRING)).faults
    assert {fault.kind for fault in faults} <= {FaultKind.RAN_UNDECIDED}
    for fault in faults:
        rows = "SELECT a.id, c.seq FROM audit a JOIN audit_chain c ON c.audit_id = a.id WHERE a.subject = $1 ORDER BY 1"
        first = await harness.rows(rows, fault.subject)
        assert (fault.audit_id, fault.seq) == tuple(first[0])
    subjects = [fault.subject for fault in faults]
    assert len(subjects) == len(set(subjects))
    return set(subjects)


@pytest.mark.parametrize("before", ["nothing", "rejected", "withdrawn"])
async def test_a_call_that_ran_by_a_forged_status_is_a_fault(harness: Harness, before: str) -> None:
    known = await doubted(harness)
    address, request = await harness.request_approval(amount=7)
    if before == "rejected":
        await harness.decide(request.request_id, Decision.REJECT, comment="no")
    if before == "withdrawn":
        await harness.decide(request.request_id)
        person = harness.people["reviewer"]
        async with harness.db.transaction("local") as tx:
            await withdraw(tx, request.request_id, Decider(person.user_id, person.roles, person.name), "not now")
    await harness.write(GIVE, request.request_id)
    await harness.write("UPDATE approvals SET withdrawal = NULL WHERE id = $1", request.request_id)
    assert await doubted(harness) == known, "it has not run"
    await harness.run_tool(address)
    assert await doubted(harness) == known | {request.request_id}
    # A call that ran is recorded twice: removing one row leaves the other.
    await harness.write("UPDATE tool_calls SET first_sent_at = NULL WHERE turn_id = $1", address.turn_id)
    assert await doubted(harness) == known | {request.request_id}


async def test_a_call_that_began_and_never_ended_is_a_fault(harness: Harness) -> None:
    known = await doubted(harness)
    address, request = await harness.request_approval(amount=7)
    await harness.write(GIVE, request.request_id)
    begun = "UPDATE tool_calls SET state = 'reserved', first_sent_at = now() WHERE turn_id = $1"
    await harness.write(begun, address.turn_id)
    assert await doubted(harness) == known | {request.request_id}


TAMPERED = sized(1_000, 66)
EVERY = 3
"""Between two rows that are tampered with lie two that are not: a broken link is told at the next place, too."""
ONE = "WHERE id = $1"
EDITS = (
    f"UPDATE audit SET at = at - interval '1 microsecond' {ONE}",
    f"UPDATE audit SET kind = kind || 'x' {ONE}",
    f"UPDATE audit SET subject = 'other' {ONE}",
    f"UPDATE audit SET actor = gen_random_uuid() {ONE}",
    f"UPDATE audit SET turn_id = gen_random_uuid() {ONE}",
    f"UPDATE audit SET body_digest = repeat('0', 64) {ONE}",
    f"UPDATE audit SET signature = '' {ONE}",
    f"UPDATE audit SET signature = overlay(signature placing 'beef' from 20) {ONE}",
    f"UPDATE audit SET tenant_id = 'local' {ONE}",
    f"UPDATE audit SET id = DEFAULT {ONE}",
    "UPDATE audit_bodies SET data = '{\"n\": -1}' WHERE audit_id = $1",
    "UPDATE audit_bodies SET salt = 'other' WHERE audit_id = $1",
    "UPDATE audit_bodies SET audit_id = -audit_id WHERE audit_id = $1",
    "UPDATE audit_bodies SET data = NULL, salt = NULL, erased_by = audit_id WHERE audit_id = $1",
    "DELETE FROM audit_bodies WHERE audit_id = $1",
    f"DELETE FROM audit {ONE}",
    "UPDATE audit_chain SET hash = repeat('0', 64) WHERE audit_id = $1",
    "UPDATE audit_chain SET prev = repeat('0', 64) WHERE audit_id = $1",
    "UPDATE audit_chain SET audit_id = -audit_id WHERE audit_id = $1",
    "UPDATE audit_chain SET seq = -seq WHERE audit_id = $1",
    "UPDATE audit_chain SET tenant_id = 'local', seq = -seq WHERE audit_id = $1",
    "DELETE FROM audit_chain WHERE audit_id = $1",
)


async def verified(db: Database, tenant_id: str) -> Report:
    return await verify_chain(db, tenant_id, KEYRING, most_faults=100_000)


@pytest.mark.sized
async def test_rows_that_were_edited_deleted_or_moved_are_all_found(db: Database, urls: Urls) -> None:
    tenant = await new_tenant(urls.owner, "edited")
    await write_audit_rows(db, tenant, TAMPERED * EVERY)
    assert (await verified(db, tenant)).ok
    async with as_table_owner(urls.owner) as table_owner:
        every = "SELECT seq, audit_id FROM audit_chain WHERE tenant_id = $1 ORDER BY seq"
        picked = (await table_owner.fetch(every, tenant))[1::EVERY]
        assert len(picked) == TAMPERED
        for number, row in enumerate(picked):
            done = await table_owner.execute(EDITS[number % len(EDITS)], row["audit_id"])
            assert not done.endswith(" 0"), EDITS[number % len(EDITS)]
    report = await verified(db, tenant)
    found = {fault.seq for fault in report.faults}
    tampered = {row["seq"] for row in picked}
    assert tampered - found == set(), "every row that was tampered with"
    assert found - tampered - {seq + 1 for seq in tampered} - {0} == set(), "and no other"
    assert len({fault.kind for fault in report.faults}) >= 7


async def test_a_row_put_beside_the_chain_and_a_copy_of_a_signed_row_are_found(db: Database, urls: Urls) -> None:
    tenant = await new_tenant(urls.owner, "slipped-in")
    await write_audit_rows(db, tenant, 10)
    copied = (
        "INSERT INTO audit (tenant_id, at, kind, actor, turn_id, subject, body_digest, signature) "
        "SELECT tenant_id, at, kind, actor, turn_id, subject, body_digest, signature FROM audit WHERE tenant_id = $1 "
        "ORDER BY id LIMIT 1 RETURNING id"
    )
    async with as_table_owner(urls.owner) as table_owner:
        stray = await table_owner.fetchval(copied, tenant)
        report = await verified(db, tenant)
        assert ChainFault(0, FaultKind.ROW_UNCHAINED, stray) in report.faults
        await table_owner.execute("INSERT INTO audit_chain VALUES ($1, 11, $2, '', '')", tenant, stray)
        first = "audit_bodies b JOIN audit_chain c ON c.audit_id = b.audit_id WHERE c.tenant_id = $1 AND c.seq = 1"
        body = f"INSERT INTO audit_bodies SELECT $2, b.tenant_id, b.salt, b.data FROM {first}"
        await table_owner.execute(body, tenant, stray)
        await chained_anew(table_owner, tenant)
    report = await verified(db, tenant)
    repeated = {(number, FaultKind.ROW_REPEATED) for number in (1, 11)}
    assert {(fault.seq, fault.kind) for fault in report.faults} == repeated
