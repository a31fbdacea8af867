"""One address for two applications: the API for programs, the pages for people."""

from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API_PATHS = ("/v1", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""The API's paths, with all that is below them; every other path is a page's."""
SESSION_FORMS = ("/sign-in", "/sign-out")
"""What is posted here begins or ends a session, which is the API's."""


class Front:
    """Hands a request on by its path. The process's own life (start, end) is the API's."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api, self._pages = api, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the pages, or to the API."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
        elif not is_of_api(scope["method"], scope["path"]):
            await self._pages(scope, receive, send)
        elif scope["path"] == SESSION_FORMS[0] and "text/html" in Headers(scope=scope).get("accept", ""):
            await self._api(scope, receive, _back_to_the_form(scope, send))
        else:
            await self._api(scope, receive, send)


def _back_to_the_form(scope: Scope, send: Send) -> Send:
    """A browser's form that the API refuses before it is looked at leads back to the form, which says why."""
    turned_away = False

    async def told(message: Message) -> None:
        nonlocal turned_away
        if message["type"] == "http.response.start" and message["status"] >= 400:
            turned_away = True
            await RedirectResponse(_form_again(scope, message["status"], Headers(raw=message["headers"])), 303)(
                scope, _nothing, send
            )
        elif not turned_away:
            await send(message)

    return told


def _form_again(scope: Scope, status: int, said: Headers) -> str:
    came_from = dict(parse_qsl(urlsplit(Headers(scope=scope).get("referer", "")).query))
    after = said.get("retry-after", "")
    kept = {name: came_from[name] for name in ("next", "invitation") if came_from.get(name)}
    failed = "rate_limited" if status == 429 else "turned_away"
    return "/sign-in?" + urlencode({"failed": failed, **kept, **({"after": after} if after.isdecimal() else {})})


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def is_of_api(method: str, path: str) -> bool:
    """Whether a request is for the API."""
    if path in SESSION_FORMS:
        return method == "POST"
    return any(path == each or path.startswith(each + "/") for each in API_PATHS)
