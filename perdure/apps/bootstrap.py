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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import asyncpg

from perdure.activities.toolbox.engine_tools import ENGINE_TOOLS
from perdure.activities.toolbox.mcp.tools import ReportServer
from perdure.apps import app_folders, left_out, played_by, publish, tables_of, unloaded
from perdure.apps.registry import AppRegistry, block_digests, discovered, several_apps
from perdure.contracts.agents import PublishedAgent
from perdure.contracts.errors import CallerError
from perdure.contracts.skills import DataTable
from perdure.contracts.values import sha256_hex
from perdure.core.audit import Keyring
from perdure.core.faults import file_fault, header_fault, named_texts
from perdure.core.identity import SIGNED_PREFIX
from perdure.settings import ACCESS_KEY_FILE, AUDIT_KEY_FILE, SETUP_CODE_FILE, Settings, log_from, needed, secret
from perdure.store import agents as content
from perdure.store.audit import seal, signers_of
from perdure.store.database import reach_postgres, set_up
from perdure.store.identity import registration, users
from perdure.store.migrations import bring_up, is_newest, provision
from perdure.store.status import ServerLooks
from perdure.store.turns.reconcile import open_turns
from perdure.store.valkey import Valkey

T = TypeVar("T")
LOCAL_TENANT = "local"
SECRETS_FILE = "secrets.json"
"""The file in the data folder with the embedded stack's passwords."""
MODEL_SECRET = "model"
"""The API key of the models that PERDURE_MODELS names."""
ADMIN_ROLES = ["admin", "reviewer"]
LOCAL_USERS = {"requester": ["requester"], "reviewer": ["reviewer"], "admin": ADMIN_ROLES}


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The state after a run."""

    tokens: dict[str, str]
    """Tokens by user name: of the local users, or of the new administrator."""
    left_out: tuple[str, ...]
    """Lines about the agents that are left out, with the reasons."""
    setup_code: str = ""
    """The code that registers the first user; empty once the tenant has users."""
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
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
    known = _kept_keys(settings)
    await _provisioned(settings, owner_url)
    found: AppRegistry | None = None
    if not await reach_postgres("DATABASE_OWNER_URL", is_newest(owner_url)):
        # In parallel: a first start checks every block, which takes as long as the migrations.
        found, _ = await asyncio.gather(_checked(settings), bring_up(owner_url))
    owner = await asyncpg.connect(owner_url, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        await _no_turn_is_lost(owner, lost_history, settings.open_turns_lost)
        keyring = await _keyring(owner, settings, known)
        missing: tuple[str, ...] = ()
        kept: dict[str, list[str]] = {}
        if withdraw or app_folders(settings.apps, settings.examples):
            missing = await _publish(owner, found or await _registry(owner, settings), settings, model)
        else:
            kept = await _published(owner)
        await _sealed(owner, keyring)
        if admin:
            return Bootstrapped(await _administrator(owner, settings, tenant, admin, keyring), missing, kept=kept)
        await users.ensure_tenant(owner, settings.tenant)  # a user can register in it
        code = await _setup_code(owner, settings)
        tokens = await _local_users(owner, settings, keyring) if settings.local else {}
        return Bootstrapped(tokens, missing, code, kept)
    finally:
        await owner.close()


def _check_files(settings: Settings) -> None:
    """Creates the embedded stack's key for access tokens, and checks that the heads of the audit can be exported.

    Raises: SystemExit. Elsewhere the relay checks its file itself, because it can run on another machine.
    """
    if settings.local:
        if settings.jwt_secret is None:
            _made(settings.home / ACCESS_KEY_FILE)
        settings.writable_heads_file()


async def _no_turn_is_lost(owner: asyncpg.Connection, history: str, accepted: int) -> None:
    """Checks that no turn needs the missing `history`, unless the operator accepts the loss of that number of turns.

    Raises: SystemExit.
    """
    if not history:
        return
    found = await _in_each_tenant(owner, lambda _: open_turns(owner, 0.0))
    count = sum(map(len, found.values()))
    if count not in (0, accepted):
        turns = "1 turn is" if count == 1 else f"{count} turns are"
        raise SystemExit(
            f"{history} is missing or empty, but {turns} open. Without this file, open turns fail and their pending "
            f"approvals are cancelled. Restore it from a backup, or set PERDURE_OPEN_TURNS_LOST={count} to accept that"
        )


async def _provisioned(settings: Settings, owner_url: str) -> None:
    """Creates the roles and the database, if an administrator of Postgres is configured."""
    if settings.database_admin_url is not None:
        provisioning = provision(
            settings.database_admin_url.get_secret_value(),
            owner_url=owner_url,
            app_url=needed(settings.database_url, "DATABASE_URL"),
            relay_url=needed(settings.database_relay_url, "DATABASE_RELAY_URL"),
        )
        own = f"correct DATABASE_ADMIN_URL, or restore {settings.home / SECRETS_FILE} or the whole folder from a backup"
        await reach_postgres("DATABASE_ADMIN_URL", provisioning, own if settings.local else "")


def _kept_keys(settings: Settings) -> Keyring | None:
    """Returns the audit keys, or None if the embedded stack has no key file.

    Raises: SystemExit with instructions, if there is none elsewhere.
    """
    has_file = (settings.home / AUDIT_KEY_FILE).exists()
    return None if settings.local and settings.audit_key is None and not has_file else settings.keyring()


async def _keyring(owner: asyncpg.Connection, settings: Settings, known: Keyring | None) -> Keyring:
    """Returns the audit keys. The embedded stack creates its key once, if no row is signed with another one.

    Raises: SystemExit if a key that signed rows is missing, unless the operator declared it lost. Without that key, the
    rows cannot be verified, and others could use the names of erased users.
    """
    signers: dict[str, list[str]] = {}
    for tenant, key_ids in (await _in_each_tenant(owner, partial(signers_of, owner))).items():
        for key_id in key_ids:
            signers.setdefault(key_id, []).append(tenant)
    present = {key.id for key in known.keys} if known else set()
    if missing := sorted(signers.keys() - present - set(settings.audit_keys_lost)):
        raise SystemExit(_key_missing(settings, missing, sorted({each for key in missing for each in signers[key]})))
    if known is None:
        _made(settings.home / AUDIT_KEY_FILE)
    return known or settings.keyring()


_TENANTS_NAMED = 3


def _key_missing(settings: Settings, missing: Sequence[str], tenants: Sequence[str]) -> str:
    kept = settings.home / AUDIT_KEY_FILE
    few = ", ".join(tenants[:_TENANTS_NAMED]) + (" and others" if len(tenants) > _TENANTS_NAMED else "")
    if settings.audit_key is not None:
        do = "Add them in PERDURE_AUDIT_KEY, after the first key, separated by commas"
    elif kept.exists():
        do = f"Add them to {kept}, each on a line below the first key"
    else:
        do = f"Restore {kept}, which does not exist, from a backup"
    return (
        f"Missing audit keys: {', '.join(missing)}. They signed audit rows of {few}. {do}. If they are permanently "
        f"lost, set PERDURE_AUDIT_KEYS_LOST={','.join(missing)}; their rows can then never be verified again"
    )


async def _administrator(
    owner: asyncpg.Connection, settings: Settings, tenant: str, admin: str, keyring: Keyring
) -> dict[str, str]:
    """Creates the tenant's administrator and returns the token by that name."""
    token = _fresh_token(admin)
    await _user(owner, tenant, admin, ADMIN_ROLES, token, keyring)
    async with owner.transaction():  # the user may already exist with fewer roles
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", tenant)
        await users.grant(owner, tenant, admin, ADMIN_ROLES)
    if tenant == settings.tenant:
        await _setup_code(owner, settings)  # now it has a user
    return {admin: token}


