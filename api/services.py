"""The clients of one API process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from api.access_tokens import AccessTokens
from api.oidc import OidcConfig, Provider
from api.open_streams import OpenStreams
from api.parts import Parts
from api.passwords import Passwords
from api.rates import Rates
from api.streams import Streams
from api.text_sums import TextSums
from api.uploads import Uploads, upload_folder
from contracts.documents import DEFAULT_LIMITS, MemoryLimits
from contracts.turns import Routing
from embedding.choice import embedder_of
from embedding.embedder import Embedder
from policy.access_keys import OperatorTokens
from policy.admission import Caps
from policy.audit_key import Keyring
from relay.connect import connect
from relay.deliver import Doorbell
from relay.metrics_ports import metrics_addresses
from settings import SETUP_CODE_FILE, Settings, needed, secret
from store.database import Database
from store.guesses import Guesses
from store.live import LiveTokens
from store.review_changes import ReviewChanges
from store.valkey import Valkey
from store.wakes import Wakes

DATABASE_SECONDS = 5.0
"""A caller of the API is told within a few of these that Postgres is away."""


@dataclass(frozen=True, slots=True)
class SigningIn:
    """What the operator says about signing in."""

    tenant: str
    """Of whoever names none."""
    open_registration: bool
    access_lasts: timedelta
    session_lasts: timedelta
    public_url: str
    """Empty where the operator names none."""


@dataclass(frozen=True, slots=True)
class Services:
    """What routes work with."""

    db: Database
    live: LiveTokens
    valkey: Valkey
    wakes: Wakes
    changes: ReviewChanges
    streams: Streams
    doorbell: Doorbell
    routing: Routing
    caps: Caps
    text_sums: TextSums
    temporal_ui: str
    temporal_namespace: str
    keyring: Keyring
    tokens: AccessTokens
    passwords: Passwords
    rates: Rates
    guesses: Guesses
    open_streams: OpenStreams
    signing_in: SigningIn
    parts: Parts
    """Whether what this process stands on is well."""
    uploads: Uploads
    audit_heads: Path
    """The exported heads of the audit's chains."""
    decisions_per_minute: int = 60
    local: bool = False
    """Whether this is the embedded stack of one machine, whose own tokens have no limit of decisions."""
    memory: MemoryLimits = DEFAULT_LIMITS
    setup_code_file: Path | None = None
    """Where the embedded stack keeps its setup code until it is used."""
    webhook_hosts: tuple[str, ...] = ()
    """To which webhooks may lead."""
    oidc: Provider | None = None
    """None where people sign in here alone."""
    embedder: Embedder | None = None
    """None where episodes are searched by words."""
    operators: OperatorTokens = field(default_factory=OperatorTokens)
    """Tokens that read metrics and status, and belong to no user."""


def provider_of(settings: Settings) -> Provider | None:
    """The provider that the operator names.

    Raises: SystemExit where only half of it is named.
    """
    if not settings.oidc_issuer:
        return None
    if not settings.oidc_client_id:
        raise SystemExit("PERDURE_OIDC_ISSUER is set, and PERDURE_OIDC_CLIENT_ID is not")
    client_secret = secret("oidc") or ""
    config = OidcConfig(settings.oidc_issuer, settings.oidc_client_id, client_secret, settings.newcomers())
    return Provider(replace(config, outbound=settings.outbound_to_providers()))


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Services]:
    """Open every client, and close them in the end.

    Raises: SystemExit where a variable is missing; the clients' own errors where a part does not answer.
    """
    keyring, tokens = settings.keyring(), AccessTokens(settings.access_keys(), settings.jwt_algorithm.value)
    db = await Database.connect(
        needed(settings.database_url, "DATABASE_URL"),
        most=settings.pool_size,
        application="perdure-api",
        wait_seconds=DATABASE_SECONDS,
        keyring=keyring,
    )
    valkey = Valkey.connect(needed(settings.redis_url, "REDIS_URL"))
    live = LiveTokens(valkey)
    wakes = Wakes(db, valkey)
    _, sdk_metrics = metrics_addresses(settings.metrics_port, settings.metrics_host, "api")
    client = await connect(sdk_metrics)
    passwords = Passwords()
    changes = ReviewChanges(db)
    text_sums = TextSums(db)
    ringing = asyncio.gather(wakes.run(), changes.run())
    try:
        yield Services(
            db=db,
            live=live,
            valkey=valkey,
            wakes=wakes,
            changes=changes,
            streams=Streams(db, live, wakes),
            doorbell=Doorbell(client, db),
            routing=settings.route(),
            caps=Caps(settings.queue_depth, settings.live_turns_per_user, settings.quotas()),
            text_sums=text_sums,
            temporal_ui=settings.temporal_ui,
            temporal_namespace=client.namespace,
            keyring=keyring,
            tokens=tokens,
            passwords=passwords,
            rates=Rates(valkey, settings.rate_per_minute, enabled=settings.rate_limiting),
            guesses=Guesses(valkey),
            open_streams=OpenStreams(settings.streams_per_user, settings.streams_per_tenant),
            signing_in=SigningIn(
                settings.tenant,
                settings.open_registration,
                access_lasts=timedelta(minutes=settings.access_minutes),
                session_lasts=timedelta(days=settings.refresh_days),
                public_url=settings.public_url,
            ),
            parts=Parts(db, client, valkey, settings.home if settings.local else None, settings.least_free_bytes),
            uploads=Uploads(
                upload_folder(settings.upload_folder, settings.home), settings.upload_bytes, settings.uploads_per_user
            ),
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
    finally:
        ringing.cancel()
        with suppress(asyncio.CancelledError):
            await ringing
        await text_sums.close()
        passwords.close()
        await valkey.close()
        await db.close()
