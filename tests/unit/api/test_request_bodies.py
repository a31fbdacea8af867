"""What holds for every request body, cookie and stream."""

import json
import re
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from perdure.api import credentials
from perdure.api.app import create_app
from perdure.api.rate_limits import OpenStreams
from perdure.api.request_bodies import Body, CommentBody, DecisionBody, SettleBody
from perdure.api.streams import encode_frame
from perdure.contracts.errors import LimitReached
from perdure.core.approvals.decisions import Decision
from perdure.core.events.stream import Frame
from perdure.settings import Settings

BODIES = Body.__subclasses__()
NUMBERS = [
    (body, name)
    for body in BODIES
    for name, field in body.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)}
]


def refused(body: type[BaseModel], name: str, value: object) -> bool:
    """Whether this value is, whatever else is missing."""
    try:
        body.model_validate({name: value})
    except ValidationError as error:
        return any(each["loc"][0] == name for each in error.errors())
    return False


@pytest.mark.parametrize(("body", "name"), NUMBERS, ids=[f"{body.__name__}.{name}" for body, name in NUMBERS])
def test_a_number_is_neither_a_boolean_nor_a_text(body: type[BaseModel], name: str) -> None:
    wrong: list[object] = [True, False, "1", "nan", float("nan"), float("inf"), [1], {}]
    for value in wrong:
        assert refused(body, name, value), f"{body.__name__}.{name} takes {value!r}"
    assert not refused(body, name, 1)


def named_in(part: Any) -> set[str]:
    return set(re.findall(r"#/components/schemas/(\w+)", json.dumps(part)))


def test_every_request_body_field_and_parameter_is_described() -> None:
    described = create_app(Settings(_env_file=None)).openapi()
    schemas: dict[str, Any] = described["components"]["schemas"]
    operations = [operation for item in described["paths"].values() for operation in item.values()]
    contents = [content for each in operations for content in each.get("requestBody", {}).get("content", {}).values()]
    bodies = named_in(contents)
    while inner := {name for body in bodies for name in named_in(schemas[body])} - bodies:
        bodies |= inner
    bodies -= {"JsonValue"}
    assert len(bodies) > 50
    assert [name for name in bodies if not schemas[name].get("description")] == []
    assert [name for name in bodies if "/v1/" in schemas[name]["description"]] == [], "the route says nothing"
    fields = [(name, field, of) for name in bodies for field, of in schemas[name].get("properties", {}).items()]
    assert [(name, field) for name, field, of in fields if not of.get("description")] == []
    parameters = [parameter for each in operations for parameter in each.get("parameters", [])]
    assert [each["name"] for each in parameters if not each.get("description")] == []


def test_the_schema_has_numbers_and_bodies_to_test() -> None:
    assert len(NUMBERS) >= 9 and len(BODIES) >= 17


@pytest.mark.parametrize("unseen", ["", "  ", "\u200b\u2060", "\u3164"])
def test_a_comment_of_invisible_characters_is_empty(unseen: str) -> None:
    assert CommentBody(comment=unseen).comment == ""
    decision = DecisionBody(decision=Decision.REJECT, digest="d", comment=unseen, reason_code=unseen)
    assert (decision.comment, decision.reason_code) == ("", "")
    with pytest.raises(ValidationError):
        SettleBody(outcome="happened", comment=unseen)
    assert CommentBody(comment="\u200bno ").comment == "\u200bno ", "what is seen stays as it was said"


@pytest.mark.parametrize(("secure", "named"), [(True, "__host-perdure_session=v"), (False, "perdure_session=v")])
def test_a_cookie_is_hidden_from_scripts_and_subdomains_and_over_tls_secure(secure: bool, named: str) -> None:
    answer, expires = Response(), datetime(2027, 1, 1, tzinfo=UTC)
    credentials.set_cookie(answer, credentials.SESSION_COOKIE, "v", secure=secure, expires=expires)
    said = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {named, "httponly", "samesite=lax", "path=/"} <= said and ("secure" in said) is secure
    assert not any(part.startswith("domain") for part in said)


@pytest.mark.parametrize("secure", [True, False])
def test_a_cookie_is_cleared_under_its_own_name(secure: bool) -> None:
    name, value = credentials.clear_cookie_header(credentials.SESSION_COOKIE, secure=secure)
    said, own = value.decode(), credentials.cookie_name(credentials.SESSION_COOKIE, secure=secure)
    assert name == b"set-cookie" and said.startswith(own + "=")
    assert "Max-Age=0" in said and ("Secure" in said) is secure


@pytest.mark.parametrize(("header", "secure", "value"), [
    ("perdure_session=a.b-c", False, "a.b-c"), ("x=1; perdure_session=v ; y", False, "v"),
    ("__Host-perdure_session=v", True, "v"), ("perdure_session=planted", True, ""),
    ("perdure_session=one; perdure_session=two", False, ""),
    ("perdure_session=same; perdure_session=same", False, "same"), ("", False, ""), ("perdure_session", False, ""),
    ("perdure_session=" + "x" * 20_000, False, ""),
])  # fmt: skip
def test_a_cookie_is_read_only_from_an_unambiguous_header(header: str, secure: bool, value: str) -> None:
    assert credentials.read_cookie(header, credentials.SESSION_COOKIE, secure=secure) == value


@pytest.mark.parametrize(("here", "refused", "limit", "others"), [
    (("ann", "ann"), "ann", 2, [("t", "bob"), ("other", "ann")]),
    (("ann", "ann", "bob"), "eve", 3, [("other", "eve")]),
], ids=["of a person", "of a tenant's people together"])  # fmt: skip
def test_a_met_limit_is_named(here: tuple[str, ...], refused: str, limit: int, others: list[tuple[str, str]]) -> None:
    streams = OpenStreams(per_user=2, per_tenant=3)
    with ExitStack() as held:
        for user in here:
            held.enter_context(streams.counting("t", user))
        with pytest.raises(LimitReached) as no:
            held.enter_context(streams.counting("t", refused))
        assert no.value.details["limit"] == limit and no.value.http_status == 429
        for tenant, user in others:
            held.enter_context(streams.counting(tenant, user))


def test_an_event_can_be_read_by_every_idea_of_a_line_end() -> None:
    data = {"text": "one\u2028two\u0085three\u2029four\x0b\x1c\r\n\U0001f600"}
    sent = encode_frame(Frame("token", "1", "t", data)).decode()
    assert sent.splitlines() == sent.split("\n")[:-1]
    assert json.loads(next(line for line in sent.splitlines() if line.startswith("data:"))[5:]) == data
