"""Who may write where, and what the writing is worth (S2-66, S2-69, S2-70). Nothing is guessed: no rule, no write."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.documents import Scope, Trust
from contracts.errors import CallerError
from policy.credentials import OWN, Credential
from policy.documents.kinds import USER_PREFERENCE, type_fault

ADMIN = "admin"
POLICY_CODES = frozenset(
    {"memory_unauthenticated", "store_archived", "workspace_read_only", "store_not_yours", "type_not_allowed"}
)
"""The refusals that are reported as `memory.policy.denied`."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: a person, or an agent in the turn of a person."""

    user_id: str | None
    roles: frozenset[str] = frozenset()
    is_agent: bool = False
    credential: Credential = OWN
    """What a person was signed in by."""

    @property
    def is_admin(self) -> bool:
        """An agent is none, whoever it works for."""
        return ADMIN in self.roles and not self.is_agent


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document belongs."""

    store: str
    """Slug."""
    scope: Scope
    owner_id: str | None
    """The person whose it is; None in a workspace."""
    archived: bool = False


def write_refusal(writer: Writer, place: Place, document_type: str) -> CallerError | None:
    """Why this writer may not write a document of this type here; None where it may."""
    if writer.user_id is None:
        return _denied("memory_unauthenticated", "nobody is known to write this", 401)
    if place.archived:
        return _denied("store_archived", f"the store {place.store} is archived; nothing is written there", 409)
    if place.scope is Scope.WORKSPACE and not writer.is_admin:
        if writer.is_agent:
            said = "an agent does not write for a whole workspace; propose a promotion"
        else:
            said = "only an administrator writes for a whole workspace; propose a promotion"
        return _denied("workspace_read_only", said, 403)
    if place.scope is not Scope.WORKSPACE and place.owner_id != writer.user_id:
        return _denied("store_not_yours", "these documents are somebody else's", 403)
    fault = type_fault(document_type)
    if fault is not None:
        return CallerError("document_type_unknown", fault)
    if writer.is_agent and place.scope is Scope.USER and document_type != USER_PREFERENCE:
        return _denied("type_not_allowed", f"an agent keeps a {USER_PREFERENCE} of a user and nothing else", 403)
    return None


def evidence_refusal(writer: Writer, evidence_summary: str, *, required: bool) -> CallerError | None:
    """Why an agent's write does not say enough of what it rests on (S2-69)."""
    if not required or not writer.is_agent or evidence_summary.strip():
        return None
    return CallerError("evidence_missing", "say in evidence_summary what this rests on")


def trust_of(writer: Writer, scope: Scope) -> Trust:
    """What a version is worth by who writes it. What an agent writes is a draft, also over what a person wrote."""
    if writer.is_agent:
        return Trust.AGENT_DRAFT
    return Trust.ADMIN_APPROVED if scope is Scope.WORKSPACE else Trust.USER_AUTHORED


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of a patch."""

    find: str
    replace: str


def patched(content: str, edits: Sequence[Edit]) -> str:
    """`content` with each edit made in turn.

    Raises: CallerError 422 `patch_mismatch` where a text to replace does not stand there exactly once.
    """
    for number, edit in enumerate(edits):
        found = content.count(edit.find) if edit.find else 0
        if found != 1:
            said = f"the text to replace stands there {found} times; it must be there exactly once"
            raise CallerError("patch_mismatch", said, {"edit": number, "found": found})
        content = content.replace(edit.find, edit.replace)
    return content


def stale(expected_sha256: str, sha256: str) -> CallerError | None:
    """Why a change of a version that was read does not fit the one that is there now (S2-68)."""
    if expected_sha256 == sha256:
        return None
    said = "the document has changed since it was read; read it again"
    return CallerError("memory_conflict", said, {"sha256": sha256}, status=409)


def _denied(code: str, message: str, status: int) -> CallerError:
    return CallerError(code, message, status=status)
