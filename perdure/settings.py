"""The settings of a process, read from the environment here and nowhere else.

A variable has a working default, or the process that needs it requires it. No secret has a default. Temporal's own
client environment (`TEMPORAL_ADDRESS`, namespace, TLS, API key, profile file) is read by `temporalio.envconfig`, not
here.
"""

import errno
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from perdure.contracts.agents import MAX_ANSWER_BYTES
from perdure.contracts.approvals import EXPIRES_SECONDS
from perdure.contracts.errors import CallerError
from perdure.contracts.memory import MemoryLimits
from perdure.contracts.messages import WINDOW_TOKENS
from perdure.contracts.turns import Routing
from perdure.core.audit import Keyring
from perdure.core.budgets import Quotas
from perdure.core.egress import ANSWER_BYTES, Outbound, named_by_url, named_host
from perdure.core.faults import ENV_FILE_ADVICE, check_env_file, file_fault, setting_faults
from perdure.core.identity import MIN_SECRET_CHARACTERS, AccessKeys, OperatorTokens
from perdure.core.memory.files import MAX_UPLOAD_BYTES
from perdure.core.request_origin import AllowedHosts, Proxies, exposure_refusal, plain_origin

if TYPE_CHECKING:
    from perdure.activities.sandbox import SandboxConfig

Keys = TypeVar("Keys")
_FOLDER = Path(__file__).parents[1]
_BASE = _FOLDER if (_FOLDER / "pyproject.toml").is_file() else Path.cwd()
"""The folder of `.env` and of relative paths: the checkout, or else the current folder, as in
perdure/local/config.py."""


AUDIT_KEY_FILE = "audit.key"
"""The file in the data folder with the audit keys, used if PERDURE_AUDIT_KEY is not set."""
ACCESS_KEY_FILE = "access.key"
"""The file in the data folder with the keys of access tokens, used if JWT_SECRET is not set."""
SETUP_CODE_FILE = "setup.code"
"""The file in the data folder of the embedded stack with the setup code. It is removed when the first user has
registered. `perdure/local/` uses the same name."""


_POSTGRES_URL = "a URL such as postgresql://user:password@host:5432/perdure"
_SCHEMES = {"redis_url": ("redis", "rediss", "unix")}
_POSTGRES_SCHEMES = ("postgres", "postgresql")

BASE_ADDRESSES = (
    "ANTHROPIC_API_BASE",
    "ANTHROPIC_BASE_URL",
    "AZURE_AI_API_BASE",
    "AZURE_API_BASE",
    "AZURE_OPENAI_ENDPOINT",
    "COHERE_API_BASE",
    "DEEPSEEK_API_BASE",
    "GEMINI_API_BASE",
    "GROQ_API_BASE",
    "HOSTED_VLLM_API_BASE",
    "LM_STUDIO_API_BASE",
    "MISTRAL_API_BASE",
    "OLLAMA_API_BASE",
    "OPENAI_API_BASE",
    "OPENAI_BASE_URL",
    "OPENROUTER_API_BASE",
    "TOGETHER_AI_API_BASE",
    "VLLM_API_BASE",
    "XAI_API_BASE",
)
"""Variables that set another base address for LiteLLM and provider libraries."""


class RoutingName(StrEnum):
    """The assignment of kinds of work to task queues."""

    COMPACT = "compact"
    SPREAD = "spread"


