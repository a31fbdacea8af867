"""Who may register: the first person of a tenant, as its administrator; later whoever was invited, or everybody where
the operator says so."""

from contracts.errors import CallerError
from store import invitations, passwords, users
from store.database import Connection

FIRST_ROLES = ("requester", "reviewer", "admin")
ROLES = ("requester",)
LOCAL_USERS = ("requester", "reviewer", "admin")
"""The embedded stack's own, who are no persons."""
_ONE_AT_A_TIME = (
    "SELECT pg_advisory_xact_lock(hashtextextended('perdure register ' || current_setting('perdure.tenant'), 0))"
)
"""Or two could be the first."""
_TENANT = """
SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = current_setting('perdure.tenant')) AS is_there,
  EXISTS (SELECT FROM users WHERE name <> ALL($1)) AS has_people
"""


async def register(
    tx: Connection, name: str, display_name: str, hashed: str, *, invitation: str, is_open: bool, local: bool
) -> str:
    """The id of the person, who now has this password. Roles are given here, and never taken from who registers.

    `local`: on the embedded stack, whose own users are no persons.

    Raises: CallerError 403 `invitation_needed`, `invitation_invalid`; 409 `user_exists`, `name_erased`.
    """
    if invitation:
        user_id = await invitations.take(tx, invitation, name)
        if display_name:
            await tx.execute("UPDATE users SET display_name = $2 WHERE id = $1", user_id, display_name)
    else:
        await tx.execute(_ONE_AT_A_TIME)
        tenant = await tx.fetchrow(_TENANT, list(LOCAL_USERS) if local else [])
        is_first = tenant is not None and tenant["is_there"] and not tenant["has_people"]
        # A tenant that is not there is answered as one that is closed: nobody learns by this which there are.
        if not is_first and not (is_open and tenant is not None and tenant["is_there"]):
            raise CallerError(
                "invitation_needed", "an administrator must invite you; send the invitation along", status=403
            )
        roles = FIRST_ROLES if is_first else ROLES
        user_id = (await users.add(tx, name, display_name, roles, None)).id
    await passwords.put(tx, user_id, hashed, user_id)
    return user_id
