"""One address for two applications: the API for programs, the pages for people."""

from starlette.types import ASGIApp, Receive, Scope, Send

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
        paged = scope["type"] == "http" and not is_of_api(scope["method"], scope["path"])
        await (self._pages if paged else self._api)(scope, receive, send)


def is_of_api(method: str, path: str) -> bool:
    """Whether a request is for the API."""
    if path in SESSION_FORMS:
        return method == "POST"
    return any(path == each or path.startswith(each + "/") for each in API_PATHS)
