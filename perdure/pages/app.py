"""The application of the pages: its routes, the headers of every response, and its error pages."""

import re
from contextlib import suppress
from urllib.parse import parse_qsl, urlencode, urlsplit

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.client import ApiError, AsyncClient
from perdure.core.memory.files import MAX_UPLOAD_BYTES
from perdure.core.request_origin import local_path
from perdure.pages import agents, calls, chat, identity, memory, status, turns
from perdure.pages.approvals import decide, inbox
from perdure.pages.approvals import page as approval_page
from perdure.pages.render import MOUNTED_AT, Assets, page
from perdure.pages.request import BrowserRequest, Form, PageProblem, StaleForm, address_of, client_for, problem_of

ROUTERS = (
    identity.sign_in_router, identity.resend_router, inbox.inbox_router, inbox.bulk_router, inbox.own_decisions_router,
    calls.router, memory.router, decide.decide_router, approval_page.router, decide.verbs_router, turns.router,
    chat.chat_router, chat.conversation_router, chat.answers_router, chat.files_router, status.status_router,
    agents.agents_router, agents.topology_router, status.reference_router,
)  # fmt: skip
_SECURITY_HEADERS = {
    # Scripts, styles, images and connections only from this server, and no framing by other pages.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_DRAFT_PATH = re.compile(r"(/review/[0-9a-f-]{36})/\w+|(/chat/[0-9a-f-]{36})(?:/files)?")
"""Paths of forms whose page can be shown again with the typed text. Every other form is offered for sending unchanged.
"""
_RETRYABLE_STATUSES = frozenset({429, 503})
_MAX_NEXT_CHARACTERS = 500
"""The API's limit."""
STALE_FORM_HEADER = {"Perdure-Form": "stale"}
"""Header by which the page's script recognizes that a form is of an earlier session."""
API_PATHS = ("/v1", "/healthz", "/readyz", "/metrics", "/openapi.json")
"""The API's paths, each with all paths below it. Every other path belongs to the pages."""
SESSION_FORMS = ("/sign-in", "/sign-out")
"""Paths whose POST requests start or end a session, which is the API's task."""
_log = structlog.get_logger(__name__)


def create_pages(api: ASGIApp, max_upload_bytes: int = MAX_UPLOAD_BYTES) -> FastAPI:
    """Creates the pages for this API, which accepts files up to `max_upload_bytes`."""
    app = FastAPI(title="Perdure pages", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.api = api
    app.state.most_upload_bytes = max_upload_bytes
    app.add_middleware(SecurityHeaders)
    app.mount(MOUNTED_AT, Assets(), name="assets")
    for router in ROUTERS:
        app.include_router(router)
    _install_error_handlers(app)
    return app


class SecurityHeaders:
    """Adds the security headers to every response, and `no-store`, so that no proxy or browser caches a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and adds the headers to the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return await (_require_sign_in(request) if error.status == 401 else _show_problem(request, error))

    @app.exception_handler(PageProblem)
    async def failed(request: Request, error: PageProblem) -> Response:
        return await _show_problem(request, error)

    @app.exception_handler(StaleForm)
    async def stale(request: Request, error: StaleForm) -> Response:
        response = await _show_kept_form(request, status=error.status, signed_in=True)
        response.headers.update(STALE_FORM_HEADER)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await _show_problem(request, PageProblem(422, "The page address is invalid. Check the link."))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        messages = {404: "Page not found.", 405: "This address does not support the request. Open it as a normal page."}
        code = "not_found" if error.status_code == 404 else PageProblem.code
        return await _show_problem(request, PageProblem(error.status_code, messages.get(error.status_code, ""), code))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        # Starlette raises it again after this response, so that the server logs its traceback.
        _log.error("page_failed", error=type(error).__name__, path=request.url.path)
        return await _show_problem(
            request, PageProblem(500, "An internal error occurred. The server log has the details.")
        )


async def _show_problem(request: Request, error: PageProblem | ApiError) -> Response:
    """Shows a problem as a page, or as one line if a script requested it. A form that can succeed later is kept."""
    async with client_for(request) as api:
        problem = problem_of(error)
        visit = await _visit_for_problem(request, api)
        form: Form | None = getattr(request.state, "form", None)
        if form is not None and problem.status in _RETRYABLE_STATUSES and not visit.is_live:
            pairs = [pair for pair in form.pairs if pair[0] != "csrf"] if visit.me else form.pairs
            values = {"title": problem.title, "reason": problem.message, "pairs": pairs, "action": request.url.path}
            response = page(visit, "resend.html", status=problem.status, **values)
        else:
            template = "problem_line.html" if visit.is_live else "problem.html"
            response = page(visit, template, status=problem.status, problem=problem, back=_referring_page(request))
    if problem.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(round(problem.retry_after_seconds))
    return response


async def _visit_for_problem(request: Request, api: AsyncClient) -> BrowserRequest:
    """Returns the visit for an error page, with its user if they can be determined."""
    visit = BrowserRequest(request, api)
    with suppress(ApiError):
        return visit if visit.is_live else BrowserRequest(request, api, await api.auth.me())
    return visit


def _referring_page(request: Request) -> str:
    """Returns the page of this server that a form was sent from; empty if there is none."""
    referer = urlsplit(request.headers.get("referer", ""))
    is_own_form = request.method == "POST" and referer.netloc == request.url.netloc
    return local_path(referer.path, "") if is_own_form else ""


async def _require_sign_in(request: Request) -> Response:
    """Answers a request without a session: redirects users to the sign-in page and back, keeps forms, and returns 401
    to scripts."""
    if "hx-request" in request.headers:
        return Response(status_code=401)
    if request.method == "GET":
        address = address_of(request)
        destination = address if len(address) <= _MAX_NEXT_CHARACTERS else request.url.path
        return RedirectResponse("/sign-in?" + urlencode({"next": destination}), 303)
    return await _show_kept_form(request, status=401, signed_in=False)


async def _show_kept_form(request: Request, *, status: int, signed_in: bool) -> Response:
    """Shows the typed text, so that it can be sent again after sign-in."""
    form: Form | None = getattr(request.state, "form", None)
    draft_match = _DRAFT_PATH.fullmatch(request.url.path)
    async with client_for(request) as api:
        return page(
            BrowserRequest(request, api),
            "session_ended.html",
            status=status,
            signed_in=signed_in,
            draft=f"{draft_match[1] or draft_match[2]}/draft" if draft_match else "/kept",
            kept_for=request.url.path,
            pairs=[pair for pair in form.pairs if pair[0] != "csrf"] if form else [],
        )


class ApiAndPages:
    """Routes a request by its path. The lifespan of the process belongs to the API. The API for programs and the pages
    for users share one address."""

    def __init__(self, api: ASGIApp, pages: ASGIApp) -> None:
        self._api, self._pages = api, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request to the pages or to the API."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
        elif not is_api_request(scope["method"], scope["path"]):
            await self._pages(scope, receive, send)
        elif scope["path"] == SESSION_FORMS[0] and "text/html" in Headers(scope=scope).get("accept", ""):
            await self._api(scope, receive, _redirect_rejected_form(scope, send))
        else:
            await self._api(scope, receive, send)


def _redirect_rejected_form(scope: Scope, send: Send) -> Send:
    """Wraps `send`, so that a browser's form that the API rejects is redirected to the form, which shows the reason."""
    was_rejected = False

    async def send_or_redirect(message: Message) -> None:
        nonlocal was_rejected
        if message["type"] == "http.response.start" and message["status"] >= 400:
            was_rejected = True
            await RedirectResponse(_sign_in_address(scope, message["status"], Headers(raw=message["headers"])), 303)(
                scope, _receive_empty_body, send
            )
        elif not was_rejected:
            await send(message)

    return send_or_redirect


def _sign_in_address(scope: Scope, status: int, headers: Headers) -> str:
    referring_query = dict(parse_qsl(urlsplit(Headers(scope=scope).get("referer", "")).query))
    retry_after = headers.get("retry-after", "")
    preserved = {name: referring_query[name] for name in ("next", "invitation") if referring_query.get(name)}
    failed = "rate_limited" if status == 429 else "turned_away"
    return "/sign-in?" + urlencode(
        {"failed": failed, **preserved, **({"after": retry_after} if retry_after.isdecimal() else {})}
    )


async def _receive_empty_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def is_api_request(method: str, path: str) -> bool:
    """Returns whether a request is for the API."""
    if path in SESSION_FORMS:
        return method == "POST"
    return any(path == each or path.startswith(each + "/") for each in API_PATHS)
