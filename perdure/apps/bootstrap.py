"""Prepares the first start of a version: roles, schema, apps, and in local mode the three users with their tokens.

`python -m perdure.apps.bootstrap` can be repeated; it adds only missing parts. Its last line of output is JSON
with the local tokens, the agents that are left out with the reasons, and the setup code. The tokens are stored in a
file of mode 0600 in the data folder; Postgres contains only their hashes. The setup code registers the first user and
is printed until one has registered. `python -m perdure.apps.bootstrap --admin NAME` creates the first administrator of
a deployment that is not local, and prints the token once.

If PERDURE_APP or PERDURE_EXAMPLES requests an app, its agents are published and all others are withdrawn. Otherwise
nothing is published and nothing is withdrawn. `--withdraw` withdraws the others in both cases.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from perdure.activities.toolbox.engine_tools import ENGINE_TOOLS
from perdure.activities.toolbox.mcp.tools import ReportServer
from perdure.apps import (
    app_folders,
    degraded_agents,
    publish,
    skipped_agents,
    tables_of,
    unloaded_agents,
    unsent_lines,
    with_model,
)
from perdure.apps.publish import without_outlived_versions
from perdure.apps.registry import AppRegistry, block_digests, discover_cards, load_apps
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.errors import CallerError, UpstreamUnavailable
from perdure.contracts.skills import DataTable
from perdure.contracts.values import sha256_hex
from perdure.core.approvals.validity import OUTDATED_BY_VERSION
from perdure.core.audit import Keyring
from perdure.core.faults import file_fault, header_fault, named_texts
from perdure.core.identity import SIGNED_PREFIX
from perdure.settings import ACCESS_KEY_FILE, AUDIT_KEY_FILE, SETUP_CODE_FILE, Settings, log_from, needed, secret
from perdure.store import agents as content
from perdure.store.approvals.reissue import outdated_tools
from perdure.store.audit import seal, signers_of
from perdure.store.database import Connection, Database, reach_postgres
from perdure.store.identity import registration, users
from perdure.store.identity.registration import IssuedCode
from perdure.store.migrations import bring_up, is_newest, provision
from perdure.store.status import ServerStates
from perdure.store.turns.reconcile import list_tenants, open_turns
from perdure.store.valkey import Valkey

T = TypeVar("T")
LOCAL_TENANT = "local"
SECRETS_FILE = "secrets.json"
"""The file in the data folder with the embedded stack's passwords."""
MODEL_SECRET = "model"
"""The API key of the models that PERDURE_MODELS names."""
ADMIN_ROLES = ["admin", "reviewer"]
LOCAL_USERS = {"requester": ["requester"], "reviewer": ["reviewer"], "admin": ADMIN_ROLES}
_MAX_NAMED_TENANTS = 3
_OWNER_SECONDS = 600.0
"""A statement of the owner can wait for a lock that a running system holds."""


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The state after a run."""

    tokens: dict[str, str]
    """Tokens by user name: of the local users, or of the new administrator."""
    skipped: tuple[str, ...]
    """Lines about the agents that are left out, with the reasons."""
    setup_code: str = ""
    """The code that registers the first user; empty once the tenant has users."""
    setup_code_expires_at: datetime | None = None
    still_published: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """If no app was requested: the agents that stay published, by app."""


async def bootstrap(
    settings: Settings, admin: str = "", tenant: str = LOCAL_TENANT, *, withdraw: bool = False, lost_history: str = ""
) -> Bootstrapped:
    """Runs all steps; if `admin` is given, creates that administrator.

    If no app is requested, the published agents stay as they are, unless `withdraw` is set. `lost_history` is
    Temporal's database, if it is missing or empty.

    Raises: asyncpg's errors; SystemExit if a setting, a file or Postgres cannot be used, or if data is missing;
    CallerError if `admin` was erased.
    """
    owner_url = needed(settings.database_owner_url, "DATABASE_OWNER_URL")
    model = await _server_model(settings)
    _check_files(settings)
    configured = _configured_keys(settings)
    await _provision(settings, owner_url)
    registry: AppRegistry | None = None
    if not await reach_postgres("DATABASE_OWNER_URL", is_newest(owner_url)):
        # In parallel: a first start checks every block, which takes as long as the migrations.
        registry, _ = await asyncio.gather(_load_apps(settings), _migrate(owner_url))
    owner = await reach_postgres("DATABASE_OWNER_URL", _connect_owner(owner_url))
    try:
        await _refuse_lost_turns(owner, lost_history, settings.open_turns_lost)
        keyring = await _ensure_keyring(owner, settings, configured)
        skipped, kept = tuple[str, ...](), dict[str, list[str]]()
        if withdraw or app_folders(settings.apps, settings.examples):
            skipped = await _publish(owner, registry or await _load_unchecked_apps(owner, settings), settings, model)
        else:
            kept = await _published_agents(owner)
        await _seal_old_rows(owner, keyring)
        if admin:
            tokens = await _create_administrator(owner, settings, tenant, admin, keyring)
            return Bootstrapped(tokens, skipped, still_published=kept)
        async with owner.transaction(settings.tenant) as tx:
            await users.ensure_tenant(tx, settings.tenant)  # a user can register in it
        issued = await _ensure_setup_code(owner, settings)
        tokens = await _ensure_local_users(owner, settings, keyring) if settings.local else {}
        return Bootstrapped(tokens, skipped, issued.code, issued.expires_at, kept)
    finally:
        await owner.close()


async def _migrate(owner_url: str) -> None:
    """Raises: SystemExit if other sessions block the migration."""
    try:
        await bring_up(owner_url)
    except UpstreamUnavailable as error:
        raise SystemExit(error.message) from None


async def _connect_owner(url: str) -> Database:
    return await Database.connect(
        url,
        max_connections=2,
        application="perdure-bootstrap",
        wait_seconds=_OWNER_SECONDS,
        any_role=True,
        statement_cache=False,
    )


def _check_files(settings: Settings) -> None:
    """Creates the embedded stack's key for access tokens, and checks that the heads of the audit can be exported.

    Raises: SystemExit. Elsewhere the relay checks its file itself, because it can run on another machine.
    """
    if settings.local:
        if settings.jwt_secret is None:
            _create_key(settings.home / ACCESS_KEY_FILE)
        settings.writable_heads_file()


async def _refuse_lost_turns(owner: Database, history: str, accepted: int) -> None:
    """Checks that no turn needs the missing `history`, unless the operator accepts the loss of that number of turns.

    Raises: SystemExit.
    """
    if not history:
        return
    open_by_tenant = await _in_each_tenant(owner, lambda tx, _: open_turns(tx, 0.0))
    count = sum(map(len, open_by_tenant.values()))
    if count not in (0, accepted):
        turns = "1 turn is" if count == 1 else f"{count} turns are"
        raise SystemExit(
            f"{history} is missing or empty, but {turns} open. Without this file, open turns fail and their pending "
            f"approvals are cancelled. Restore it from a backup, or set PERDURE_OPEN_TURNS_LOST={count} to accept that"
        )


async def _provision(settings: Settings, owner_url: str) -> None:
    """Creates the roles and the database, if an administrator of Postgres is configured."""
    if settings.database_admin_url is not None:
        provisioning = provision(
            settings.database_admin_url.get_secret_value(),
            owner_url=owner_url,
            app_url=needed(settings.database_url, "DATABASE_URL"),
            relay_url=needed(settings.database_relay_url, "DATABASE_RELAY_URL"),
        )
        advice = (
            f"correct DATABASE_ADMIN_URL, or restore {settings.home / SECRETS_FILE} or the whole folder from a backup"
        )
        await reach_postgres("DATABASE_ADMIN_URL", provisioning, advice if settings.local else "")


def _configured_keys(settings: Settings) -> Keyring | None:
    """Returns the audit keys, or None if the embedded stack has no key file.

    Raises: SystemExit with instructions, if there is none elsewhere.
    """
    has_file = (settings.home / AUDIT_KEY_FILE).exists()
    return None if settings.local and settings.audit_key is None and not has_file else settings.keyring()


async def _ensure_keyring(owner: Database, settings: Settings, configured: Keyring | None) -> Keyring:
    """Returns the audit keys. The embedded stack creates its key once, if no row is signed with another one.

    Raises: SystemExit if a key that signed rows is missing, unless the operator declared it lost. Without that key, the
    rows cannot be verified, and others could use the names of erased users.
    """
    signers: dict[str, list[str]] = {}
    for tenant, key_ids in (await _in_each_tenant(owner, signers_of)).items():
        for key_id in key_ids:
            signers.setdefault(key_id, []).append(tenant)
    present = {key.id for key in configured.keys} if configured else set()
    if missing := sorted(signers.keys() - present - set(settings.audit_keys_lost)):
        raise SystemExit(
            _missing_keys_message(
                settings, missing, sorted({tenant_id for key in missing for tenant_id in signers[key]})
            )
        )
    if configured is None:
        _create_key(settings.home / AUDIT_KEY_FILE)
    return configured or settings.keyring()


def _missing_keys_message(settings: Settings, missing: Sequence[str], tenants: Sequence[str]) -> str:
    key_file = settings.home / AUDIT_KEY_FILE
    tenant_names = ", ".join(tenants[:_MAX_NAMED_TENANTS]) + (
        " and others" if len(tenants) > _MAX_NAMED_TENANTS else ""
    )
    if settings.audit_key is not None:
        advice = "Add them in PERDURE_AUDIT_KEY, after the first key, separated by commas"
    elif key_file.exists():
        advice = f"Add them to {key_file}, each on a line below the first key"
    else:
        advice = f"Restore {key_file}, which does not exist, from a backup"
    return (
        f"Missing audit keys: {', '.join(missing)}. They signed audit rows of {tenant_names}. {advice}. "
        f"If they are permanently lost, set PERDURE_AUDIT_KEYS_LOST={','.join(missing)}; "
        "their rows can then never be verified again"
    )


async def _create_administrator(
    owner: Database, settings: Settings, tenant: str, admin: str, keyring: Keyring
) -> dict[str, str]:
    """Creates the tenant's administrator and returns the token by that name."""
    token = _new_token(admin)
    await _ensure_user(owner, tenant, admin, ADMIN_ROLES, token, keyring)
    async with owner.transaction(tenant) as tx:  # the user may already exist with fewer roles
        await users.grant(tx, tenant, admin, ADMIN_ROLES)
    if tenant == settings.tenant:
        await _ensure_setup_code(owner, settings)  # now it has a user
    return {admin: token}


