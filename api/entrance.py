"""Who comes in, and whether once too often: before a byte of the body is looked at."""

import re

from starlette.datastructures import Headers
from starlette.types import Scope

from api.auth import GUARDED, OPEN_PATHS, OPERATOR_PATHS, bearer_in, is_secure, owner_of, session_in
from api.services import Services
from contracts.errors import CallerError

_OF_CHAT = re.compile(
    r"GET /v1/approvals/[0-9a-fA-F-]{36}|POST /v1/approvals/[0-9a-fA-F-]{36}/decision|GET /v1/auth/me"
)


async def enter(scope: Scope) -> None:
    """Put the owner of the token or session where the routes look, and count the request: by its person, below `/v1`;
    by its session, for a page; by its address where there is neither. An operator's token has no owner and no count.

    Raises: CallerError 401, 403 `chat_token`; LimitReached `rate_limited`; what the database raises where it is away.
    """
    services: Services = scope["app"].state.services
    headers, secure = Headers(scope=scope), is_secure(services, scope)
    authorization, cookie = headers.get("authorization", ""), headers.get("cookie", "")
    path, count = scope["path"], services.rates.count_request
    if path in OPERATOR_PATHS and services.operators.know(bearer_in(authorization)):
        scope["state"]["is_operator"] = True
        return
    if path in OPEN_PATHS or not (path.startswith(GUARDED) or path in OPERATOR_PATHS):
        session_id = None if path in OPEN_PATHS else session_in(services, cookie, secure=secure)
        await (count(scope, "session", session_id) if session_id else count(scope))
        return
    try:
        who = await owner_of(services, authorization, cookie, secure=secure)
    except CallerError:
        await count(scope)
        raise
    if who.is_in_chat and not _OF_CHAT.fullmatch(f"{scope['method']} {path}"):
        raise CallerError("chat_token", "a chat's token reads one approval and decides on it, no more", status=403)
    scope["state"]["principal"] = who
    if not who.has_local_token:
        await count(scope, "person", who.tenant_id, who.user_id)
