"""People who sign in by a provider elsewhere, known by its issuer and the subject that it gives them."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.errors import CallerError
from policy.credentials import OWN, Credential, How
from policy.newcomers import display_name_from, name_from
from store import audit, users
from store.database import Connection


async def enter(
    tx: Connection,
    issuer: str,
    claims: Mapping[str, object],
    newcomers: tuple[str, ...],
    link_to: str | None,
    linked_by: Credential = OWN,
) -> tuple[str, Credential]:
    """The id of the person, and what they are signed in by. A new person gets an account with the roles `newcomers`;
    with `link_to`, the person who is signed in already, by `linked_by`, gets this way to sign in beside the others.

    Raises: CallerError 403 `account_closed`, `newcomers_refused`; 409 `user_exists`, `identity_taken`.
    """
    subject = str(claims["sub"])
    row = await tx.fetchrow(
        "SELECT u.id, u.disabled_at, i.created_by, i.invited_by FROM identities i JOIN users u ON u.id = i.user_id "
        "WHERE i.issuer = $1 AND i.subject = $2",
        issuer,
        subject,
    )
    if row is not None:
        user_id = str(row["id"])
        if row["disabled_at"] is not None:
            raise CallerError("account_closed", "this account is closed", status=403)
        if link_to not in (None, user_id):
            raise CallerError("identity_taken", "somebody else signs in by this identity", status=409)
        made_by, invited_by = (tuple(map(str, row[name])) for name in ("created_by", "invited_by"))
        return user_id, Credential(How.OIDC, made_by, invited_by)
    if link_to is None:
        name = name_from(claims)
        if not newcomers or name is None:
            raise CallerError("newcomers_refused", "you are not known here; ask an administrator", status=403)
        # An account of this name that is there already is never taken over: its owner signs in, and links.
        link_to = (await users.add(tx, name, display_name_from(claims), newcomers, None)).id
    await tx.execute(
        "INSERT INTO identities (tenant_id, issuer, subject, user_id, created_by, invited_by) "
        "VALUES (current_setting('perdure.tenant'), $1, $2, $3, $4, $5)",
        issuer,
        subject,
        link_to,
        linked_by.created_by,
        linked_by.invited_by,
    )
    await audit.record(tx, "user.identity_linked", link_to, {"issuer": issuer}, actor=link_to, turn_id=None)
    return link_to, replace(linked_by, how=How.OIDC)