async def _ensure_local_users(owner: Database, settings: Settings, keyring: Keyring) -> dict[str, str]:
    """Creates the local users and returns their tokens by name."""
    tokens = _stored_tokens(settings.home / "tokens.json")
    for name, roles in LOCAL_USERS.items():
        try:
            await _ensure_user(owner, LOCAL_TENANT, name, roles, tokens[name], keyring)
        except CallerError as error:
            sys.stderr.write(f"warning: the local user {name} is not created again: {error.message}\n")
    return tokens


async def _published_agents(owner: Database) -> dict[str, list[str]]:
    """Returns the published agents by app."""
    async with owner.transaction(content.SHARED) as tx:
        await users.ensure_tenant(tx, content.SHARED)
        return _by_app(await content.list_agents(tx))


def _by_app(agents: Sequence[tuple[str, PublishedAgent]]) -> dict[str, list[str]]:
    by_app: dict[str, list[str]] = {}
    for app, agent in agents:
        by_app.setdefault(app, []).append(agent.definition.id)
    return by_app


async def _load_unchecked_apps(owner: Database, settings: Settings) -> AppRegistry:
    """Loads the apps. Blocks of agents that were published before are not checked again."""
    async with owner.transaction(content.SHARED) as tx:
        checked = block_digests([agent for _, agent in await content.list_agents(tx)])
    return await _load_apps(settings, checked)


