"""Before the first start of a version: roles, schema, content, and in local mode the three users with their tokens.

`python prepare.py` may be repeated; it changes only what is not there. Its last line of output is JSON with the local
tokens, which are kept in a file of mode 0600 of the data folder; Postgres knows their hashes only.
"""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path

import asyncpg

from activities.clients.script import Script
from activities.toolbox.entities import CORE_BY_NAME
from contracts.agents import PublishedAgent
from contracts.digests import sha256_hex
from graph.registry import names
from perdure.apps import Engine, find_apps, publish
from settings import Settings, needed
from store import accounts, content
from store.database import set_up
from store.migrations import upgrade
from store.provision import provision

LOCAL_TENANT = "local"
LOCAL_USERS = {"requester": ["requester"], "reviewer": ["reviewer"], "admin": ["admin", "reviewer"]}


async def prepare(settings: Settings) -> dict[str, str]:
    """Do all of it; the local tokens by user name.

    Raises: asyncpg's errors; SystemExit where a variable is missing.
    """
    owner_url = needed(settings.database_owner_url, "DATABASE_OWNER_URL")
    if settings.database_admin_url is not None:
        await provision(
            settings.database_admin_url.get_secret_value(),
            owner_url=owner_url,
            app_url=needed(settings.database_url, "DATABASE_URL"),
            relay_url=needed(settings.database_relay_url, "DATABASE_RELAY_URL"),
        )
    await asyncio.to_thread(upgrade, owner_url)
    owner = await asyncpg.connect(owner_url, server_settings={"search_path": "perdure"})
    try:
        await set_up(owner)
        await _publish(owner, settings)
        return await _local_users(owner, settings) if settings.local else {}
    finally:
        await owner.close()


async def _publish(owner: asyncpg.Connection, settings: Settings) -> None:
    engine = Engine(core_tools=tuple(CORE_BY_NAME), topologies=names(), script=Script)
    published: list[tuple[str, PublishedAgent]] = []
    core_cards = [tool.card for tool in CORE_BY_NAME.values()]
    for app in find_apps(settings.apps, engine):
        for problem in app.problems:
            sys.stderr.write(f"{problem}\n")
        published += [(app.name, agent) for agent in publish(app, core_cards)]
    async with owner.transaction():
        await accounts.ensure_tenant(owner, content.SHARED)
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", content.SHARED)
        await content.publish(owner, published)


async def _local_users(owner: asyncpg.Connection, settings: Settings) -> dict[str, str]:
    tokens = _kept_tokens(settings.home / "tokens.json")
    async with owner.transaction():
        await accounts.ensure_tenant(owner, LOCAL_TENANT)
        await owner.execute("SELECT set_config('perdure.tenant', $1, true)", LOCAL_TENANT)
        for name, roles in LOCAL_USERS.items():
            await accounts.ensure_user(owner, LOCAL_TENANT, name, roles, sha256_hex(tokens[name]))
    return tokens


def _kept_tokens(path: Path) -> dict[str, str]:
    """The local tokens, made once."""
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    tokens = {name: kept.get(name) or f"perdure_{name}_{secrets.token_urlsafe(24)}" for name in LOCAL_USERS}
    if tokens != kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(tokens, file)
    return tokens


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"tokens": asyncio.run(prepare(Settings()))}) + "\n")
