"""The status page of the deployment, and the API reference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from perdure.client import ApiError
from perdure.client.requests import Call
from perdure.core.json_schema import field_type, follow_reference
from perdure.pages.render import page
from perdure.pages.request import AnonymousVisit, PageProblem, SignedInVisit

status_router = APIRouter()
_METHODS = ("get", "post", "put", "patch", "delete")
_COMMON_HEADERS = ("Idempotency-Key", "Last-Event-ID")
_JSON_MEDIA_TYPE = "application/json"


@status_router.get("/status")
async def status(visit: SignedInVisit) -> HTMLResponse:
    """Shows the page. For its script, returns the part that changes."""
    try:
        deployment = await visit.api.status.get()
    except ApiError as error:
        if error.code != "role_required":
            raise
        raise PageProblem(403, "This page requires the role reviewer or admin.", error.code) from None
    return page(visit, "status_now.html" if visit.is_live else "status.html", deployment=deployment)


# The API reference needs no scripts and no content from other hosts.
reference_router = APIRouter()


@reference_router.get("/docs")
async def reference(visit: AnonymousVisit) -> HTMLResponse:
    """Shows every request of the API, for developers."""
    document = await visit.api.send(Call("GET", "/openapi.json", lambda response: response.json()))
    return page(visit, "reference.html", groups=operations_by_group(document), api_info=document["info"])


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter or field of a request."""

    name: str
    place: str
    """`path`, `query`, `header` or `body`."""
    allowed_values: str
    """The allowed values, in words."""
    required: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One request."""

    method: str
    path: str
    summary: str
    meaning: str
    fields: Sequence[Field]


def operations_by_group(description: Mapping[str, Any]) -> dict[str, list[Operation]]:
    """Returns every request of an OpenAPI description, grouped by its first tag."""
    groups: dict[str, list[Operation]] = {}
    for path, item in description["paths"].items():
        for method in _METHODS:
            if method in item:
                operation = item[method]
                group = str((operation.get("tags") or ["others"])[0])
                groups.setdefault(group, []).append(_read_operation(method, path, operation, description))
    return groups


def _read_operation(method: str, path: str, operation: Mapping[str, Any], root: Mapping[str, Any]) -> Operation:
    fields = [*_parameter_fields(operation, root), *_body_fields(operation, root)]
    return Operation(
        method.upper(), path, str(operation.get("summary", "")), str(operation.get("description", "")), fields
    )


def _parameter_fields(operation: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Field]:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] not in _COMMON_HEADERS:
            schema = parameter.get("schema", {})
            meaning = str(parameter.get("description") or "")
            yield Field(
                parameter["name"], parameter["in"], field_type(schema, root), bool(parameter.get("required")), meaning
            )


def _body_fields(operation: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Field]:
    schema = operation.get("requestBody", {}).get("content", {}).get(_JSON_MEDIA_TYPE, {}).get("schema")
    body = follow_reference(schema, root)
    for name, property_schema in body.get("properties", {}).items():
        meaning = str(follow_reference(property_schema, root).get("description") or "")
        yield Field(name, "body", field_type(property_schema, root), name in body.get("required", ()), meaning)