class LogLevel(StrEnum):
    """The lowest level of log lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_from(level: LogLevel) -> None:
    """Drops log lines below `level`. This also applies to loggers that already exist."""
    import structlog  # here: the command line does not need it

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level.value))


class Algorithm(StrEnum):
    """Signature algorithms of access tokens."""

    HS256 = "HS256"
    HS384 = "HS384"
    HS512 = "HS512"


class Settings(BaseSettings):
    """The settings of a process, one field for each variable in `.env.example`."""

    # Populating by field name as well would read HOME and PORT, which mean something else.
    model_config = SettingsConfigDict(env_file=_BASE / ".env", env_ignore_empty=True, extra="ignore", frozen=True)

    database_url: SecretStr | None = Field(default=None, alias="DATABASE_URL", description=_POSTGRES_URL)
    """Postgres as the role `perdure_app`, which is subject to row-level security. If set, no embedded Postgres is
    started."""
    database_owner_url: SecretStr | None = Field(default=None, alias="DATABASE_OWNER_URL", description=_POSTGRES_URL)
    """Postgres as the role `perdure_owner`, which runs migrations and publishes apps."""
    database_relay_url: SecretStr | None = Field(default=None, alias="DATABASE_RELAY_URL", description=_POSTGRES_URL)
    """Postgres as the role `perdure_relay`, which reads the outbox of all tenants."""
    database_admin_url: SecretStr | None = Field(default=None, alias="DATABASE_ADMIN_URL", description=_POSTGRES_URL)
    """Postgres as a superuser. Needed only once, to create the three roles."""
    redis_url: SecretStr | None = Field(
        default=None, alias="REDIS_URL", description="a URL such as redis://host:6379/0"
    )
    """Valkey or Redis. If set, no embedded Valkey is started. An outage loses live tokens, never an answer."""

    host: str = Field(default="127.0.0.1", alias="PERDURE_HOST")
    """The address that the API listens on."""
    port: int = Field(default=8080, ge=0, le=65_535, alias="PERDURE_PORT")
    """The port of the API."""
    home: Path = Field(default=_BASE / ".perdure", alias="PERDURE_HOME")
    """The data folder of the embedded stack."""
    apps: Annotated[tuple[Path, ...], NoDecode] = Field(default=(), alias="PERDURE_APP")
    """The app folders whose agents are published, separated like PATH."""
    examples: bool = Field(default=False, alias="PERDURE_EXAMPLES")
    """Publishes the agents of the bundled examples too."""
    models: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_MODELS")
    """Comma-separated LiteLLM models. The first that answers at startup replaces the model of all agents with `model:
    scripted`; if none answers, startup fails. The key is the secret `model`, or the provider's own variable."""
    routing: RoutingName = Field(default=RoutingName.COMPACT, alias="PERDURE_ROUTING")
    """`compact` or `spread`: the task queues of new turns. Open turns keep theirs."""
    local: bool = Field(default=False, alias="PERDURE_LOCAL")
    """Set by the embedded stack for its own processes."""
    temporal_ui: str = Field(default="", alias="PERDURE_TEMPORAL_UI")
    """The URL of the Temporal Web UI, for links. Empty: no links."""
    ready_file: Path | None = Field(default=None, alias="PERDURE_READY_FILE")
    """A process writes this file when it is ready, and touches it every second while it lives
    (perdure/telemetry/heartbeat.py)."""
    exit_when_hung: bool = Field(default=False, alias="PERDURE_EXIT_WHEN_HUNG")
    """Ends the API, a worker or the relay if it hangs for PERDURE_HANG_SECONDS. The embedded stack kills them itself.
    """
    hang_seconds: int = Field(default=20, ge=0, le=86_400, alias="PERDURE_HANG_SECONDS")
    """Seconds without a heartbeat after which a process counts as hanging. 0: never."""
    start_gate: Path | None = Field(default=None, alias="PERDURE_START_GATE")
    """Set by the embedded stack: the process imports its modules, then waits for this file before it opens
    connections."""
    tool_version_wait: float = Field(default=60.0, ge=0, le=1_200, alias="PERDURE_TOOL_VERSION_WAIT")
    """Seconds in which a call waits for a worker that has its tool in the call's version. After it, an approval of the
    call is outdated."""
    least_free_bytes: int = Field(default=134_217_728, ge=0, alias="PERDURE_LEAST_FREE_BYTES")
    """Bytes that must be free on the disk of the data folder (128 MiB). With less free space, the API is not ready."""
    log_level: LogLevel = Field(default=LogLevel.INFO, alias="LOG_LEVEL")
    """`debug`, `info`, `warning` or `error`."""

    audit_key: SecretStr | None = Field(default=None, alias="PERDURE_AUDIT_KEY")
    """The keys that sign audit rows, separated by commas. The first key signs, all keys verify. Default: `audit.key` in
    the data folder, which the embedded stack creates."""
    audit_keys_lost: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_AUDIT_KEYS_LOST")
    """Ids of audit keys that are permanently lost, separated by commas. Otherwise a start that lacks a key fails."""
    open_turns_lost: int = Field(default=0, ge=0, alias="PERDURE_OPEN_TURNS_LOST")
    """The number of open turns that a start abandons, if the embedded Temporal's database is lost. Otherwise a start
    without it fails."""
    audit_heads: Path | None = Field(default=None, alias="PERDURE_AUDIT_HEADS")
    """The file outside Postgres to which the relay exports the heads of the audit chains. Default: in the data
    folder."""

    jwt_secret: SecretStr | None = Field(default=None, alias="JWT_SECRET")
    """The keys that sign access tokens, separated by commas. The first key signs, all keys verify. Default:
    `access.key` in the data folder, which the embedded stack creates."""
    jwt_algorithm: Algorithm = Field(default=Algorithm.HS256, alias="JWT_ALGORITHM")
    """`HS256`, `HS384` or `HS512`."""
    access_minutes: int = Field(default=15, ge=1, le=60, alias="JWT_ACCESS_TOKEN_EXPIRE_MINUTES")
    """Lifetime of an access token."""
    refresh_days: int = Field(default=7, ge=1, le=90, alias="JWT_REFRESH_TOKEN_EXPIRE_DAYS")
    """Lifetime of a refresh token and of a browser session."""
    tenant: str = Field(
        default="local",
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        alias="PERDURE_TENANT",
        description="1 to 63 lower-case letters, digits and hyphens, without a hyphen at the start",
    )
    """The tenant for sign-in and registration requests that name none."""
    open_registration: bool = Field(default=False, alias="PERDURE_OPEN_REGISTRATION")
    """Lets anyone register, as a requester. If false, only the first user (with the setup code) and invited
    users can."""
    public_url: str = Field(
        default="",
        alias="PERDURE_PUBLIC_URL",
        description="an http or https URL without user name and path, such as https://perdure.example.org (a non-ASCII "
        "name in its form with xn--)",
    )
    """The public URL without a path; a slash at its end is removed. It is used for links, and its host is allowed. If
    it is https, cookies are sent over TLS only. Required if the API listens on all addresses."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_ALLOWED_HOSTS")
    """Hosts that the API and the pages accept besides loopback names and the public URL's host, separated by commas:
    `host`, `host:port`, `*.domain` or `*`. Other hosts get 421."""
    proxies: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_PROXIES")
    """Addresses and networks of reverse proxies, separated by commas. Only their `X-Forwarded-For` and
    `X-Forwarded-Proto` headers are used."""
    operator_token: SecretStr | None = Field(default=None, alias="PERDURE_OPERATOR_TOKEN")
    """Tokens with access to `/metrics` and `/v1/status`, separated by commas, of at least 32 characters each. Default:
    none."""

    oidc_issuer: str = Field(default="", alias="PERDURE_OIDC_ISSUER")
    """An OpenID Connect provider for sign-in. Its client secret is the secret `oidc`."""
    oidc_client_id: str = Field(default="", alias="PERDURE_OIDC_CLIENT_ID")
    """The client id of this deployment at the provider."""
    oidc_newcomers: str = Field(default="requester", alias="PERDURE_OIDC_NEWCOMERS")
    """Comma-separated roles of users who sign in with the provider for the first time. `none`: only existing users can
    sign in."""

    request_seconds: int = Field(default=EXPIRES_SECONDS, ge=1, le=315_360_000, alias="PENDING_MUTATION_TTL_SECONDS")
    """Seconds until an approval request expires (7 days), unless the agent sets `approvals.expires_seconds`."""
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_WEBHOOK_HOSTS")
    """Hosts that webhooks may be sent to, separated by commas: `host`, `host:port` or `*.domain`. Empty: none."""
    webhook_private: bool = Field(default=False, alias="PERDURE_WEBHOOK_PRIVATE")
    """Permits webhook hosts with private addresses."""

    egress_hosts: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="PERDURE_EGRESS_HOSTS")
    """Hosts with private addresses that tools, MCP servers and providers may reach, separated by commas: `host`,
    `host:port`, `*.domain` or a network such as 10.0.0.0/8."""
    egress_proxy: str = Field(
        default="",
        pattern=r"^(https?://[^/?#\s]+/?)?$",
        alias="PERDURE_EGRESS_PROXY",
        description="an http or https URL without a path, such as http://proxy.example:3128",
    )
    """An HTTP proxy for requests to all other hosts. HTTP_PROXY and similar variables are ignored."""
    answer_bytes: int = Field(default=ANSWER_BYTES, ge=1_024, le=MAX_ANSWER_BYTES, alias="PERDURE_ANSWER_BYTES")
    """The largest response in bytes that is read from an external system (10 MiB). Tools and MCP servers can set their
    own limit."""

    body_bytes: int = Field(default=262_144, ge=1_024, le=16_777_216, alias="PERDURE_BODY_BYTES")
    """The largest request body in bytes (256 KiB); larger ones get 413."""
    upload_bytes: int = Field(default=MAX_UPLOAD_BYTES, ge=1_024, le=104_857_600, alias="PERDURE_UPLOAD_BYTES")
    """The largest upload in bytes (20 MiB); larger ones get 413."""
    upload_folder: Path | None = Field(default=None, alias="PERDURE_UPLOAD_FOLDER")
    """The folder for uploads until they are complete. Default: `uploads` in the data folder."""
    uploads_per_user: int = Field(default=16, ge=1, le=1_000, alias="PERDURE_UPLOADS_PER_USER")
    """Concurrent uploads of one user per API process; more get 429."""
    bytes_per_user: int = Field(default=1_073_741_824, ge=0, alias="PERDURE_BYTES_PER_USER")
    """Storage quota of one user in bytes: files, documents and the texts of conversations (1 GiB). Requests above it
    get 429 `quota_reached`; 0 disables it."""
    bytes_per_conversation: int = Field(default=268_435_456, ge=0, alias="PERDURE_BYTES_PER_CONVERSATION")
    """Storage quota of one conversation in bytes (256 MiB)."""
    bytes_per_tenant: int = Field(default=21_474_836_480, ge=0, alias="PERDURE_BYTES_PER_TENANT")
    """Storage quota of all users of a tenant in bytes (20 GiB)."""
    files_per_conversation: int = Field(default=1_000, ge=0, alias="PERDURE_FILES_PER_CONVERSATION")
    """Files per conversation; further uploads get 429. 0 disables the limit."""
    rate_limiting: bool = Field(default=True, alias="RATE_LIMITING_ENABLED")
    """Limits the rate of requests. Local tokens have no limit."""
    rate_per_minute: int = Field(default=100, ge=1, le=1_000_000, alias="RATE_LIMIT_PER_MINUTE")
    """Requests per minute of one user, or of one address without sign-in; more get 429."""
    connections_per_address: int = Field(default=2_000, ge=0, le=1_000_000, alias="PERDURE_CONNECTIONS_PER_ADDRESS")
    """Open connections of one address per API process, and concurrent requests of one client behind a proxy; more get
    429. The limit is never more than a quarter of the process's open-file limit. 0 disables it."""
    live_turns_per_user: int = Field(default=50, ge=1, alias="PERDURE_LIVE_TURNS_PER_USER")
    """Open turns of one user; more get 429."""
    decisions_per_minute: int = Field(default=60, ge=1, le=100_000, alias="PERDURE_DECISIONS_PER_MINUTE")
    """Decisions of one reviewer per minute; more get 429. Local tokens have no limit."""
    streams_per_user: int = Field(default=200, ge=1, alias="PERDURE_STREAMS_PER_USER")
    """Open event streams of one user per API process; more get 429."""
    streams_per_tenant: int = Field(default=5_000, ge=1, alias="PERDURE_STREAMS_PER_TENANT")
    """Open event streams of one tenant per API process; more get 429. Local tokens have no limit and do not count."""
    pool_size: int = Field(default=12, ge=2, le=500, alias="PERDURE_POOL_SIZE")
    """Postgres connections per process."""
    statement_cache: bool = Field(default=True, alias="PERDURE_STATEMENT_CACHE")
    """Keeps prepared statements on each Postgres connection. Turn it off behind a pooler in transaction mode that
    forgets them, such as PgBouncer before 1.21; a statement with arguments then takes a second round trip."""
    uvloop: bool = Field(default=True, alias="PERDURE_UVLOOP")
    """Runs API, workers and relay on uvloop, which needs less CPU than the event loop of Python."""
    embeddings: str = Field(default="auto", alias="PERDURE_EMBEDDINGS")
    """`auto`, `minilm`, `none`, or a LiteLLM embedding model, whose key is the secret `embeddings`."""
    embeddings_base: str = Field(default="", alias="PERDURE_EMBEDDINGS_BASE")
    """The base URL of the embedding provider, if it is not the provider's default."""
    tracer: str = Field(default="noop", alias="TRACER_BACKEND")
    """`noop`, `otel` or `langsmith`: where traces are sent. Unknown names mean `noop`."""
    trace_endpoint: str = Field(default="", alias="PERDURE_TRACE_ENDPOINT")
    """The full URL that traces are sent to. Empty: the backend's default."""
    metrics_port: int = Field(default=0, ge=0, le=65_000, alias="PERDURE_METRICS_PORT")
    """The first port for Prometheus metrics of the API and the workers, two per process (docs/tracing.md); 0: none."""
    metrics_host: str = Field(default="127.0.0.1", alias="PERDURE_METRICS_HOST")
    """The address of the metrics ports."""
    facts: bool = Field(default=True, alias="PERDURE_FACTS")
    """Lets graphs store facts. If false, memory is unavailable to them."""
    failure_messages: bool = Field(default=True, alias="PERDURE_FAILURE_MESSAGES")
    """Shows the messages of tools' exceptions, without secrets, to the users who can see the calls. If false, later
    failures have only class and place. Messages from before stay."""
    stuck_after: int = Field(default=900, ge=0, alias="PERDURE_STUCK_AFTER")
    """Seconds after the first failure at which the relay ends a turn whose workflow task fails at every attempt (15
    minutes). 0: never."""
    queue_depth: int = Field(default=20, ge=0, alias="PERDURE_QUEUE_DEPTH")
    """Queued messages per conversation (`on_busy: queue` or `steer`); more get 429."""

    window_tokens: int = Field(default=WINDOW_TOKENS, ge=0, alias="PERDURE_WINDOW_TOKENS")
    """The maximum tokens of earlier turns that a model call receives, if the agent's `window` sets no `max_tokens`. It
    is at most half of the model's input context, if that is known. 0: no limit."""

    memory_enabled: bool = Field(default=True, alias="MEMORY_ENABLED")
    """If false, turns get no documents or episodes, and tools cannot access documents."""
    memory_context_tokens: int = Field(default=2_200, ge=1, alias="MEMORY_CONTEXT_TOKEN_BUDGET")
    """The token budget of the documents that a turn is shown."""
    memory_context_documents: int = Field(default=6, ge=1, le=50, alias="MEMORY_CONTEXT_MAX_DOCS")
    """The maximum number of documents that a turn is shown."""
    memory_document_bytes: int = Field(default=100_000, ge=1, le=10_000_000, alias="MEMORY_MAX_DOCUMENT_BYTES")
    """The largest memory document in bytes."""
    memory_write_bytes: int = Field(default=25_000, ge=1, alias="MEMORY_MAX_WRITE_BYTES")
    """The size in bytes above which a write returns a warning."""
    memory_evidence: bool = Field(default=True, alias="MEMORY_REQUIRE_SOURCE_REFS")
    """Rejects an agent's memory write without evidence."""

    sandbox_bare: bool = Field(default=False, alias="PERDURE_SANDBOX_BARE")
    """Runs code blocks without a jail if no jail is available. Logged as a warning at each start."""
    sandbox_workers: int = Field(default=8, ge=2, le=64, alias="PERDURE_SANDBOX_WORKERS")
    """Interpreter processes per worker process."""
    sandbox_seconds: float = Field(default=2.0, gt=0, le=20, alias="PERDURE_SANDBOX_SECONDS")
    """The time limit of a code block, in seconds."""
    sandbox_memory_mib: int = Field(default=64, ge=8, le=4_096, alias="PERDURE_SANDBOX_MEMORY_MIB")
    """The memory limit of a code block, in MiB."""

    @classmethod
    def read(cls, **given: str) -> Self:
        """Returns the settings of this process; `given` values, by the variable's name, come first.

        Raises: SystemExit with one line for each setting that is wrong, or with the `.env` that cannot be read.
        """
        path = _BASE / ".env"
        try:
            if path.exists() or path.is_symlink():
                check_env_file(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(file_fault(path, error, ENV_FILE_ADVICE)) from None
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            raise SystemExit(setting_faults(error, cls)) from None

    def check(self) -> None:
        """Checks the settings that only some processes parse, and the key files that exist.

        Raises: SystemExit with one line that names the first setting or file that is wrong.
        """
        self.hosts()
        self.trusted_proxies()
        self.operator_tokens()
        self.newcomers()
        self.outbound()
        if self.audit_key or _is_there(self.home / AUDIT_KEY_FILE):
            self.keyring()
        if self.jwt_secret or _is_there(self.home / ACCESS_KEY_FILE):
            self.access_keys()

    @field_validator(
        "database_url", "database_owner_url", "database_relay_url", "database_admin_url", "redis_url", mode="after"
    )
    @classmethod
    def _addressed(cls, value: SecretStr | None, about: ValidationInfo) -> SecretStr | None:
        if value is not None:
            parts = urlsplit(value.get_secret_value())
            if parts.scheme not in _SCHEMES.get(str(about.field_name), _POSTGRES_SCHEMES):
                raise ValueError("a URL with a known scheme")
            if "," not in parts.netloc:  # Postgres accepts several hosts
                _ = parts.port  # raises ValueError if it is not a number
        return value

    @field_validator("public_url")
    @classmethod
    def _without_slash(cls, value: str) -> str:
        return plain_origin(value) if value else value

    @field_validator("apps", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(_BASE / part for part in value.split(os.pathsep) if part)
        return value

    @field_validator(
        "webhook_hosts", "egress_hosts", "models", "allowed_hosts", "proxies", "audit_keys_lost", mode="before"
    )
    @classmethod
    def _by_commas(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("home", "upload_folder")
    @classmethod
    def _beside_env(cls, value: Path | None) -> Path | None:
        return None if value is None else _BASE / value

    def exit_seconds(self) -> float:
        """Returns the seconds without a heartbeat after which the process ends itself, at least three beats; 0:
        never."""
        return float(max(self.hang_seconds, 3)) if self.exit_when_hung and self.hang_seconds else 0.0

    def keyring(self) -> Keyring:
        """Returns the keys of the audit chain.

        Raises: SystemExit with instructions, if there is none.
        """
        return self._keys(Keyring.of, self.audit_key, "PERDURE_AUDIT_KEY", AUDIT_KEY_FILE)

    def access_keys(self) -> AccessKeys:
        """Returns the keys of access tokens.

        Raises: SystemExit with instructions, if there is none.
        """
        return self._keys(AccessKeys.of, self.jwt_secret, "JWT_SECRET", ACCESS_KEY_FILE)

    def _keys(self, read: Callable[[str], Keys], configured: SecretStr | None, name: str, file: str) -> Keys:
        key_file = self.home / file
        try:
            return read(configured.get_secret_value() if configured else key_file.read_text("utf-8"))
        except FileNotFoundError:
            raise SystemExit(f"{name} is not set and {key_file} does not exist; see .env.example") from None
        except (OSError, UnicodeDecodeError) as error:
            advice = f"check its owner and permissions, restore its last good copy, or set {name}"
            raise SystemExit(file_fault(key_file, error, advice)) from None
        except CallerError as error:
            if configured:
                raise SystemExit(f"{name}: {error.message}") from None
            too_short = ValueError(f"a key must have at least {MIN_SECRET_CHARACTERS} characters")
            raise SystemExit(file_fault(key_file, too_short, f"restore its last good copy, or set {name}")) from None

    def hosts(self) -> AllowedHosts:
        """Returns the hosts that the API and the pages accept.

        Raises: SystemExit with instructions, if a host is malformed, or if the API would listen on all addresses
        without a public URL.
        """
        if refusal := exposure_refusal(self.host, self.public_url):
            raise SystemExit(refusal)
        try:
            return AllowedHosts.of(self.allowed_hosts, public_url=self.public_url, listens_on=self.host)
        except CallerError as error:
            raise SystemExit(f"PERDURE_ALLOWED_HOSTS or PERDURE_HOST: {error.message}") from None

    def trusted_proxies(self) -> Proxies:
        """Returns the reverse proxies.

        Raises: SystemExit with instructions, if an entry is neither an address nor a network.
        """
        try:
            return Proxies.of(self.proxies)
        except CallerError as error:
            raise SystemExit(f"PERDURE_PROXIES: {error.message}") from None

    def operator_tokens(self) -> OperatorTokens:
        """Returns the operator tokens.

        Raises: SystemExit with instructions, if a token is too short.
        """
        if self.operator_token is None:
            return OperatorTokens()
        try:
            return OperatorTokens.of(self.operator_token.get_secret_value())
        except CallerError as error:
            raise SystemExit(f"PERDURE_OPERATOR_TOKEN: {error.message}") from None

    def newcomers(self) -> tuple[str, ...]:
        """Returns the roles of users who sign in with the identity provider for the first time.

        Raises: SystemExit if an entry is not a role.
        """
        roles = tuple(role.strip() for role in self.oidc_newcomers.split(",") if role.strip() not in ("", "none"))
        if not set(roles) <= {"requester", "reviewer", "admin"}:
            raise SystemExit(
                "PERDURE_OIDC_NEWCOMERS must be a comma-separated list of requester, reviewer and admin, or none"
            )
        return roles

    def link_base_url(self) -> str:
        """Returns the address at which links in messages and webhooks begin: `PERDURE_PUBLIC_URL`, or host and port."""
        return self.public_url or f"http://{self.host}:{self.port}"

    def quotas(self) -> Quotas:
        """Returns the storage quotas from `PERDURE_BYTES_PER_*` and `PERDURE_FILES_PER_CONVERSATION`."""
        return Quotas(
            conversation_bytes=self.bytes_per_conversation,
            user_bytes=self.bytes_per_user,
            tenant_bytes=self.bytes_per_tenant,
            conversation_files=self.files_per_conversation,
        )

    def heads_file(self) -> Path:
        """Returns the path of the exported heads of the audit chains: `PERDURE_AUDIT_HEADS`, or a file in the data
        folder."""
        return self.audit_heads or self.home / "audit-heads.jsonl"

    def writable_heads_file(self) -> Path:
        """Returns the same file, created if it is missing.

        Raises: SystemExit that names it, if it cannot be written.
        """
        path = self.heads_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))
        except OSError as error:
            if error.errno != errno.ENOSPC:  # a full disk is reported elsewhere and does not need another setting
                raise SystemExit(
                    f"PERDURE_AUDIT_HEADS: cannot write to {path}: {error.strerror}; make it a file that "
                    "this user can write, or set PERDURE_AUDIT_HEADS to another one"
                ) from None
        return path

    def route(self) -> Routing:
        """Returns the queues that a new turn uses."""
        return Routing.spread() if self.routing is RoutingName.SPREAD else Routing.compact()

    def memory(self) -> MemoryLimits:
        """Returns the operator's settings for document memory."""
        return MemoryLimits(
            enabled=self.memory_enabled,
            context_documents=self.memory_context_documents,
            context_tokens=self.memory_context_tokens,
            evidence_required=self.memory_evidence,
            document_bytes=self.memory_document_bytes,
            write_bytes=self.memory_write_bytes,
        )

    def outbound(self) -> Outbound:
        """Returns the operator's settings for requests from tools and to MCP servers.

        Raises: SystemExit for an entry that names no host.
        """
        try:
            named = [named_host(entry, by_operator=True) for entry in self.egress_hosts]
        except CallerError as error:
            raise SystemExit(f"PERDURE_EGRESS_HOSTS: {error.message}") from None
        return Outbound(proxy=self.egress_proxy, answer_bytes=self.answer_bytes).with_hosts(*named)

    def outbound_to_providers(self) -> Outbound:
        """Returns the operator's settings for requests to providers of models, embeddings and sign-in.

        These requests may go to addresses in the operator's settings, and in variables of provider libraries such as
        OPENAI_BASE_URL. Tools may not, because a model may have chosen a tool's address.

        Raises: SystemExit for an entry that names no host.
        """
        operator_urls = [self.embeddings_base, self.oidc_issuer, self.trace_endpoint, *_base_addresses()]
        return self.outbound().with_hosts(*(named_by_url(url, by_operator=True) for url in operator_urls))

    def sandbox(self) -> "SandboxConfig":
        """Returns the operator's settings for the sandbox."""
        from perdure.activities.sandbox import Limits, SandboxConfig  # here: the API runs no blocks

        ceiling = Limits(wall_seconds=self.sandbox_seconds, memory_bytes=self.sandbox_memory_mib * 1_048_576)
        return SandboxConfig(self.sandbox_bare, ceiling, max_workers=self.sandbox_workers)


def _is_there(path: Path) -> bool:
    """Returns whether the file exists. Also true if that is unknown; reading the file then reports the error."""
    try:
        return path.exists()
    except OSError:
        return True


def needed(value: SecretStr | None, name: str) -> str:
    """Returns a connection string that this process requires.

    Raises: SystemExit with the variable's name, if it is not set.
    """
    if value is None:
        raise SystemExit(f"{name} is not set; start everything with `make up`, or see .env.example")
    return value.get_secret_value()


def secret(name: str) -> str | None:
    """Returns the secret `name` from `PERDURE_SECRET_<NAME>`. Only the workers that use secrets call this."""
    return os.environ.get(f"PERDURE_SECRET_{name.upper()}")


def variable(name: str) -> str | None:
    """Returns the variable `name`. An app's `app.yaml` names it as the address of an app service."""
    return os.environ.get(name)


def _base_addresses() -> list[str]:
    """Returns the addresses in the variables that redirect provider libraries.

    Platforms set other variables with similar names, for example for a metadata service. Those are not included,
    because the operator did not set them for Perdure.
    """
    return [value for name in BASE_ADDRESSES if (value := os.environ.get(name))]
