"""The export of chain heads: signed lines outside Postgres, only where a chain has grown, and what is cut is told."""

import asyncio
import json
from pathlib import Path

import pytest

from perdure.core.audit import ExportedHead, FaultKind
from perdure.store import audit
from perdure.store.audit import verify_chain
from perdure.store.database import Database
from perdure.worker import audit_heads as heads_module
from perdure.worker.audit_heads import HeadExport
from tests.conftest import KEYRING, Urls
from tests.desk import until
from tests.integration.forger import chained_anew, forging, new_tenant, written


def lines(path: Path, tenant: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["tenant"] == tenant]


async def test_a_line_is_written_for_each_chain_that_has_grown_and_for_no_other(
    db: Database, relay: Database, urls: Urls, tmp_path: Path
) -> None:
    one, two = await new_tenant(urls.owner, "one"), await new_tenant(urls.owner, "two")
    path = tmp_path / "outside" / "heads.jsonl"
    export = HeadExport(relay, path, KEYRING)
    await written(db, one, 3)
    assert {head.tenant for head in await export.once()} >= {one}
    assert await export.once() == []
    await written(db, two, 2)
    await written(db, one, 1)
    assert [(head.tenant, head.seq) for head in await export.once()] == [(one, 4), (two, 2)]
    assert [line["seq"] for line in lines(path, one)] == [3, 4]
    for head in audit.exported_heads(path, one):
        assert head.is_signed_by(KEYRING)
    fresh = HeadExport(relay, path, KEYRING)
    assert await fresh.once() == [], "as after a restart"
    report = await verify_chain(db, one, KEYRING, audit.exported_heads(path, one))
    assert (report.ok, report.heads_checked) == (True, 2)


async def test_a_head_that_went_back_is_not_exported_over_the_one_that_tells(
    db: Database, relay: Database, urls: Urls, tmp_path: Path
) -> None:
    tenant, path = await new_tenant(urls.owner, "cut-back"), tmp_path / "heads.jsonl"
    await written(db, tenant, 10)
    export = HeadExport(relay, path, KEYRING)
    await export.once()
    async with forging(urls.owner) as forger:
        await forger.execute("DELETE FROM audit_chain WHERE seq > 6 AND tenant_id = $1", tenant)
        await forger.execute(
            "DELETE FROM audit a WHERE tenant_id = $1 AND NOT EXISTS (SELECT FROM audit_chain WHERE audit_id = a.id)",
            tenant,
        )
        await chained_anew(forger, tenant)
    assert await export.once() == []
    assert [line["seq"] for line in lines(path, tenant)] == [10]
    report = await verify_chain(db, tenant, KEYRING, audit.exported_heads(path, tenant))
    assert [(fault.seq, fault.kind) for fault in report.faults] == [(10, FaultKind.TAIL_CUT)]


async def test_a_line_that_a_power_cut_left_unfinished_spoils_neither_the_one_before_nor_the_next(
    tmp_path: Path,
) -> None:
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


async def test_no_file_is_no_head_and_one_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    assert audit.exported_heads(tmp_path / "none", "a") == []
    with pytest.raises(OSError):
        audit.append_heads(tmp_path, [])


async def test_it_exports_at_its_start_and_at_its_end_and_waits_out_a_disk_that_fails(
    db: Database, relay: Database, urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, stop = await new_tenant(urls.owner, "kept"), asyncio.Event()
    monkeypatch.setattr(heads_module, "OUTAGE_SECONDS", 0.02)
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    path = folder / "heads.jsonl"
    await written(db, tenant, 1)
    running = asyncio.create_task(HeadExport(relay, path, KEYRING).run(stop))
    await asyncio.sleep(0.1)
    folder.unlink()
    await until(path.exists)
    await written(db, tenant, 1)
    stop.set()
    await running
    assert [line["seq"] for line in lines(path, tenant)] == [1, 2]
