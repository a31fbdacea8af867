"""The file of exported chain heads: outside the database, so that what is cut off inside is missed here.

Lines are only ever appended; one that a power cut left unfinished stays as it is, and is no head.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import asyncpg

from policy.audit_chain import Head
from policy.audit_heads import ExportedHead, read_head

MOST_HEADS = 100_000
"""More than eleven years of hours: of more, the newest are read."""


async def all_heads(relay_pool: asyncpg.Pool) -> dict[str, tuple[Head, str]]:
    """The head of every tenant's chain and the time, by the relay's role."""
    rows = await relay_pool.fetch(
        "SELECT tenant_id, seq, hash, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') AS at "
        "FROM audit_heads WHERE seq > 0 ORDER BY tenant_id"
    )
    return {row["tenant_id"]: (Head(row["seq"], row["hash"]), row["at"]) for row in rows}


def append(path: Path, heads: Iterable[ExportedHead]) -> None:
    """Write these behind what is there; they are on the disk when this returns.

    Raises: OSError.
    """
    text = "".join(head.line() for head in heads)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = "\n" + text
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest(path: Path) -> dict[str, ExportedHead]:
    """The last exported head of each tenant.

    Raises: OSError, but not where there is no file yet.
    """
    return {head.tenant: head for head in _read(path)}


def exported(path: Path, tenant_id: str) -> list[ExportedHead]:
    """The heads of a tenant that the file has, signed or not; none where there is no file.

    Raises: OSError.
    """
    return list(deque((head for head in _read(path) if head.tenant == tenant_id), maxlen=MOST_HEADS))


def _read(path: Path) -> Iterator[ExportedHead]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            head = read_head(line)
            if head is not None:
                yield head
