"""How many bytes a conversation, a user and a tenant may keep, and the refusal when a quota is reached."""

from dataclasses import dataclass
from enum import StrEnum

from contracts.errors import CallerError
from policy.printable import size


class Scope(StrEnum):
    """Whose quota it is."""

    CONVERSATION = "conversation"
    USER = "user"
    TENANT = "tenant"


VARIABLES = {
    Scope.CONVERSATION: "PERDURE_BYTES_PER_CONVERSATION",
    Scope.USER: "PERDURE_BYTES_PER_USER",
    Scope.TENANT: "PERDURE_BYTES_PER_TENANT",
}
FILES_VARIABLE = "PERDURE_FILES_PER_CONVERSATION"
_SUBJECTS = {
    Scope.CONVERSATION: "this conversation keeps",
    Scope.USER: "you keep",
    Scope.TENANT: "all users of your tenant together keep",
}
_WAYS_OUT = {
    Scope.CONVERSATION: "begin another conversation, or delete files of this one",
    Scope.USER: "delete files or whole conversations with files",
    Scope.TENANT: "ask an administrator",
}


@dataclass(frozen=True, slots=True)
class Quotas:
    """The deployment's quotas; 0 is none."""

    conversation_bytes: int = 0
    user_bytes: int = 0
    tenant_bytes: int = 0
    conversation_files: int = 0

    def of(self, scope: Scope) -> int:
        """The bytes that this scope may keep, 0 if it has no quota."""
        quotas = (self.conversation_bytes, self.user_bytes, self.tenant_bytes)
        return dict(zip(Scope, quotas, strict=True))[scope]


@dataclass(frozen=True, slots=True)
class Used:
    """What is kept now, in bytes."""

    conversation: int = 0
    user: int = 0
    tenant: int = 0

    def of(self, scope: Scope) -> int:
        """The bytes that this scope keeps."""
        return dict(zip(Scope, (self.conversation, self.user, self.tenant), strict=True))[scope]


def exceeded(used: Used, quotas: Quotas, more: int = 0) -> Scope | None:
    """The first quota that is exceeded with `more` bytes added, the narrowest first; None if it all fits."""
    return next((each for each in Scope if 0 < quotas.of(each) < used.of(each) + more), None)


def quota_reached(used: Used, quotas: Quotas, scope: Scope) -> CallerError:
    """The refusal 429 `quota_reached`. Waiting does not help, so it names no time to come back."""
    held, limit, variable = used.of(scope), quotas.of(scope), VARIABLES[scope]
    message = (
        f"{_SUBJECTS[scope]} {size(held)}, and the quota is {size(limit)}: {_WAYS_OUT[scope]}; "
        f"an operator can raise {variable}"
    )
    details: dict[str, object] = {
        "scope": scope.value,
        "used_bytes": held,
        "limit_bytes": limit,
        "variable": variable,
        "retry_after_seconds": None,
    }
    return CallerError("quota_reached", message, details, status=429)


def check(used: Used, quotas: Quotas, more: int = 0) -> None:
    """Raises: CallerError 429 `quota_reached` if `more` bytes do not fit."""
    scope = exceeded(used, quotas, more)
    if scope is not None:
        raise quota_reached(used, quotas, scope)


def check_files(count: int, quotas: Quotas) -> None:
    """Raises: CallerError 429 `quota_reached` if a conversation with so many files may have no more."""
    most = quotas.conversation_files
    if 0 < most <= count:
        message = f"this conversation has {count} files, the most ({FILES_VARIABLE}): delete some, or begin another"
        details: dict[str, object] = {
            "scope": Scope.CONVERSATION.value,
            "used_files": count,
            "limit_files": most,
            "variable": FILES_VARIABLE,
            "retry_after_seconds": None,
        }
        raise CallerError("quota_reached", message, details, status=429)
