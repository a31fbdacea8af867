"""Origins of accounts and requests: the inviter, the role giver, the users of the opening client, and the credentials
that requested a turn."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from perdure.contracts.turns import TurnStatus
from perdure.core.approvals.relations import Opening, Origin
from perdure.core.identity import DEVICE_MARK_CHARACTERS, UNKNOWN_CREATOR, Credential, SignInMethod
from perdure.store.database import Connection

_BEHIND = """
SELECT DISTINCT unnest(opened_as || CASE WHEN opened = 'registration' THEN roles_by ELSE '{}' END
  || CASE WHEN opened = 'invitation' AND invited_near THEN invited_by ELSE '{}' END) AS id
FROM users WHERE id = ANY($1::uuid[]) ORDER BY id
"""
_ORIGINS = """
SELECT id, name, opened, opened_as, invited_by, invited_near, roles_by FROM users WHERE id = ANY($1::uuid[])
  OR id IN (SELECT unnest(opened_as || invited_by || roles_by) FROM users WHERE id = ANY($1::uuid[]))
"""
# Reads all users of the tenant, once for each registration in a browser with device cookies (measured: 0.2 s for
# 100,000 users on a busy machine).
_MARKED = f"""
SELECT id FROM users
WHERE left(encode(sha256(convert_to(tenant_id || '/' || id, 'UTF8')), 'hex'), {DEVICE_MARK_CHARACTERS}) = ANY($1)
ORDER BY id
"""
# Several credentials can request one turn. Their creators all count. A sign-in through a provider counts only if all of
# them have it.
_ASKED = f"""
UPDATE turns SET asked_how = CASE WHEN asked_how = '{SignInMethod.OIDC}' THEN $2 ELSE asked_how END,
  asked_by = asked_by || ARRAY(SELECT unnest($3::uuid[]) EXCEPT SELECT unnest(asked_by)) WHERE id = $1 RETURNING status
"""
_WITHOUT = frozenset({UNKNOWN_CREATOR})


@dataclass(frozen=True, slots=True)
class Accounts:
    """The origins and the names of some users, by id. It has also the names of the users in these origins."""

    origins: dict[str, Origin] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def named(self, user_ids: Iterable[str], key: str) -> dict[str, JsonValue]:
        """Returns the name of the first of these users under `key`, and those of the others under `key` with
        `_through`."""
        first, *others = [self.names[each] for each in user_ids if each in self.names] or [""]
        shown: dict[str, JsonValue] = {key: first} if first else {}
        return shown | ({f"{key}_through": [{"by": name} for name in others]} if others else {})

    def describe(self, user_id: str) -> dict[str, JsonValue]:
        """Returns what is known of an account's origin, with names, for records; empty if nothing is. The keys of names
        are those under which an erasure finds them."""
        origin = self.origins.get(user_id, Origin())
        shown: dict[str, JsonValue] = {"opened": origin.opened.value} if origin.opened else {}
        if origin.invited_near is not None:
            shown["invited_near"] = origin.invited_near
        shown |= self.named(origin.invited_by, "invited_by") | self.named(origin.opened_as, "opened_as")
        return shown | self.named(origin.roles_by, "roles_by")


async def read_accounts(tx: Connection, user_ids: Collection[str]) -> Accounts:
    """Returns the origins of these users."""
    rows = await tx.fetch(_ORIGINS, [*{*user_ids} - _WITHOUT])
    return Accounts(
        {
            str(row["id"]): Origin(
                Opening(row["opened"]),
                tuple(map(str, row["opened_as"])),
                tuple(map(str, row["invited_by"])),
                row["invited_near"],
                tuple(map(str, row["roles_by"])),
            )
            for row in rows
        },
        {str(row["id"]): row["name"] for row in rows},
    )


async def with_users_behind(tx: Connection, user_ids: Sequence[str]) -> list[str]:
    """Returns these users, then those that may be behind one of them."""
    known = [each for each in user_ids if each not in _WITHOUT]
    if not known:
        return []
    return list(dict.fromkeys((*known, *(str(row["id"]) for row in await tx.fetch(_BEHIND, known)))))


async def users_of_marks(tx: Connection, marks: Collection[str]) -> list[str]:
    """Returns the users for whom these device cookies are named (`device_mark`). Their seals are not checked here."""
    return [str(row["id"]) for row in await tx.fetch(_MARKED, [*marks])] if marks else []


async def record_role_giver(tx: Connection, user_id: str, actor: str, credential: Credential) -> None:
    """Records who set the user's roles last. `credential` is what the actor signed in with."""
    givers = [each for each in await with_users_behind(tx, credential.handed_on(actor)) if each != user_id]
    await tx.execute("UPDATE users SET roles_by = $2::uuid[] WHERE id = $1", user_id, givers)


async def record_opening(
    tx: Connection,
    user_id: str,
    opened: Opening,
    *,
    opened_as: Sequence[str] = (),
    invited_by: Sequence[str] = (),
    invited_near: bool | None = None,
) -> None:
    """Records how the account was opened. `opened_as` are the users as whom the client was signed in, or
    those whose browser it is."""
    await tx.execute(
        "UPDATE users SET opened = $2, opened_as = $3::uuid[], invited_by = $4::uuid[], invited_near = $5 "
        "WHERE id = $1",
        user_id,
        opened.value,
        [each for each in await with_users_behind(tx, opened_as) if each != user_id],
        [each for each in await with_users_behind(tx, invited_by) if each != user_id],
        invited_near,
    )


async def record_requesting(tx: Connection, turn_id: str, credential: Credential) -> TurnStatus:
    """Records the credential of a further message, or of an answer, with those that made the turn's request. Returns
    the turn's status. The caller holds the turn's lock."""
    return TurnStatus(await tx.fetchval(_ASKED, turn_id, credential.how.value, credential.created_by))