async def _load_apps(settings: Settings, checked: Collection[str] = frozenset()) -> AppRegistry:
    seconds = settings.request_seconds
    folders = app_folders(settings.apps, settings.examples)
    return await load_apps(folders, settings.sandbox(), checked, expires_seconds=seconds)


async def _server_model(settings: Settings) -> str:
    """Returns the model that replaces the scripted one; empty if each agent keeps its own.

    Raises: SystemExit if none of the configured models responds.
    """
    if not settings.models:
        return ""
    try:
        from perdure.activities.providers.litellm_provider import LiteLLMProvider
        from perdure.activities.providers.registry import first_that_answers
    except ImportError:
        raise SystemExit("PERDURE_MODELS needs the extra `llm`: pip install 'perdure[llm]'") from None
    provider, key = LiteLLMProvider(settings.outbound_to_providers()), secret(MODEL_SECRET)
    try:
        return await first_that_answers(settings.models, provider, {"api_key": key} if key else {})
    finally:
        await provider.aclose()


async def _publish(owner: Database, registry: AppRegistry, settings: Settings, model: str) -> tuple[str, ...]:
    """Publishes the apps' agents and reports the mistakes of the others; returns those that are left out."""
    if registry.unchecked:
        sys.stderr.write(f"warning: code blocks were not type-checked: {registry.unchecked}\n")
    published: list[tuple[str, PublishedAgent]] = []
    tables: list[DataTable] = []
    skipped: list[str] = []
    core_cards = [tool.card for tool in ENGINE_TOOLS.values()]
    async with owner.transaction(content.SHARED) as tx:
        listed = await content.list_agents(tx)
    outdated_before = await _outdated_tools(owner)
    published_before = [agent for _, agent in listed]
    params = {"api_key_secret": MODEL_SECRET} if secret(MODEL_SECRET) else {}
    async with _contact_report(settings) as report:
        for app in (with_model(app, model, params) if model else app for app in registry.apps):
            unloaded = unloaded_agents(app)
            _write_lines(map(str, app.problems), unloaded, settings)
            server_cards = await discover_cards(
                app, published_before, secret, settings.home, report, settings.outbound()
            )
            loaded = publish(app, core_cards, server_cards.cards, server_cards.unreached)
            agents = [without_outlived_versions(agent, published_before) for agent in loaded]
            without_tools = skipped_agents(app, core_cards, server_cards.cards)
            _write_lines((f"warning: {line}" for line in server_cards.warnings), (), settings)
            without_tools += degraded_agents(agents)
            _write_lines((f"warning: {line}" for line in without_tools), without_tools, settings)
            unsent = [line for agent in agents for line in unsent_lines(agent)]
            _write_lines((f"warning: {line}" for line in unsent), (), settings)
            skipped += [*unloaded, *without_tools]
            published += [(app.name, agent) for agent in agents]
            tables += tables_of(app, agents)
    async with owner.transaction(content.SHARED) as tx:
        await users.ensure_tenant(tx, content.SHARED)
        await content.publish_agent(tx, published, tables)
    _write_lines(_outdated_lines(outdated_before, await _outdated_tools(owner)), (), settings)
    skipped += _withdrawn_lines(listed, registry)
    return tuple(skipped)


