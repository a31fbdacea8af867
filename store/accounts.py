"""The tenant and people that a deployment starts with, written by the owner."""

import asyncpg

from policy.audit_key import Keyring
from store.erased_names import refuse_erased
from store.ids import new_id


async def ensure_tenant(owner: asyncpg.Connection, tenant_id: str) -> None:
    """Make the tenant, if it is not there."""
    await owner.execute("INSERT INTO tenants (tenant_id) VALUES ($1) ON CONFLICT DO NOTHING", tenant_id)


async def ensure_user(
    owner: asyncpg.Connection, tenant_id: str, name: str, roles: list[str], token_sha256: str, keyring: Keyring
) -> None:
    """Make the user and its token, if they are not there; in a transaction of the tenant.

    Raises: CallerError 409 `name_erased`.
    """
    await owner.execute(
        "INSERT INTO users (id, tenant_id, name, display_name, roles) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT (tenant_id, name) DO NOTHING",
        new_id(),
        tenant_id,
        name,
        name.capitalize(),
        roles,
    )
    await refuse_erased(owner, tenant_id, keyring, name)
    await owner.execute(
        "INSERT INTO api_tokens (token_sha256, tenant_id, user_id, label, created_by) "
        "SELECT $3, $1, id, 'local', '{}' FROM users WHERE tenant_id = $1 AND name = $2 ON CONFLICT DO NOTHING",
        tenant_id,
        name,
        token_sha256,
    )


async def grant(owner: asyncpg.Connection, tenant_id: str, name: str, roles: list[str]) -> None:
    """Add these roles to what a user has."""
    await owner.execute(
        "UPDATE users SET roles = ARRAY(SELECT DISTINCT unnest(roles || $3::text[]) ORDER BY 1) "
        "WHERE tenant_id = $1 AND name = $2",
        tenant_id,
        name,
        roles,
    )
