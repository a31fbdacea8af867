"""Delivery of approval events from the outbox to webhooks: signed, retried, and abandoned after most of a day.

A notice contains the state of its approval at the time of sending. A late or repeated notice is therefore never
outdated.
"""

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

import httpx
import structlog
from pydantic import JsonValue

from perdure.contracts.errors import CallerError
from perdure.core.delivery import DELIVERY, SIGNATURE, TIMESTAMP, sign, wait_after
from perdure.core.egress import Target, allowed_target, is_reachable
from perdure.store.approvals.views import approval_delivery
from perdure.store.database import Database
from perdure.store.delivery import webhooks
from perdure.store.delivery.webhooks import Receiver, WebhookDelivery
from perdure.telemetry.metrics import LastingProblem

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.5
OUTAGE_SECONDS = 1.0


class Undelivered(Exception):
    """The delivery failed. The message contains no secrets."""


@dataclass(frozen=True, slots=True)
class WebhookEgress:
    """The hosts that webhooks can use."""

    hosts: tuple[str, ...]
    allow_private: bool = False
    """True if hosts can be in a private network."""


class WebhookSender:
    """Sends requests to webhooks. Tenants name the addresses, and the operator must allow the host. Its name is
    resolved once, and the connection uses the checked address with the certificate of the name. Redirects are not
    followed, and only the status of a response is read."""

    def __init__(self, egress: WebhookEgress) -> None:
        self._egress = egress
        self._http = httpx.AsyncClient(
            timeout=TIMEOUT_SECONDS,
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_connections=40, max_keepalive_connections=0),
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a POST request.

        Raises: Undelivered.
        """
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                target = allowed_target(url, self._egress.hosts)
                address = await self._address(target)
                await self._post(url, target, address, headers, body)
        except CallerError as error:
            raise Undelivered(error.message) from error
        except TimeoutError as error:
            raise Undelivered(f"no response within {TIMEOUT_SECONDS:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise Undelivered(f"the address is unreachable ({type(error).__name__})") from error

    async def _address(self, target: Target) -> str:
        infos = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in infos]
        # Every address is checked: a name that also resolves to a forbidden address is not trusted.
        if not addresses or not all(
            is_reachable(target, info, private=self._egress.allow_private) for info in addresses
        ):
            raise Undelivered("the host resolves to an address that is not allowed")
        return addresses[0]

    async def _post(self, url: str, target: Target, address: str, headers: Mapping[str, str], body: bytes) -> None:
        parts = urlsplit(url)
        host = f"[{address}]" if ":" in address else address
        pinned = urlunsplit(parts._replace(netloc=f"{host}:{target.port}"))
        request = self._http.build_request(
            "POST",
            pinned,
            headers={**headers, "Host": parts.netloc},
            content=body,
            extensions={"sni_hostname": target.host},
        )
        answer = await self._http.send(request, stream=True)
        await answer.aclose()
        if not answer.is_success:
            raise Undelivered(f"the receiver answered {answer.status_code}")

    async def close(self) -> None:
        """Closes every connection."""
        await self._http.aclose()


_log = structlog.get_logger(__name__)


async def send_deliveries(relay: Database, sender: WebhookSender, public_url: str) -> int:
    """Sends all due notices concurrently and returns their number."""
    due = await webhooks.claim_due_deliveries(relay)
    await asyncio.gather(*(_deliver(relay, sender, delivery, public_url) for delivery in due))
    return len(due)


async def _deliver(relay: Database, sender: WebhookSender, delivery: WebhookDelivery, public_url: str) -> None:
    async with relay.transaction(delivery.tenant_id) as tx:
        receiver = await webhooks.receiver_of(tx, delivery)
        approval = None
        if receiver is not None:
            approval = await approval_delivery(tx, delivery.approval_id, with_args=receiver.with_args)
    if receiver is None or approval is None:
        await webhooks.delivery_succeeded(relay, delivery)
        return
    try:
        await sender.send(receiver.url, *_signed_request(relay, delivery, receiver, approval, public_url))
    except Undelivered as error:
        wait = wait_after(delivery.attempts)
        await webhooks.delivery_failed(relay, delivery, str(error), wait)
        _log.warning(
            "notice_not_delivered",
            webhook_id=delivery.webhook_id,
            attempt=delivery.attempts,
            gave_up=wait is None,
            problem=str(error),
        )
    else:
        await webhooks.delivery_succeeded(relay, delivery)


def _signed_request(
    relay: Database, delivery: WebhookDelivery, receiver: Receiver, approval: dict[str, JsonValue], public_url: str
) -> tuple[dict[str, str], bytes]:
    """Returns the headers and the body of a notice.

    Raises: Undelivered.
    """
    key = relay.keyring.find_key(receiver.key_id) if relay.keyring else None
    if key is None:
        raise Undelivered("the key that encrypted the webhook's secret is missing; create the webhook again")
    payload = {
        "id": delivery.id,
        "event": delivery.event,
        "at": delivery.at.isoformat(),
        "sent_at": datetime.now(UTC).isoformat(),
        "approval": approval,
        "url": f"{public_url}/review/{delivery.approval_id}",
    }
    body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = str(int(time.time()))
    secret = key.webhook_secret(delivery.tenant_id, delivery.webhook_id)
    headers = {
        "content-type": "application/json",
        "user-agent": "perdure",
        DELIVERY: delivery.id,
        TIMESTAMP: timestamp,
        SIGNATURE: sign(secret, timestamp, delivery.id, body),
    }
    return headers, body


async def run_deliveries(relay: Database, sender: WebhookSender, public_url: str, stop: asyncio.Event) -> None:
    """Delivers until `stop`; waits during an outage of Postgres."""
    problems = LastingProblem()
    try:
        while not stop.is_set():
            sent = 0
            try:
                sent = await send_deliveries(relay, sender, public_url)
                problems.is_over("webhooks_wait_for_postgres")
            except (OSError, *relay.outages) as error:
                problems.is_on("webhooks_wait_for_postgres", error=error)
                await asyncio.sleep(OUTAGE_SECONDS)
            if not sent:
                await asyncio.sleep(POLL_SECONDS)
    finally:
        await sender.close()