async def _outdated_tools(owner: Database) -> dict[str, str]:
    by_tenant = await _in_each_tenant(owner, lambda tx, _: outdated_tools(tx))
    return {approval_id: tool for outdated in by_tenant.values() for approval_id, tool in outdated.items()}


def _outdated_lines(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Returns a line with the number of open approvals that this publication makes outdated; empty without any."""
    counts = Counter(tool for approval_id, tool in after.items() if approval_id not in before)
    tools = ", ".join(f"{tool} ({count})" for tool, count in sorted(counts.items()))
    return [f"warning: {OUTDATED_BY_VERSION.format(count=counts.total(), tools=tools)}"] if counts else []


def _write_lines(lines: Iterable[str], skipped: Collection[str], settings: Settings) -> None:
    """Writes these lines to stderr. `perdure up` shows what is left out in its last block, so such a line is marked as
    information: it appears only in the log of the step (perdure/local/output.py)."""
    shown_later = {each.strip() for each in skipped} if settings.local else set()
    for line in lines:
        mark = "INFO " if line.removeprefix("warning: ") in shown_later else ""
        sys.stderr.write(f"{mark}{line}\n")


def _withdrawn_lines(published_before: Sequence[tuple[str, PublishedAgent]], registry: AppRegistry) -> list[str]:
    """Returns a line for each app that was published before and is no longer requested."""
    names = {app.name for app in registry.apps}
    return [
        f"the app {app} is no longer published ({', '.join(agents)}): its conversations stay, and accept no messages"
        for app, agents in _by_app(published_before).items()
        if app not in names
    ]


@asynccontextmanager
async def _contact_report(settings: Settings) -> AsyncIterator[ReportServer | None]:
    """Yields the function that records contacts with MCP servers, or None if there is no Valkey."""
    if settings.redis_url is None:
        yield None
        return
    valkey = Valkey.connect(settings.redis_url.get_secret_value())
    try:
        yield ServerStates(valkey).record_state
    finally:
        await valkey.close()


async def _ensure_user(owner: Database, tenant: str, name: str, roles: list[str], token: str, keyring: Keyring) -> None:
    async with owner.transaction(tenant) as tx:
        await users.ensure_tenant(tx, tenant)
        await users.ensure_user(tx, tenant, name, roles, sha256_hex(token), keyring)


async def _ensure_setup_code(owner: Database, settings: Settings) -> IssuedCode:
    """Returns the code with which the tenant's first user registers; empty if it has users.

    The embedded stack stores the code in a file, so that its next start can print it again. Elsewhere each run creates
    a new code, which invalidates the old one.
    """
    code_file = settings.home / SETUP_CODE_FILE
    stored = _stored_code(code_file) if settings.local else ""
    async with owner.transaction(settings.tenant) as tx:
        issued = await registration.ensure_code(tx, settings.tenant, stored, local=settings.local)
    if settings.local and issued.code != stored:
        if issued.code:
            _write_private(code_file, issued.code + "\n")
        else:
            code_file.unlink(missing_ok=True)
    return issued


def _stored_code(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # an unreadable one is replaced
        return ""


async def _seal_old_rows(owner: Database, keyring: Keyring) -> None:
    """Seals audit rows of all tenants that are older than signing."""
    await _in_each_tenant(owner, lambda tx, tenant: seal(tx, tenant, keyring))


async def _in_each_tenant(owner: Database, work: Callable[[Connection, str], Awaitable[T]]) -> dict[str, T]:
    """Returns the result of `work` for each tenant. It runs in a transaction of that tenant."""
    results: dict[str, T] = {}
    for tenant in (content.SHARED, *await list_tenants(owner)):
        async with owner.transaction(tenant) as tx:
            results[tenant] = await work(tx, tenant)
    return results


def _write_private(path: Path, text: str) -> None:
    """Replaces the file as a whole, readable only by its owner."""
    new_file = _private_file(path, text)
    new_file.replace(path)


def _private_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    new_file = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return new_file


def _create_key(path: Path) -> None:
    """Returns a key of the local stack, created once."""
    new_file = _private_file(path, secrets.token_hex(32) + "\n")
    with suppress(FileExistsError):
        os.link(new_file, path)  # written completely or not at all, and never over an existing one
    new_file.unlink()


def _new_token(name: str) -> str:
    return f"perdure_{name}_{secrets.token_urlsafe(24)}"


def _stored_tokens(path: Path) -> dict[str, str]:
    """Returns the local tokens, created once. An empty one is replaced.

    Raises: SystemExit with advice if they cannot be read, or if the API would reject one.
    """
    try:
        stored = named_texts(path.read_text("utf-8"))
        for name, token in stored.items():
            if token and (fault := _token_fault(token)):
                raise ValueError(f"the token of {name!r} {fault}, so the API would reject it")
        if duplicates := [name for name, token in stored.items() if token and [*stored.values()].count(token) > 1]:
            raise ValueError(f"{' and '.join(map(repr, duplicates))} have the same token")
    except FileNotFoundError:
        stored = {}
    except (OSError, ValueError) as error:
        raise SystemExit(file_fault(path, error, "restore it, or move it away to create new tokens")) from None
    tokens = {name: stored.get(name) or _new_token(name) for name in LOCAL_USERS}
    if tokens != stored:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(tokens, file)
    return tokens


def _token_fault(token: str) -> str:
    """Returns why the API would reject this token, in words that follow its name; empty if it would not."""
    if token.startswith(SIGNED_PREFIX):
        return f"begins with {SIGNED_PREFIX!r} as signed tokens do"
    return header_fault(token)


def _no_app_message(still_published: Mapping[str, Sequence[str]]) -> str:
    """Returns the message for the operator if no app was requested."""
    if not still_published:
        return "No agent is published: set PERDURE_APP to your app folders, here and for the workers.\n"
    apps = "; ".join(f"{app} ({', '.join(agents)})" for app, agents in still_published.items())
    return (
        "No app is selected (PERDURE_APP, PERDURE_EXAMPLES): nothing was published, and nothing was withdrawn.\n"
        f"These apps stay published, with their agents: {apps}.\n"
        "To withdraw them, run `python -m perdure.apps.bootstrap --withdraw`, or publish another app.\n"
    )


def main() -> None:
    """Parses the arguments, runs the steps, and prints the tokens and the setup code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", default="", metavar="NAME", help="create this administrator and print a token")
    parser.add_argument("--tenant", default=LOCAL_TENANT, help="the tenant of the administrator")
    parser.add_argument(
        "--withdraw",
        action="store_true",
        help="withdraw the published agents that are not selected, even if no app is selected",
    )
    parser.add_argument("--lost-history", default="", help=argparse.SUPPRESS)  # for `perdure up`
    options = parser.parse_args()
    settings = Settings.read()
    log_from(settings.log_level)
    steps = bootstrap(
        settings, options.admin, options.tenant, withdraw=options.withdraw, lost_history=options.lost_history
    )
    result = asyncio.run(steps)
    if not settings.local and not app_folders(settings.apps, settings.examples):  # `perdure up` prints it itself
        sys.stderr.write(_no_app_message(result.still_published))
    output: dict[str, object] = {"tokens": result.tokens, "left_out": result.skipped, "kept": result.still_published}
    if result.setup_code:
        output["setup_code"] = result.setup_code
        output["setup_code_expires_at"] = result.setup_code_expires_at
        if not settings.local:  # `perdure up` prints its own message
            sys.stderr.write(
                f"Setup code of the tenant {settings.tenant}: {result.setup_code}\nThe first user registers with "
                "it as the administrator, within 24 hours, at /sign-in or with POST /v1/auth/register.\n"
            )
    sys.stdout.write(json.dumps(output, default=datetime.isoformat) + "\n")


if __name__ == "__main__":
    main()
