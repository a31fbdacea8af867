"""Tampering by the owner of the tables: each column, rows and links that go, change places or come in."""

import pytest

from perdure.core.audit import ChainFault, FaultKind, Report
from perdure.store.audit import verify_chain
from perdure.store.database import Database
from tests.conftest import KEYRING, Urls
from tests.integration.audit_tampering import as_table_owner, chained_anew, new_tenant, write_audit_rows
from tests.scale import sized

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
