"""All errors have one form: {"error": {code, message, details, request_id}}. Invalid input is 4xx, an outage is 503."""

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from temporalio.service import RPCError

from perdure.contracts.errors import CallerError, PerdureError
from perdure.core.text import clean
from perdure.store.database import Database
from perdure.store.faults import StoreFault, object_names, store_fault

_log = structlog.get_logger(__name__)
_CODES = {404: "not_found", 405: "method_not_allowed", 406: "not_acceptable", 415: "unsupported_media_type"}
RETRY_AFTER_SECONDS = 2
UNAVAILABLE_MESSAGE = "The service is temporarily unavailable; retry later"
PART_ERRORS: tuple[type[Exception], ...] = (*Database.outages, RPCError, OSError)
"""Errors of Postgres, Temporal and files. `outage_code` decides which of them become 503."""


def outage_code(error: BaseException) -> str:
    """Returns the code of the 503 for an exception, or an empty string for a fault of the program (500)."""
    if isinstance(error, RPCError):
        return "unavailable"
    return "" if store_fault(error) in (None, StoreFault.REFUSED) else "store_unavailable"


def log_outage(error: BaseException, path: str, request_id: str = "") -> None:
    """Logs which service is unavailable, with the table or right that is missing."""
    names = {"reason": reason} if (reason := object_names(error)) else {}
    _log.warning("part_unavailable", error=type(error).__name__, path=path, request_id=request_id, **names)


def error_body(code: str, message: str, details: object, request_id: str) -> dict[str, object]:
    """Returns the body that all errors share: `{"error": {code, message, details, request_id}}`."""
    return {"error": {"code": code, "message": message, "details": details, "request_id": request_id}}


def item_error(error: CallerError) -> dict[str, object]:
    """Returns the error of one item in a request for several: code, message, details and HTTP status."""
    return {"code": error.code, "message": error.message, "details": error.details, "status": error.http}


class ErrorDetail(BaseModel):
    """The details of an error."""

    code: str
    message: str
    details: dict[str, Any]
    request_id: str


class ErrorAnswer(BaseModel):
    """The body that all errors share."""

    error: ErrorDetail


DOCUMENTED_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request is malformed"},
    401: {"model": ErrorAnswer, "description": "The token is missing, unknown or expired"},
    403: {"model": ErrorAnswer, "description": "The caller's role does not allow this action"},
    404: {"model": ErrorAnswer, "description": "The resource does not exist, or belongs to another tenant or user"},
    409: {"model": ErrorAnswer, "description": "The request conflicts with the current state; see `details`"},
    410: {"model": ErrorAnswer, "description": "The deadline has passed"},
    413: {"model": ErrorAnswer, "description": "The body is too large; `details.limit_bytes` is the limit"},
    415: {"model": ErrorAnswer, "description": "The `Content-Type` header is not `application/json`"},
    422: {"model": ErrorAnswer, "description": "The request is invalid; `details` names the fields"},
    429: {
        "model": ErrorAnswer,
        "description": (
            "A rate limit or a quota is reached. With `Retry-After`: retry after that time. Without it: the request "
            "does not fit into a quota. Then `details` has its `scope` and `variable`, what is stored (`used_bytes` or "
            "`used_files`), the quota (`limit_bytes` or `limit_files`), and what the refused request would add "
            "(`added_bytes` or `added_files`)"
        ),
    },
    503: {
        "model": ErrorAnswer,
        "description": "The service is temporarily unavailable; retry after `Retry-After` seconds",
    },
}
"""The errors that any route can return."""


def respond_error(
    request: Request,
    status: int,
    code: str,
    message: str,
    details: object = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Returns an error as a JSON response with this HTTP status."""
    body = error_body(code, message, jsonable_encoder(details or {}), _id_of(request))
    return JSONResponse(body, status, headers)


def _id_of(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))


async def _perdure_error_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PerdureError)
    status = error.http if isinstance(error, CallerError) else error.http_status
    headers = {}
    if status in (429, 503):
        wait = error.details.get("retry_after_seconds", RETRY_AFTER_SECONDS)
        if wait is not None:  # With None, a retry does not help.
            headers["Retry-After"] = str(wait)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status >= 500:
        _log.error("request_failed", code=error.code, path=request.url.path, request_id=_id_of(request))
    return respond_error(request, status, error.code, error.message, error.details, headers)


async def _invalid_input_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The input is not repeated: it can be a secret, and it may not be encodable.
    fields = [
        {"field": clean(".".join(str(part) for part in each["loc"])), "problem": clean(each["msg"])}
        for each in error.errors()[:20]
    ]
    return respond_error(
        request,
        422,
        "invalid_input",
        "The request is invalid; `details.fields` lists each field and its problem",
        {"fields": fields},
    )


async def _http_error_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "bad_request")
    headers = dict(error.headers) if error.headers else None
    return respond_error(request, error.status_code, code, str(error.detail), None, headers)


async def _unexpected_error_response(request: Request, error: Exception) -> JSONResponse:
    # Starlette raises it again after this response, so that the server logs its traceback.
    kind = type(error).__name__
    _log.error("internal_error", error=kind, path=request.url.path, request_id=_id_of(request))
    return respond_error(
        request, 500, "internal", "Internal error; the server's log has the details under this request id"
    )


async def _outage_response(request: Request, error: Exception) -> JSONResponse:
    code = outage_code(error)
    if not code:
        raise error  # as any other unexpected error: 500, with a traceback in the server's log
    log_outage(error, request.url.path, _id_of(request))
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return respond_error(request, 503, code, UNAVAILABLE_MESSAGE, None, headers)


def install_error_handlers(app: FastAPI) -> None:
    """Registers a handler for every exception that a route can raise."""
    app.add_exception_handler(PerdureError, _perdure_error_response)
    app.add_exception_handler(RequestValidationError, _invalid_input_response)
    app.add_exception_handler(HTTPException, _http_error_response)
    app.add_exception_handler(Exception, _unexpected_error_response)
    for kind in PART_ERRORS:
        app.add_exception_handler(kind, _outage_response)
