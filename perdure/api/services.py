"""The clients of one API process."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import structlog
from temporalio.client import Client

from perdure.api.credentials import AccessTokens, Passwords
from perdure.api.health import FailedWrites, Parts
from perdure.api.oidc import OidcConfig, Provider
from perdure.api.rate_limits import OpenStreams, RateLimits
from perdure.api.streams import Streams
from perdure.api.uploads import Uploads, upload_folder
from perdure.contracts.memory import DEFAULT_LIMITS, MemoryLimits
from perdure.contracts.turns import Routing
from perdure.core.audit import Keyring
from perdure.core.identity import OperatorTokens
from perdure.core.turns import Caps
from perdure.embedding.choice import embedder_of
from perdure.embedding.embedder import Embedder
from perdure.settings import SETUP_CODE_FILE, Settings, needed, secret
from perdure.store.budgets import SUM_SECONDS, sum_texts_of_tenant, sum_texts_of_user
from perdure.store.database import Database, reach_postgres
from perdure.store.events.live import LiveTokens
from perdure.store.events.subscriptions import ConversationWakes, ReviewChanges
from perdure.store.identity.sign_in import GuessCounter
from perdure.store.valkey import Valkey
from perdure.telemetry.metrics import metrics_addresses
from perdure.temporal.client import connect
from perdure.temporal.status import WriteObserver
from perdure.temporal.workflow_client import Notifier

_MAX_REMEMBERED_USERS = 10_000
DATABASE_SECONDS = 5.0
"""The wait for Postgres. Callers receive an outage error within a small multiple of it."""
_log = structlog.get_logger(__name__)


class TextSums:
    """Sums the texts of each user who writes, at most once a minute. Quotas read the sums. They are updated outside the
    requests, so that starting a turn does not wait for a shared counter."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._summed: dict[tuple[str, str], float] = {}
        self._tasks = set[asyncio.Task[None]]()

    def update_soon(self, tenant_id: str, user_id: str) -> None:
        """Starts an update of the sums, unless one started within the last minute."""
        user, now = (tenant_id, user_id), time.monotonic()
        if now - self._summed.get(user, -SUM_SECONDS) < SUM_SECONDS:
            return
        if len(self._summed) >= _MAX_REMEMBERED_USERS:
            self._summed.clear()
        self._summed[user] = now
        task = asyncio.create_task(self._update(tenant_id, user_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancels running updates; a later update, in this or another process, makes up for them."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _update(self, tenant_id: str, user_id: str) -> None:
        try:
            async with self._db.transaction(tenant_id) as tx:
                await sum_texts_of_user(tx, user_id)
            async with self._db.transaction(tenant_id) as tx:
                await sum_texts_of_tenant(tx)
        except (*Database.outages, OSError) as error:
            _log.warning("texts_not_summed", error=type(error).__name__)


@dataclass(frozen=True, slots=True)
class SignInSettings:
    """The operator's settings for signing in."""

    tenant: str
    """The tenant of requests that name none."""
    open_registration: bool
    access_lasts: timedelta
    session_lasts: timedelta
    public_url: str
    """Empty if the operator sets none."""


@dataclass(frozen=True, slots=True)
class Services:
    """The clients and settings that routes use."""

    db: Database
    live: LiveTokens
    valkey: Valkey
    wakes: ConversationWakes
    changes: ReviewChanges
    streams: Streams
    notifier: Notifier
    routing: Routing
    caps: Caps
    text_sums: TextSums
    temporal_ui: str
    temporal_namespace: str
    keyring: Keyring
    tokens: AccessTokens
    passwords: Passwords
    rates: RateLimits
    guesses: GuessCounter
    open_streams: OpenStreams
    signing_in: SignInSettings
    parts: Parts
    """Checks the health of the services that this process depends on."""
    uploads: Uploads
    audit_heads: Path
    """The file with the exported heads of the audit chains."""
    decisions_per_minute: int = 60
    local: bool = False
    """True for the embedded stack of one machine, whose local tokens have no limit on decisions."""
    memory: MemoryLimits = DEFAULT_LIMITS
    setup_code_file: Path | None = None
    """The file in which the embedded stack keeps its setup code until it is used."""
    webhook_hosts: tuple[str, ...] = ()
    """The hosts that webhooks can use."""
    oidc: Provider | None = None
    """The identity provider; None if users sign in only at this server."""
    embedder: Embedder | None = None
    """The embedder of search queries; None if episodes are searched by words."""
    operators: OperatorTokens = field(default_factory=OperatorTokens)
    """Tokens that read metrics and status, and belong to no user."""


def provider_of(settings: Settings) -> Provider | None:
    """Returns the configured identity provider, or None.

    Raises: SystemExit if the configuration is incomplete.
    """
    if not settings.oidc_issuer:
        return None
    if not settings.oidc_client_id:
        raise SystemExit("PERDURE_OIDC_ISSUER is set, but PERDURE_OIDC_CLIENT_ID is not; set both")
    client_secret = secret("oidc") or ""
    config = OidcConfig(settings.oidc_issuer, settings.oidc_client_id, client_secret, settings.newcomers())
    return Provider(replace(config, outbound=settings.outbound_to_providers()))


@dataclass(frozen=True, slots=True)
class _Clients:
    """The clients that are closed at the end, and what their writes report."""

    db: Database
    valkey: Valkey
    wakes: ConversationWakes
    changes: ReviewChanges
    text_sums: TextSums
    passwords: Passwords
    temporal: Client
    failed_writes: FailedWrites


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Opens every client, and closes them at the end.

    Raises: SystemExit if a variable is missing or Postgres cannot be used; the other clients' own errors if a service
    does not respond.
    """
    keyring, tokens = settings.keyring(), AccessTokens(settings.access_keys(), settings.jwt_algorithm.value)
    connecting = Database.connect(
        needed(settings.database_url, "DATABASE_URL"),
        max_connections=settings.pool_size,
        application="perdure-api",
        wait_seconds=DATABASE_SECONDS,
        statement_cache=settings.statement_cache,
        keyring=keyring,
    )
    db = await reach_postgres("DATABASE_URL", connecting)
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    wakes = ConversationWakes(db, valkey)
    _, sdk_metrics = metrics_addresses(settings.metrics_port, settings.metrics_host, "api")
    failed_writes = FailedWrites()
    db.on_error = failed_writes.record_postgres
    client = await connect(sdk_metrics, [WriteObserver(failed_writes.record_temporal, failed_writes.record_start)])
    clients = _Clients(db, valkey, wakes, ReviewChanges(db), TextSums(db), Passwords(), client, failed_writes)
    listeners = asyncio.gather(wakes.run(), clients.changes.run())
    try:
        yield _build_services(settings, clients, keyring, tokens)
    finally:
        listeners.cancel()
        with suppress(asyncio.CancelledError):
            await listeners
        await clients.text_sums.close()
        clients.passwords.close()
        await valkey.close()
        await db.close()


def _build_services(settings: Settings, clients: _Clients, keyring: Keyring, tokens: AccessTokens) -> Services:
    db, valkey, live = clients.db, clients.valkey, LiveTokens(clients.valkey)
    return Services(
        db=db,
        live=live,
        valkey=valkey,
        wakes=clients.wakes,
        changes=clients.changes,
        streams=Streams(db, live, clients.wakes),
        notifier=Notifier(clients.temporal, db),
        routing=settings.route(),
        caps=Caps(settings.queue_depth, settings.live_turns_per_user, settings.quotas()),
        text_sums=clients.text_sums,
        temporal_ui=settings.temporal_ui,
        temporal_namespace=clients.temporal.namespace,
        keyring=keyring,
        tokens=tokens,
        passwords=clients.passwords,
        rates=RateLimits(valkey, settings.rate_per_minute, enabled=settings.rate_limiting),
        guesses=GuessCounter(valkey),
        open_streams=OpenStreams(settings.streams_per_user, settings.streams_per_tenant),
        signing_in=_build_sign_in(settings),
        parts=_build_parts(settings, clients),
        uploads=_build_uploads(settings),
        audit_heads=settings.heads_file(),
        decisions_per_minute=settings.decisions_per_minute,
        local=settings.local,
        memory=settings.memory(),
        setup_code_file=settings.home / SETUP_CODE_FILE if settings.local else None,
        webhook_hosts=settings.webhook_hosts,
        oidc=provider_of(settings),
        embedder=embedder_of(settings.embeddings, remote=False),
        operators=settings.operator_tokens(),
    )


def _build_parts(settings: Settings, clients: _Clients) -> Parts:
    home = settings.home if settings.local else None
    return Parts(
        clients.db,
        clients.temporal,
        clients.valkey,
        home,
        settings.least_free_bytes,
        clients.failed_writes,
        settings.start_gate,
    )


def _build_sign_in(settings: Settings) -> SignInSettings:
    return SignInSettings(
        settings.tenant,
        settings.open_registration,
        access_lasts=timedelta(minutes=settings.access_minutes),
        session_lasts=timedelta(days=settings.refresh_days),
        public_url=settings.public_url,
    )


def _build_uploads(settings: Settings) -> Uploads:
    folder = upload_folder(settings.upload_folder, settings.home)
    return Uploads(folder, settings.upload_bytes, settings.uploads_per_user)
