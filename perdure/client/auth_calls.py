"""Who the caller is, as calls and answers."""

from perdure.client.answers import Answer
from perdure.client.calls import Call, get, one, path


class Me(Answer):
    """The caller."""

    name: str
    display_name: str = ""
    user_id: str = ""
    tenant: str = ""
    roles: list[str] = []
    form_token: str | None = None
    """Of a browser's session: what its forms send along. None for a token, which no other site can make a browser
    send."""


def who_am_i() -> Call[Me]:
    """Whose token or session this is."""
    return get(path("auth", "me"), one(Me))
