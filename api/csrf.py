"""A browser sends its cookie along with whatever any page makes it send, so the cookie alone changes nothing.

A request that changes something also shows that a page of this server made it: by a header of our own, which another
site's page cannot set, or by the form token of the session, which it cannot read.
"""

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.types import Scope

from api.auth import OPEN_PATHS, SIGN_IN, is_secure, session_in
from api.services import Services
from contracts.errors import CallerError
from policy.same_site import SAFE_METHODS, is_foreign
from policy.text import is_clean

HEADER = b"x-perdure-request"
"""Any value will do."""
FIELD = "csrf"
"""Of a form."""
FORM = "application/x-www-form-urlencoded"
_PURPOSE = "form token"
_MOST_FIELDS = 2_000


def form_token(services: Services, session_id: str) -> str:
    """What every form of this session's pages carries in the field `csrf`."""
    return services.tokens.keys.newest.derived(_PURPOSE, session_id)


def check(services: Services, scope: Scope, headers: Mapping[bytes, bytes], body: bytes) -> None:
    """Let pass what no other site's page can have sent.

    Raises: CallerError 403 `foreign_origin`, `csrf_missing`; 422 for a form that cannot be read.
    """
    form = _fields(headers, body)
    if scope["method"] in SAFE_METHODS or headers.get(b"authorization"):
        return
    host, origin, site = (_text(headers, name) for name in (b"host", b"origin", b"sec-fetch-site"))
    if is_foreign(host, origin, site):
        raise CallerError("foreign_origin", "a page of another site sent this", status=403)
    if scope["path"] in OPEN_PATHS or scope["path"] == SIGN_IN:
        return
    session_id = session_in(services, _text(headers, b"cookie"), secure=is_secure(services, scope))
    if session_id is None or headers.get(HEADER):
        return
    given = form.get(FIELD, [""])[0]
    if not services.tokens.keys.knows(given, _PURPOSE, session_id):
        raise CallerError(
            "csrf_missing",
            f"with a session cookie, send the header `{HEADER.decode()}`, or the form's field `{FIELD}`",
            status=403,
        )


def _fields(headers: Mapping[bytes, bytes], body: bytes) -> dict[str, list[str]]:
    if not _text(headers, b"content-type").startswith(FORM):
        return {}
    try:
        found = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise CallerError("form_unreadable", "the form cannot be read") from None
    if not all(map(is_clean, (*found, *(value for values in found.values() for value in values)))):
        raise CallerError("text_not_storable", "a text holds a NUL")
    return found


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")
