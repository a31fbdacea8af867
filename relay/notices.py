"""Notices of approvals, from the outbox to their webhooks: signed, tried again, given up after most of a day.

A notice says how its approval is when it is sent. One that comes late or twice says nothing that is no longer true.
"""

import asyncio
import json
import time
from datetime import UTC, datetime

import structlog

from policy.webhooks import DELIVERY, SIGNATURE, TIMESTAMP, sign, wait_after
from relay.post import Post, Undelivered
from relay.trouble import Trouble
from store import notices
from store.database import Database
from store.notices import Letter, Notice

POLL_SECONDS = 0.5
OUTAGE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


async def deliver_notices(relay: Database, post: Post, public_url: str) -> int:
    """Send what is due now, all at once; how many there were."""
    due = await notices.claim_due(relay.pool)
    await asyncio.gather(*(_deliver(relay, post, notice, public_url) for notice in due))
    return len(due)


async def _deliver(relay: Database, post: Post, notice: Notice, public_url: str) -> None:
    async with relay.transaction(notice.tenant_id) as tx:
        letter = await notices.letter(tx, notice)
    if letter is None:
        await notices.delivered(relay.pool, notice)
        return
    try:
        await _send(relay, post, notice, letter, public_url)
    except Undelivered as error:
        wait = wait_after(notice.attempts)
        await notices.failed(relay.pool, notice, str(error), wait)
        _log.warning(
            "notice_not_delivered",
            webhook_id=notice.webhook_id,
            attempt=notice.attempts,
            gave_up=wait is None,
            problem=str(error),
        )
    else:
        await notices.delivered(relay.pool, notice)


async def _send(relay: Database, post: Post, notice: Notice, letter: Letter, public_url: str) -> None:
    key = relay.keyring.named(letter.key_id) if relay.keyring else None
    if key is None:
        raise Undelivered("the key that it was made under is gone; make the webhook anew")
    said = {
        "id": notice.id,
        "event": notice.event,
        "at": notice.at.isoformat(),
        "sent_at": datetime.now(UTC).isoformat(),
        "approval": letter.approval,
        "url": f"{public_url}/review/{notice.approval_id}",
    }
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = str(int(time.time()))
    secret = key.webhook_secret(notice.tenant_id, notice.webhook_id)
    headers = {
        "content-type": "application/json",
        "user-agent": "perdure",
        DELIVERY: notice.id,
        TIMESTAMP: timestamp,
        SIGNATURE: sign(secret, timestamp, notice.id, body),
    }
    await post.send(letter.url, headers, body)


async def run_notices(relay: Database, post: Post, public_url: str, stop: asyncio.Event) -> None:
    """Deliver until `stop`; an outage of Postgres is waited out."""
    trouble = Trouble()
    try:
        while not stop.is_set():
            sent = 0
            try:
                sent = await deliver_notices(relay, post, public_url)
                trouble.is_over("notices_wait_for_postgres")
            except (OSError, *relay.outages) as error:
                trouble.is_on("notices_wait_for_postgres", error=error)
                await asyncio.sleep(OUTAGE_SECONDS)
            if not sent:
                await asyncio.sleep(POLL_SECONDS)
    finally:
        await post.close()
