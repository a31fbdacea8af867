"""API calls for the caller, sign-in, registration and the tenant's accounts."""

from collections.abc import Sequence

from pydantic import JsonValue

from perdure.client.requests import Call, get, parsed_as, path
from perdure.schemas.base import Page
from perdure.schemas.identity import Invitation, Me, Member, Registered, SignInCode, Ways


def get_sign_in_methods() -> Call[Ways]:
    """Returns the sign-in methods; no authentication is necessary."""
    return get(path("auth", "ways"), parsed_as(Ways))


def register(
    name: str,
    password: str,
    *,
    setup_code: str | None = None,
    invitation: str | None = None,
    display_name: str | None = None,
    tenant: str | None = None,
) -> Call[Registered]:
    """Registers a user with a password: the first of a tenant with its setup code, later ones with an invitation.

    It has no Idempotency-Key, because the API stores no answer with tokens that it could repeat.
    """
    fields = {
        "name": name,
        "password": password,
        "setup_code": setup_code,
        "invitation": invitation,
        "display_name": display_name,
        "tenant": tenant,
    }
    body: JsonValue = {field: value for field, value in fields.items() if value is not None}
    return Call("POST", path("auth", "register"), parsed_as(Registered), body=body)


def create_sign_in_code() -> Call[SignInCode]:
    """Creates a sign-in code for the owner of a local token. It has no Idempotency-Key, because the API stores no
    answer with a code that it could repeat."""
    return Call("POST", path("auth", "codes"), parsed_as(SignInCode))


def get_me() -> Call[Me]:
    """Returns the user of this token or session."""
    return get(path("auth", "me"), parsed_as(Me))


def list_team() -> Call[Page[Member]]:
    """Returns all accounts, including closed ones."""
    return get(path("team"), parsed_as(Page[Member]))


def invite(name: str, roles: Sequence[str] = ("requester",), *, display_name: str = "") -> Call[Invitation]:
    """Creates an account with an invitation. Only this answer contains the invitation. The call has no Idempotency-Key,
    because the API stores no answer with an invitation that it could repeat."""
    body: dict[str, JsonValue] = {"name": name, "roles": list(roles), "display_name": display_name}
    return Call("POST", path("team", "invitations"), parsed_as(Invitation), body=body)


def invite_again(name: str) -> Call[Invitation]:
    """Creates a new invitation for an account. An earlier one becomes invalid."""
    return Call("POST", path("team", name, "invitation"), parsed_as(Invitation))


def reopen(name: str) -> Call[Member]:
    """Opens a closed account again."""
    return Call("PATCH", path("team", name), parsed_as(Member), body={"active": True})


def close(name: str) -> Call[Member]:
    """Closes an account: its sessions end and its tokens become invalid. The user's records remain."""
    return Call("DELETE", path("team", name), parsed_as(Member))