async def _local_users(owner: asyncpg.Connection, settings: Settings, keyring: Keyring) -> dict[str, str]:
    """Creates the local users and returns their tokens by name."""
    tokens = _kept_tokens(settings.home / "tokens.json")
    for name, roles in LOCAL_USERS.items():
        try:
            await _user(owner, LOCAL_TENANT, name, roles, tokens[name], keyring)
        except CallerError as erased:
            sys.stderr.write(f"warning: the local user {name} is not created again: {erased.message}\n")
    return tokens


async def _published(owner: asyncpg.Connection) -> dict[str, list[str]]:
    """Returns the published agents by app."""
    async with owner.transaction():
        await users.ensure_tenant(owner, content.SHARED)
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
        return _by_app(await content.list_agents(owner))


def _by_app(agents: Sequence[tuple[str, PublishedAgent]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for app, agent in agents:
        found.setdefault(app, []).append(agent.definition.id)
    return found


async def _registry(owner: asyncpg.Connection, settings: Settings) -> AppRegistry:
    """Loads the apps. Blocks of agents that were published before are not checked again."""
    async with owner.transaction():
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
        checked = block_digests([agent for _, agent in await content.list_agents(owner)])
    return await _checked(settings, checked)


async def _checked(settings: Settings, checked: Collection[str] = frozenset()) -> AppRegistry:
    seconds = settings.request_seconds
    folders = app_folders(settings.apps, settings.examples)
    return await several_apps(folders, settings.sandbox(), checked, expires_seconds=seconds)


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


async def _publish(owner: asyncpg.Connection, found: AppRegistry, settings: Settings, model: str) -> tuple[str, ...]:
    """Publishes the apps' agents and reports the mistakes of the others; returns those that are left out."""
    if found.unchecked:
        sys.stderr.write(f"warning: code blocks were not type-checked: {found.unchecked}\n")
    published: list[tuple[str, PublishedAgent]] = []
    tables: list[DataTable] = []
    missing: list[str] = []
    core_cards = [tool.card for tool in ENGINE_TOOLS.values()]
    async with owner.transaction():
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
        listed = await content.list_agents(owner)
    before = [agent for _, agent in listed]
    params = {"api_key_secret": MODEL_SECRET} if secret(MODEL_SECRET) else {}
    async with _met(settings) as met:
        for app in (played_by(app, model, params) if model else app for app in found.apps):
            kept_out = unloaded(app)
            _tell(map(str, app.problems), kept_out, settings)
            offered = await discovered(app, before, secret, settings.home, met, settings.outbound())
            agents = publish(app, core_cards, offered.cards)
            unserved = left_out(app, core_cards, offered.cards)
            _tell((f"warning: {each}" for each in offered.warnings), (), settings)
            _tell((f"warning: {each}" for each in unserved), unserved, settings)
            missing += [*kept_out, *unserved]
            published += [(app.name, agent) for agent in agents]
            tables += tables_of(app, agents)
    async with owner.transaction():
        await users.ensure_tenant(owner, content.SHARED)
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
        await content.publish_agent(owner, published, tables)
    missing += _withdrawn(listed, found)
    return tuple(missing)


def _tell(lines: Iterable[str], left_out: Collection[str], settings: Settings) -> None:
    """Writes these lines to stderr. `perdure up` shows what is left out in its last block, so such a line is marked as
    information: it appears only in the log of the step (perdure/local/output.py)."""
    later = {each.strip() for each in left_out} if settings.local else set()
    for line in lines:
        mark = "INFO " if line.removeprefix("warning: ") in later else ""
        sys.stderr.write(f"{mark}{line}\n")


def _withdrawn(before: Sequence[tuple[str, PublishedAgent]], found: AppRegistry) -> list[str]:
    """Returns a line for each app that was published before and is no longer requested."""
    names = {app.name for app in found.apps}
    return [
        f"the app {app} is no longer published ({', '.join(agents)}): its conversations stay, and accept no messages"
        for app, agents in _by_app(before).items()
        if app not in names
    ]


@asynccontextmanager
async def _met(settings: Settings) -> AsyncIterator[ReportServer | None]:
    """Yields the function that records contacts with MCP servers, or None if there is no Valkey."""
    if settings.redis_url is None:
        yield None
        return
    valkey = Valkey.connect(settings.redis_url.get_secret_value())
    try:
        yield ServerLooks(valkey).record_look
    finally:
        await valkey.close()


async def _user(
    owner: asyncpg.Connection, tenant: str, name: str, roles: list[str], token: str, keyring: Keyring
) -> None:
    async with owner.transaction():
        await users.ensure_tenant(owner, tenant)
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", tenant)
        await users.ensure_user(owner, tenant, name, roles, sha256_hex(token), keyring)


async def _setup_code(owner: asyncpg.Connection, settings: Settings) -> str:
    """Returns the code with which the tenant's first user registers; empty if it has users.

    The embedded stack stores the code in a file, so that its next start can print it again. Elsewhere each run creates
    a new code, which invalidates the old one.
    """
    kept = settings.home / SETUP_CODE_FILE
    before = _kept_code(kept) if settings.local else ""
    async with owner.transaction():
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", settings.tenant)
        code = await registration.ensure_code(owner, settings.tenant, before, local=settings.local)
    if settings.local and code != before:
        if code:
            _write_private(kept, code + "\n")
        else:
            kept.unlink(missing_ok=True)
    return code


def _kept_code(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # an unreadable one is replaced
        return ""


async def _sealed(owner: asyncpg.Connection, keyring: Keyring) -> None:
    """Seals audit rows of all tenants that are older than signing."""
    await _in_each_tenant(owner, lambda tenant: seal(owner, tenant, keyring))


async def _in_each_tenant(owner: asyncpg.Connection, work: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Returns the result of `work` for each tenant. It runs in a transaction of that tenant."""
    results: dict[str, T] = {}
    for row in await owner.fetch("SELECT tenant_id FROM tenants ORDER BY tenant_id"):
        async with owner.transaction():
            await owner.execute("SELECT set_config('perdure.tenant', $1, true)", row["tenant_id"])
            results[row["tenant_id"]] = await work(row["tenant_id"])
    return results


def _write_private(path: Path, text: str) -> None:
    """Replaces the file as a whole, readable only by its owner."""
    fresh = _private(path, text)
    fresh.replace(path)


def _private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return fresh


def _made(path: Path) -> None:
    """Returns a key of the local stack, created once."""
    fresh = _private(path, secrets.token_hex(32) + "\n")
    with suppress(FileExistsError):
        os.link(fresh, path)  # written completely or not at all, and never over an existing one
    fresh.unlink()


def _fresh_token(name: str) -> str:
    return f"perdure_{name}_{secrets.token_urlsafe(24)}"


def _kept_tokens(path: Path) -> dict[str, str]:
    """Returns the local tokens, created once. An empty one is replaced.

    Raises: SystemExit with advice if they cannot be read, or if the API would reject one.
    """
    try:
        kept = named_texts(path.read_text("utf-8"))
        for name, token in kept.items():
            if token and (why := _token_fault(token)):
                raise ValueError(f"the token of {name!r} {why}, so the API would reject it")
        if same := [name for name, token in kept.items() if token and [*kept.values()].count(token) > 1]:
            raise ValueError(f"{' and '.join(map(repr, same))} have the same token")
    except FileNotFoundError:
        kept = {}
    except (OSError, ValueError) as error:
        raise SystemExit(file_fault(path, error, "restore it, or move it away to create new tokens")) from None
    tokens = {name: kept.get(name) or _fresh_token(name) for name in LOCAL_USERS}
    if tokens != kept:
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


def _no_app(kept: Mapping[str, Sequence[str]]) -> str:
    """Returns the message for the operator if no app was requested."""
    if not kept:
        return "No agent is published: set PERDURE_APP to your app folders, here and for the workers.\n"
    apps = "; ".join(f"{app} ({', '.join(agents)})" for app, agents in kept.items())
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
    done = asyncio.run(steps)
    if not settings.local and not app_folders(settings.apps, settings.examples):  # `perdure up` prints it itself
        sys.stderr.write(_no_app(done.kept))
    output: dict[str, object] = {"tokens": done.tokens, "left_out": done.left_out, "kept": done.kept}
    if done.setup_code:
        output["setup_code"] = done.setup_code
        if not settings.local:  # `perdure up` prints its own message
            sys.stderr.write(
                f"Setup code of the tenant {settings.tenant}: {done.setup_code}\nThe first user registers with "
                "it as the administrator, within 24 hours, at /sign-in or with POST /v1/auth/register.\n"
            )
    sys.stdout.write(json.dumps(output) + "\n")


if __name__ == "__main__":
    main()
