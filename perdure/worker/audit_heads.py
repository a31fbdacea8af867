"""The hourly export of the audit chains' heads, signed, to a file outside Postgres.

It also runs when the process starts and ends, so that no new rows stay unexported across a restart. A head
that went back, or whose hash changed, is not exported, and its older line remains the newest.
"""

import asyncio
from pathlib import Path

import structlog

from perdure.core.audit import ExportedHead, Head, Keyring, signed_head
from perdure.store import audit
from perdure.store.database import Database
from perdure.telemetry.metrics import LastingProblem

INTERVAL_SECONDS = 3_600.0
OUTAGE_SECONDS = 30.0
FINAL_EXPORT_SECONDS = 5.0
"""The maximum duration of the export at the end."""
_log = structlog.get_logger(__name__)


class HeadExport:
    """Appends a line for each tenant whose chain has grown."""

    def __init__(self, relay: Database, path: Path, keyring: Keyring) -> None:
        self._relay = relay
        self._path = path
        self._keyring = keyring
        self._problems = LastingProblem()

    async def run(self, stop: asyncio.Event) -> None:
        """Exports every hour until `stop`, and again at the end. Retries during outages of Postgres and of the
        disk."""
        while not stop.is_set():
            wait = INTERVAL_SECONDS if await self._try_export() else OUTAGE_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await stop.wait()
            except TimeoutError:
                continue
        try:
            async with asyncio.timeout(FINAL_EXPORT_SECONDS):
                await self._try_export()
        except TimeoutError:
            _log.warning("audit_heads_not_exported_at_the_end")

    async def once(self) -> list[ExportedHead]:
        """Exports the heads that have moved, and returns them.

        Raises: OSError and the database's errors.
        """
        # The file is read again each time, because another relay may have written it.
        before = await asyncio.to_thread(audit.newest_heads, self._path)
        heads = await audit.all_heads(self._relay)
        for tenant_id in sorted(before.keys() - heads.keys()):
            self._problems.is_on("audit_head_missing", tenant_id)
        moved = [
            signed_head(self._keyring, tenant_id, head.seq, head.hash, at)
            for tenant_id, (head, at) in heads.items()
            if self._has_grown(tenant_id, head, before.get(tenant_id))
        ]
        if moved:
            await asyncio.to_thread(audit.append_heads, self._path, moved)
        return moved

    def _has_grown(self, tenant_id: str, head: Head, before: ExportedHead | None) -> bool:
        if before is not None and (head.seq < before.seq or (head.seq == before.seq and head.hash != before.hash)):
            self._problems.is_on("audit_head_regressed", tenant_id)
            return False
        self._problems.is_over("audit_head_regressed", tenant_id)
        return before is None or head.seq > before.seq

    async def _try_export(self) -> bool:
        try:
            await self.once()
        except (OSError, *self._relay.outages) as error:
            self._problems.is_on("audit_heads_not_exported", str(self._path), error=error)
            return False
        self._problems.is_over("audit_heads_not_exported", str(self._path))
        return True
